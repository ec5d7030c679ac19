/* Causal attention, two heads over four positions: minimal.c in C++17. Build: c++ -std=c++17 minimal.cc $(pkg-config --cflags --libs flashattn) */
#include <flashattn.hpp>

#include <cstdio>
#include <vector>

constexpr int kRows = 4, kHeads = 2, kDim = 8, kSize = kRows * kHeads * kDim;

int main() try {
    std::vector<float> q(kSize), k(kSize), v(kSize), o(kSize);  // [row][head][dim]
    for (int i = 0; i < kSize; i++) q[i] = (i % 7) / 4.0f, k[i] = (i % 5) / 4.0f, v[i] = i / 8.0f;

    flashattn::Attention attention;
    attention.batch = 1, attention.heads_q = kHeads, attention.seqlen_q = attention.seqlen_k = kRows, attention.dim_qk = kDim;
    attention.causal(FA_ALIGN_TOP_LEFT);

    flashattn::Handle handle;
    handle.forward(attention, q, k, v, o);
    for (int i = 0; i < kSize; i += kDim)
        std::printf("row %d head %d: %.4f %.4f\n", i / kDim / kHeads, i / kDim % kHeads, o[i], o[i + 1]);
} catch (const flashattn::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
