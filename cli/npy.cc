#include "npy.h"
#include <algorithm>
#include <cstring>
#include "library.h"

namespace tool {
namespace {

struct Type {
    const char* code;
    const char* name;
    uint64_t size;
};
constexpr Type kTypes[] = {{"f4", "float32", 4}, {"f2", "float16", 2}, {"f8", "float64", 8}, {"V2", "bfloat16", 2}, {"b1", "bool", 1},
                           {"u1", "uint8", 1},   {"u2", "uint16", 2},  {"u4", "uint32", 4},  {"u8", "uint64", 8},   {"i1", "int8", 1},
                           {"i2", "int16", 2},   {"i4", "int32", 4},   {"i8", "int64", 8}};

const Type* find_type(const std::string& code) {
    for (const Type& t : kTypes)
        if (code == t.code) return &t;
    return nullptr;
}

constexpr char kHostOrder = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? '<' : '>';  // as the file says it

// Elements in the other byte order.
std::vector<std::byte> swapped(std::vector<std::byte> bytes, uint64_t size) {
    for (auto at = bytes.begin(); at != bytes.end(); at += std::ptrdiff_t(size)) std::reverse(at, at + std::ptrdiff_t(size));
    return bytes;
}

// Elements of a shape, or -1 when the elements or their bytes overflow. The product skips zeros, so that strides fit as well.
int64_t count_of(const std::vector<int64_t>& shape, uint64_t size) {
    int64_t bytes = int64_t(size);
    bool none = false;
    for (int64_t extent : shape) {
        if (extent == 0) none = true;
        else if (__builtin_mul_overflow(bytes, extent, &bytes)) return -1;
    }
    return none ? 0 : bytes / int64_t(size);
}

// Strides of a C-order (or Fortran-order) array. An axis of extent 0 counts as 1, as in NumPy.
std::vector<int64_t> strides_of(const std::vector<int64_t>& shape, bool fortran) {
    std::vector<int64_t> stride(shape.size());
    int64_t step = 1;
    for (size_t n = 0; n < shape.size(); ++n) {
        const size_t axis = fortran ? n : shape.size() - 1 - n;
        stride[axis] = step;
        step *= std::max<int64_t>(shape[axis], 1);
    }
    return stride;
}

// The header is a Python dictionary: {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }
class Header {
  public:
    Header(std::string text, const std::string& path) : text_(std::move(text)), path_(path) { parse(); }
    std::string descr;
    bool fortran = false;
    std::vector<int64_t> shape;

  private:
    [[noreturn]] void broken(const std::string& what) const { fail(path_, ": not a valid .npy file: its header ", what); }

    void blanks() {
        while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t')) ++at_;
    }
    bool take(char c) {
        blanks();
        if (at_ >= text_.size() || text_[at_] != c) return false;
        ++at_;
        return true;
    }
    void expect(char c) {
        if (!take(c)) broken(text_of("lacks '", c, "' at byte ", at_));
    }
    bool take_word(const char* word) {
        blanks();
        const size_t n = std::strlen(word);
        if (text_.compare(at_, n, word) != 0) return false;
        at_ += n;
        return true;
    }
    std::string string() {
        const char quote = take('\'') ? '\'' : take('"') ? '"' : '\0';
        const size_t end = quote ? text_.find(quote, at_) : std::string::npos;
        if (end == std::string::npos) broken(text_of("lacks a string at byte ", at_));
        const std::string s = text_.substr(at_, end - at_);
        at_ = end + 1;
        return s;
    }
    int64_t extent() {
        blanks();
        const size_t begin = at_;
        int64_t value = 0;
        for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_)
            if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, text_[at_] - '0', &value))
                broken("has an extent that overflows");
        if (at_ == begin) broken(text_of("lacks an extent at byte ", at_));
        take('L');  // Python 2 wrote long integers so
        return value;
    }

    void parse() {
        bool has_descr = false, has_order = false, has_shape = false;
        expect('{');
        while (!take('}')) {
            const std::string key = string();
            expect(':');
            if (key == "descr") {
                if (take('[')) fail(path_, ": a structured array; expected one of plain numbers");
                descr = string();
                has_descr = true;
            } else if (key == "fortran_order") {
                fortran = take_word("True");
                if (!fortran && !take_word("False")) broken("has a fortran_order that is neither True nor False");
                has_order = true;
            } else if (key == "shape") {
                expect('(');
                while (!take(')')) {
                    shape.push_back(extent());
                    if (!take(',')) {
                        expect(')');
                        break;
                    }
                }
                has_shape = true;
            } else {
                broken("has an unknown key " + shown(key));
            }
            if (!take(',')) {
                expect('}');
                break;
            }
        }
        if (!has_descr || !has_order || !has_shape) broken("lacks descr, fortran_order or shape");
    }

    std::string text_;
    const std::string& path_;
    size_t at_ = 0;
};

std::string read_header(InputFile& file, const std::string& path) {
    const std::vector<std::byte> start = file.read(8);
    if (start.size() < 8 || std::memcmp(start.data(), "\x93NUMPY", 6) != 0) fail(path, ": not a .npy file");
    const int version = int(start[6]);
    if (version < 1 || version > 3) fail(path, ": .npy version ", version, "; expected 1, 2 or 3");
    const std::vector<std::byte> length_bytes = file.read(version == 1 ? 2 : 4);
    uint64_t length = 0;
    for (size_t i = 0; i < length_bytes.size(); ++i) length |= uint64_t(length_bytes[i]) << (8 * i);
    const std::vector<std::byte> text = file.read(length);
    if (length == 0 || text.size() < length) fail(path, ": truncated within its header");
    return {reinterpret_cast<const char*>(text.data()), text.size()};
}

}  // namespace

int64_t Array::size() const { return count_of(shape, type_size(type)); }
void Array::allocate() { bytes.resize(uint64_t(size()) * type_size(type)); }

std::string type_name(const std::string& code) {
    const Type* t = find_type(code);
    return t ? t->name : code;
}

uint64_t type_size(const std::string& code) {
    const Type* t = find_type(code);
    return t ? t->size : 0;
}

std::string shape_text(const std::vector<int64_t>& shape) {
    std::string text = "(";
    for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
    return text + (shape.size() == 1 ? ",)" : ")");
}

Array plan_array(const std::string& type, const std::vector<int64_t>& shape) {
    if (count_of(shape, type_size(type)) < 0) fail("an array of shape ", shape_text(shape), " is larger than memory can be");
    return {type, shape, strides_of(shape, false), {}};
}

Array in_c_order(Array array) {
    const std::vector<int64_t> dense = strides_of(array.shape, false);
    if (array.stride == dense) return array;
    const size_t size = type_size(array.type), rank = array.shape.size();
    std::vector<std::byte> bytes(array.bytes.size());
    std::vector<int64_t> index(rank, 0);
    int64_t from = 0;
    for (size_t to = 0; to < bytes.size(); to += size) {
        std::memcpy(&bytes[to], &array.bytes[size_t(from) * size], size);
        for (size_t axis = rank; axis-- > 0;) {
            from += array.stride[axis];
            if (++index[axis] < array.shape[axis]) break;
            from -= array.stride[axis] * array.shape[axis];
            index[axis] = 0;
        }
    }
    return {array.type, array.shape, dense, std::move(bytes)};
}

Array read_npy(const std::string& path) {
    InputFile file(path);
    const Header header(read_header(file, path), path);
    const char order = header.descr.empty() ? '?' : header.descr[0];
    const std::string type = header.descr.substr(header.descr.empty() ? 0 : 1);
    if ((order != '<' && order != '>' && order != '|' && order != '=') || !find_type(type))
        fail(path, ": elements of type ", shown(header.descr), " cannot be read; expected float32, float16 or another plain number");
    const int64_t count = count_of(header.shape, type_size(type));
    if (count < 0) fail(path, ": a shape of ", shape_text(header.shape), " is larger than memory can be");
    const uint64_t expected = uint64_t(count) * type_size(type);
    Array array{type, header.shape, strides_of(header.shape, header.fortran), file.read(expected)};
    if (array.bytes.size() < expected)
        fail(path, ": truncated: ", array.bytes.size(), " bytes of data; its shape ", shape_text(header.shape), " of ", type_name(type),
             " needs ", expected);
    if (!file.read(1).empty()) fail(path, ": bytes after the end of its data; expected ", expected, " bytes of data");
    const bool of_host = order == '|' || order == '=' || order == kHostOrder;
    if (!of_host) array.bytes = swapped(std::move(array.bytes), type_size(type));
    return array;
}

void write_npy(OutputFile& file, const Array& array) {
    std::string header = text_of("{'descr': '", type_size(array.type) == 1 ? '|' : '<', array.type,
                                 "', 'fortran_order': False, 'shape': ", shape_text(array.shape), ", }");
    constexpr size_t kStart = 10, kAlign = 64;  // magic, version and length; the data begins at a multiple of 64
    header.resize((header.size() + 1 + kStart + kAlign - 1) / kAlign * kAlign - kStart, ' ');
    header.back() = '\n';
    const std::string start = {'\x93', 'N', 'U', 'M', 'P', 'Y', 1, 0, char(header.size() & 0xff), char(header.size() >> 8)};
    file.write(start);
    file.write(header);
    if (kHostOrder == '<') return file.write(array.bytes.data(), array.bytes.size());
    const std::vector<std::byte> data = swapped(array.bytes, type_size(array.type));
    file.write(data.data(), data.size());
}

}  // namespace tool
