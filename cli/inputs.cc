#include "inputs.h"
#include <algorithm>
#include <utility>
#include "library.h"
#include "options.h"

namespace tool {

Tensor tensor_of(Array array, Layout layout) {
    const std::vector<int64_t>&n = array.shape, &s = array.stride;
    Tensor t;
    const size_t row = layout == Layout::packed ? 0 : layout == Layout::bshd ? 1 : 2;
    const size_t head = layout == Layout::bshd ? 2 : 1;
    t.length = n[row];
    t.heads = n[head];
    t.dim = n.back();
    t.stride[1] = s[row];
    t.stride[2] = s[head];
    t.stride[3] = 1;
    if (layout != Layout::packed) {
        t.batch = n[0];
        t.stride[0] = s[0];
    }
    t.array = std::move(array);
    return t;
}

Tensor read_tensor(const std::string& option, const std::string& path, Layout layout) {
    Array array = read_npy(path);
    if (array.shape.size() != (layout == Layout::packed ? 3 : 4)) {
        const char* expected = layout == Layout::packed ? "(total, heads, dim), as --cu-seqlens packs it"
                               : layout == Layout::bhsd ? "(batch, heads, seq, dim)"
                                                        : "(batch, seq, heads, dim), or packed sequences with their --cu-seqlens";
        fail(option, " ", path, ": has shape ", shape_text(array.shape), "; expected ", expected);
    }
    if (array.stride.back() != 1) array = in_c_order(std::move(array));  // the library reads whole rows
    return tensor_of(std::move(array), layout);
}

int32_t dtype_of(const std::string& option, const std::string& path, const Array& array, const std::string& wanted) {
    const bool bits = array.type == "u2" || array.type == "V2";
    const std::string holds = text_of(option, " ", path, ": holds ", type_name(array.type));
    if (bits && wanted != "bf16") fail(holds, "; give --dtype bf16 if these are the bits of bfloat16");
    const std::string dtype = bits ? "bf16" : array.type == "f4" ? "f32" : array.type == "f2" ? "f16" : "";
    if (dtype.empty()) fail(holds, "; expected float32, float16, or bfloat16 as uint16 (convert it first, as by astype('float32'))");
    if (!wanted.empty() && dtype != wanted) fail(holds, ", but --dtype is ", wanted);
    return value_of(kDtypes, dtype);
}

std::vector<int32_t> read_offsets(const std::string& option, const std::string& text) {
    std::vector<int64_t> wide;
    if (text == kStandard || (text.size() > 4 && text.compare(text.size() - 4, 4, ".npy") == 0)) {
        const Array a = read_npy(text);
        if ((a.type != "i4" && a.type != "i8") || a.shape.size() != 1)
            fail(option, " ", text, ": holds ", type_name(a.type), " of shape ", shape_text(a.shape),
                 "; expected int32 of shape (batch + 1,)");
        if (a.type == "i4") wide.assign(a.as<int32_t>(), a.as<int32_t>() + a.size());
        else wide.assign(a.as<int64_t>(), a.as<int64_t>() + a.size());
    } else {
        wide = parse_ints(option, text);
    }
    if (wide.empty()) fail(option, " ", text, ": is empty; expected batch + 1 offsets, as 0,10,30");
    std::vector<int32_t> offsets;
    for (int64_t x : wide) {
        if (x < 0 || x > INT32_MAX) fail(option, " has the offset ", x, "; expected 0 … ", INT32_MAX);
        offsets.push_back(int32_t(x));
    }
    return offsets;
}

int64_t longest(const std::vector<int32_t>& offsets) {
    int64_t n = 0;
    for (size_t b = 1; b < offsets.size(); ++b) n = std::max<int64_t>(n, offsets[b] - offsets[b - 1]);
    return n;
}

void broadcast(const std::string& option, const std::string& path, const Array& array, const fa_attention_desc_t& desc, int64_t* stride) {
    const std::vector<int64_t> full = {desc.batch, desc.heads_q, desc.seqlen_q, desc.seqlen_k};
    const size_t rank = array.shape.size();
    bool fits = rank <= full.size();
    for (size_t axis = 0; fits && axis < rank; ++axis) {
        const size_t to = full.size() - rank + axis;
        const int64_t extent = array.shape[axis];
        fits = extent == full[to] || extent == 1;
        stride[to] = extent == 1 ? 0 : array.stride[axis];
    }
    if (!fits)
        fail(option, " ", path, ": has shape ", shape_text(array.shape),
             "; expected one that broadcasts to (batch, heads, rows, keys) = ", shape_text(full));
}

}  // namespace tool
