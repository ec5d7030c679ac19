/* Causal attention over MPI ranks, forward and backward: the time of a call, what was sent, and the link's own speed.
 *     mpirun -n 2 --bind-to core fa_bench_context_parallel METHOD ROWS HEADS HEADS_K DIM [ROUNDS]       built with -DFA_BENCH=ON
 * METHOD: ulysses, all-gather or ring, zigzag; each rank computes with one thread. Times are the least over the rounds of the slowest
 * rank's; bytes and messages those of the rank that sent most. */
#include <flashattn_cp_mpi.h>
#include <stdio.h>
#include <string.h>

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

static double slowest(double seconds) {
    double most = seconds;
    MPI_Allreduce(&seconds, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return most;
}

/* Half of the time that `bytes` need to the neighbour and back. */
static double ping(int rank, char* data, int bytes, int rounds) {
    double best = 1e30;
    for (int i = 0; i < rounds && rank < 2; i++) {
        const double began = MPI_Wtime();
        if (rank == 0) MPI_Send(data, bytes, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
        MPI_Recv(data, bytes, MPI_BYTE, 1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (rank == 1) MPI_Send(data, bytes, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
        if (MPI_Wtime() - began < best) best = MPI_Wtime() - began;
    }
    return best / 2;
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
    fa_cp_transport_t transport;
    check(fa_cp_mpi_open(MPI_COMM_WORLD, &transport), "MPI");
    fa_cp_create_info_t info = FA_CP_CREATE_INFO_INIT;
    info.transport = &transport;
    fa_cp_t cp;
    check(fa_cp_create(&cp, handle, &info), fa_cp_last_error(NULL));

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
    const int64_t q_size = rows * d.heads_q * d.dim_qk, k_size = rows * d.heads_k * d.dim_qk;
    fa_forward_args_t forward = FA_FORWARD_ARGS_INIT;
    forward.q = tensor(q_size, 1), forward.k = tensor(k_size, 2), forward.v = tensor(k_size, 3);
    forward.o = tensor(q_size, 4), forward.lse = (float*)malloc((size_t)(rows * d.heads_q + 1) * sizeof(float));
    fa_backward_args_t backward = FA_BACKWARD_ARGS_INIT;
    backward.forward = &forward;
    backward.dout = tensor(q_size, 5), backward.dq = tensor(q_size, 6), backward.dk = tensor(k_size, 7),
    backward.dv = tensor(k_size, 8);

    const int rounds = argc > 6 ? atoi(argv[6]) : 5;
    double best[2] = {1e30, 1e30};
    uint64_t bytes[2] = {0, 0}, messages[2] = {0, 0};
    for (int round = 0; round < rounds; round++)
        for (int pass = 0; pass < 2; pass++) {
            MPI_Barrier(MPI_COMM_WORLD);
            const double began = MPI_Wtime();
            check(pass == 0 ? fa_cp_forward(cp, &d, &spread, &forward) : fa_cp_backward(cp, &d, &spread, &backward),
                  fa_cp_last_error(cp));
            const double seconds = slowest(MPI_Wtime() - began);
            if (seconds < best[pass]) best[pass] = seconds;
            fa_cp_traffic(cp, &bytes[pass], &messages[pass]);
        }
    for (int pass = 0; pass < 2; pass++) {
        MPI_Allreduce(MPI_IN_PLACE, &bytes[pass], 1, MPI_UINT64_T, MPI_MAX, MPI_COMM_WORLD);
        MPI_Allreduce(MPI_IN_PLACE, &messages[pass], 1, MPI_UINT64_T, MPI_MAX, MPI_COMM_WORLD);
    }
    enum { LARGE = 16 << 20 };
    char* data = (char*)calloc(1, LARGE);
    const double small = transport.ranks > 1 ? ping(transport.rank, data, 1, 200) : 0;
    const double large = transport.ranks > 1 ? ping(transport.rank, data, LARGE, 5) : 0;
    if (transport.rank == 0) {
        for (int pass = 0; pass < 2; pass++)
            printf("%s of %d ranks by %s: %.4f s, %.3f MB in %llu messages\n", pass == 0 ? "forward" : "backward", transport.ranks,
                   argv[1], best[pass], 1e-6 * (double)bytes[pass], (unsigned long long)messages[pass]);
        if (large > 0) printf("link: %.2f GB/s, %.2f us\n", 1e-9 * LARGE / large, 1e6 * small);
    }
    fa_cp_destroy(cp);
    fa_cp_mpi_close(&transport);
    fa_destroy(handle);
    MPI_Finalize();
    return 0;
}
