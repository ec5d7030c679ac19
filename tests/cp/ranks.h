// One rank's part of a spread problem.
#pragma once
#include <list>
#include "spread.h"
#include "support/device_memory.h"

namespace test {

struct LocalTensor {
    std::vector<char> bytes;
    int64_t unit = 1, row_bytes = 0, stride[4] = {0, 0, 0, 1};  // of a head's row; strides in units
    char* at(int64_t b, int64_t i, int64_t h) { return bytes.data() + (b * stride[0] + i * stride[1] + h * stride[2]) * unit; }
};

LocalTensor local_tensor(int32_t dtype, int64_t batch, int64_t rows, int64_t heads, int64_t dim, int64_t gap);

// One rank's memory and call.
struct Rank {
    fa_attention_desc_t d;
    fa_forward_args_t a;
    fa_backward_args_t g = FA_BACKWARD_ARGS_INIT;  // of a backward: what `a` is the forward of
    bool backward = false;
    fa_cp_desc_t spread;
    LocalTensor q, k, v, o;
    LocalTensor dout, dq, dk, dv;
    std::vector<float> lse, dlse, dsinks;
    std::vector<char> bias, mask;
    std::vector<int32_t> seqused_k, page_table;
    std::vector<fa_cp_range_t> rows, keys;
    int64_t local_rows = 0;
    bool packed = false;
};

// q, k, v and what belongs to them; o and LSE are poison.
Rank cut_rows(const Case& test_case, const Spread& spread, int32_t rank);
// To where the rank lies now.
void point(Rank& rank, bool strided);

// A rank's memory on its handle's device: args then point there, until what was written comes back.
class OnDevice {
  public:
    OnDevice(Rank& rank, fa_handle_t handle);
    void back();

  private:
    template <class T>
    void move(std::vector<T>& data, std::initializer_list<void*> fields);
    Rank& rank_;
    fa_handle_t handle_;
    std::list<std::pair<DeviceMemory, void*>> moved_;  // with where it came from
};

// Each on a thread of its own.
std::vector<RankResult> call_all(std::vector<Rank>& ranks, const Spread& spread, StandIn& room);
std::string first_error(const std::vector<RankResult>& results);

}  // namespace test
