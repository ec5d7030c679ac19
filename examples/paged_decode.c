/* Decoding with grouped heads from a paged cache, on the CPU. Shows: eight query heads that share two heads of keys and values; a pool of
 * pages that two sequences of different lengths take from, in any order; fa_append_kv, which writes each new token where the page table
 * says; and one row of queries a step, which attends to everything its sequence has so far.
 * Build: cc paged_decode.c $(pkg-config --cflags --libs flashattn) -lm */
#include "plain.h"

enum { BATCH = 2, HEADS = 8, KV_HEADS = 2, DIM = 16, PAGE = 4, PAGES = 16, ROW = 8, STEPS = 20, TOKEN = KV_HEADS * DIM };

/* A page is taken from the pool when the token that needs it comes. The free ones are handed out from the end: no order is needed. */
static int32_t page_table[BATCH][ROW], free_pages = PAGES;
static void make_room(int b, int tokens) {
    if (tokens % PAGE == 0) page_table[b][tokens / PAGE] = --free_pages;
}

int main(void) {
    static float k_pages[PAGES * PAGE * TOKEN], v_pages[PAGES * PAGE * TOKEN]; /* [page][slot][head][dim] */
    static float k_seen[BATCH][STEPS * TOKEN], v_seen[BATCH][STEPS * TOKEN]; /* the same tokens side by side, for the plain loop */
    float q[BATCH * HEADS * DIM], k_new[BATCH * TOKEN], v_new[BATCH * TOKEN], o[BATCH * HEADS * DIM];
    int32_t used[BATCH] = {0, 0}, fresh[BATCH] = {1, 1};
    double worst = 0;

    fa_handle_t handle;
    fa_create_info_t info = FA_CREATE_INFO_INIT;
    info.backend = FA_BACKEND_CPU;
    need(fa_create(&handle, &info), NULL);

    fa_attention_desc_t desc = FA_ATTENTION_DESC_INIT;
    desc.q_dtype = FA_F32, desc.batch = BATCH, desc.heads_q = HEADS, desc.heads_k = KV_HEADS, desc.dim_qk = DIM;
    desc.seqlen_q = 1, desc.seqlen_k = ROW * PAGE, desc.page_size = PAGE, desc.num_pages = PAGES;
    desc.operands = FA_OPERAND_PAGE_TABLE | FA_OPERAND_SEQUSED_K;

    fa_append_kv_args_t append = FA_APPEND_KV_ARGS_INIT;
    append.k_new = k_new, append.v_new = v_new, append.seqlen_new = 1, append.seqused_new = fresh;
    append.k = k_pages, append.v = v_pages, append.page_table = page_table[0], append.seqused_k = used;
    fa_forward_args_t forward = FA_FORWARD_ARGS_INIT;
    forward.q = q, forward.k = k_pages, forward.v = v_pages, forward.o = o;
    forward.page_table = page_table[0], forward.seqused_k = used;

    for (int step = 0; step < STEPS; step++) {
        fill(q, BATCH * HEADS * DIM, 3u * step), fill(k_new, BATCH * TOKEN, 3u * step + 1),
            fill(v_new, BATCH * TOKEN, 3u * step + 2);
        fresh[1] = step < 13; /* the second sequence ends early: no token of its comes any more */
        for (int b = 0; b < BATCH; b++) {
            if (!fresh[b]) continue;
            make_room(b, used[b]);
            for (int i = 0; i < TOKEN; i++) {
                k_seen[b][used[b] * TOKEN + i] = k_new[b * TOKEN + i], v_seen[b][used[b] * TOKEN + i] = v_new[b * TOKEN + i];
            }
        }
        need(fa_append_kv(handle, &desc, &append), handle);
        for (int b = 0; b < BATCH; b++) used[b] += fresh[b]; /* the caller counts */
        need(fa_forward_ex(handle, &desc, &forward), handle);

        for (int b = 0; b < BATCH; b++) {
            for (int h = 0; h < HEADS; h++) {
                const int kv = h * KV_HEADS / HEADS;
                double expected[DIM];
                plain_row(q + (b * HEADS + h) * DIM, k_seen[b] + kv * DIM, v_seen[b] + kv * DIM, used[b], DIM, TOKEN, NULL,
                          expected);
                worst = farthest(worst, o + (b * HEADS + h) * DIM, expected, DIM);
            }
        }
    }
    printf("%d steps, %d and %d tokens in %d of %d pages\n", STEPS, used[0], used[1], PAGES - free_pages, PAGES);
    fa_destroy(handle);
    return verdict(worst, 1e-5);
}
