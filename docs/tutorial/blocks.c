/* Chapter 3: products in blocks, and attention in blocks. Every element that goes from slow to fast memory is counted. */
#include "lesson.h"

static int64_t loads;

/* Copies a block of rows into fast memory. */
static void load(float* fast, const float* slow, int rows, int columns, int stride) {
    for (int r = 0; r < rows; r++) memcpy(fast + r * columns, slow + (size_t)r * stride, sizeof(float) * (size_t)columns);
    loads += (int64_t)rows * columns;
}

/* c = a bᵀ for n × n matrices, in squares of `block`: fast memory holds three of them. */
static void product(int n, int block, const float* a, const float* b, float* c) {
    float *fa = floats((size_t)block * block), *fb = floats((size_t)block * block);
    memset(c, 0, sizeof(float) * (size_t)n * n);
    for (int i = 0; i < n; i += block)
        for (int j = 0; j < n; j += block)
            for (int t = 0; t < n; t += block) {
                load(fa, a + (size_t)i * n + t, block, block, n);
                load(fb, b + (size_t)j * n + t, block, block, n);
                for (int x = 0; x < block; x++)
                    for (int y = 0; y < block; y++)
                        for (int z = 0; z < block; z++) c[(size_t)(i + x) * n + j + y] += fa[x * block + z] * fb[y * block + z];
            }
    free(fa), free(fb);
}

static int least(int a, int b) { return a < b ? a : b; }

/* One head in tiles of br rows and bc keys: chapter 2's recurrence, a block of keys at a time. */
static void attention(int n, int d, int br, int bc, const float* q, const float* k, const float* v, float* o) {
    float *fq = floats((size_t)br * d), *fk = floats((size_t)bc * d), *fv = floats((size_t)bc * d), *p = floats((size_t)bc);
    float *acc = floats((size_t)br * d), *m = floats((size_t)br), *l = floats((size_t)br);
    for (int i = 0; i < n; i += br) {
        const int rows = least(br, n - i);
        load(fq, q + i * d, rows, d, d);
        memset(acc, 0, sizeof(float) * (size_t)(br * d));
        for (int r = 0; r < rows; r++) m[r] = -INFINITY, l[r] = 0.0f;
        for (int j = 0; j < n; j += bc) {
            const int keys = least(bc, n - j);
            load(fk, k + j * d, keys, d, d);
            load(fv, v + j * d, keys, d, d);
            for (int r = 0; r < rows; r++) {
                float top = m[r], sum = 0.0f;
                for (int t = 0; t < keys; t++) {
                    p[t] = 0.0f;
                    for (int c = 0; c < d; c++) p[t] += fq[r * d + c] * fk[t * d + c];
                    p[t] /= sqrtf((float)d);
                    top = fmaxf(top, p[t]);
                }
                const float rescale = expf(m[r] - top); /* 0 for the first block */
                for (int t = 0; t < keys; t++) sum += p[t] = expf(p[t] - top);
                for (int c = 0; c < d; c++) {
                    acc[r * d + c] *= rescale;
                    for (int t = 0; t < keys; t++) acc[r * d + c] += p[t] * fv[t * d + c];
                }
                l[r] = l[r] * rescale + sum;
                m[r] = top;
            }
        }
        for (int r = 0; r < rows; r++)
            for (int c = 0; c < d; c++) o[(i + r) * d + c] = acc[r * d + c] / l[r];
    }
    free(fq), free(fk), free(fv), free(p), free(acc), free(m), free(l);
}

int main(int argc, char** argv) {
    enum { N = 128, D = 32 };
    const int is_figure = wants_figure(argc, argv);
    float *a = random_floats(N * N, 1), *b = random_floats(N * N, 2), *c = floats(N * N), *c_first = floats(N * N);
    if (!is_figure) printf("product of %d × %d\nblock     loads   multiply-adds per load\n", N, N);
    for (int block = 1; block <= N; block *= 2) {
        loads = 0;
        product(N, block, a, b, block == 1 ? c_first : c);
        if (is_figure) printf("product %d %lld\n", block, (long long)loads);
        else if (block <= 64) printf("%5d %9lld %12.1f\n", block, (long long)loads, (double)N * N * N / (double)loads);
    }

    float *q = random_floats(N * D, 3), *k = random_floats(N * D, 4), *v = random_floats(N * D, 5), *o = floats(N * D),
          *whole = floats(N * D);
    open_library();
    fa_attention_desc_t desc = FA_ATTENTION_DESC_INIT;
    desc.q_dtype = FA_F32, desc.batch = desc.heads_q = 1, desc.seqlen_q = desc.seqlen_k = N, desc.dim_qk = D;
    check(fa_forward(handle, &desc, q, k, v, whole));
    if (!is_figure)
        printf("\nattention, %d rows and keys of dimension %d\n  br   bc     loads   as the library, within 1e-6\n", N, D);
    for (int br = 1; br <= N; br *= is_figure ? 2 : 4)
        for (int bc = is_figure ? 16 : 1; bc <= (is_figure ? 16 : N); bc *= 16) {
            loads = 0;
            attention(N, D, br, bc, q, k, v, o);
            const int is_same = largest_difference(o, whole, N * D) <= 1e-6f;
            if (is_figure) printf("attention %d %lld\n", br, (long long)loads);
            else if (bc > 1) printf("%4d %4d %9lld   %s\n", br, bc, (long long)loads, is_same ? "yes" : "no");
            if (!is_same) return 1;
        }
    free(a), free(b), free(c), free(c_first), free(q), free(k), free(v), free(o), free(whole);
    return fa_destroy(handle);
}
