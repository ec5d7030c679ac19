/* How a call is computed, and what it costs. Shows: fa_explain, which names backend, kernel, tiles and splits, or the reason for a refusal;
 * fa_workspace_size, with which a program gives a call all its memory beforehand; and the figures that FA_PARAM_COUNT_WORK counts, held here
 * against the formula: two products of 2 · rows · keys · dim operations for each head.
 * Build: cc explain.c $(pkg-config --cflags --libs flashattn) -lm */
#include "plain.h"

enum { HEADS = 2, DIM = 32, ROWS = 64, KEYS = 192, ROW = HEADS * DIM };

static void print_explanation(fa_handle_t handle, const char* what, const fa_attention_desc_t* desc, int32_t op) {
    char text[FA_TEXT_MAX];
    const fa_status_t status = fa_explain(handle, desc, op, text, sizeof text);
    printf("%s: %s\n%s\n\n", what, fa_status_name(status), text);
}

int main(void) {
    static float q[ROWS * ROW], k[KEYS * ROW], v[KEYS * ROW], o[ROWS * ROW];
    double worst = 0;
    fill(q, ROWS * ROW, 1), fill(k, KEYS * ROW, 2), fill(v, KEYS * ROW, 3);

    fa_handle_t handle;
    fa_create_info_t info = FA_CREATE_INFO_INIT;
    info.backend = FA_BACKEND_CPU; /* whose kernels count */
    need(fa_create(&handle, &info), NULL);
    print_explanation(handle, "this handle", NULL, FA_OP_FORWARD);

    fa_attention_desc_t desc = FA_ATTENTION_DESC_INIT;
    desc.q_dtype = FA_F32, desc.batch = 1, desc.heads_q = HEADS, desc.seqlen_q = ROWS, desc.seqlen_k = KEYS, desc.dim_qk = DIM;
    print_explanation(handle, "64 rows", &desc, FA_OP_FORWARD);
    fa_attention_desc_t decode = desc;
    decode.seqlen_q = 1, decode.seqlen_k = 100000;
    print_explanation(handle, "one row, many keys", &decode, FA_OP_FORWARD);
    fa_attention_desc_t refused = desc;
    refused.q_dtype = FA_E4M3;
    print_explanation(handle, "the gradients of 8-bit floats", &refused, FA_OP_BACKWARD);

    need(fa_param_set(handle, FA_PARAM_COUNT_WORK, 1), handle);
    uint64_t bytes;
    need(fa_workspace_size(handle, &desc, FA_OP_FORWARD, &bytes), handle);
    fa_forward_args_t args = FA_FORWARD_ARGS_INIT;
    args.q = q, args.k = k, args.v = v, args.o = o, args.workspace_size = bytes;
    need(fa_malloc(handle, bytes, &args.workspace),
         handle); /* aligned as a workspace must be; with it the call allocates nothing */
    need(fa_forward_ex(handle, &desc, &args), handle);

    int64_t flops, read, rows, keys;
    need(fa_param_get(handle, FA_STAT_FLOPS, &flops), handle);
    need(fa_param_get(handle, FA_STAT_BYTES_READ, &read), handle);
    need(fa_param_get(handle, FA_STAT_TILE_ROWS, &rows), handle);
    need(fa_param_get(handle, FA_STAT_TILE_KEYS, &keys), handle);
    const int64_t formula = (int64_t)2 * 2 * HEADS * ROWS * KEYS * DIM;
    printf("workspace: %llu bytes; tiles of %lld rows and %lld keys\n", (unsigned long long)bytes, (long long)rows,
           (long long)keys);
    printf("%lld floating-point operations, by the formula %lld; %lld bytes read\n", (long long)flops, (long long)formula,
           (long long)read);

    for (int i = 0; i < ROWS * HEADS; i++) {
        double expected[DIM];
        plain_row(q + i * DIM, k + i % HEADS * DIM, v + i % HEADS * DIM, KEYS, DIM, ROW, NULL, expected);
        worst = farthest(worst, o + i * DIM, expected, DIM);
    }
    need(fa_free(handle, args.workspace), handle);
    fa_destroy(handle);
    return verdict(flops == formula ? worst : INFINITY, 1e-5);
}
