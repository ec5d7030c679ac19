/* Chapter 5: gradients from q, k, v, o and one number for each row; beside the library's, and beside differences. */
#include "lesson.h"

enum { N = 12, D = 4, SIZE = N * D };
typedef double matrix[SIZE];

/* The forward in fp64: o, LSE, and the loss Σ dout · o whose gradients are asked for. */
static double forward(const double* q, const double* k, const double* v, const double* dout, double* o, double* lse) {
    double loss = 0.0;
    for (int i = 0; i < N; i++) {
        double s[N], top = -INFINITY, sum = 0.0;
        for (int j = 0; j < N; j++) {
            s[j] = 0.0;
            for (int c = 0; c < D; c++) s[j] += q[i * D + c] * k[j * D + c] / sqrt(D);
            top = fmax(top, s[j]);
        }
        for (int j = 0; j < N; j++) sum += exp(s[j] - top);
        lse[i] = top + log(sum);
        for (int c = 0; c < D; c++) {
            o[i * D + c] = 0.0;
            for (int j = 0; j < N; j++) o[i * D + c] += exp(s[j] - lse[i]) * v[j * D + c];
            loss += dout[i * D + c] * o[i * D + c];
        }
    }
    return loss;
}

/* The backward: each p is computed again when it is wanted. No matrix of N × N numbers is stored. */
static void backward(const double* q, const double* k, const double* v, const double* dout, const double* o, const double* lse,
                     double* dq, double* dk, double* dv) {
    for (int i = 0; i < N; i++) {
        double delta = 0.0;
        for (int c = 0; c < D; c++) delta += o[i * D + c] * dout[i * D + c];
        for (int j = 0; j < N; j++) {
            double s = 0.0, dp = 0.0;
            for (int c = 0; c < D; c++) s += q[i * D + c] * k[j * D + c] / sqrt(D), dp += dout[i * D + c] * v[j * D + c];
            const double p = exp(s - lse[i]), ds = p * (dp - delta) / sqrt(D);
            for (int c = 0; c < D; c++) {
                dv[j * D + c] += p * dout[i * D + c];
                dq[i * D + c] += ds * k[j * D + c];
                dk[j * D + c] += ds * q[i * D + c];
            }
        }
    }
}

static double worst(const float* a, const double* b) {
    double most = 0.0;
    for (int i = 0; i < SIZE; i++) most = fmax(most, fabs((double)a[i] - b[i]));
    return most;
}

int main(int argc, char** argv) {
    float *q32 = random_floats(SIZE, 1), *k32 = random_floats(SIZE, 2), *v32 = random_floats(SIZE, 3),
          *dout32 = random_floats(SIZE, 4);
    matrix q, k, v, dout, o, dq = {0}, dk = {0}, dv = {0};
    double lse[N];
    for (int i = 0; i < SIZE; i++) q[i] = q32[i], k[i] = k32[i], v[i] = v32[i], dout[i] = dout32[i];
    forward(q, k, v, dout, o, lse);
    backward(q, k, v, dout, o, lse, dq, dk, dv);

    if (wants_figure(argc, argv)) { /* central differences of the loss by q[0], in fp64: their error by the step */
        for (int e = -1; e >= -14; e--)
            for (int part = 0; part < 4; part++) {
                const double step = pow(10.0, e + 0.25 * part), q0 = q[0];
                q[0] = q0 + step;
                const double above = forward(q, k, v, dout, o, lse);
                q[0] = q0 - step;
                const double below = forward(q, k, v, dout, o, lse);
                q[0] = q0;
                printf("%g %g\n", step, fabs((above - below) / (2 * step) - dq[0]));
            }
        return free(q32), free(k32), free(v32), free(dout32), 0;
    }

    float o32[SIZE], lse32[N], dq32[SIZE], dk32[SIZE], dv32[SIZE];
    open_library();
    fa_attention_desc_t desc = FA_ATTENTION_DESC_INIT;
    desc.q_dtype = FA_F32, desc.batch = desc.heads_q = 1, desc.seqlen_q = desc.seqlen_k = N, desc.dim_qk = D,
    desc.operands = FA_OPERAND_LSE;
    fa_forward_args_t saved = FA_FORWARD_ARGS_INIT;
    saved.q = q32, saved.k = k32, saved.v = v32, saved.o = o32, saved.lse = lse32;
    check(fa_forward_ex(handle, &desc, &saved));
    fa_backward_args_t args = FA_BACKWARD_ARGS_INIT;
    args.forward = &saved, args.dout = dout32, args.dq = dq32, args.dk = dk32, args.dv = dv32;
    check(fa_backward(handle, &desc, &args));

    printf("dq of row 0, by hand  %8.5f %8.5f %8.5f %8.5f\n", dq[0], dq[1], dq[2], dq[3]);
    printf("dq of row 0, library  %8.5f %8.5f %8.5f %8.5f\n", dq32[0], dq32[1], dq32[2], dq32[3]);
    const double h = 1e-5;
    for (int which = 0; which < 3; which++) {
        double* x = which == 0 ? q : which == 1 ? k : v;
        const double* dx = which == 0 ? dq : which == 1 ? dk : dv;
        const float* dx32 = which == 0 ? dq32 : which == 1 ? dk32 : dv32;
        double most = 0.0;
        for (int i = 0; i < SIZE; i++) {
            const double was = x[i];
            x[i] = was + h;
            const double above = forward(q, k, v, dout, o, lse);
            x[i] = was - h;
            const double below = forward(q, k, v, dout, o, lse);
            x[i] = was;
            most = fmax(most, fabs((above - below) / (2 * h) - dx[i]));
        }
        printf("d%c: by hand = differences within 1e-8: %s; library = by hand within 2e-6: %s\n", "qkv"[which],
               most < 1e-8 ? "yes" : "no", worst(dx32, dx) < 2e-6 ? "yes" : "no");
    }
    free(q32), free(k32), free(v32), free(dout32);
    return fa_destroy(handle);
}
