/* Cross attention with a mask: rows of a decoder attend to the outputs of an encoder, some of which are padding. Shows: other lengths of q
 * than of k and v; a byte for each key that says whether it takes part, broadcast over heads and rows by strides of 0; a row that has
 * no key left, whose o is 0; and LSE, the logarithm of each row's sum.
 * Build: cc cross_attention.c $(pkg-config --cflags --libs flashattn) -lm */
#include "plain.h"

enum { BATCH = 3, HEADS = 4, DIM = 24, ROWS = 7, KEYS = 19, ROW = HEADS * DIM };

int main(void) {
    static float q[BATCH * ROWS * ROW], k[BATCH * KEYS * ROW], v[BATCH * KEYS * ROW], o[BATCH * ROWS * ROW];
    static float lse[BATCH * HEADS * ROWS];
    static unsigned char
        mask[BATCH * KEYS]; /* nonzero: attend. The first has all keys, the second every other one, the third none */
    double worst = 0;
    fill(q, BATCH * ROWS * ROW, 1), fill(k, BATCH * KEYS * ROW, 2), fill(v, BATCH * KEYS * ROW, 3);
    for (int j = 0; j < KEYS; j++) mask[j] = 1, mask[KEYS + j] = j % 2 == 0;

    fa_handle_t handle;
    need(fa_create(&handle, NULL), NULL);
    fa_attention_desc_t desc = FA_ATTENTION_DESC_INIT;
    desc.q_dtype = FA_F32, desc.batch = BATCH, desc.heads_q = HEADS, desc.seqlen_q = ROWS, desc.seqlen_k = KEYS, desc.dim_qk = DIM;
    desc.operands = FA_OPERAND_MASK | FA_OPERAND_LSE;
    desc.mask_stride[0] = KEYS, desc.mask_stride[3] = 1; /* (batch, head, row, key): the same for every head and row */

    fa_forward_args_t args = FA_FORWARD_ARGS_INIT;
    args.q = q, args.k = k, args.v = v, args.o = o, args.lse = lse, args.mask = mask;
    need(fa_forward_ex(handle, &desc, &args), handle);

    for (int b = 0; b < BATCH; b++) {
        for (int i = 0; i < ROWS; i++) {
            for (int h = 0; h < HEADS; h++) {
                const int at = (b * ROWS + i) * ROW + h * DIM, first_key = b * KEYS * ROW + h * DIM;
                double expected[DIM];
                plain_row(q + at, k + first_key, v + first_key, KEYS, DIM, ROW, mask + b * KEYS, expected);
                worst = farthest(worst, o + at, expected, DIM);
            }
        }
    }
    for (int i = 0; i < HEADS * ROWS; i++) {
        if (!isinf(lse[2 * HEADS * ROWS + i])) worst = INFINITY; /* −inf: the sum over no key is 0 */
    }
    printf("LSE of a row with every key, with half of them and with none: %.3f, %.3f, %.3f\n", lse[0], lse[HEADS * ROWS],
           lse[2 * HEADS * ROWS]);
    fa_destroy(handle);
    return verdict(worst, 1e-5);
}
