/* Chapter 4: what three algorithms cost, as the library counts it while it computes. */
#include "lesson.h"

typedef struct { /* all but flops in bytes */
    int64_t flops, read, written, extra;
} cost_t;

static int64_t stat(int32_t key) {
    int64_t value;
    check(fa_param_get(handle, key, &value));
    return value;
}

static cost_t counted(int32_t algorithm, int n, int d, const float* q, const float* k, const float* v, float* o) {
    fa_attention_desc_t desc = FA_ATTENTION_DESC_INIT;
    desc.q_dtype = FA_F32, desc.batch = desc.heads_q = 1, desc.seqlen_q = desc.seqlen_k = n, desc.dim_qk = d;
    desc.algorithm = algorithm;
    check(fa_forward(handle, &desc, q, k, v, o));
    return (cost_t){stat(FA_STAT_FLOPS), stat(FA_STAT_BYTES_READ), stat(FA_STAT_BYTES_WRITTEN), stat(FA_STAT_EXTRA_BYTES)};
}

/* The same by formula, for tiles of br rows and bc keys and 4 bytes an element. */
static cost_t formula(int32_t algorithm, int64_t n, int64_t d, int64_t br, int64_t bc) {
    const int64_t tr = (n + br - 1) / br, tc = (n + bc - 1) / bc, e = 4, flops = 4 * n * n * d;
    if (algorithm == FA_ALGORITHM_STANDARD)
        return (cost_t){flops, e * (n * d + tr * 2 * n * d + 2 * n * n), e * (n * d + 2 * n * n), e * tr * br * n};
    if (algorithm == FA_ALGORITHM_FLASH1)
        return (cost_t){flops, e * (2 * n * d + tc * 2 * n * d + n * d) + 8 * tc * n, e * (tc * n * d + n * d) + 8 * tc * n,
                        8 * tr * br};
    return (cost_t){flops, e * (n * d + tr * 2 * n * d), e * n * d, 0};
}

/* Extra memory is laid out in vectors: less than one more than the formula's. */
static int is_same(cost_t a, cost_t b) {
    return a.flops == b.flops && a.read == b.read && a.written == b.written && a.extra >= b.extra && a.extra < b.extra + 64;
}

int main(int argc, char** argv) {
    enum { MOST = 1024, D = 64 };
    static const char* const names[] = {"flash", "standard", "flash1"};
    static const int32_t order[] = {FA_ALGORITHM_STANDARD, FA_ALGORITHM_FLASH1, FA_ALGORITHM_FLASH};
    const int is_figure = wants_figure(argc, argv);
    float *q = random_floats(MOST * D, 1), *k = random_floats(MOST * D, 2), *v = random_floats(MOST * D, 3);
    float *o = floats(MOST * D), *first = floats(MOST * D);
    open_library();
    check(fa_param_set(handle, FA_PARAM_COUNT_WORK, 1));
    const int64_t br = stat(FA_STAT_TILE_ROWS), bc = stat(FA_STAT_TILE_KEYS);
    if (!is_figure)
        printf("tiles of %lld rows and %lld keys\n    n  algorithm      MFLOP   KB read  KB written  KB extra\n", (long long)br,
               (long long)bc);
    for (int n = 64; n <= MOST; n *= is_figure ? 2 : 4)
        for (int a = 0; a < 3; a++) {
            const cost_t cost = counted(order[a], n, D, q, k, v, a == 0 ? first : o), expected = formula(order[a], n, D, br, bc);
            if (!is_same(cost, expected) || (a > 0 && largest_difference(o, first, (size_t)n * D) > 1e-6f)) return 1;
            if (is_figure)
                printf("%d %s %lld %lld %lld\n", n, names[order[a]], (long long)cost.flops, (long long)(cost.read + cost.written),
                       (long long)cost.extra);
            else
                printf("%5d  %-9s %10.1f %9lld %11lld %9.1f\n", n, names[order[a]], (double)cost.flops / 1e6,
                       (long long)cost.read / 1024, (long long)cost.written / 1024, (double)cost.extra / 1024);
        }
    if (is_figure)
        for (int n = 64; n <= 16384; n *= 2)
            for (int a = 0; a < 3; a++) {
                const cost_t cost = formula(order[a], n, D, 64, 64);
                printf("%d %s-64 %lld %lld %lld\n", n, names[order[a]], (long long)cost.flops,
                       (long long)(cost.read + cost.written), (long long)cost.extra);
            }
    else {
        printf("each count is the formula's, each output the standard's within 1e-6\n\nby formula, 64 rows and 64 keys\n");
        for (int a = 0; a < 3; a++) {
            const cost_t cost = formula(order[a], MOST, D, 64, 64);
            printf("%5d  %-9s %10.1f %9lld %11lld %9.1f\n", MOST, names[order[a]], (double)cost.flops / 1e6,
                   (long long)cost.read / 1024, (long long)cost.written / 1024, (double)cost.extra / 1024);
        }
    }
    free(q), free(k), free(v), free(o), free(first);
    return fa_destroy(handle);
}
