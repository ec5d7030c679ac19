/* Chapter 1: attention by its definition, and the same by the library. */
#include "lesson.h"

enum { ROWS = 3, KEYS = 3, DIM = 2 };

/* One head: o = softmax(q kᵀ / √dim) v. Also gives p, the matrix that flash attention never stores. */
static void attention(int rows, int keys, int dim, const float* q, const float* k, const float* v, float* p, float* o) {
    for (int i = 0; i < rows; i++) {
        float sum = 0.0f;
        for (int j = 0; j < keys; j++) {
            float s = 0.0f;
            for (int c = 0; c < dim; c++) s += q[i * dim + c] * k[j * dim + c];
            sum += p[i * keys + j] = expf(s / sqrtf((float)dim));
        }
        for (int j = 0; j < keys; j++) p[i * keys + j] /= sum;
        for (int c = 0; c < dim; c++) {
            o[i * dim + c] = 0.0f;
            for (int j = 0; j < keys; j++) o[i * dim + c] += p[i * keys + j] * v[j * dim + c];
        }
    }
}

static void print(const char* name, int rows, int columns, const float* x) {
    for (int i = 0; i < rows; i++) {
        printf("%-8s", i == 0 ? name : "");
        for (int c = 0; c < columns; c++) printf(" %7.4f", x[i * columns + c]);
        printf("\n");
    }
}

/* N × d_model matrices whose columns are h heads side by side: one call, nothing is moved. */
static void solve(const float* q, const float* k, const float* v, float* o, int n, int d_model, int h) {
    fa_attention_desc_t desc = FA_ATTENTION_DESC_INIT;
    desc.q_dtype = FA_F32, desc.batch = 1, desc.heads_q = h, desc.seqlen_q = desc.seqlen_k = n, desc.dim_qk = d_model / h;
    check(fa_forward(handle, &desc, q, k, v, o));
}

/* The probabilities of 24 rows whose vectors drift slowly, so that neighbours are alike: without a mask, causal, in a window. */
static void figure(void) {
    enum { N = 24, D = 16 };
    static float x[N * D], p[N * N], o[N * D];
    float* noise = random_floats(N * D, 7);
    for (int i = 0; i < N * D; i++) x[i] = (i < D ? 0.0f : 0.85f * x[i - D]) + 0.6f * noise[i];
    for (int mask = 0; mask < 3; mask++) {
        fa_attention_desc_t desc = FA_ATTENTION_DESC_INIT;
        fa_forward_args_t args = FA_FORWARD_ARGS_INIT;
        desc.q_dtype = FA_F32, desc.batch = desc.heads_q = 1, desc.seqlen_q = desc.seqlen_k = N, desc.dim_qk = D;
        desc.flags = mask == 0 ? 0 : mask == 1 ? FA_CAUSAL : FA_CAUSAL | FA_WINDOW;
        desc.alignment = mask == 0 ? FA_ALIGN_UNSET : FA_ALIGN_TOP_LEFT;
        desc.window_left = mask == 2 ? 5 : 0;
        desc.operands = FA_OPERAND_SCORES, desc.scores_stage = FA_SCORES_PROBABILITY;
        desc.scores_stride[2] = N, desc.scores_stride[3] = 1;
        args.q = args.k = args.v = x, args.o = o, args.scores = p;
        check(fa_forward_ex(handle, &desc, &args));
        for (int i = 0; i < N * N; i++) printf("%.4f%c", p[i], i % N == N - 1 ? '\n' : ' ');
    }
    free(noise);
}

int main(int argc, char** argv) {
    const float q[ROWS * DIM] = {1, 0, 0, 1, 1, 1}, k[KEYS * DIM] = {1, 0, 0, 1, -1, 0}, v[KEYS * DIM] = {10, 0, 0, 10, 5, 5};
    float p[ROWS * KEYS], o[ROWS * DIM], o_library[ROWS * DIM];
    open_library();
    if (wants_figure(argc, argv)) return figure(), fa_destroy(handle);

    attention(ROWS, KEYS, DIM, q, k, v, p, o);
    print("p", ROWS, KEYS, p);
    print("o", ROWS, DIM, o);
    solve(q, k, v, o_library, ROWS, DIM, 1);
    print("library", ROWS, DIM, o_library);

    const float Q[] = {1, 0, 2, 3, 4, 5, 6, 7}, K[] = {1, 2, 3, 4, 5, 6, 7, 8}, V[] = {0.5f, 1, 1.5f, 2, 2.5f, 3, 3.5f, 4};
    float output[8];
    solve(Q, K, V, output, 2, 4, 2);
    print("exercise", 2, 4, output);
    return fa_destroy(handle);
}
