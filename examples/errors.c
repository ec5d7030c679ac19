/* What a call says when it fails. Shows: a status for the program and a sentence for its reader; that *invalid* (the call can never be right)
 * is not *unsupported* (this backend lacks it), so that a program knows whether to look for another way; that a refused call leaves its
 * outputs alone and the handle usable; fa_extent, which says how much memory a call would use; and fa_backend_status.
 * Build: cc errors.c $(pkg-config --cflags --libs flashattn) -lm */
#include "plain.h"
#include <string.h>

enum { HEADS = 2, DIM = 8, ROWS = 5, SIZE = ROWS * HEADS * DIM };

static int surprises;

static void expect(const char* what, fa_status_t got, fa_status_t expected, const char* sentence) {
    printf("%s\n    %s: %s\n", what, fa_status_name(got), sentence);
    if (got != expected || !*sentence) surprises++;
}

int main(void) {
    float q[SIZE], k[SIZE], v[SIZE], o[SIZE], untouched[SIZE];
    double worst = 0;
    fill(q, SIZE, 1), fill(k, SIZE, 2), fill(v, SIZE, 3), fill(o, SIZE, 4);
    memcpy(untouched, o, sizeof o);

    /* Before there is a handle, the sentence is asked for with NULL. */
    char text[FA_TEXT_MAX];
    fa_handle_t handle;
    fa_create_info_t info = FA_CREATE_INFO_INIT;
    info.backend = 77;
    fa_status_t status = fa_create(&handle, &info);
    expect("a backend that does not exist", status, FA_UNSUPPORTED_FIELD, fa_last_error(NULL));
    status = fa_backend_status(FA_BACKEND_CUDA, text, sizeof text);
    printf("CUDA on this machine\n    %s: %s\n", fa_status_name(status), text); /* any answer is a right one */

    info.backend = FA_BACKEND_CPU;
    need(fa_create(&handle, &info), NULL);
    fa_attention_desc_t good = FA_ATTENTION_DESC_INIT;
    good.q_dtype = FA_F32, good.batch = 1, good.heads_q = HEADS, good.seqlen_q = good.seqlen_k = ROWS, good.dim_qk = DIM;

    fa_attention_desc_t desc = good;
    desc.heads_k = 3;
    status = fa_forward(handle, &desc, q, k, v, o);
    expect("two query heads on three of keys", status, FA_INVALID_ARGUMENT, fa_last_error(handle));
    desc = good, desc.flags = FA_CAUSAL;
    status = fa_forward(handle, &desc, q, k, v, o);
    expect("a causal mask without a diagonal", status, FA_INVALID_ARGUMENT, fa_last_error(handle));
    desc = good, desc.flags = 1u << 30;
    status = fa_forward(handle, &desc, q, k, v, o);
    expect("a flag of a later version", status, FA_UNSUPPORTED_FIELD, fa_last_error(handle));
    desc = good, desc.q_dtype = FA_F16, desc.algorithm = FA_ALGORITHM_STANDARD;
    status = fa_forward(handle, &desc, q, k, v, o);
    expect("a study baseline, which is f32 only", status, FA_UNSUPPORTED, fa_last_error(handle));
    status = fa_forward(handle, &good, q, NULL, v, o);
    expect("no keys", status, FA_INVALID_ARGUMENT, fa_last_error(handle));

    /* The library cannot know how large a buffer is: a caller who does can compare. */
    uint64_t bytes;
    fa_forward_args_t args = FA_FORWARD_ARGS_INIT;
    need(fa_extent(&good, FA_OP_FORWARD, &args, offsetof(fa_forward_args_t, k), &bytes), NULL);
    printf("k is used up to byte %llu of %zu\n", (unsigned long long)bytes, sizeof k);
    if (bytes != sizeof k || memcmp(o, untouched, sizeof o) != 0) surprises++;

    /* After all that the handle is as good as new. */
    need(fa_forward(handle, &good, q, k, v, o), handle);
    if (*fa_last_error(handle)) surprises++;
    for (int i = 0; i < ROWS * HEADS; i++) {
        double expected[DIM];
        plain_row(q + i * DIM, k + i % HEADS * DIM, v + i % HEADS * DIM, ROWS, DIM, HEADS * DIM, NULL, expected);
        worst = farthest(worst, o + i * DIM, expected, DIM);
    }
    fa_destroy(handle);
    return verdict(surprises ? INFINITY : worst, 1e-5);
}
