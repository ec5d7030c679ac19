#include "support/buffer.h"
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace test {
namespace {

const size_t kPage = size_t(sysconf(_SC_PAGESIZE));

char fault_text[8192];

void print_raw(const char* text) {
    if (write(STDERR_FILENO, text, strlen(text)) < 0) _exit(3);
}

void fault_handler(int signal_number) {
    print_raw("\nfault (guard page or read-only input) in: ");
    print_raw(fault_text);
    print_raw("\n");
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

}  // namespace

Buffer::Buffer(int64_t bytes, Guard guard) : bytes_(bytes) {
    const size_t inner = (size_t(bytes) + kPage - 1) / kPage * kPage;
    mapped_ = inner + 2 * kPage;
    mapping_ = mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping_ == MAP_FAILED) abort();
    char* const begin = static_cast<char*>(mapping_) + kPage;
    if (inner > 0) {
        if (mprotect(begin, inner, PROT_READ | PROT_WRITE) != 0) abort();
        memset(begin, kPoison, inner);
    }
    data_ = guard == Guard::before ? begin : begin + inner - bytes;
}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
    std::swap(mapping_, other.mapping_);
    std::swap(mapped_, other.mapped_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
}

Buffer::~Buffer() {
    if (mapping_) munmap(mapping_, mapped_);
}

void Buffer::freeze(bool frozen) {
    if (mapped_ > 2 * kPage)
        mprotect(static_cast<char*>(mapping_) + kPage, mapped_ - 2 * kPage, frozen ? PROT_READ : PROT_READ | PROT_WRITE);
}

bool Buffer::intact() const {
    if (!mapping_) return true;
    const unsigned char* const data = as<unsigned char>();
    const unsigned char* const begin = static_cast<unsigned char*>(mapping_) + kPage;
    const unsigned char* const end = static_cast<unsigned char*>(mapping_) + mapped_ - kPage;
    for (const unsigned char* at = begin; at < data; at++)
        if (*at != kPoison) return false;
    for (const unsigned char* at = data + bytes_; at < end; at++)
        if (*at != kPoison) return false;
    return true;
}

SparseBuffer::SparseBuffer(uint64_t bytes) : bytes_(bytes) {
    data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data_ == MAP_FAILED) data_ = nullptr;
}

SparseBuffer::~SparseBuffer() {
    if (data_) munmap(data_, bytes_);
}

void on_fault_print(const std::string& text) {
    static const bool installed = [] {
        signal(SIGSEGV, fault_handler);
        signal(SIGBUS, fault_handler);
        signal(SIGFPE, fault_handler);
        return true;
    }();
    (void)installed;
    strncpy(fault_text, text.c_str(), sizeof fault_text - 1);
}

}  // namespace test
