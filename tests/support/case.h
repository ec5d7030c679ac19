// A complete forward call: descriptor, args, and guarded memory behind every pointer.
//
// Set `d` and the metadata vectors, bind(), put values in, run(). Memory that the problem does not own (padding between strides,
// unused slots and pages, rows beyond a length) stays NaN; outputs start as NaN too.
#pragma once
#include <flashattn.h>
#include <functional>
#include <string>
#include <vector>
#include "oracle/accuracy.h"
#include "oracle/oracle.h"
#include "support/buffer.h"
#include "support/rng.h"

namespace test {

struct Metadata {
    std::vector<int32_t> causal_offset, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, leftpad_k, kv_batch_idx, page_table;
};

class Case {
  public:
    using Pick = std::function<double(int64_t b, int64_t head, int64_t position, int64_t element)>;

    uint64_t seed = 0;              // of the generator; 0: written by hand
    int32_t p_dtype = 0;            // of the weights in the last run
    bool short_products = false;    // were 8-bit products summed in a matrix unit's short accumulator?
    bool p_of_8_bits = false;       // and P in 8 bits, too?
    bool rounded_q = false;         // was q rounded to bf16, and values of block types?
    bool rounded_to_bytes = false;  // were blocks of q, and of P, rounded to 8 bits?
    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    fa_forward_args_t a = FA_FORWARD_ARGS_INIT;
    Metadata metadata;
    Buffer q, k, v, o, lse, bias, bias_scale, mask, key_ranges, key_list, key_list_count, full_list, full_list_count, alibi, sinks, q_tail,
        k_tail, q_descale, k_descale, v_descale, k_shift, v_shift, o_scale, scores, rng_state, device_status, workspace;

    // Allocates all that d.operands asks for and points args at it. Call once; Rng decides on which side the guards lie.
    void bind(Rng& rng);
    oracle::Reading reading() const { return {d, a}; }

    // Values for the elements that belong to the problem, and only for those.
    void set_q(const Pick& value);
    void set_k(const Pick& value);
    void set_v(const Pick& value);
    void set_bias(const Pick& value);  // (b, head, row, key)
    void set_mask(const std::function<bool(int64_t b, int64_t head, int64_t row, int64_t key)>& attend);
    // intervals(b, head, row): pairs (begin, end) of a row's key ranges, key_range_max of them.
    void set_key_ranges(const std::function<std::vector<int32_t>(int64_t b, int64_t head, int64_t row)>& intervals);
    // lists(b, head, row): the entries of the list of a row, and of its full list.
    struct Lists {
        std::vector<int32_t> masked, full;
    };
    void set_key_lists(const std::function<Lists(int64_t b, int64_t head, int64_t row)>& lists);
    void set_descales(Rng& rng, double typical);  // and shifts of a few of them
    void fill_normal(Rng& rng, double q_size = 1, double k_size = 1, double v_size = 1);

    void use_workspace(uint64_t bytes, Rng& rng);

    // The call itself: inputs are read-only while it runs, outputs are poisoned before.
    fa_status_t run(fa_handle_t handle);

    std::vector<Buffer*> inputs();

    // Nothing was written where nothing may be: slack, gaps between rows, rows of packed tensors that belong to nobody.
    std::string check_untouched() const;
    std::string describe() const;

  private:
    void bind_metadata(Rng& rng);
    std::vector<Buffer> metadata_buffers_;
};

// Compares everything that a case has written with the oracle: o and LSE and scores (accuracy line 2), and check_untouched.
// The sentence says what is wrong first; empty when all is right.
std::string check_against_oracle(const Case& test_case, int32_t p_dtype, int64_t row_step = 1);

std::string describe(const fa_attention_desc_t& desc);

// Operands of a case with a buffer each, and those that are arrays of its metadata: the bit, the pointer's place in the args, and what
// there is. A new operand is a Buffer and a line of one of these lists; binding, freezing, describing and moving to a device follow.
struct BufferOperand {
    uint64_t bit;
    size_t pointer;
    Buffer Case::* buffer;
    int64_t (*bytes)(const oracle::Reading& reading);
    bool output;
};
struct MetadataOperand {
    uint64_t bit;
    size_t pointer;
    std::vector<int32_t> Metadata::* values;
    const char* name;
};
const std::vector<BufferOperand>& buffer_operands();
const std::vector<MetadataOperand>& metadata_operands();

}  // namespace test
