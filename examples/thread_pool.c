/* A program's own threads. Shows: fa_parallel_for_fn, through which the library's work runs on threads that the program has anyhow, here
 * the simplest pool that is right: workers that are there for one call; and that the result is the same, bit by bit, for any number of them.
 * Build: cc thread_pool.c $(pkg-config --cflags --libs flashattn) -lm -pthread */
#include "plain.h"
#include <pthread.h>
#include <string.h>

enum { HEADS = 4, DIM = 32, ROWS = 256, ROW = HEADS * DIM, SIZE = ROWS * ROW, MOST = 4 };

typedef struct {
    pthread_mutex_t lock;
    int64_t next, n, calls;
    void (*body)(void* arg, int64_t i);
    void* arg;
    int workers;
} pool_t;

static void* work(void* user) {
    pool_t* pool = user;
    for (;;) {
        pthread_mutex_lock(&pool->lock);
        const int64_t i = pool->next < pool->n ? pool->next++ : -1;
        pthread_mutex_unlock(&pool->lock);
        if (i < 0) return NULL;
        pool->body(pool->arg, i);
    }
}

/* Returns when every body(arg, i) is done. Threads that cannot be made are no failure: the calling one does the work. */
static fa_status_t parallel_for(void* user, int64_t n, void (*body)(void* arg, int64_t i), void* arg) {
    pool_t* pool = user;
    pthread_t threads[MOST];
    int made = 0;
    pool->next = 0, pool->n = n, pool->body = body, pool->arg = arg, pool->calls++;
    while (made < pool->workers && pthread_create(&threads[made], NULL, work, pool) == 0) made++;
    work(pool);
    while (made > 0) pthread_join(threads[--made], NULL);
    return FA_OK;
}

int main(void) {
    static float q[SIZE], k[SIZE], v[SIZE], o[SIZE], alone[SIZE];
    pool_t pool = {.workers = 0};
    double worst = 0;
    fill(q, SIZE, 1), fill(k, SIZE, 2), fill(v, SIZE, 3);
    pthread_mutex_init(&pool.lock, NULL);

    fa_handle_t handle;
    fa_create_info_t info = FA_CREATE_INFO_INIT;
    info.backend = FA_BACKEND_CPU, info.parallel_for = parallel_for, info.parallel_user = &pool;
    need(fa_create(&handle, &info), NULL);
    need(fa_param_set(handle, FA_PARAM_THREADS, MOST + 1), handle); /* how many parts are worth making */

    fa_attention_desc_t desc = FA_ATTENTION_DESC_INIT;
    desc.q_dtype = FA_F32, desc.batch = 1, desc.heads_q = HEADS, desc.seqlen_q = desc.seqlen_k = ROWS, desc.dim_qk = DIM;
    need(fa_forward(handle, &desc, q, k, v, alone), handle);
    pool.workers = MOST;
    need(fa_forward(handle, &desc, q, k, v, o), handle);

    for (int i = 0; i < ROWS; i++) {
        for (int h = 0; h < HEADS; h++) {
            double expected[DIM];
            plain_row(q + i * ROW + h * DIM, k + h * DIM, v + h * DIM, ROWS, DIM, ROW, NULL, expected);
            worst = farthest(worst, o + i * ROW + h * DIM, expected, DIM);
        }
    }
    const int same = memcmp(o, alone, sizeof o) == 0;
    printf("%lld pieces of work on %d threads: %s\n", (long long)pool.n, MOST + 1,
           same ? "the same bits as on one" : "other bits than on one");
    fa_destroy(handle);
    pthread_mutex_destroy(&pool.lock);
    return verdict(same && pool.calls >= 2 ? worst : INFINITY, 1e-5);
}
