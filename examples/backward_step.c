/* One step of training. Shows: a forward that keeps LSE; fa_backward, which gives the gradients of q, k and v from that of o without ever
 * storing the probabilities; and a step against them, after which the loss is smaller. The loss is half the sum of squares of o − target,
 * so the gradient of o is o − target. The gradients are checked by the slope of the loss itself, computed by the plain loop.
 * Build: cc backward_step.c $(pkg-config --cflags --libs flashattn) -lm */
#include "plain.h"

enum { HEADS = 2, DIM = 8, ROWS = 12, ROW = HEADS * DIM, SIZE = ROWS * ROW };

static float target[SIZE];

static double plain_loss(const float* q, const float* k, const float* v) {
    double loss = 0;
    for (int i = 0; i < ROWS; i++) {
        for (int h = 0; h < HEADS; h++) {
            double o[DIM];
            plain_row(q + i * ROW + h * DIM, k + h * DIM, v + h * DIM, i + 1, DIM, ROW, NULL, o);
            for (int d = 0; d < DIM; d++) loss += 0.5 * pow(o[d] - target[i * ROW + h * DIM + d], 2);
        }
    }
    return loss;
}

int main(void) {
    static float x[3][SIZE], dx[3][SIZE], o[SIZE], dout[SIZE], lse[HEADS * ROWS]; /* x: q, k and v */
    double worst = 0;
    for (unsigned t = 0; t < 3; t++) fill(x[t], SIZE, t + 1);
    fill(target, SIZE, 4);

    fa_handle_t handle;
    need(fa_create(&handle, NULL), NULL);
    fa_attention_desc_t desc = FA_ATTENTION_DESC_INIT;
    desc.q_dtype = FA_F32, desc.batch = 1, desc.heads_q = HEADS, desc.seqlen_q = desc.seqlen_k = ROWS, desc.dim_qk = DIM;
    desc.flags = FA_CAUSAL, desc.alignment = FA_ALIGN_TOP_LEFT, desc.operands = FA_OPERAND_LSE;

    fa_forward_args_t forward = FA_FORWARD_ARGS_INIT;
    forward.q = x[0], forward.k = x[1], forward.v = x[2], forward.o = o, forward.lse = lse;
    need(fa_forward_ex(handle, &desc, &forward), handle);
    for (int i = 0; i < SIZE; i++) dout[i] = o[i] - target[i];

    fa_backward_args_t backward = FA_BACKWARD_ARGS_INIT;
    backward.forward = &forward, backward.dout = dout, backward.dq = dx[0], backward.dk = dx[1], backward.dv = dx[2];
    need(fa_backward(handle, &desc, &backward), handle);

    /* Every 7th gradient: the slope of the loss between two points close by. */
    for (int t = 0; t < 3; t++) {
        for (int i = 0; i < SIZE; i += 7) {
            const float here = x[t][i], right = here + 1e-3f, left = here - 1e-3f;
            x[t][i] = right;
            const double above = plain_loss(x[0], x[1], x[2]);
            x[t][i] = left;
            const double below = plain_loss(x[0], x[1], x[2]), slope = (above - below) / ((double)right - left);
            x[t][i] = here;
            worst = farthest(worst, &dx[t][i], &slope, 1);
        }
    }

    const double before = plain_loss(x[0], x[1], x[2]);
    for (int t = 0; t < 3; t++) {
        for (int i = 0; i < SIZE; i++) x[t][i] -= 0.1f * dx[t][i];
    }
    const double after = plain_loss(x[0], x[1], x[2]);
    printf("loss before the step %.4f, after it %.4f\n", before, after);
    fa_destroy(handle);
    return verdict(after < before ? worst : INFINITY, 1e-5);
}
