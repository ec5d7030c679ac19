// What fa_explain says, piece by piece.
#pragma once
#include "gpu/host/refusal.h"

namespace fa {
namespace gpu {
namespace {

// Adds to a text of at most n bytes.
struct Words {
    char* text;
    uint64_t n;
    __attribute__((format(printf, 2, 3))) void say(const char* format, ...) {
        va_list list;
        va_start(list, format);
        const uint64_t length = uint64_t(vsnprintf(text, n, format, list)), used = length < n ? length : n;
        va_end(list);
        text += used, n -= used;
    }
};

// The device, and what a block may have of its shared memory where the environment says so.
void say_device(const rt::Device& device, const Host& host, Words* words) {
    words->say(" on %s (%s)", device.name, device.arch);
    if (host.max_shared_bytes > 0)
        words->say(" with %llu KB of shared memory a block", (unsigned long long)(device.shared_per_block >> 10));
}

// Why families did not take a call, in the order in which they were asked. Neighbours that say the same say it once.
struct Reasons {
    Words* words;
    Refusal said;
    void add(const char* family, const Refusal& refusal) {
        if (strcmp(said.text, refusal.text) == 0) return words->say(", %s", family);
        words->say("%s%s; not %s", said.text[0] ? ": " : "", said.text, family);
        said = refusal;
    }
    void end() {
        if (said.text[0]) words->say(": %s", said.text);
    }
};

}  // namespace
}  // namespace gpu
}  // namespace fa
