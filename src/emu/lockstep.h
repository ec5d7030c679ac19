// A GPU on the CPU, for tests: every thread of a block is a fiber, and a barrier or shuffle is a rendezvous at which the last
// thread to arrive does the operation for all. Blocks run one after another.
//
// FLASHATTN_EMU_WAVE = 32 or 64 sets the lanes of a wave, FLASHATTN_EMU_ORDER = forward or backward which wave comes first, and
// which of its lanes. A wave runs as far ahead of the others as barriers let it: a kernel that lacks one gives different answers in
// the two orders. A thread that never arrives at a rendezvous is reported and ends the process, as are threads that meet at
// different operations. Stricter than hardware: every live lane of a wave takes part in each shuffle. FLASHATTN_EMU_WITHOUT_BARRIER
// = gpu/simt/forward.h:244 removes the barrier in that line, for tests of all this.
#pragma once
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <memory>
#include <vector>

namespace fa {
namespace lockstep {

constexpr size_t kStack = 128 << 10;

// The compiler's own setjmp: no signal mask to save, and hardened C libraries, which take a jump to another stack for a fault, do
// not touch it.
struct Jump {
    void* words[5];
};

// Asynchronous copies of one thread, in the order in which it asked for them.
struct Copies {
    struct Copy {
        char* to;
        const char* from;
        int bytes, size;  // to copy; to write: the rest are zeros
    };
    std::vector<Copy> all;
    std::vector<size_t> groups;  // where each ends in `all`
    size_t arrived = 0;          // groups
    void reset() {
        all.clear();
        groups.clear();
        arrived = 0;
    }
};

struct Fiber {
    Jump at;  // where to go on, once started
    ucontext_t start;
    std::unique_ptr<char[]> stack;
    bool started = false;
    Copies copies;
};

// The participants of a rendezvous: the lanes of a wave, all threads of a block, or those of a named barrier.
struct Group {
    using Action = void (*)(void** lanes, int n);
    std::vector<void*> lanes;  // each one's argument; NULL: ended, or not here yet
    std::vector<int> waiting;  // fibers asleep here
    int here = 0, alive = 0;
    Action action = nullptr;
    void reset(int n) {
        lanes.assign(size_t(n), nullptr);
        waiting.clear();
        here = 0;
        alive = n;
    }
};

// Fibers of a wave that can run; the first to come is the first to go.
struct Queue {
    std::vector<int> fibers;
    size_t next = 0;
    bool empty() const { return fibers.empty(); }
    int pop() {
        const int f = fibers[next++];
        if (next == fibers.size()) {
            fibers.clear();
            next = 0;
        }
        return f;
    }
};

struct Block {
    std::vector<Fiber> fibers;
    std::vector<Group> waves;
    Group all;
    Group named[16];           // of barriers among some of the threads
    std::vector<Queue> ready;  // of each wave
    int now = 0, living = 0, threads = 0;
    int64_t index = 0, blocks = 0;
    Jump done;
    void (*body)(const void*) = nullptr;
    const void* argument = nullptr;
    std::unique_ptr<char, void (*)(void*)> shared{nullptr, free};

    void push(int f);
    int pop();                 // -1: none can run
    [[noreturn]] void next();  // run some other fiber, or finish the block
    void sleep();              // the same, coming back when woken
    void complete(Group&);
    void leave(Group& g) {
        if (--g.alive && g.here == g.alive) complete(g);
    }
    void run(int threads, uint64_t shared_bytes);
};

// Never inlined: a fiber reads anew which block it runs in, for the compiler may not cache a thread-local across a switch.
__attribute__((noinline)) inline Block& block() {
    static thread_local Block b;
    return b;
}

[[noreturn]] inline void die(const char* what) {
    fprintf(stderr, "GPU emulator: %s (block %lld, thread %d)\n", what, (long long)block().index, block().now);
    abort();
}

inline Copies& copies() { return block().fibers[size_t(block().now)].copies; }

// Hardware faults where an address is not a multiple of the access.
inline void check_aligned(const void* p, int bytes) {
    if (reinterpret_cast<uintptr_t>(p) % uintptr_t(bytes) != 0) die("an address is not aligned");
}

inline int setting(const char* name, const char* word, int if_word, int otherwise) {
    const char* value = getenv(name);
    return value && strcmp(value, word) == 0 ? if_word : otherwise;
}
inline int wave() {
    static const int lanes = setting("FLASHATTN_EMU_WAVE", "64", 64, 32);
    return lanes;
}
inline bool backward() {
    static const bool b = setting("FLASHATTN_EMU_ORDER", "backward", 1, 0);
    return b;
}

inline bool removed(const char* file, int line) {
    static const char* const spec = getenv("FLASHATTN_EMU_WITHOUT_BARRIER");
    if (!spec) return false;
    const size_t name = strcspn(spec, ":"), length = strlen(file);
    return atoi(spec + name + (spec[name] == ':')) == line && length >= name && strncmp(file + length - name, spec, name) == 0;
}

inline void Block::push(int f) { ready[size_t(f / wave())].fibers.push_back(f); }
inline int Block::pop() {
    for (size_t i = 0; i < ready.size(); i++) {
        Queue& q = ready[backward() ? ready.size() - 1 - i : i];
        if (!q.empty()) return q.pop();
    }
    return -1;
}

// Fibers leave these two by jumps. The address sanitizer would mark their frames, and never unmark them: it does not know the
// stacks.
__attribute__((no_sanitize_address)) inline void Block::next() {
    const int chosen = pop();
    if (chosen < 0) {
        if (living) die("a thread waits for others that never come");
        __builtin_longjmp(done.words, 1);
    }
    Fiber& f = fibers[size_t(now = chosen)];
    if (f.started) __builtin_longjmp(f.at.words, 1);
    f.started = true;
    setcontext(&f.start);
    abort();
}

__attribute__((noinline, no_sanitize_address)) inline void Block::sleep() {
    if (!__builtin_setjmp(fibers[size_t(now)].at.words)) next();
}

inline void Block::complete(Group& g) {
    g.action(g.lanes.data(), int(g.lanes.size()));
    for (void*& lane : g.lanes) lane = nullptr;
    g.here = 0;
    for (const int f : g.waiting) push(f);
    g.waiting.clear();
}

// The one primitive: arrive at the rendezvous with `mine`; return when the last one to arrive has performed the action for all.
inline void meet(Group& g, int lane, void* mine, Group::Action action) {
    Block& b = block();
    if (g.here && g.action != action) die("threads meet at different operations");
    g.action = action;
    g.lanes[size_t(lane)] = mine;
    if (++g.here == g.alive) return b.complete(g);
    g.waiting.push_back(b.now);
    b.sleep();
}

// The barrier `id` among `count` threads of the block: the first to name it, until all are here.
inline void meet_named(int id, int count) {
    Group& g = block().named[id];
    if (g.here == 0) g.reset(count);
    if (g.alive != count) die("threads disagree on how many meet");
    meet(g, g.here, &g, [](void**, int) {});
}

inline void entry() {  // a fiber lives on from block to block
    for (;;) {
        Block& b = block();
        b.body(b.argument);
        b.living--;
        b.leave(b.waves[size_t(b.now / wave())]);
        b.leave(b.all);
        b.sleep();
    }
}

inline void Block::run(int n, uint64_t shared_bytes) {
    // As large as asked for and no larger, so that an address sanitizer sees what goes beyond.
    void* memory = nullptr;
    if (posix_memalign(&memory, 64, shared_bytes) != 0) die("no memory");
    memset(memory, 0xff, shared_bytes);  // not-a-number, so that reading before writing shows
    shared.reset(static_cast<char*>(memory));
    if (fibers.size() < size_t(n)) fibers.resize(size_t(n));
    waves.resize(size_t((n + wave() - 1) / wave()));
    ready.resize(waves.size());
    for (int w = 0; w < int(waves.size()); w++) waves[size_t(w)].reset(n - w * wave() < wave() ? n - w * wave() : wave());
    all.reset(n);
    living = threads = n;
    for (Fiber& f : fibers) {
        f.copies.reset();
        if (f.stack) continue;
        f.stack.reset(new char[kStack]);
        getcontext(&f.start);
        f.start.uc_stack.ss_sp = f.stack.get();
        f.start.uc_stack.ss_size = kStack;
        makecontext(&f.start, entry, 0);
    }
    for (int i = 0; i < n; i++) push(backward() ? n - 1 - i : i);
    if (!__builtin_setjmp(done.words)) next();
}

inline float shuffle_xor(float x, int mask, int width) {
    struct Args {
        float in, out;
        int from;
    };
    Block& b = block();
    const int lane = b.now % wave();
    Args args{x, 0.f, lane / width * width + ((lane % width) ^ mask)};
    meet(b.waves[size_t(b.now / wave())], lane, &args, [](void** lanes, int n) {
        for (int i = 0; i < n; i++) {
            Args* to = static_cast<Args*>(lanes[i]);
            if (!to) continue;
            const Args* from = to->from < n ? static_cast<const Args*>(lanes[to->from]) : nullptr;
            to->out = from ? from->in : __builtin_nanf("");  // a lane that has ended gives a not-a-number
        }
    });
    return args.out;
}

}  // namespace lockstep
}  // namespace fa
