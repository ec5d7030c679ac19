/* libflashattn for C++17, header only. Tensors know their size, and objects free themselves. flashattn.h is the manual of what is
 * computed. The names of its fields are the names here.
 *
 *     std::vector<float> q(8192), k(8192), v(8192), o(8192);
 *     flashattn::Handle handle;
 *     flashattn::Attention a;
 *     a.batch = 1, a.heads_q = 4, a.seqlen_q = a.seqlen_k = 32, a.dim_qk = 64;
 *     a.causal(FA_ALIGN_TOP_LEFT);
 *     handle.forward(a, q, k, v, o);
 *
 * An args struct has a tensor for each pointer of the C struct. A tensor that is given sets its bit in desc.operands. If the type in
 * the descriptor is 0, it becomes the tensor's element type. Otherwise the two must agree. Before each call, the size of each tensor is
 * compared with fa_extent. A tensor that is too short gives FA_INVALID_ARGUMENT, and nothing is touched.
 *
 * Errors are thrown as flashattn::Error. If FLASHATTN_NO_EXCEPTIONS is defined, or the compiler has no exceptions, each call returns a
 * Status or a Result instead. A program may link translation units of both kinds.
 *
 * Written by tools/generate_abi.py from tools/templates/flashattn.hpp and flashattn.h: change these, then run it again. */
#ifndef FLASHATTN_HPP
#define FLASHATTN_HPP

#include <flashattn.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#if !defined(FLASHATTN_NO_EXCEPTIONS) && !defined(__cpp_exceptions)
#define FLASHATTN_NO_EXCEPTIONS
#endif
#ifndef FLASHATTN_NO_EXCEPTIONS
#include <stdexcept>
#endif

#if FA_VERSION < 200 || FA_VERSION_MAJOR != 0
#error "flashattn.hpp is of another version than flashattn.h"
#endif

namespace flashattn {

/* ------------------------------------------------------------------------------------------------------------- element types */

/* Types without a name in C++17: the bits of a value. */
struct F16 {
    uint16_t bits;
};
struct BF16 {
    uint16_t bits;
};
struct E4M3 {
    uint8_t bits;
};
struct E5M2 {
    uint8_t bits;
};

/* The type's number in flashattn.h. Specialise it for your program's own half-precision types:
 *     template <> struct flashattn::DtypeOf<_Float16> : std::integral_constant<int32_t, FA_F16> {}; */
template <class T>
struct DtypeOf;
template <>
struct DtypeOf<float> : std::integral_constant<int32_t, FA_F32> {};
template <>
struct DtypeOf<F16> : std::integral_constant<int32_t, FA_F16> {};
template <>
struct DtypeOf<BF16> : std::integral_constant<int32_t, FA_BF16> {};
template <>
struct DtypeOf<E4M3> : std::integral_constant<int32_t, FA_E4M3> {};
template <>
struct DtypeOf<E5M2> : std::integral_constant<int32_t, FA_E5M2> {};
template <>
struct DtypeOf<int8_t> : std::integral_constant<int32_t, FA_I8> {};

/* ------------------------------------------------------------------------------------------------------------- spans, tensors */

/* Pointer and number of elements, which it does not own. It is made from a pointer and a count, an array, or any object with data() and
 * size(). Without a pointer, the operand is not given. */
template <class T>
class Span {
  public:
    constexpr Span() = default;
    constexpr Span(T* data, size_t size) : data_(data), size_(size) {}
    template <size_t n>
    constexpr Span(T (&array)[n]) : data_(array), size_(n) {}
    template <class C, class = std::enable_if_t<std::is_convertible_v<decltype(std::declval<C&>().data()), T*>>>
    constexpr Span(C&& from) : data_(from.data()), size_(from.size()) {}

    constexpr T* data() const { return data_; }
    constexpr size_t size() const { return size_; }

  private:
    T* data_ = nullptr;
    size_t size_ = 0;
};

/* Like Span, for pointers whose element type the descriptor says. A call reads a ConstTensor, and writes a Tensor. */
template <class Pointer>
class AnyTensor {
    template <class C>
    using ElementOf = std::remove_pointer_t<decltype(std::declval<C&>().data())>;
    static constexpr bool kReadOnly = std::is_same_v<Pointer, const void*>;

  public:
    static constexpr uint64_t kUnknown = UINT64_MAX;

    constexpr AnyTensor() = default;
    /* Memory of any type, such as FA_Q8_0, for which C++ has no element type. bytes kUnknown: the size is not checked. */
    constexpr AnyTensor(int32_t dtype, Pointer data, uint64_t bytes = kUnknown) : data_(data), bytes_(bytes), dtype_(dtype) {}
    template <class T, int32_t dtype = DtypeOf<std::remove_const_t<T>>::value>
    constexpr AnyTensor(T* data, size_t size) : data_(data), bytes_(size * sizeof(T)), dtype_(dtype) {}
    template <class T, size_t n, int32_t dtype = DtypeOf<std::remove_const_t<T>>::value>
    constexpr AnyTensor(T (&array)[n]) : AnyTensor(array, n) {}
    template <class C, class T = ElementOf<C>, int32_t dtype = DtypeOf<std::remove_const_t<T>>::value>
    constexpr AnyTensor(C&& from) : AnyTensor(from.data(), from.size()) {}
    template <class P, class = std::enable_if_t<kReadOnly && std::is_same_v<P, void*>>>
    constexpr AnyTensor(const AnyTensor<P>& written) : AnyTensor(written.dtype(), written.data(), written.bytes()) {}

    constexpr Pointer data() const { return data_; }
    constexpr uint64_t bytes() const { return bytes_; }
    constexpr int32_t dtype() const { return dtype_; }

  private:
    Pointer data_ = nullptr;
    uint64_t bytes_ = 0;
    int32_t dtype_ = 0;
};
using Tensor = AnyTensor<void*>;
using ConstTensor = AnyTensor<const void*>;

/* ------------------------------------------------------------------------------------------------------------------- errors */

/* The status of a call, and the library's message. */
class [[nodiscard]] Status {
  public:
    Status() = default;
    Status(fa_status_t code, std::string message) : code_(code), message_(std::move(message)) {}

    bool ok() const { return code_ == FA_OK; }
    explicit operator bool() const { return ok(); }
    fa_status_t code() const { return code_; }
    const std::string& message() const { return message_; }
    const char* name() const { return fa_status_name(code_); }

  private:
    fa_status_t code_ = FA_OK;
    std::string message_;
};

// With and without exceptions, functions have different names for the linker, so one program may contain both.
#ifdef FLASHATTN_NO_EXCEPTIONS
inline namespace by_result {

/* A value, or the status of a failed call. */
template <class T>
class [[nodiscard]] Result {
  public:
    Result(Status status, T value) : status_(std::move(status)), value_(std::move(value)) {}
    bool ok() const { return status_.ok(); }
    explicit operator bool() const { return ok(); }
    const Status& status() const { return status_; }
    T& value() & { return value_; } /* only if ok */
    T&& value() && { return std::move(value_); }
    T* operator->() { return &value_; }
    T& operator*() { return value_; }

  private:
    Status status_;
    T value_;
};
using Done = Status;

namespace detail {
inline Status finish(Status status) { return status; }
template <class T>
Result<T> finish(Status status, T value) {
    return {std::move(status), std::move(value)};
}
}  // namespace detail
#else
inline namespace by_exception {

/* what(): the name of the status and the message. */
class Error : public std::runtime_error {
  public:
    explicit Error(Status status) : std::runtime_error(std::string(status.name()) + ": " + status.message()), status_(std::move(status)) {}
    fa_status_t code() const { return status_.code(); }
    const Status& status() const { return status_; }

  private:
    Status status_;
};
template <class T>
using Result = T;
using Done = void;

namespace detail {
inline void finish(Status status) {
    if (!status) throw Error(std::move(status));
}
template <class T>
T finish(Status status, T value) {
    finish(std::move(status));
    return value;
}
}  // namespace detail
#endif

/* ----------------------------------------------------------------------------------------------------------- the descriptor */

/* The descriptor, with its defaults. It has all fields of the C struct, and functions that set fields which belong together. Its
 * constructors set struct_size. A C struct converts to it, so C++20 can initialise fields by name. Fields that are left out are 0
 * (-Wextra warns of each one, by -Wmissing-field-initializers):
 *
 *     flashattn::Attention a = fa_attention_desc_t{.struct_size = sizeof(fa_attention_desc_t), .batch = 1, .heads_q = 4};
 */
struct Attention : fa_attention_desc_t {
    Attention() : fa_attention_desc_t(FA_ATTENTION_DESC_INIT) {}
    Attention(const fa_attention_desc_t& desc) : fa_attention_desc_t(desc) {}

    /* alignment_: FA_ALIGN_…, where the diagonal is. */
    Attention& causal(int32_t alignment_) {
        flags |= FA_CAUSAL;
        alignment = alignment_;
        return *this;
    }
    /* Keys kept to the left and right of the diagonal, inclusive; −1: all. */
    Attention& window(int64_t left, int64_t right, int32_t alignment_) {
        flags |= FA_WINDOW;
        window_left = left;
        window_right = right;
        alignment = alignment_;
        return *this;
    }
    Attention& scaled(float scale_) {
        flags |= FA_SCALE_EXPLICIT;
        scale = scale_;
        return *this;
    }
    /* Literal strides (batch, row, head, unit); of LSE (batch, head, row). */
    Attention& q_strides(int64_t batch_, int64_t row, int64_t head, int64_t unit) {
        return literal(FA_STRIDED_Q, q_stride, batch_, row, head, unit);
    }
    Attention& k_strides(int64_t batch_, int64_t row, int64_t head, int64_t unit) {
        return literal(FA_STRIDED_K, k_stride, batch_, row, head, unit);
    }
    Attention& v_strides(int64_t batch_, int64_t row, int64_t head, int64_t unit) {
        return literal(FA_STRIDED_V, v_stride, batch_, row, head, unit);
    }
    Attention& o_strides(int64_t batch_, int64_t row, int64_t head, int64_t unit) {
        return literal(FA_STRIDED_O, o_stride, batch_, row, head, unit);
    }
    Attention& lse_strides(int64_t batch_, int64_t head, int64_t row) { return literal(FA_STRIDED_LSE, lse_stride, batch_, head, row); }
    Attention& q_tail_strides(int64_t batch_, int64_t row, int64_t head, int64_t unit) {
        return literal(FA_STRIDED_Q_TAIL, q_tail_stride, batch_, row, head, unit);
    }
    Attention& k_tail_strides(int64_t batch_, int64_t row, int64_t head, int64_t unit) {
        return literal(FA_STRIDED_K_TAIL, k_tail_stride, batch_, row, head, unit);
    }

  private:
    template <size_t n, class... Strides>
    Attention& literal(uint32_t bit, int64_t (&field)[n], Strides... strides) {
        static_assert(sizeof...(strides) == n);
        strided |= bit;
        size_t at = 0;
        ((field[at++] = strides), ...);
        return *this;
    }
};

/* ----------------------------------------------------------------------------------------------------- the args of each call */

/* fa_forward_ex: fa_forward_args_t of flashattn.h. */
struct ForwardArgs {
    uint32_t flags = 0; /* FA_ARGS_STREAM */
    ConstTensor q{};
    ConstTensor k{};
    ConstTensor v{};
    Tensor o{}; /* rows of a padded q beyond its length are set to 0; gaps of a packed one are not written */
    /* natural logarithm, scale and sink included; −inf if a row has no key, or is padding beyond its
     * sequence's length */
    Span<float> lse{};
    ConstTensor q_tail{}; /* the last dim_tail dims of q; q then holds only the others */
    ConstTensor k_tail{}; /* the same for k */
    /* multiplies the stored values; see q_descale_stride. The products must stay finite in f32, and
     * so must scale · q_descale · k_descale · log2 e, or rows may be NaN */
    ConstTensor q_descale{};
    /* the same for k. Blocks hold their own scales: k_descale and k_shift are not allowed with
     * them */
    ConstTensor k_descale{};
    ConstTensor v_descale{}; /* the same for v */
    ConstTensor k_shift{}; /* value = stored · descale + shift; has the type and the indices of k_descale */
    ConstTensor v_shift{}; /* the same for v */
    Span<const float> o_scale{}; /* one value: o is round(o · o_scale); an 8-bit o saturates */
    ConstTensor bias{}; /* [batch][heads_q][seqlen_q][seqlen_k] by bias_stride */
    /* [heads_q], finite; with slopes of fa_alibi_slopes, a bias that holds distances becomes
     * ALiBi */
    Span<const float> bias_scale{};
    Span<const uint8_t> mask{}; /* the shape of bias, by mask_stride; nonzero: attend */
    /* pairs (begin, end) of keys, end exclusive, by key_range_stride: a key in no range of its row
     * is removed. Ranges of a row ascend and do not overlap. They may be empty, or reach beyond the
     * keys */
    Span<const int32_t> key_ranges{};
    /* blocks of keys in which masks apply, in any order; −1: an unused entry. Each occurs at most
     * once in the two lists together (not checked: a repeated entry may count twice). With a list, a
     * key in no entry is removed */
    Span<const int32_t> key_list{};
    Span<const int32_t> key_list_count{}; /* number of entries to read, up to list_max; without: list_max */
    Span<const int32_t> full_list{}; /* blocks in which causal, window, chunk, boolean mask and ranges do not apply */
    Span<const int32_t> full_list_count{}; /* as key_list_count */
    /* [heads_q], or [batch][heads_q] by alibi_batch_stride; at most 2.35e38; see fa_alibi_slopes */
    Span<const float> alibi_slopes{};
    Span<const float> sinks{}; /* [heads_q] logits */
    Span<const int32_t> causal_offset{}; /* [batch] */
    Span<const int32_t> cu_seqlens_q{}; /* [batch + 1], not decreasing, within total_q; sequence b has rows [cu[b], cu[b + 1]) */
    Span<const int32_t> cu_seqlens_k{}; /* [batch + 1], within total_k */
    Span<const int32_t> seqused_q{}; /* [batch] number of valid rows, <= seqlen_q or the packed range */
    Span<const int32_t> seqused_k{}; /* [batch] number of valid keys, left padding included, <= seqlen_k or the packed range */
    Span<const int32_t> leftpad_k{}; /* [batch] slots to skip before key 0 */
    Span<const int32_t> kv_batch_idx{}; /* [batch] sequence of the cache (row of the page table) that sequence b reads */
    /* [batch or kv_batch][ceil(seqlen_k / page_size)] page ids; unused entries are never read */
    Span<const int32_t> page_table{};
    /* [batch][heads_q][seqlen_q][seqlen_k] by scores_stride; pairs outside the valid lengths get 0
     * (raw, capped, probability) or −inf (biased). With lists: (reserved) */
    Span<float> scores{};
    /* {seed, offset}, read when the call runs; dropout_seed and dropout_offset must then be 0 */
    Span<const uint64_t> rng_state{};
    /* one word: a GPU checks the arrays in its memory first, with one more launch, and or-s
     * FA_BAD_… bits into it */
    Span<uint32_t> device_status{};
    uint64_t dropout_seed = 0; /* see fa_dropout_mask; not used if dropout_p is 0 */
    uint64_t dropout_offset = 0; /* the same */
    /* With dropout, if the call computes a part of a larger problem: where its first row, key and head are in the dropout mask of the
     * larger problem. Row i, key j and head h of sequence b use that mask at row dropout_row + i, key dropout_key + j and batch_head =
     * b * dropout_heads + dropout_head + h; dropout_heads 0: heads_q. */
    int64_t dropout_row = 0;
    int64_t dropout_key = 0;
    int64_t dropout_head = 0;
    int64_t dropout_heads = 0;
    void* stream = nullptr; /* with FA_ARGS_STREAM */
    Span<char> workspace{}; /* none: the handle's own scratch memory */
};

/* fa_backward: fa_backward_args_t of flashattn.h. */
struct BackwardArgs {
    uint32_t flags = 0; /* FA_ARGS_STREAM, FA_BACKWARD_ACCUMULATE */
    ConstTensor dout{}; /* gradient with respect to o */
    Span<const float> dlse{}; /* gradient with respect to LSE; NULL: 0 */
    Tensor dq{};
    Tensor dk{};
    Tensor dv{};
    Span<float> dbias{}; /* only with FA_OPERAND_BIAS; 0 if a key is removed */
    Span<float> dsinks{}; /* [heads_q]; only with FA_OPERAND_SINKS */
    int64_t dout_stride[4] = {}; /* (batch, row, head, element) */
    int64_t dlse_stride[3] = {}; /* (batch, head, row) */
    int64_t dq_stride[4] = {};
    int64_t dk_stride[4] = {};
    int64_t dv_stride[4] = {};
    int64_t dbias_stride[4] = {}; /* (batch, query head, row, key) */
    void* stream = nullptr; /* with FA_ARGS_STREAM */
    Span<char> workspace{}; /* none: the handle's own scratch memory */
};

/* fa_merge: fa_merge_args_t of flashattn.h. */
struct MergeArgs {
    uint32_t flags = 0; /* FA_ARGS_STREAM, FA_MERGE_ACCUMULATE */
    Span<const float> o_parts{};
    Span<const float> lse_parts{};
    Tensor o{};
    Span<float> lse{};
    Span<const float> sinks{}; /* as in the forward, and so are the fields below */
    Span<const float> o_scale{};
    Span<const int32_t> cu_seqlens_q{};
    Span<const int32_t> seqused_q{};
    int64_t parts = 0; /* number of parts, >= 0 */
    /* (part, batch, row, head, element); all zero: dense [parts][batch][seqlen_q][heads_q][dim_v] or
     * [parts][total_q][heads_q][dim_v] (packed: no batch stride) */
    int64_t o_parts_stride[5] = {};
    /* (part, batch, head, row); all zero: dense [parts][batch][heads_q][seqlen_q] or
     * [parts][heads_q][total_q] */
    int64_t lse_parts_stride[4] = {};
    void* stream = nullptr; /* with FA_ARGS_STREAM */
    Span<char> workspace{}; /* none: the handle's own scratch memory */
};

/* fa_rotary: fa_rotary_args_t of flashattn.h. */
struct RotaryArgs {
    uint32_t flags = 0; /* FA_ARGS_STREAM, FA_ROTARY_… */
    ConstTensor x{};
    Tensor out{}; /* may be x itself, with x's strides */
    Span<const float> cos{}; /* [max_position][rotary_dim / 2], dense */
    Span<const float> sin{}; /* the same */
    Span<const int32_t> positions{}; /* [batch][seqlen_q], packed [total_q]; or NULL */
    Span<const int32_t> position_offset{}; /* [batch]; or NULL */
    Span<const int32_t> cu_seqlens{}; /* cu_seqlens_q of the forward, for k cu_seqlens_k */
    Span<const int32_t> seqused{}; /* seqused_q of the forward, for k seqused_k */
    int64_t out_stride[4] = {}; /* all zero: x's */
    int64_t max_position = 0; /* rows of cos and sin */
    int64_t rotary_begin = 0; /* first rotated dim */
    int64_t rotary_dim = 0; /* number of rotated dims: even, 2 … dim_qk − rotary_begin */
    void* stream = nullptr; /* with FA_ARGS_STREAM */
    Span<char> workspace{}; /* none: the handle's own scratch memory */
};

/* fa_append_kv: fa_append_kv_args_t of flashattn.h. */
struct AppendKvArgs {
    uint32_t flags = 0; /* FA_ARGS_STREAM, FA_APPEND_DYNAMIC_SCALE, FA_ROTARY_INTERLEAVED */
    ConstTensor k_new{}; /* the new keys */
    ConstTensor v_new{}; /* the new values */
    Tensor k{}; /* the cache */
    Tensor v{}; /* the cache */
    Tensor k_tail{}; /* as in the forward, by their bits in desc.operands, and so are the four below */
    Tensor k_descale{};
    Tensor v_descale{};
    Tensor k_shift{};
    Tensor v_shift{};
    Span<const int32_t> cu_seqlens_new{}; /* [batch + 1] or NULL */
    Span<const int32_t> seqused_new{}; /* [batch] number of tokens that are given, or NULL */
    Span<const int32_t> positions{}; /* [batch][seqlen_new], packed [total_new], or NULL */
    Span<const int32_t> seqused_k{}; /* as in the forward, by their bits in desc.operands, and so are the four below */
    Span<const int32_t> leftpad_k{};
    Span<const int32_t> kv_batch_idx{};
    Span<const int32_t> page_table{};
    Span<uint32_t> device_status{};
    Span<const float> cos{}; /* [max_position][rotary_dim / 2] or NULL: no rotation */
    Span<const float> sin{}; /* the same */
    int64_t seqlen_new = 0; /* tokens of a sequence; with cu_seqlens_new or seqused_new the most allowed */
    int64_t total_new = 0; /* with cu_seqlens_new: rows of the packed k_new, v_new */
    int64_t k_new_stride[4] = {}; /* (batch, row, head, element); all zero: dense */
    int64_t v_new_stride[4] = {}; /* the same */
    int64_t max_position = 0; /* rows of cos and sin */
    int64_t rotary_begin = 0; /* as in fa_rotary */
    int64_t rotary_dim = 0; /* as in fa_rotary */
    void* stream = nullptr; /* with FA_ARGS_STREAM */
    Span<char> workspace{}; /* none: the handle's own scratch memory */
};

/* fa_convert: fa_conversion_t of flashattn.h. Sizes count elements. Strides count units, and the last is 1. */
struct Conversion {
    ConstTensor x{}; /* none: zeros */
    Tensor out{};
    int64_t size[4] = {1, 1, 1, 1}; /* (batch, row, head, dim), or any other four dimensions */
    int64_t x_stride[4] = {0, 0, 0, 1};
    int64_t out_stride[4] = {0, 0, 0, 1};
    uint64_t flags = 0; /* FA_CONVERT_… */
};

namespace detail {

/* Bytes to the end of the last element, at most UINT64_MAX; 0 for a conversion that the library refuses. */
inline uint64_t reach(int32_t dtype, const int64_t (&size)[4], const int64_t (&stride)[4]) {
    int64_t elements = 0, bytes = 0;
    if (fa_dtype_unit(dtype, &elements, &bytes) != FA_OK) return 0;
    uint64_t last = 0;
    for (int i = 0; i < 4; i++) {
        const int64_t units = i < 3 ? size[i] : size[i] / elements;
        if (units <= 0 || stride[i] < 0) return 0;
        const uint64_t steps = static_cast<uint64_t>(units) - 1, step = static_cast<uint64_t>(stride[i]);
        if (step != 0 && steps > (UINT64_MAX - last) / step) return UINT64_MAX;
        last += steps * step;
    }
    const uint64_t unit = static_cast<uint64_t>(bytes);
    return last >= UINT64_MAX / unit ? UINT64_MAX : (last + 1) * unit;
}

/* Sets the pointers of an args struct, the descriptor's operand bits and types, and remembers how much memory is behind each pointer. */
class Binding {
  public:
    Binding(fa_attention_desc_t& desc, int32_t op, const void* args, bool f32_gradients = false)
        : desc_(desc), op_(op), args_(static_cast<const char*>(args)), f32_gradients_(f32_gradients) {}

    /* pointer: a field of the args. type: the field of the descriptor that has its type, if any. */
    template <class Pointer, class Given>
    void set(const char* name, Pointer*& pointer, const Given& given, uint64_t operand, int32_t fa_attention_desc_t::* type = nullptr) {
        pointer = given.data();
        if (!pointer) return;
        desc_.operands |= operand;
        if constexpr (std::is_void_v<Pointer>) {
            // The descriptor says the type of every output except the gradients of a backward that accumulates.
            int32_t expected = f32_gradients_ && !std::is_const_v<Pointer> ? FA_F32 : desc_.*type;
            if (expected == 0) expected = desc_.*type = given.dtype();
            if (expected != given.dtype() && fault_.ok()) {
                fault_ = invalid(name, "has type " + word(given.dtype()) + ": expected " + word(expected));
            }
            rooms_.push_back({name, offset(&pointer), given.bytes()});
        } else {
            rooms_.push_back({name, offset(&pointer), given.size() * sizeof(Pointer)});
        }
    }

    /* Call it when all pointers are set, because the extent follows from the whole descriptor. */
    Status check() const {
        if (!fault_.ok()) return fault_;
        for (const Room& room : rooms_) {
            if (room.bytes == Tensor::kUnknown) continue;
            uint64_t used = 0;
            const fa_status_t status = fa_extent(&desc_, op_, args_, room.field, &used);
            if (status != FA_OK) return {status, fa_last_error(nullptr)};
            if (used > room.bytes) {
                return invalid(room.name, "has " + std::to_string(room.bytes) + " bytes: the call would use " + std::to_string(used));
            }
        }
        return {};
    }

  private:
    struct Room {
        const char* name;
        uint32_t field;
        uint64_t bytes;
    };
    static Status invalid(const char* name, const std::string& what) { return {FA_INVALID_ARGUMENT, std::string(name) + " " + what}; }
    static std::string word(int32_t dtype) {
        const char* name = fa_dtype_name(dtype);
        return name ? name : "number " + std::to_string(dtype);
    }
    template <class P>
    uint32_t offset(P* const* pointer) const {
        return static_cast<uint32_t>(reinterpret_cast<const char*>(pointer) - args_);
    }

    fa_attention_desc_t& desc_;
    int32_t op_;
    const char* args_;
    bool f32_gradients_;
    std::vector<Room> rooms_;
    Status fault_;
};

inline int32_t op_of(const ForwardArgs&) { return FA_OP_FORWARD; }
inline fa_forward_args_t blank(const ForwardArgs& given) {
    fa_forward_args_t args = FA_FORWARD_ARGS_INIT;
    args.flags = given.flags;
    args.dropout_seed = given.dropout_seed;
    args.dropout_offset = given.dropout_offset;
    args.dropout_row = given.dropout_row;
    args.dropout_key = given.dropout_key;
    args.dropout_head = given.dropout_head;
    args.dropout_heads = given.dropout_heads;
    args.stream = given.stream;
    args.workspace = given.workspace.data();
    args.workspace_size = given.workspace.size();
    return args;
}
inline void bind(Binding& b, fa_forward_args_t& args, const ForwardArgs& given) {
    b.set("q", args.q, given.q, 0, &fa_attention_desc_t::q_dtype);
    b.set("k", args.k, given.k, 0, &fa_attention_desc_t::k_dtype);
    b.set("v", args.v, given.v, 0, &fa_attention_desc_t::v_dtype);
    b.set("o", args.o, given.o, 0, &fa_attention_desc_t::o_dtype);
    b.set("lse", args.lse, given.lse, FA_OPERAND_LSE);
    b.set("q_tail", args.q_tail, given.q_tail, FA_OPERAND_Q_TAIL, &fa_attention_desc_t::q_tail_dtype);
    b.set("k_tail", args.k_tail, given.k_tail, FA_OPERAND_K_TAIL, &fa_attention_desc_t::k_tail_dtype);
    b.set("q_descale", args.q_descale, given.q_descale, FA_OPERAND_Q_DESCALE, &fa_attention_desc_t::q_descale_dtype);
    b.set("k_descale", args.k_descale, given.k_descale, FA_OPERAND_K_DESCALE, &fa_attention_desc_t::k_descale_dtype);
    b.set("v_descale", args.v_descale, given.v_descale, FA_OPERAND_V_DESCALE, &fa_attention_desc_t::v_descale_dtype);
    b.set("k_shift", args.k_shift, given.k_shift, FA_OPERAND_K_SHIFT, &fa_attention_desc_t::k_descale_dtype);
    b.set("v_shift", args.v_shift, given.v_shift, FA_OPERAND_V_SHIFT, &fa_attention_desc_t::v_descale_dtype);
    b.set("o_scale", args.o_scale, given.o_scale, FA_OPERAND_O_SCALE);
    b.set("bias", args.bias, given.bias, FA_OPERAND_BIAS, &fa_attention_desc_t::bias_dtype);
    b.set("bias_scale", args.bias_scale, given.bias_scale, FA_OPERAND_BIAS_SCALE);
    b.set("mask", args.mask, given.mask, FA_OPERAND_MASK);
    b.set("key_ranges", args.key_ranges, given.key_ranges, FA_OPERAND_KEY_RANGES);
    b.set("key_list", args.key_list, given.key_list, FA_OPERAND_KEY_LIST);
    b.set("key_list_count", args.key_list_count, given.key_list_count, FA_OPERAND_KEY_LIST_COUNT);
    b.set("full_list", args.full_list, given.full_list, FA_OPERAND_FULL_LIST);
    b.set("full_list_count", args.full_list_count, given.full_list_count, FA_OPERAND_FULL_LIST_COUNT);
    b.set("alibi_slopes", args.alibi_slopes, given.alibi_slopes, FA_OPERAND_ALIBI);
    b.set("sinks", args.sinks, given.sinks, FA_OPERAND_SINKS);
    b.set("causal_offset", args.causal_offset, given.causal_offset, FA_OPERAND_CAUSAL_OFFSET);
    b.set("cu_seqlens_q", args.cu_seqlens_q, given.cu_seqlens_q, FA_OPERAND_CU_SEQLENS_Q);
    b.set("cu_seqlens_k", args.cu_seqlens_k, given.cu_seqlens_k, FA_OPERAND_CU_SEQLENS_K);
    b.set("seqused_q", args.seqused_q, given.seqused_q, FA_OPERAND_SEQUSED_Q);
    b.set("seqused_k", args.seqused_k, given.seqused_k, FA_OPERAND_SEQUSED_K);
    b.set("leftpad_k", args.leftpad_k, given.leftpad_k, FA_OPERAND_LEFTPAD_K);
    b.set("kv_batch_idx", args.kv_batch_idx, given.kv_batch_idx, FA_OPERAND_KV_BATCH_IDX);
    b.set("page_table", args.page_table, given.page_table, FA_OPERAND_PAGE_TABLE);
    b.set("scores", args.scores, given.scores, FA_OPERAND_SCORES);
    b.set("rng_state", args.rng_state, given.rng_state, FA_OPERAND_RNG_STATE);
    b.set("device_status", args.device_status, given.device_status, FA_OPERAND_DEVICE_STATUS);
}
inline fa_status_t run(fa_handle_t handle, const fa_attention_desc_t& desc, const fa_forward_args_t& args) {
    return fa_forward_ex(handle, &desc, &args);
}

inline int32_t op_of(const BackwardArgs&) { return FA_OP_BACKWARD; }
inline fa_backward_args_t blank(const BackwardArgs& given) {
    fa_backward_args_t args = FA_BACKWARD_ARGS_INIT;
    args.flags = given.flags;
    for (int i = 0; i < 4; i++) args.dout_stride[i] = given.dout_stride[i];
    for (int i = 0; i < 3; i++) args.dlse_stride[i] = given.dlse_stride[i];
    for (int i = 0; i < 4; i++) args.dq_stride[i] = given.dq_stride[i];
    for (int i = 0; i < 4; i++) args.dk_stride[i] = given.dk_stride[i];
    for (int i = 0; i < 4; i++) args.dv_stride[i] = given.dv_stride[i];
    for (int i = 0; i < 4; i++) args.dbias_stride[i] = given.dbias_stride[i];
    args.stream = given.stream;
    args.workspace = given.workspace.data();
    args.workspace_size = given.workspace.size();
    return args;
}
inline void bind(Binding& b, fa_backward_args_t& args, const BackwardArgs& given) {
    b.set("dout", args.dout, given.dout, 0, &fa_attention_desc_t::q_dtype);
    b.set("dlse", args.dlse, given.dlse, 0);
    b.set("dq", args.dq, given.dq, 0, &fa_attention_desc_t::q_dtype);
    b.set("dk", args.dk, given.dk, 0, &fa_attention_desc_t::k_dtype);
    b.set("dv", args.dv, given.dv, 0, &fa_attention_desc_t::v_dtype);
    b.set("dbias", args.dbias, given.dbias, 0);
    b.set("dsinks", args.dsinks, given.dsinks, 0);
}
inline fa_status_t run(fa_handle_t handle, const fa_attention_desc_t& desc, const fa_backward_args_t& args) {
    return fa_backward(handle, &desc, &args);
}

inline int32_t op_of(const MergeArgs&) { return FA_OP_MERGE; }
inline fa_merge_args_t blank(const MergeArgs& given) {
    fa_merge_args_t args = FA_MERGE_ARGS_INIT;
    args.flags = given.flags;
    args.parts = given.parts;
    for (int i = 0; i < 5; i++) args.o_parts_stride[i] = given.o_parts_stride[i];
    for (int i = 0; i < 4; i++) args.lse_parts_stride[i] = given.lse_parts_stride[i];
    args.stream = given.stream;
    args.workspace = given.workspace.data();
    args.workspace_size = given.workspace.size();
    return args;
}
inline void bind(Binding& b, fa_merge_args_t& args, const MergeArgs& given) {
    b.set("o_parts", args.o_parts, given.o_parts, 0);
    b.set("lse_parts", args.lse_parts, given.lse_parts, 0);
    b.set("o", args.o, given.o, 0, &fa_attention_desc_t::o_dtype);
    b.set("lse", args.lse, given.lse, FA_OPERAND_LSE);
    b.set("sinks", args.sinks, given.sinks, FA_OPERAND_SINKS);
    b.set("o_scale", args.o_scale, given.o_scale, FA_OPERAND_O_SCALE);
    b.set("cu_seqlens_q", args.cu_seqlens_q, given.cu_seqlens_q, FA_OPERAND_CU_SEQLENS_Q);
    b.set("seqused_q", args.seqused_q, given.seqused_q, FA_OPERAND_SEQUSED_Q);
}
inline fa_status_t run(fa_handle_t handle, const fa_attention_desc_t& desc, const fa_merge_args_t& args) {
    return fa_merge(handle, &desc, &args);
}

inline int32_t op_of(const RotaryArgs&) { return FA_OP_ROTARY; }
inline fa_rotary_args_t blank(const RotaryArgs& given) {
    fa_rotary_args_t args = FA_ROTARY_ARGS_INIT;
    args.flags = given.flags;
    for (int i = 0; i < 4; i++) args.out_stride[i] = given.out_stride[i];
    args.max_position = given.max_position;
    args.rotary_begin = given.rotary_begin;
    args.rotary_dim = given.rotary_dim;
    args.stream = given.stream;
    args.workspace = given.workspace.data();
    args.workspace_size = given.workspace.size();
    return args;
}
inline void bind(Binding& b, fa_rotary_args_t& args, const RotaryArgs& given) {
    b.set("x", args.x, given.x, 0, given.flags & FA_ROTARY_OF_K ? &fa_attention_desc_t::k_dtype : &fa_attention_desc_t::q_dtype);
    b.set("out", args.out, given.out, 0, given.flags & FA_ROTARY_OF_K ? &fa_attention_desc_t::k_dtype : &fa_attention_desc_t::q_dtype);
    b.set("cos", args.cos, given.cos, 0);
    b.set("sin", args.sin, given.sin, 0);
    b.set("positions", args.positions, given.positions, 0);
    b.set("position_offset", args.position_offset, given.position_offset, 0);
    b.set("cu_seqlens", args.cu_seqlens, given.cu_seqlens, given.flags & FA_ROTARY_OF_K ? FA_OPERAND_CU_SEQLENS_K : FA_OPERAND_CU_SEQLENS_Q);
    b.set("seqused", args.seqused, given.seqused, given.flags & FA_ROTARY_OF_K ? FA_OPERAND_SEQUSED_K : FA_OPERAND_SEQUSED_Q);
}
inline fa_status_t run(fa_handle_t handle, const fa_attention_desc_t& desc, const fa_rotary_args_t& args) {
    return fa_rotary(handle, &desc, &args);
}

inline int32_t op_of(const AppendKvArgs&) { return FA_OP_APPEND_KV; }
inline fa_append_kv_args_t blank(const AppendKvArgs& given) {
    fa_append_kv_args_t args = FA_APPEND_KV_ARGS_INIT;
    args.flags = given.flags;
    args.seqlen_new = given.seqlen_new;
    args.total_new = given.total_new;
    for (int i = 0; i < 4; i++) args.k_new_stride[i] = given.k_new_stride[i];
    for (int i = 0; i < 4; i++) args.v_new_stride[i] = given.v_new_stride[i];
    args.max_position = given.max_position;
    args.rotary_begin = given.rotary_begin;
    args.rotary_dim = given.rotary_dim;
    args.stream = given.stream;
    args.workspace = given.workspace.data();
    args.workspace_size = given.workspace.size();
    return args;
}
inline void bind(Binding& b, fa_append_kv_args_t& args, const AppendKvArgs& given) {
    b.set("k_new", args.k_new, given.k_new, 0, &fa_attention_desc_t::q_dtype);
    b.set("v_new", args.v_new, given.v_new, 0, &fa_attention_desc_t::q_dtype);
    b.set("k", args.k, given.k, 0, &fa_attention_desc_t::k_dtype);
    b.set("v", args.v, given.v, 0, &fa_attention_desc_t::v_dtype);
    b.set("k_tail", args.k_tail, given.k_tail, FA_OPERAND_K_TAIL, &fa_attention_desc_t::k_tail_dtype);
    b.set("k_descale", args.k_descale, given.k_descale, FA_OPERAND_K_DESCALE, &fa_attention_desc_t::k_descale_dtype);
    b.set("v_descale", args.v_descale, given.v_descale, FA_OPERAND_V_DESCALE, &fa_attention_desc_t::v_descale_dtype);
    b.set("k_shift", args.k_shift, given.k_shift, FA_OPERAND_K_SHIFT, &fa_attention_desc_t::k_descale_dtype);
    b.set("v_shift", args.v_shift, given.v_shift, FA_OPERAND_V_SHIFT, &fa_attention_desc_t::v_descale_dtype);
    b.set("cu_seqlens_new", args.cu_seqlens_new, given.cu_seqlens_new, 0);
    b.set("seqused_new", args.seqused_new, given.seqused_new, 0);
    b.set("positions", args.positions, given.positions, 0);
    b.set("seqused_k", args.seqused_k, given.seqused_k, FA_OPERAND_SEQUSED_K);
    b.set("leftpad_k", args.leftpad_k, given.leftpad_k, FA_OPERAND_LEFTPAD_K);
    b.set("kv_batch_idx", args.kv_batch_idx, given.kv_batch_idx, FA_OPERAND_KV_BATCH_IDX);
    b.set("page_table", args.page_table, given.page_table, FA_OPERAND_PAGE_TABLE);
    b.set("device_status", args.device_status, given.device_status, FA_OPERAND_DEVICE_STATUS);
    b.set("cos", args.cos, given.cos, 0);
    b.set("sin", args.sin, given.sin, 0);
}
inline fa_status_t run(fa_handle_t handle, const fa_attention_desc_t& desc, const fa_append_kv_args_t& args) {
    return fa_append_kv(handle, &desc, &args);
}

/* The functions that a handle calls, at an address that does not change, and the exception that they threw. */
struct Callbacks {
    std::function<void(int32_t, const char*)> log;
    std::function<void(int64_t, const std::function<void(int64_t)>&)> parallel_for;
    std::exception_ptr thrown;

    template <class F>
    bool guarded(F&& call) {
#ifdef FLASHATTN_NO_EXCEPTIONS
        call();
        return true;
#else
        try {
            call();
            return true;
        } catch (...) {
            thrown = std::current_exception();
            return false;
        }
#endif
    }
    void rethrow() {
#ifndef FLASHATTN_NO_EXCEPTIONS
        if (thrown) std::rethrow_exception(std::exchange(thrown, nullptr));
#endif
    }
    static void on_log(void* user, int32_t level, const char* message) {
        auto* self = static_cast<Callbacks*>(user);
        self->guarded([&] { self->log(level, message); });
    }
    static fa_status_t on_parallel_for(void* user, int64_t n, void (*body)(void*, int64_t), void* arg) {
        auto* self = static_cast<Callbacks*>(user);
        return self->guarded([&] { self->parallel_for(n, [=](int64_t i) { body(arg, i); }); }) ? FA_OK : FA_INVALID_STATE;
    }
};
}  // namespace detail

/* --------------------------------------------------------------------------------------------------------------- the handle */

/* Options of a handle: fa_create_info_t with C++ types. */
struct HandleOptions {
    int32_t backend = FA_BACKEND_AUTO;
    int32_t device = 0;
    int32_t memory = FA_MEMORY_DEFAULT;
    int32_t log_level = FA_LOG_NONE;
    void* stream = nullptr;
    std::string backend_dir;                                  /* "": none */
    std::function<void(int32_t level, const char* line)> log; /* empty: as fa_create_info_t says of NULL */
    /* Runs body(0) … body(n − 1) and returns when all are done. If it or log throws, the library's call throws this exception. */
    std::function<void(int64_t n, const std::function<void(int64_t)>& body)> parallel_for;
};

/* Owns an fa_handle_t. It can be moved, but not copied. It serves one thread at a time. */
class Handle {
  public:
#ifndef FLASHATTN_NO_EXCEPTIONS
    explicit Handle(const HandleOptions& options = {}) { *this = create(options); }
#endif
    static Result<Handle> create(const HandleOptions& options = {}) {
        Handle made{nullptr};
        made.callbacks_->log = options.log;
        made.callbacks_->parallel_for = options.parallel_for;
        fa_create_info_t info = FA_CREATE_INFO_INIT;
        info.backend = options.backend;
        info.device = options.device;
        info.memory = options.memory;
        info.log_level = options.log_level;
        info.stream = options.stream;
        if (!options.backend_dir.empty()) info.backend_dir = options.backend_dir.c_str();
        if (options.log) info.log = detail::Callbacks::on_log, info.log_user = made.callbacks_.get();
        if (options.parallel_for) info.parallel_for = detail::Callbacks::on_parallel_for, info.parallel_user = made.callbacks_.get();
        fa_handle_t raw = nullptr;
        const fa_status_t status = fa_create(&raw, &info);
        made.raw_.reset(raw);
        made.callbacks_->rethrow();
        Status said = status == FA_OK ? Status() : Status(status, fa_last_error(nullptr));
        return detail::finish(std::move(said), std::move(made));
    }

    Handle(Handle&&) = default;
    Handle& operator=(Handle&& other) noexcept {
        raw_ = std::move(other.raw_);  // first, because destroying the old handle may call the old callbacks
        callbacks_ = std::move(other.callbacks_);
        return *this;
    }

    fa_handle_t get() const { return raw_.get(); } /* NULL after a move: calls then give FA_INVALID_ARGUMENT */

    /* fa_forward_ex. The second form has no optional operands. */
    Done forward(const Attention& attention, const ForwardArgs& args) { return detail::finish(call(attention, args)); }
    Done forward(const Attention& attention, ConstTensor q, ConstTensor k, ConstTensor v, Tensor o) {
        ForwardArgs args;
        args.q = q, args.k = k, args.v = v, args.o = o;
        return forward(attention, args);
    }
    /* forward: the args of the forward, with o and lse as it wrote them. */
    Done backward(const Attention& attention, const ForwardArgs& forward, const BackwardArgs& args) {
        return detail::finish(call(attention, forward, args));
    }
    Done merge(const Attention& attention, const MergeArgs& args) { return detail::finish(call(attention, args)); }
    Done rotary(const Attention& attention, const RotaryArgs& args) { return detail::finish(call(attention, args)); }
    Done append_kv(const Attention& attention, const AppendKvArgs& args) { return detail::finish(call(attention, args)); }

    /* Copies, converts, sums or clears tensors with strides. stream: with FA_ARGS_STREAM in flags. */
    Done convert(const std::vector<Conversion>& list, uint32_t flags = 0, void* stream = nullptr) {
        return detail::finish(call(list, flags, stream));
    }

    /* FA_PARAM_…, FA_INFO_…, FA_STAT_… */
    Done set(int32_t key, int64_t value) { return detail::finish(said(fa_param_set(get(), key, value))); }
    Result<int64_t> get(int32_t key) const {
        int64_t value = 0;
        Status status = said(fa_param_get(get(), key, &value));
        return detail::finish(std::move(status), value);
    }

    /* Says whether a call would work. The descriptor must have its types and operand bits, because there are no args to take them from. */
    Status supports(const Attention& attention, int32_t op) const { return said(fa_supports(get(), &attention, op)); }
    /* Says how the call would be computed, or why it is refused. */
    std::string explain(const Attention& attention, int32_t op) const { return explain(&attention, op); }
    std::string explain() const { return explain(nullptr, FA_OP_FORWARD); }
    Result<uint64_t> workspace_size(const Attention& attention, int32_t op) const {
        uint64_t bytes = 0;
        Status status = said(fa_workspace_size(get(), &attention, op, &bytes));
        return detail::finish(std::move(status), bytes);
    }

    /* Memory of fa_malloc. Destroy it before the handle. Its elements are not initialised. */
    template <class T>
    class Memory {
      public:
        T* data() const { return data_.get(); }
        size_t size() const { return size_; }

      private:
        friend class Handle;
        struct Free {
            fa_handle_t handle;
            void operator()(T* pointer) const { (void)fa_free(handle, pointer); }
        };
        Memory(fa_handle_t handle, T* data, size_t size) : data_(data, Free{handle}), size_(size) {}
        std::unique_ptr<T, Free> data_;
        size_t size_;
    };
    template <class T>
    Result<Memory<T>> allocate(size_t elements) {
        static_assert(std::is_trivially_copyable_v<T>);
        void* pointer = nullptr;
        Status status = elements > SIZE_MAX / sizeof(T) ? Status(FA_OUT_OF_MEMORY, "more bytes than there are addresses")
                                                        : said(fa_malloc(get(), elements * sizeof(T), &pointer));
        Memory<T> made(get(), static_cast<T*>(pointer), status.ok() ? elements : 0);
        return detail::finish(std::move(status), std::move(made));
    }
    /* Copies between any two of host and device memory. `to` has at least as many elements as `from`. */
    template <class T>
    Done copy(Span<T> to, Span<const std::common_type_t<T>> from) {
        Status status = fits(to, from);
        if (status) status = said(fa_copy(get(), to.data(), from.data(), from.size() * sizeof(T)));
        return detail::finish(std::move(status));
    }
    /* The same in stream order: in the handle's stream, or with FA_ARGS_STREAM in flags in `stream`. See fa_copy_async. */
    template <class T>
    Done copy_async(Span<T> to, Span<const std::common_type_t<T>> from, uint32_t flags = 0, void* stream = nullptr) {
        Status status = fits(to, from);
        if (status) status = said(fa_copy_async(get(), to.data(), from.data(), from.size() * sizeof(T), flags, stream));
        return detail::finish(std::move(status));
    }
    Done synchronize() { return detail::finish(said(fa_synchronize(get()))); }

  private:
    struct Destroy {
        void operator()(fa_handle_t raw) const { (void)fa_destroy(raw); }
    };

    explicit Handle(std::nullptr_t) : callbacks_(std::make_unique<detail::Callbacks>()) {}

    void rethrow() const {
        if (callbacks_) callbacks_->rethrow();
    }
    Status said(fa_status_t status) const {
        rethrow();
        return status == FA_OK ? Status() : Status(status, fa_last_error(get()));
    }
    std::string explain(const fa_attention_desc_t* desc, int32_t op) const {
        char text[FA_TEXT_MAX] = "";
        const Status status = said(fa_explain(get(), desc, op, text, sizeof text));
        return !status && !text[0] ? status.message() : text;
    }
    template <class T>
    static Status fits(Span<T> to, Span<const std::common_type_t<T>> from) {
        return to.size() < from.size() ? Status(FA_INVALID_ARGUMENT, "to has fewer elements than from") : Status();
    }
    Status call(const std::vector<Conversion>& list, uint32_t flags, void* stream) {
        std::vector<fa_conversion_t> raw;
        for (const Conversion& given : list) {
            fa_conversion_t one = {given.x.data(), given.out.data(), {}, {}, {}, given.x.dtype(), given.out.dtype(), given.flags};
            for (int i = 0; i < 4; i++)
                one.size[i] = given.size[i], one.x_stride[i] = given.x_stride[i], one.out_stride[i] = given.out_stride[i];
            const struct {
                const char* name;
                uint64_t has, used;
            } rooms[] = {{"x", given.x.data() ? given.x.bytes() : Tensor::kUnknown, detail::reach(one.x_dtype, one.size, one.x_stride)},
                         {"out", given.out.bytes(), detail::reach(one.out_dtype, one.size, one.out_stride)}};
            for (const auto& room : rooms)
                if (room.has != Tensor::kUnknown && room.used > room.has)
                    return {FA_INVALID_ARGUMENT, "list[" + std::to_string(raw.size()) + "]." + room.name + " has " +
                                                     std::to_string(room.has) + " bytes: the call would use " + std::to_string(room.used)};
            raw.push_back(one);
        }
        return said(fa_convert(get(), raw.data(), static_cast<int64_t>(raw.size()), flags, stream));
    }
    template <class Args>
    Status call(Attention desc, const Args& given) {
        auto args = detail::blank(given);
        detail::Binding binding(desc, detail::op_of(given), &args);
        detail::bind(binding, args, given);
        if (Status status = binding.check(); !status) return status;
        return said(detail::run(get(), desc, args));
    }
    Status call(Attention desc, const ForwardArgs& inputs, const BackwardArgs& given) {
        auto forward_args = detail::blank(inputs);
        detail::Binding forward_binding(desc, FA_OP_FORWARD, &forward_args);
        detail::bind(forward_binding, forward_args, inputs);
        auto args = detail::blank(given);
        args.forward = &forward_args;
        detail::Binding binding(desc, FA_OP_BACKWARD, &args, given.flags & FA_BACKWARD_ACCUMULATE);
        detail::bind(binding, args, given);
        if (Status status = forward_binding.check(); !status) return status;
        if (Status status = binding.check(); !status) return status;
        return said(detail::run(get(), desc, args));
    }

    std::unique_ptr<detail::Callbacks> callbacks_;  // outlives raw_, which calls them
    std::unique_ptr<fa_handle_s, Destroy> raw_;
};

/* ------------------------------------------------------------------------------------------------------- without a handle */

/* major * 10000 + minor * 100 + patch of the library that runs. */
inline int32_t version() { return fa_version(); }

/* Says whether a backend is usable here. The message has the reason. */
inline Status backend_status(int32_t backend) {
    char text[FA_TEXT_MAX] = "";
    const fa_status_t status = fa_backend_status(backend, text, sizeof text);
    return {status, text};
}

/* fa_backend_supports: whether a call would work on this backend and device. The message is the text of fa_explain. */
inline Status backend_supports(int32_t backend, int32_t device, const Attention& attention, int32_t op) {
    char text[FA_TEXT_MAX] = "";
    const fa_status_t status = fa_backend_supports(backend, device, &attention, op, text, sizeof text);
    return {status, text};
}

inline Result<std::vector<fa_device_info_t>> devices(int32_t backend) {
    int32_t count = 0;
    fa_status_t status = fa_device_count(backend, &count);
    std::vector<fa_device_info_t> found(status == FA_OK ? static_cast<size_t>(count) : 0);
    for (size_t i = 0; i < found.size() && status == FA_OK; i++) {
        found[i].struct_size = sizeof found[i];
        status = fa_device_info(backend, static_cast<int32_t>(i), &found[i]);
    }
    Status said = status == FA_OK ? Status() : Status(status, fa_last_error(nullptr));
    return detail::finish(std::move(said), std::move(found));
}

/* rows × keys bytes: 1 if the key is kept. See fa_dropout_mask. */
inline Result<std::vector<uint8_t>> dropout_mask(float p, uint64_t seed, uint64_t offset, int64_t batch_head, int64_t row, int64_t rows,
                                                 int64_t key, int64_t keys) {
    std::vector<uint8_t> keep(rows > 0 && keys > 0 ? static_cast<size_t>(rows) * static_cast<size_t>(keys) : 0);
    const fa_status_t status = fa_dropout_mask(p, seed, offset, batch_head, row, rows, key, keys, keep.data());
    Status said = status == FA_OK ? Status() : Status(status, fa_last_error(nullptr));
    return detail::finish(std::move(said), std::move(keep));
}

/* The slopes of ALiBi for `heads` heads; max_bias 0: the usual 8. */
inline Result<std::vector<float>> alibi_slopes(int64_t heads, float max_bias = 0) {
    std::vector<float> slopes(heads > 0 ? static_cast<size_t>(heads) : 0);
    const fa_status_t status = fa_alibi_slopes(heads, max_bias, slopes.data());
    Status said = status == FA_OK ? Status() : Status(status, fa_last_error(nullptr));
    return detail::finish(std::move(said), std::move(slopes));
}

}  // inline namespace
}  // namespace flashattn

#endif
