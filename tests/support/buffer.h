// Memory that ends, or begins, at a page nobody may touch, and whose every byte starts as 0xff: NaN in all the float types, −1 in
// the integers. What a call reads beyond its tensor faults; what it writes into the slack of the page is found by intact().
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace test {

class Buffer {
  public:
    enum class Guard { after, before };

    Buffer() = default;
    Buffer(int64_t bytes, Guard guard);
    Buffer(Buffer&& other) noexcept { *this = static_cast<Buffer&&>(other); }
    Buffer& operator=(Buffer&& other) noexcept;
    ~Buffer();

    template <typename T = void>
    T* as() const {
        return static_cast<T*>(data_);
    }
    int64_t bytes() const { return bytes_; }
    void freeze(bool frozen);  // read only from here on, or writable again
    bool intact() const;       // the slack around the data is as it was

  private:
    void* mapping_ = nullptr;
    size_t mapped_ = 0;
    void* data_ = nullptr;
    int64_t bytes_ = 0;
};

constexpr unsigned char kPoison = 0xff;

// Address space without memory: pages appear, zeroed, when they are touched. NULL data when the system refuses.
class SparseBuffer {
  public:
    explicit SparseBuffer(uint64_t bytes);
    ~SparseBuffer();
    SparseBuffer(const SparseBuffer&) = delete;
    SparseBuffer& operator=(const SparseBuffer&) = delete;
    template <typename T>
    T* as() const {
        return static_cast<T*>(data_);
    }

  private:
    void* data_;
    uint64_t bytes_;
};

// What to print when the process faults: a guard page leaves no other trace of which case was running.
void on_fault_print(const std::string& text);

}  // namespace test
