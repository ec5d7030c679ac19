// How often lanes meet in a bank of shared memory, counted for AMD's matrix kernels: their accesses to tiles, which are all that their
// loops have. FLASHATTN_EMU_BANKS names a file that has the counts when the process ends.
//
// 32 banks have a word of 4 bytes each. An access of a wave is served for so many neighbouring lanes at a time as have 128 bytes together,
// and takes a cycle for each of the different words of the bank that has most. Lanes run one after another here: the i-th accesses of all
// lanes between two products are taken for one instruction.
#pragma once
#include <algorithm>
#include "emu/lockstep.h"

namespace fa {
namespace lockstep {

class Banks {
  public:
    // NULL: nothing is counted.
    static Banks* counting() {
        static const char* const name = getenv("FLASHATTN_EMU_BANKS");
        static Banks banks(name);
        return name ? &banks : nullptr;
    }
    ~Banks() {
        FILE* const file = name_ ? fopen(name_, "w") : nullptr;
        if (!file) return;
        for (const Count& c : counts_)
            fprintf(file, "%s %d: %lld instructions, %lld cycles, at least %lld\n", c.store ? "store" : "load", c.bytes, c.instructions,
                    c.cycles, c.least);
        fprintf(file, "apart: %lld\n", apart_);
        fclose(file);
    }
    void access(const void* p, int bytes, bool store) {
        const Block& b = block();
        if (b.index != index_ || b.ready.size() != waves_.size()) waves_.assign(b.ready.size(), {}), index_ = b.index;
        std::vector<std::vector<Access>>& lanes = waves_[size_t(b.now / wave())];
        lanes.resize(size_t(wave()));
        lanes[size_t(b.now % wave())].push_back({uint32_t(static_cast<const char*>(p) - b.shared.get()), bytes, store});
    }
    // All lanes of the running thread's wave are here.
    void meet() {
        const size_t now = size_t(block().now / wave());
        if (now >= waves_.size() || waves_[now].empty()) return;
        std::vector<std::vector<Access>>& lanes = waves_[now];
        bool together = true;
        for (const auto& lane : lanes) together = together && lane.size() == lanes[0].size();
        if (!together) apart_++;
        for (size_t i = 0; together && i < lanes[0].size(); i++) add(lanes, i);
        for (auto& lane : lanes) lane.clear();
    }

  private:
    struct Access {
        uint32_t at;
        int bytes;
        bool store;
    };
    struct Count {
        int bytes;
        bool store;
        long long instructions, cycles, least;
    };
    explicit Banks(const char* name) : name_(name) {}
    void add(const std::vector<std::vector<Access>>& lanes, size_t i) {
        constexpr int kBanks = 32;
        const Access& one = lanes[0][i];
        Count& count = counts_[(one.store ? 3 : 0) + (one.bytes == 16 ? 2 : one.bytes == 8 ? 1 : 0)];
        const size_t at_once = size_t(4 * kBanks / one.bytes);
        for (size_t first = 0; first < lanes.size(); first += at_once) {
            std::vector<uint32_t> words[kBanks];
            size_t most = 0;
            for (size_t lane = first; lane < first + at_once && lane < lanes.size(); lane++)
                for (uint32_t word = lanes[lane][i].at / 4; word < (lanes[lane][i].at + uint32_t(one.bytes)) / 4; word++) {
                    std::vector<uint32_t>& bank = words[word % kBanks];
                    if (std::find(bank.begin(), bank.end(), word) == bank.end()) bank.push_back(word);
                    most = std::max(most, bank.size());
                }
            count.cycles += (long long)most;
            count.least++;
        }
        count.instructions++;
    }

    const char* const name_;
    int64_t index_ = -1;
    std::vector<std::vector<std::vector<Access>>> waves_;
    Count counts_[6] = {{4, false, 0, 0, 0}, {8, false, 0, 0, 0}, {16, false, 0, 0, 0},
                        {4, true, 0, 0, 0},  {8, true, 0, 0, 0},  {16, true, 0, 0, 0}};
    long long apart_ = 0;
};

}  // namespace lockstep
}  // namespace fa
