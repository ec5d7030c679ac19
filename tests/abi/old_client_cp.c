/* A program built against flashattn_cp.h as it was in 0.2, linked to the library as it is now: two ranks, which are threads, over a
 * transport of its own. */
#include <flashattn_cp.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 2, ROWS = 8, HEADS = 2, DIM = 4, ROW = HEADS * DIM, MOST = 64 };

/* What was sent and not received yet, and what each rank waits for. */
struct post {
    int used, from, to;
    fa_cp_message_t message;
};
static struct post sent[MOST];
static struct {
    fa_cp_message_t message[MOST];
    int64_t count;
} expected[RANKS][MOST];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t arrived = PTHREAD_COND_INITIALIZER;

static fa_status_t start(void* user, const fa_cp_message_t* messages, int64_t count, uint64_t* ticket) {
    const int me = *(const int*)user;
    pthread_mutex_lock(&mutex);
    for (*ticket = 0; expected[me][*ticket].count > 0; ++*ticket) {
    }
    expected[me][*ticket].count = count;
    for (int64_t i = 0; i < count; i++) {
        const fa_cp_message_t m = messages[i];
        expected[me][*ticket].message[i] = m;
        if (m.direction != FA_CP_SEND) continue;
        int at = 0;
        while (sent[at].used) at++;
        sent[at].used = 1, sent[at].from = me, sent[at].to = m.peer, sent[at].message = m;
        sent[at].message.data = malloc(m.bytes);
        memcpy(sent[at].message.data, m.data, m.bytes);
    }
    pthread_cond_broadcast(&arrived);
    pthread_mutex_unlock(&mutex);
    return FA_OK;
}

static struct post* arrival(int me, const fa_cp_message_t* message) {
    for (int i = 0; i < MOST; i++)
        if (sent[i].used && sent[i].to == me && sent[i].from == message->peer && sent[i].message.tag == message->tag) return &sent[i];
    return NULL;
}

static fa_status_t wait_for(void* user, uint64_t ticket, int64_t timeout_ms) {
    const int me = *(const int*)user;
    (void)timeout_ms;
    pthread_mutex_lock(&mutex);
    for (int64_t i = 0; i < expected[me][ticket].count; i++) {
        const fa_cp_message_t* m = &expected[me][ticket].message[i];
        struct post* p = NULL;
        if (m->direction != FA_CP_RECEIVE) continue;
        while (!(p = arrival(me, m))) pthread_cond_wait(&arrived, &mutex);
        memcpy(m->data, p->message.data, m->bytes);
        free(p->message.data);
        p->used = 0;
    }
    expected[me][ticket].count = 0;
    pthread_mutex_unlock(&mutex);
    return FA_OK;
}

struct rank {
    int number, faults;
};
static float q[ROWS * ROW], k[ROWS * ROW], v[ROWS * ROW], dout[ROWS * ROW], want[ROWS * ROW], want_dv[ROWS * ROW];

static int check(int ok, const char* what) {
    if (!ok) fprintf(stderr, "%s\n", what);
    return !ok;
}

static fa_attention_desc_t problem(void) {
    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    d.q_dtype = FA_F32, d.batch = 1, d.heads_q = HEADS, d.seqlen_q = d.seqlen_k = ROWS, d.dim_qk = DIM;
    d.flags = FA_CAUSAL, d.alignment = FA_ALIGN_TOP_LEFT, d.operands = FA_OPERAND_LSE;
    return d;
}

/* The rank's rows of x into part, or those of part into x's places. */
static int64_t local_rows(const fa_cp_range_t* ranges, int64_t count, const float* x, float* part) {
    int64_t rows = 0;
    for (int64_t i = 0; i < count; i++) {
        memcpy(part + ranges[i].local * ROW, x + ranges[i].begin * ROW, (size_t)ranges[i].rows * ROW * sizeof(float));
        rows += ranges[i].rows;
    }
    return rows;
}

static float distance(const float* a, const float* b, int64_t n) {
    float most = 0;
    for (int64_t i = 0; i < n; i++) most = fmaxf(most, fabsf(a[i] - b[i]));
    return most;
}

static int attend(fa_cp_t cp, int me, int32_t method) {
    const fa_attention_desc_t d = problem();
    float mine[8][ROWS * ROW] = {{0}}, lse[ROWS * HEADS];
    fa_cp_range_t ranges[2];
    int64_t count, rows;
    uint64_t bytes = 0, messages = 0;
    char text[512];
    fa_forward_args_t f = FA_FORWARD_ARGS_INIT;
    fa_backward_args_t b = FA_BACKWARD_ARGS_INIT;
    fa_cp_desc_t spread = FA_CP_DESC_INIT;
    spread.shard = FA_CP_SHARD_ROWS, spread.layout = FA_CP_LAYOUT_ZIGZAG, spread.method = method;
    if (check(fa_cp_partition(&spread, me, RANKS, NULL, 1, ROWS, ranges, 2, &count) == FA_OK, fa_cp_last_error(NULL))) return 1;
    rows = local_rows(ranges, count, q, mine[0]);
    local_rows(ranges, count, k, mine[1]), local_rows(ranges, count, v, mine[2]), local_rows(ranges, count, dout, mine[3]);
    local_rows(ranges, count, want, mine[4]), local_rows(ranges, count, want_dv, mine[5]);
    if (check(rows == ROWS / RANKS, "the rows are not shared evenly")) return 1;
    f.q = mine[0], f.k = mine[1], f.v = mine[2], f.o = mine[6], f.lse = lse;
    if (check(fa_cp_forward(cp, &d, &spread, &f) == FA_OK, fa_cp_last_error(cp))) return 1;
    if (check(distance(mine[6], mine[4], rows * ROW) < 1e-6f, "o differs")) return 1;
    b.forward = &f, b.dout = mine[3], b.dv = mine[7];
    if (check(fa_cp_backward(cp, &d, &spread, &b) == FA_OK, fa_cp_last_error(cp))) return 1;
    if (check(distance(mine[7], mine[5], rows * ROW) < 1e-5f, "dv differs")) return 1;
    if (check(fa_cp_traffic(cp, &bytes, &messages) == FA_OK && bytes > 0 && messages > 0, "nothing was sent")) return 1;
    return check(fa_cp_explain(cp, &d, &spread, FA_OP_FORWARD, &f, text, sizeof text) == FA_OK && *text, text);
}

static void* run(void* arg) {
    struct rank* r = arg;
    fa_handle_t handle = NULL;
    fa_cp_t cp = NULL;
    fa_create_info_t cpu = FA_CREATE_INFO_INIT;
    fa_cp_transport_t transport = FA_CP_TRANSPORT_INIT;
    fa_cp_create_info_t info = FA_CP_CREATE_INFO_INIT;
    cpu.backend = FA_BACKEND_CPU;
    transport.rank = r->number, transport.ranks = RANKS, transport.user = &r->number, transport.start = start, transport.wait = wait_for;
    info.transport = &transport, info.timeout_ms = -1;
    /* A rank that gives up leaves the other waiting: the time limit of the test ends both. */
    r->faults = check(fa_create(&handle, &cpu) == FA_OK && fa_cp_create(&cp, handle, &info) == FA_OK, fa_cp_last_error(NULL)) ||
                attend(cp, r->number, FA_CP_METHOD_AUTO) || attend(cp, r->number, FA_CP_METHOD_RING) ||
                attend(cp, r->number, FA_CP_METHOD_ALL_GATHER);
    fa_cp_destroy(cp);
    fa_destroy(handle);
    return NULL;
}

int main(void) {
    const fa_attention_desc_t d = problem();
    struct rank ranks[RANKS] = {{0, 1}, {1, 1}};
    pthread_t threads[RANKS];
    float lse[ROWS * HEADS];
    fa_handle_t handle;
    fa_create_info_t cpu = FA_CREATE_INFO_INIT;
    fa_forward_args_t f = FA_FORWARD_ARGS_INIT;
    fa_backward_args_t b = FA_BACKWARD_ARGS_INIT;
    cpu.backend = FA_BACKEND_CPU;
    for (int i = 0; i < ROWS * ROW; i++)
        q[i] = sinf((float)i), k[i] = cosf(2.f * (float)i), v[i] = sinf(3.f * (float)i), dout[i] = cosf((float)i);
    f.q = q, f.k = k, f.v = v, f.o = want, f.lse = lse;
    b.forward = &f, b.dout = dout, b.dv = want_dv;
    if (check(fa_create(&handle, &cpu) == FA_OK, fa_last_error(NULL))) return 1;
    if (check(fa_forward_ex(handle, &d, &f) == FA_OK && fa_backward(handle, &d, &b) == FA_OK, fa_last_error(handle))) return 1;
    fa_destroy(handle);
    for (int i = 0; i < RANKS; i++) pthread_create(&threads[i], NULL, run, &ranks[i]);
    for (int i = 0; i < RANKS; i++) pthread_join(threads[i], NULL);
    return ranks[0].faults || ranks[1].faults;
}
