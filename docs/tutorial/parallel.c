/* Chapter 6: one row against many keys, in parts that could run side by side; and what keeps a GPU busy. */
#include "lesson.h"

enum { HEADS = 4, KEYS = 3000, DIM = 64 };

/* The parts that keys [begin, end) give: an f32 o, and its LSE. */
static void attend(const float* q, const float* k, const float* v, int begin, int end, float* o, float* lse) {
    fa_attention_desc_t desc = FA_ATTENTION_DESC_INIT;
    fa_forward_args_t args = FA_FORWARD_ARGS_INIT;
    desc.q_dtype = FA_F32, desc.batch = desc.seqlen_q = 1, desc.heads_q = HEADS, desc.seqlen_k = end - begin, desc.dim_qk = DIM;
    desc.operands = FA_OPERAND_LSE;
    args.q = q, args.k = k + (size_t)begin * HEADS * DIM, args.v = v + (size_t)begin * HEADS * DIM, args.o = o, args.lse = lse;
    check(fa_forward_ex(handle, &desc, &args));
}

static void merge_parts(int parts, const float* o_parts, const float* lse_parts, float* o, float* lse) {
    fa_attention_desc_t desc = FA_ATTENTION_DESC_INIT;
    fa_merge_args_t args = FA_MERGE_ARGS_INIT;
    desc.q_dtype = FA_F32, desc.batch = desc.seqlen_q = 1, desc.heads_q = HEADS, desc.dim_qk = DIM, desc.operands = FA_OPERAND_LSE;
    args.parts = parts, args.o_parts = o_parts, args.lse_parts = lse_parts, args.o = o, args.lse = lse;
    check(fa_merge(handle, &desc, &args));
}

/* Tiles that are in work at once, out of `units`, over all rounds that they take: 1 is a GPU that is never idle. */
static double busy(int64_t tiles, int64_t units) { return (double)tiles / (double)((tiles + units - 1) / units * units); }

/* Operations for each byte of k and v, bf16: each is read once for the rows that share it. */
static double intensity(int64_t rows) { return 4.0 * (double)rows / 4.0; }

int main(int argc, char** argv) {
    enum { UNITS = 132 };
    if (wants_figure(argc, argv)) {
        for (int splits = 1; splits <= 16; splits *= 4)
            for (int tiles = 1; tiles <= 4 * UNITS; tiles++)
                printf("%d %d %.5f\n", splits, tiles, busy((int64_t)tiles * splits, UNITS));
        return 0;
    }
    float *q = random_floats(HEADS * DIM, 1), *k = random_floats((size_t)KEYS * HEADS * DIM, 2),
          *v = random_floats((size_t)KEYS * HEADS * DIM, 3);
    static float whole[HEADS * DIM], merged[HEADS * DIM], o_parts[16 * HEADS * DIM], lse_whole[HEADS], lse_merged[HEADS],
        lse_parts[16 * HEADS];
    open_library();
    attend(q, k, v, 0, KEYS, whole, lse_whole);
    printf("parts   o as the whole, within 1e-6   LSE within 1e-5\n");
    for (int parts = 1; parts <= 16; parts *= 4) {
        for (int p = 0; p < parts; p++)
            attend(q, k, v, KEYS * p / parts, KEYS * (p + 1) / parts, o_parts + p * HEADS * DIM, lse_parts + p * HEADS);
        merge_parts(parts, o_parts, lse_parts, merged, lse_merged);
        printf("%5d   %-29s %s\n", parts, largest_difference(merged, whole, HEADS * DIM) <= 1e-6f ? "yes" : "no",
               largest_difference(lse_merged, lse_whole, HEADS) <= 1e-5f ? "yes" : "no");
    }

    printf("\n%d multiprocessors                 tiles   busy\n", UNITS);
    printf("prefill: 2 x 16 heads, 4096 rows   %5d  %4.0f %%\n", 2 * 16 * 4096 / 128, 100 * busy(2 * 16 * 4096 / 128, UNITS));
    printf("decode: 2 sequences, 8 kv heads    %5d  %4.0f %%\n", 2 * 8, 100 * busy(2 * 8, UNITS));
    printf("the same in 8 splits               %5d  %4.0f %%\n", 2 * 8 * 8, 100 * busy(2 * 8 * 8, UNITS));

    printf("\nrows that share k and v   operations a byte\n");
    for (int rows = 1; rows <= 4096; rows *= 8) printf("%23d   %17.0f\n", rows, intensity(rows));
    free(q), free(k), free(v);
    return fa_destroy(handle);
}
