/* A batch of sequences of different lengths, packed without padding. Shows: cu_seqlens, the boundaries of the sequences in one array of
 * rows; a causal mask that counts within each sequence; and that nothing is computed for rows which are not there.
 * Build: cc varlen.c $(pkg-config --cflags --libs flashattn) -lm */
#include "plain.h"

enum { BATCH = 4, HEADS = 2, DIM = 32, TOTAL = 60, LONGEST = 37, ROW = HEADS * DIM, SIZE = TOTAL * ROW };

int main(void) {
    static float q[SIZE], k[SIZE], v[SIZE], o[SIZE];            /* [row of all sequences][head][dim] */
    const int32_t cu_seqlens[BATCH + 1] = {0, 5, 5, 42, TOTAL}; /* 5, 0, 37 and 18 rows: an empty sequence is fine */
    double worst = 0;
    fill(q, SIZE, 1), fill(k, SIZE, 2), fill(v, SIZE, 3);

    fa_handle_t handle;
    need(fa_create(&handle, NULL), NULL);
    fa_attention_desc_t desc = FA_ATTENTION_DESC_INIT;
    desc.q_dtype = FA_F32, desc.batch = BATCH, desc.heads_q = HEADS, desc.dim_qk = DIM;
    desc.seqlen_q = desc.seqlen_k = LONGEST; /* a bound of the lengths */
    desc.total_q = desc.total_k = TOTAL;
    desc.operands = FA_OPERAND_CU_SEQLENS_Q | FA_OPERAND_CU_SEQLENS_K;
    desc.flags = FA_CAUSAL, desc.alignment = FA_ALIGN_TOP_LEFT;

    fa_forward_args_t args = FA_FORWARD_ARGS_INIT;
    args.q = q, args.k = k, args.v = v, args.o = o;
    args.cu_seqlens_q = args.cu_seqlens_k = cu_seqlens;
    need(fa_forward_ex(handle, &desc, &args), handle);

    for (int b = 0; b < BATCH; b++) {
        const int begin = cu_seqlens[b], end = cu_seqlens[b + 1];
        for (int i = begin; i < end; i++) {
            for (int h = 0; h < HEADS; h++) {
                double expected[DIM];
                const int keys = i - begin + 1; /* causal: up to itself, from its sequence's first */
                plain_row(q + i * ROW + h * DIM, k + begin * ROW + h * DIM, v + begin * ROW + h * DIM, keys, DIM, ROW, NULL,
                          expected);
                worst = farthest(worst, o + i * ROW + h * DIM, expected, DIM);
            }
        }
    }
    printf("%d sequences in %d rows: padded to the longest they would be %d\n", BATCH, TOTAL, BATCH * LONGEST);
    fa_destroy(handle);
    return verdict(worst, 1e-5);
}
