// A call that `bench` times, forward or backward: what it has to do, and its tensors in the handle's own memory.
#pragma once
#include <memory>
#include <string>
#include <vector>
#include "ceilings.h"
#include "library.h"
#include "support/rng.h"

namespace tool {

struct Load {
    std::string suite, shape, series;   // as tables and plots call it
    fa_attention_desc_t desc;           // operands: none but what Tensors can make
    bool cold = false;                  // k and v come from memory, not from a cache: sets of them take turns
    std::vector<int32_t> lengths = {};  // of packed sequences
    bool triangle = false;              // the boolean mask keeps keys up to the row's own; else seven of ten, here and there
    bool backward = false;              // the gradients of q, k and v, after one forward
    int32_t op() const { return backward ? FA_OP_BACKWARD : FA_OP_FORWARD; }
};

// Loads that take turns on the clock. Those after the first are its variants: what they cost is told as a multiple of the first's time
// for equal work.
using Group = std::vector<Load>;

// What a call has to do, whatever it does.
double flops_of(const Load& load);        // 2 for each product and sum, over the pairs that masks of a known form leave
double cache_bytes_of(const Load& load);  // of k and v, once

// What its tensors take, but for the workspace.
double bytes_of(const Load& load, int32_t backend);

class Tensors {
  public:
    Tensors(Handle& handle, const Load& load);
    Tensors(const Tensors&) = delete;
    Tensors& operator=(const Tensors&) = delete;

    void call();  // with the next set, forwards: enqueued on a GPU, done on the CPU
    size_t turn = 0;
    std::vector<std::vector<Stretch>> sets() const;  // of k and v

  private:
    struct Set {
        std::byte *k, *v;
    };
    void* room(uint64_t bytes);
    template <class T>
    T* copied(const std::vector<T>& values);
    std::byte* numbers(uint64_t bytes, int32_t dtype);
    std::vector<int32_t> shuffled_pages();
    std::vector<uint8_t> mask();
    void make_operands();
    void* workspace(int32_t op, uint64_t* size);
    void make_backward();

    Handle& handle_;
    const Load& load_;
    test::Rng rng_;
    fa_forward_args_t args_ = FA_FORWARD_ARGS_INIT;
    fa_backward_args_t backward_args_ = FA_BACKWARD_ARGS_INIT;
    std::vector<std::unique_ptr<DeviceMemory>> memory_;
    std::vector<Set> sets_;
    uint64_t k_bytes_, v_bytes_;
};

}  // namespace tool
