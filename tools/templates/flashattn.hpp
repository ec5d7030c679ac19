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

#if FA_VERSION < TEMPLATE_VERSION || FA_VERSION_MAJOR != TEMPLATE_MAJOR
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
/* TEMPLATE_ARGS */
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
/* TEMPLATE_BIND */
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
