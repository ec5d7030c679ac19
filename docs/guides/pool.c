/* Attention on threads of the program's own. */
#include <flashattn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* [pool] */
typedef struct {
    void (*body)(void* arg, int64_t i);
    void* arg;
    int64_t i;
} job_t;

static void* run(void* pointer) {
    const job_t* job = pointer;
    job->body(job->arg, job->i);
    return NULL;
}

static fa_status_t parallel_for(void* user, int64_t n, void (*body)(void* arg, int64_t i), void* arg) {
    enum { AT_ONCE = 16 };
    pthread_t threads[AT_ONCE];
    job_t jobs[AT_ONCE];
    (void)user;
    for (int64_t first = 0; first < n; first += AT_ONCE) {
        const int64_t count = n - first < AT_ONCE ? n - first : AT_ONCE;
        int64_t begun = 0;
        for (; begun < count; begun++) {
            jobs[begun] = (job_t){body, arg, first + begun};
            if (pthread_create(&threads[begun], NULL, run, &jobs[begun]) != 0) break;
        }
        for (int64_t i = begun; i < count; i++) body(arg, first + i); /* the system refused a thread: the caller does the rest */
        for (int64_t i = 0; i < begun; i++) pthread_join(threads[i], NULL);
    }
    return FA_OK;
}

static fa_create_info_t info_of_pool(void) {
    fa_create_info_t info = FA_CREATE_INFO_INIT;
    info.backend = FA_BACKEND_CPU;
    info.parallel_for = parallel_for;
    return info;
}
/* [end] */

int main(void) {
    enum { ROWS = 512, HEADS = 4, DIM = 64, SIZE = ROWS * HEADS * DIM };
    static float q[SIZE], o[2][SIZE];
    for (int i = 0; i < SIZE; i++) q[i] = (float)(i * 7919LL % 1009) / 1009.0f - 0.5f;
    fa_attention_desc_t desc = FA_ATTENTION_DESC_INIT;
    desc.q_dtype = FA_F32, desc.batch = 1, desc.heads_q = HEADS, desc.seqlen_q = desc.seqlen_k = ROWS, desc.dim_qk = DIM;
    for (int threads = 4; threads >= 1; threads -= 3) {
        const fa_create_info_t info = info_of_pool();
        fa_handle_t handle;
        if (fa_create(&handle, &info) != FA_OK) return fprintf(stderr, "%s\n", fa_last_error(NULL)), 1;
        if (fa_param_set(handle, FA_PARAM_THREADS, threads) != FA_OK ||
            fa_forward(handle, &desc, q, q, q, o[threads == 1]) != FA_OK)
            return fprintf(stderr, "%s\n", fa_last_error(handle)), 1;
        fa_destroy(handle);
    }
    const int is_same = memcmp(o[0], o[1], sizeof o[0]) == 0;
    printf("the same bits on the caller's threads and on one: %s\n", is_same ? "yes" : "no");
    return !is_same;
}
