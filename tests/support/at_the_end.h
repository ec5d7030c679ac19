#pragma once
#include <sys/mman.h>
#include <unistd.h>
#include <cstdint>
#include <cstring>

// A struct of `size` bytes, which says so, and behind which memory ends: who reads a byte further ends the process.
class AtTheEnd {
  public:
    AtTheEnd(const void* from, uint32_t size) : page_(size_t(sysconf(_SC_PAGESIZE))) {
        memory_ = static_cast<char*>(mmap(nullptr, 2 * page_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        mprotect(memory_ + page_, page_, PROT_NONE);
        memcpy(get(size), from, size);
        memcpy(get(size), &size, sizeof size);
    }
    ~AtTheEnd() { munmap(memory_, 2 * page_); }
    AtTheEnd(const AtTheEnd&) = delete;
    char* get(uint32_t size) const { return memory_ + page_ - size; }

  private:
    size_t page_;
    char* memory_;
};
