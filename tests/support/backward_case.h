// A forward call and the backward call behind it.
//
//     BackwardCase b(std::move(c));   c is bound and filled
//     b.run_forward(handle);          its o and LSE are inputs of the backward
//     b.bind(rng);                    after strides and flags in b.a, and the choice of gradients
//     b.fill_normal(rng);             dout and dlse
//     b.run(handle);
//
// As in Case, memory that the problem does not own is NaN, inputs are read-only, and outputs start as NaN.
#pragma once
#include "oracle/backward_accuracy.h"
#include "support/case.h"
#include "support/handle.h"

namespace test {

class BackwardCase {
  public:
    explicit BackwardCase(Case forward) : c(std::move(forward)) {}

    Case c;
    fa_backward_args_t a = FA_BACKWARD_ARGS_INIT;
    bool wants_dq = true, wants_dk = true, wants_dv = true, gives_dlse = false;
    bool wants_dbias = true, wants_dsinks = true;  // where there is a bias, there are sinks
    Buffer dout, dlse, dq, dk, dv, dbias, dsinks, workspace;

    fa_status_t run_forward(fa_handle_t handle) { return c.run(handle); }
    void bind(Rng& rng);
    oracle::BackwardReading reading() const { return {c.d, args()}; }
    fa_backward_args_t args() const;         // a, pointing to the forward's
    void set_dout(const Case::Pick& value);  // (b, head, row, element)
    void set_dlse(const std::function<double(int64_t b, int64_t head, int64_t row)>& value);
    void fill_normal(Rng& rng, double size = 1);
    void use_workspace(uint64_t bytes, Rng& rng);

    // The call itself. Outputs start as NaN, or, when they are accumulated into, as numbers: reset_outputs() is that part alone.
    fa_status_t run(fa_handle_t handle);
    void reset_outputs();

    // Every gradient against the oracle's (accuracy line 2), and nothing else written. Empty when all is right.
    std::string check(const oracle::Products& products) const;
    std::vector<oracle::Target> targets() const;
    std::string describe() const;

  private:
    std::vector<Buffer*> outputs() { return {&dq, &dk, &dv, &dbias, &dsinks}; }
    const Buffer& output_of(const oracle::Target& target, size_t& index) const;
    std::vector<std::vector<unsigned char>> before_;  // bytes of the outputs, in this order
};

// The backward of a case whose forward has been run: "" when all is right.
std::string run_and_check(const Handle& handle, BackwardCase& backward);

// What the backend rounded on the way, in the forward and in the backward of the case.
oracle::Products products_of(fa_handle_t handle, const BackwardCase& backward);

}  // namespace test
