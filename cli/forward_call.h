// A forward call that owns all it points to. Bytes that the call must not use are NaN, and so are the outputs before each run.
#pragma once
#include <memory>
#include <vector>
#include "forward_cases.h"
#include "oracle/oracle.h"
#include "support/rng.h"

namespace tool {

class ForwardCall {
  public:
    explicit ForwardCall(const ForwardCase& test_case);
    ForwardCall(const ForwardCall&) = delete;
    ForwardCall& operator=(const ForwardCall&) = delete;

    const oracle::Reading& reading() const { return *reading_; }
    void spoil_outputs();

  private:
    template <class T>
    T* room(int64_t elements, int64_t element_bytes = sizeof(T));
    const float* floats(int64_t count, double low, double high);
    const void* factors(const oracle::Reading::Factors& factors, double low, double high);
    void make_operands(const oracle::Reading& shape, fa_forward_args_t& args);
    void fill_tensors();
    double key_value(int64_t j);
    double value_value(int64_t j, int64_t c);

    const ForwardCase& case_;
    test::Rng rng_;
    std::vector<std::vector<unsigned char>> memory_;
    std::unique_ptr<oracle::Reading> reading_;
};

}  // namespace tool
