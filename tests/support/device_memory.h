// Bytes where a handle's calls take them, and back.
#pragma once
#include <flashattn.h>
#include <gtest/gtest.h>
#include <utility>
#include <vector>

namespace test {

class DeviceMemory {
  public:
    DeviceMemory() = default;
    DeviceMemory(fa_handle_t handle, const void* data, uint64_t bytes) : handle_(handle), bytes_(bytes) {
        EXPECT_EQ(FA_OK, fa_malloc(handle, bytes, &data_)) << fa_last_error(handle);
        EXPECT_EQ(FA_OK, fa_copy(handle, data_, data, bytes)) << fa_last_error(handle);
    }
    DeviceMemory(DeviceMemory&& other) noexcept { *this = std::move(other); }
    DeviceMemory& operator=(DeviceMemory&& other) noexcept {
        std::swap(handle_, other.handle_), std::swap(data_, other.data_), std::swap(bytes_, other.bytes_);
        return *this;
    }
    ~DeviceMemory() {
        if (data_) fa_free(handle_, data_);
    }
    void* data() const { return data_; }
    uint64_t bytes() const { return bytes_; }
    // When the handle's stream has come so far.
    void read(void* to) const { EXPECT_EQ(FA_OK, fa_copy(handle_, to, data_, bytes_)) << fa_last_error(handle_); }

  private:
    fa_handle_t handle_ = nullptr;
    void* data_ = nullptr;
    uint64_t bytes_ = 0;
};

}  // namespace test
