// The storage formats, as doubles. Nothing here knows how to round: a value is stored by finding its neighbours among all values
// that the format has, and taking the nearer one.
#pragma once
#include <flashattn.h>

namespace oracle {

int64_t size_of(int32_t dtype);  // bytes of an element
double largest(int32_t dtype);   // largest finite value
double load(const void* base, int64_t index, int32_t dtype);
// Nearest, ties to even. Beyond the largest value f32, f16 and bf16 give infinity; 8-bit types saturate.
void store(void* base, int64_t index, int32_t dtype, double value);
double rounded(double value, int32_t dtype);  // load(store(value))
const char* name_of(int32_t dtype);

}  // namespace oracle
