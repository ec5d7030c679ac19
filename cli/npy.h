// NumPy's .npy files: reading versions 1 to 3 in either order of axes and of bytes, writing version 1, low bytes first.
// Written here because the tool depends on nothing at run time, NumPy included, and no C++ library does this: cnpy, the best known,
// asserts low bytes first, takes any text for a header, and multiplies extents without a check for overflow.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>
#include "files.h"

namespace tool {

// Elements in the machine's byte order. Their types as the file names them, without it: "f4", "f2", "u2", "b1", … ("V2" is what bfloat16
// arrays save as).
struct Array {
    std::string type;
    std::vector<int64_t> shape;
    std::vector<int64_t> stride;  // in elements
    std::vector<std::byte> bytes;

    int64_t size() const;  // elements
    void allocate();       // zeros
    template <class T>
    const T* as() const {
        return reinterpret_cast<const T*>(bytes.data());
    }
    template <class T>
    T* as() {
        return reinterpret_cast<T*>(bytes.data());
    }
};

// "float32" for "f4", and so on, for messages.
std::string type_name(const std::string& type);
std::string shape_text(const std::vector<int64_t>& shape);  // "(2, 3)"
uint64_t type_size(const std::string& type);                // bytes; 0 for a type that these tools do not know

// An array in C order that has no memory yet. Throws Error when its size overflows.
Array plan_array(const std::string& type, const std::vector<int64_t>& shape);

// The same elements in C order.
Array in_c_order(Array array);

// Throws Error, one sentence that begins with the path.
Array read_npy(const std::string& path);

// Version 1, in C order, little-endian.
void write_npy(OutputFile& file, const Array& array);

}  // namespace tool
