/* Causal attention over MPI ranks, forward and backward, beside the same on one of them: times, what was sent, and the link's own speed, as
 * one line of JSON.
 *     mpirun -n 2 --bind-to core fa_bench_context_parallel METHOD ROWS HEADS HEADS_K DIM [ROUNDS]       built with -DFA_BENCH=ON
 * METHOD: ulysses, all-gather or ring, zigzag; each rank computes with one thread. In a round three take turns: fa_forward and fa_backward
 * of the first rank on the whole problem (core), libflashattn-cp on the first rank alone (alone), and all ranks (spread). Times are
 * those of the slowest rank, the least of the rounds: of a machine that has other work, too, the one that it disturbed least. Beside them
 * stand a rank's seconds of its processor, waits for messages included, which other work hardly changes. compare_cp.py reads the line. */
#define _POSIX_C_SOURCE 200809L
#include <flashattn_cp_mpi.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static void check(fa_status_t status, const char* sentence) {
    if (status == FA_OK) return;
    fprintf(stderr, "%s: %s\n", fa_status_name(status), sentence);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void* tensor(int64_t elements, unsigned seed) {
    uint16_t* x = (uint16_t*)malloc((size_t)(elements > 0 ? elements : 1) * sizeof *x);
    for (int64_t i = 0; x && i < elements; i++) { /* bf16 between −1 and 1 */
        seed = seed * 1664525u + 1013904223u;
        const float f = (float)(seed >> 8) / (float)(1 << 23) - 1.0f;
        uint32_t bits;
        memcpy(&bits, &f, sizeof bits);
        x[i] = (uint16_t)(bits >> 16);
    }
    return x;
}

enum { CORE, ALONE, SPREAD, WAYS, FORWARD = 0, BACKWARD, PASSES, MOST_ROUNDS = 100 };

static double least(const double* values, int count) {
    double best = values[0];
    for (int i = 1; i < count; i++) best = values[i] < best ? values[i] : best;
    return best;
}

static double processor_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct {
    fa_forward_args_t forward;
    fa_backward_args_t backward;
} operands_t;

static void make_operands(operands_t* operands, const fa_attention_desc_t* desc, int64_t rows) {
    const fa_forward_args_t forward = FA_FORWARD_ARGS_INIT;
    const fa_backward_args_t backward = FA_BACKWARD_ARGS_INIT;
    const int64_t q = rows * desc->heads_q * desc->dim_qk, k = rows * desc->heads_k * desc->dim_qk;
    operands->forward = forward, operands->backward = backward;
    operands->forward.q = tensor(q, 1), operands->forward.k = tensor(k, 2), operands->forward.v = tensor(k, 3),
    operands->forward.o = tensor(q, 4);
    operands->forward.lse = (float*)malloc((size_t)(rows * desc->heads_q + 1) * sizeof(float));
    operands->backward.forward = &operands->forward, operands->backward.dout = tensor(q, 5);
    operands->backward.dq = tensor(q, 6), operands->backward.dk = tensor(k, 7), operands->backward.dv = tensor(k, 8);
}

static fa_cp_t open_ranks(fa_cp_transport_t* transport, MPI_Comm ranks, fa_handle_t handle) {
    check(fa_cp_mpi_open(ranks, transport), "MPI");
    fa_cp_create_info_t info = FA_CP_CREATE_INFO_INIT;
    info.transport = transport;
    fa_cp_t cp;
    check(fa_cp_create(&cp, handle, &info), fa_cp_last_error(NULL));
    return cp;
}

/* Seconds in which two ranks have sent each other `bytes`, at once; the least of the rounds. */
static double swap(int rank, char* data, int bytes, int rounds) {
    double best = 1e30;
    for (int i = 0; i < rounds && rank < 2; i++) {
        MPI_Request both[2];
        const double began = MPI_Wtime();
        MPI_Irecv(data, bytes, MPI_BYTE, 1 - rank, 0, MPI_COMM_WORLD, &both[0]);
        MPI_Isend(data + bytes, bytes, MPI_BYTE, 1 - rank, 0, MPI_COMM_WORLD, &both[1]);
        MPI_Waitall(2, both, MPI_STATUSES_IGNORE);
        const double took = MPI_Wtime() - began;
        if (took < best) best = took;
    }
    return best;
}

/* Bytes a second that a rank reads and writes while it packs half of the heads of a tensor that no cache holds; all ranks at once. */
static double packing(fa_handle_t handle) {
    enum { ROWS = 1 << 15, HALF = 512 };
    char *x = (char*)calloc(ROWS, 2 * HALF), *out = (char*)calloc(ROWS, HALF);
    if (!x || !out) MPI_Abort(MPI_COMM_WORLD, 1);
    memset(x, 1, (size_t)ROWS * 2 * HALF); /* else all of it were one page of zeros */
    const fa_conversion_t half = {x, out, {1, ROWS, 1, HALF}, {0, 2 * HALF, HALF, 1}, {0, HALF, HALF, 1}, FA_I8, FA_I8, 0};
    double best = 1e30;
    for (int i = 0; i < 9; i++) {
        MPI_Barrier(MPI_COMM_WORLD);
        const double began = processor_seconds();
        check(fa_convert(handle, &half, 1, 0, NULL), fa_last_error(handle));
        const double took = processor_seconds() - began;
        if (took < best) best = took;
    }
    free(x), free(out);
    MPI_Allreduce(MPI_IN_PLACE, &best, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return 2.0 * ROWS * HALF / best;
}

int main(int argc, char** argv) {
    MPI_Init(&argc, &argv);
    if (argc < 6) {
        fprintf(stderr, "fa_bench_context_parallel METHOD ROWS HEADS HEADS_K DIM [ROUNDS]\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    fa_handle_t handle;
    fa_create_info_t cpu = FA_CREATE_INFO_INIT;
    cpu.backend = FA_BACKEND_CPU;
    check(fa_create(&handle, &cpu), fa_last_error(NULL));
    check(fa_param_set(handle, FA_PARAM_THREADS, 1), fa_last_error(handle));
    fa_cp_transport_t transport, itself;
    fa_cp_t cp = open_ranks(&transport, MPI_COMM_WORLD, handle), alone = open_ranks(&itself, MPI_COMM_SELF, handle);

    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    d.q_dtype = FA_BF16;
    d.operands = FA_OPERAND_LSE;
    d.flags = FA_CAUSAL, d.alignment = FA_ALIGN_TOP_LEFT;
    d.batch = 1, d.seqlen_q = d.seqlen_k = atoll(argv[2]);
    d.heads_q = atoll(argv[3]), d.heads_k = atoll(argv[4]), d.dim_qk = atoll(argv[5]);
    fa_cp_desc_t spread = FA_CP_DESC_INIT;
    spread.shard = FA_CP_SHARD_ROWS, spread.layout = FA_CP_LAYOUT_ZIGZAG;
    spread.method = strcmp(argv[1], "ring") == 0      ? FA_CP_METHOD_RING
                    : strcmp(argv[1], "ulysses") == 0 ? FA_CP_METHOD_ULYSSES
                                                      : FA_CP_METHOD_ALL_GATHER;
    fa_cp_range_t mine[2];
    int64_t count = 0, rows = 0;
    check(fa_cp_partition(&spread, transport.rank, transport.ranks, NULL, 1, d.seqlen_q, mine, 2, &count), fa_cp_last_error(NULL));
    for (int64_t i = 0; i < count; i++) rows += mine[i].rows;
    operands_t mine_alone, whole;
    make_operands(&mine_alone, &d, rows);
    make_operands(&whole, &d, transport.rank == 0 ? d.seqlen_q : 0);

    const int rounds = argc > 6 && atoi(argv[6]) > 0 && atoi(argv[6]) < MOST_ROUNDS ? atoi(argv[6]) : 7;
    double seconds[PASSES][WAYS][MOST_ROUNDS], processor[PASSES][WAYS][MOST_ROUNDS];
    uint64_t sent[PASSES][2] = {{0, 0}, {0, 0}};  /* bytes, messages */
    for (int round = -1; round < rounds; round++) /* the first is not counted */
        for (int pass = 0; pass < PASSES; pass++)
            for (int turn = 0; turn < WAYS; turn++) {
                const int way = round % 2 ? WAYS - 1 - turn : turn;
                MPI_Barrier(MPI_COMM_WORLD);
                double took = MPI_Wtime(), worked = processor_seconds();
                if (way == SPREAD)
                    check(pass == FORWARD ? fa_cp_forward(cp, &d, &spread, &mine_alone.forward)
                                          : fa_cp_backward(cp, &d, &spread, &mine_alone.backward),
                          fa_cp_last_error(cp));
                else if (transport.rank == 0 && way == ALONE)
                    check(pass == FORWARD ? fa_cp_forward(alone, &d, &spread, &whole.forward)
                                          : fa_cp_backward(alone, &d, &spread, &whole.backward),
                          fa_cp_last_error(alone));
                else if (transport.rank == 0)
                    check(pass == FORWARD ? fa_forward_ex(handle, &d, &whole.forward) : fa_backward(handle, &d, &whole.backward),
                          fa_last_error(handle));
                took = MPI_Wtime() - took, worked = processor_seconds() - worked;
                if (way != SPREAD && transport.rank > 0) worked = 0;
                MPI_Allreduce(MPI_IN_PLACE, &took, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
                MPI_Allreduce(MPI_IN_PLACE, &worked, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
                if (round >= 0) seconds[pass][way][round] = took, processor[pass][way][round] = worked;
                if (way == SPREAD) fa_cp_traffic(cp, &sent[pass][0], &sent[pass][1]);
            }
    MPI_Allreduce(MPI_IN_PLACE, sent, 2 * PASSES, MPI_UINT64_T, MPI_MAX, MPI_COMM_WORLD);
    enum { LARGE = 16 << 20 };
    char* data = (char*)calloc(2, LARGE);
    const double small = transport.ranks > 1 ? swap(transport.rank, data, 1, 200) : 0;
    const double large = transport.ranks > 1 ? swap(transport.rank, data, LARGE, 9) : 0;
    const double memory = packing(handle);
    if (transport.rank == 0) {
        printf("{\"method\": \"%s\", \"ranks\": %d, \"rows\": %s, \"heads\": %s, \"heads_k\": %s, \"dim\": %s", argv[1], transport.ranks,
               argv[2], argv[3], argv[4], argv[5]);
        for (int pass = 0; pass < PASSES; pass++) {
            static const char* const names[] = {"core", "alone", "spread"};
            printf(", \"%s\": {\"bytes\": %llu, \"messages\": %llu", pass == FORWARD ? "forward" : "backward",
                   (unsigned long long)sent[pass][0], (unsigned long long)sent[pass][1]);
            for (int way = 0; way < WAYS; way++)
                printf(", \"%s_seconds\": %.6g, \"%s_processor_seconds\": %.6g", names[way], least(seconds[pass][way], rounds), names[way],
                       least(processor[pass][way], rounds));
            printf("}");
        }
        printf(", \"link_gb_per_second\": %.4g, \"link_microseconds\": %.4g, \"memory_gb_per_second\": %.4g}\n",
               large > 0 ? 1e-9 * LARGE / large : 0, 1e6 * small, 1e-9 * memory);
    }
    fa_cp_destroy(alone);
    fa_cp_mpi_close(&itself);
    fa_cp_destroy(cp);
    fa_cp_mpi_close(&transport);
    fa_destroy(handle);
    MPI_Finalize();
    return 0;
}
