// The storage formats, as doubles. Nothing here knows how to round: a value is stored by finding its neighbours among all values
// that the format has, and taking the nearer one.
#pragma once
#include <flashattn.h>
#include <vector>

namespace oracle {

int64_t size_of(int32_t dtype);      // bytes of a unit: of an element, or of a block
int64_t elements_of(int32_t dtype);  // of a unit
bool is_block(int32_t dtype);
bool is_nibble(int32_t dtype);  // two values in a byte: an index counts values, not bytes
int64_t byte_at(int64_t index, int32_t dtype);
double largest(int32_t dtype);  // largest finite value
double load(const void* base, int64_t index, int32_t dtype);
// Element `dim` of a row that begins with unit `row`: the only way to look into a block.
double load_dim(const void* base, int64_t row, int64_t dim, int32_t dtype);
bool has_finite_factors(const void* base, int64_t row, int64_t dim, int32_t dtype);  // of the dim's block
double largest_of_block(const void* base, int64_t row, int64_t dim, int32_t dtype);  // that the dim's block could hold, its sign dropped
// A block's d, which is word 0, or its m, word 1: an f16 with its low byte first, whatever the machine's order is.
double load_block_word(const void* block, int word);
void store_block_word(void* block, int word, double value);
// A row's values: each stored, or blocks of them quantised.
void store_row(void* base, int64_t row, int32_t dtype, const std::vector<double>& values);
// A block's bytes, of 32 floats: ggml's rule, which is said in f32.
std::vector<unsigned char> quantised(const double* values, int32_t dtype);
// Nearest, ties to even. Beyond the largest value f32, f16 and bf16 give infinity; others saturate, and integers and e2m1 have 0 for NaN.
void store(void* base, int64_t index, int32_t dtype, double value);
double rounded(double value, int32_t dtype);  // load(store(value))
const char* name_of(int32_t dtype);

}  // namespace oracle
