/* The classic exercise: multi-head attention of N × d_model matrices, on host pointers.
 * Build: cc solve.c $(pkg-config --cflags --libs flashattn) */
#include <flashattn.h>
#include <stdio.h>

/* output = concat over heads of softmax(Q_h K_hᵀ / sqrt(d_model / h)) V_h, where head t owns columns [t, t + 1) · d_model / h.
 * Returns 0, or an fa_status_t after one sentence on stderr. */
int solve(const float* Q, const float* K, const float* V, float* output, int N, int d_model, int h) {
    if (h < 1 || d_model % h != 0) {
        fprintf(stderr, "h = %d must be positive and divide d_model = %d\n", h, d_model);
        return FA_INVALID_ARGUMENT;
    }
    fa_handle_t handle;
    fa_status_t status = fa_create(&handle, NULL);
    if (status == FA_OK) {
        fa_attention_desc_t desc = FA_ATTENTION_DESC_INIT;
        desc.q_dtype = FA_F32;
        desc.batch = 1;
        desc.heads_q = h;
        desc.seqlen_q = desc.seqlen_k = N;
        desc.dim_qk = d_model / h; /* a row of d_model columns is already [head][dim] */
        status = fa_forward(handle, &desc, Q, K, V, output);
    }
    if (status != FA_OK) fprintf(stderr, "%s: %s\n", fa_status_name(status), fa_last_error(handle));
    fa_destroy(handle);
    return status;
}

int main(void) {
    enum { N = 2, D_MODEL = 4, H = 2 };
    const float q[N * D_MODEL] = {1, 0, 2, 3, 4, 5, 6, 7};
    const float k[N * D_MODEL] = {1, 2, 3, 4, 5, 6, 7, 8};
    const float v[N * D_MODEL] = {0.5f, 1, 1.5f, 2, 2.5f, 3, 3.5f, 4};
    float output[N * D_MODEL];
    int status = solve(q, k, v, output, N, D_MODEL, H);
    if (status != FA_OK) return 1;
    for (int i = 0; i < N * D_MODEL; i++) printf("%.2f%c", output[i], i % D_MODEL == D_MODEL - 1 ? '\n' : ' ');
    return 0;
}
