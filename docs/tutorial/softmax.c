/* Chapter 2: softmax three times: as it is written, safe, and online. */
#include "lesson.h"

enum { KEYS = 4 };

static void print(const char* name, const float* x, int count) {
    printf("%-8s", name);
    for (int j = 0; j < count; j++) {
        if (isnan(x[j])) printf("     nan"); /* which C may print with a sign */
        else printf(" %7.4f", x[j]);
    }
    printf("\n");
}

static void plain_softmax(const float* s, float* p) {
    float sum = 0.0f;
    for (int j = 0; j < KEYS; j++) sum += expf(s[j]);
    for (int j = 0; j < KEYS; j++) p[j] = expf(s[j]) / sum;
}

static void safe_softmax(const float* s, float* p) {
    float m = -INFINITY, sum = 0.0f;
    for (int j = 0; j < KEYS; j++) m = fmaxf(m, s[j]); /* a pass of its own over all scores */
    for (int j = 0; j < KEYS; j++) sum += expf(s[j] - m);
    for (int j = 0; j < KEYS; j++) p[j] = expf(s[j] - m) / sum;
}

/* One pass: a score that has been used is never looked at again. Gives the output; prints the state after each key if asked to. */
static float online(const float* s, const float* v, int keys, const char* format) {
    float m = -INFINITY, l = 0.0f, o = 0.0f;
    for (int j = 0; j < keys; j++) {
        const float m_new = fmaxf(m, s[j]), rescale = expf(m - m_new), p = expf(s[j] - m_new);
        l = l * rescale + p;
        o = o * rescale + p * v[j];
        m = m_new;
        if (format != NULL) printf(format, j, s[j], v[j], m, l, o, o / l);
    }
    return o / l;
}

int main(int argc, char** argv) {
    if (wants_figure(argc, argv)) {
        float *s = random_floats(48, 11), *v = random_floats(48, 5);
        for (int j = 0; j < 48; j++) s[j] = 1.4f * s[j] + 0.02f * (float)j, v[j] += 0.5f;
        online(s, v, 48, "%d %.5f %.5f %.5f %.5f %.5f %.5f\n");
        return free(s), free(v), 0;
    }
    const float small[KEYS] = {1, 2, 3, 0}, large[KEYS] = {1001, 1002, 1003, 1000}, v[KEYS] = {10, 20, 30, 40};
    float p[KEYS];
    plain_softmax(small, p), print("plain", p, KEYS);
    plain_softmax(large, p), print("plain", p, KEYS);
    safe_softmax(large, p), print("safe", p, KEYS);

    printf("\nkey  score  value        m        l         o     o / l\n");
    const float output = online(large, v, KEYS, "%3d %6.0f %6.0f %8.0f %8.4f %9.4f %9.4f\n");

    /* The library, on a head of dimension 1: q · k is the score. */
    open_library();
    const float q = 1.0f;
    float o, lse;
    fa_attention_desc_t desc = FA_ATTENTION_DESC_INIT;
    fa_forward_args_t args = FA_FORWARD_ARGS_INIT;
    desc.q_dtype = FA_F32, desc.batch = desc.heads_q = desc.seqlen_q = desc.dim_qk = 1, desc.seqlen_k = KEYS;
    desc.operands = FA_OPERAND_LSE;
    args.q = &q, args.k = large, args.v = v, args.o = &o, args.lse = &lse;
    check(fa_forward_ex(handle, &desc, &args));
    printf("\nonline %.4f, library %.4f, LSE %.4f\n", output, o, lse);
    return fa_destroy(handle);
}
