/* One causal attention and its gradients over several processes, each of which has its rows of the sequence alone.
 *     mpicc cp_minimal.c -o cp_minimal $(pkg-config --cflags --libs flashattn-cp)
 *     mpirun -n 4 ./cp_minimal [ulysses | all-gather | ring] */
#include <flashattn_cp_mpi.h>
#include <stdio.h>
#include <string.h>

enum { ROWS = 1000, HEADS = 8, DIM = 64, ROW = HEADS * DIM };

static float q[ROWS * ROW], k[ROWS * ROW], v[ROWS * ROW], o[ROWS * ROW], lse[ROWS * HEADS];
static float dout[ROWS * ROW], dq[ROWS * ROW], dk[ROWS * ROW], dv[ROWS * ROW];
static float one_o[ROWS * ROW], one_dq[ROWS * ROW], one_dk[ROWS * ROW], one_dv[ROWS * ROW]; /* one process' */

static void fill(float* x, unsigned seed) {
    for (int i = 0; i < ROWS * ROW; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 8) / (float)(1 << 23) - 1.0f;
    }
}

/* Keeps the rank's rows of a tensor, at its front. */
static void keep(float* x, const fa_cp_range_t* mine, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        memmove(x + mine[i].local * ROW, x + mine[i].begin * ROW, (size_t)(mine[i].rows * ROW) * sizeof *x);
}

static long long differing(const float* a, const float* b, int64_t rows) {
    long long n = 0;
    for (int64_t i = 0; i < rows * ROW; i++) n += !(a[i] - b[i] < 1e-5f && b[i] - a[i] < 1e-5f);
    return n;
}

static void check(fa_status_t status, const char* sentence) {
    if (status == FA_OK) return;
    fprintf(stderr, "%s: %s\n", fa_status_name(status), sentence);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

int main(int argc, char** argv) {
    MPI_Init(&argc, &argv);
    fa_handle_t handle;
    fa_create_info_t cpu = FA_CREATE_INFO_INIT;
    cpu.backend = FA_BACKEND_CPU;
    check(fa_create(&handle, &cpu), fa_last_error(NULL));
    check(fa_param_set(handle, FA_PARAM_THREADS, 1), fa_last_error(handle)); /* ranks share this machine */

    fa_cp_transport_t transport;
    check(fa_cp_mpi_open(MPI_COMM_WORLD, &transport), "MPI");
    fa_cp_create_info_t info = FA_CP_CREATE_INFO_INIT;
    info.transport = &transport;
    fa_cp_t cp;
    check(fa_cp_create(&cp, handle, &info), fa_cp_last_error(NULL));

    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT; /* of the whole problem */
    d.q_dtype = FA_F32;
    d.batch = 1, d.heads_q = HEADS, d.seqlen_q = d.seqlen_k = ROWS, d.dim_qk = DIM;
    d.flags = FA_CAUSAL, d.alignment = FA_ALIGN_TOP_LEFT;
    d.operands = FA_OPERAND_LSE; /* which the backward needs */
    fill(q, 1), fill(k, 2), fill(v, 3), fill(dout, 4);
    fa_forward_args_t args = FA_FORWARD_ARGS_INIT;
    args.q = q, args.k = k, args.v = v, args.o = one_o, args.lse = lse;
    fa_backward_args_t gradients = FA_BACKWARD_ARGS_INIT;
    gradients.forward = &args;
    gradients.dout = dout, gradients.dq = one_dq, gradients.dk = one_dk, gradients.dv = one_dv;
    check(fa_forward_ex(handle, &d, &args), fa_last_error(handle)); /* to compare with */
    check(fa_backward(handle, &d, &gradients), fa_last_error(handle));

    fa_cp_desc_t spread = FA_CP_DESC_INIT;
    spread.shard = FA_CP_SHARD_ROWS, spread.layout = FA_CP_LAYOUT_ZIGZAG;
    if (argc > 1) /* else the library chooses */
        spread.method = argv[1][0] == 'u' ? FA_CP_METHOD_ULYSSES : argv[1][0] == 'a' ? FA_CP_METHOD_ALL_GATHER : FA_CP_METHOD_RING;
    fa_cp_range_t mine[2];
    int64_t count;
    check(fa_cp_partition(&spread, transport.rank, transport.ranks, NULL, 1, ROWS, mine, 2, &count), fa_cp_last_error(NULL));
    float* const tensors[] = {q, k, v, dout, one_o, one_dq, one_dk, one_dv};
    for (int i = 0; i < 8; i++) keep(tensors[i], mine, count);

    args.o = o;
    gradients.dq = dq, gradients.dk = dk, gradients.dv = dv;
    check(fa_cp_forward(cp, &d, &spread, &args), fa_cp_last_error(cp));
    check(fa_cp_backward(cp, &d, &spread, &gradients), fa_cp_last_error(cp));

    int64_t rows = 0;
    for (int64_t i = 0; i < count; i++) rows += mine[i].rows;
    const long long wrong =
        differing(o, one_o, rows) + differing(dq, one_dq, rows) + differing(dk, one_dk, rows) + differing(dv, one_dv, rows);
    char text[FA_TEXT_MAX];
    check(fa_cp_explain(cp, &d, &spread, FA_OP_FORWARD, &args, text, sizeof text), fa_cp_last_error(cp));
    printf("rank %d: %lld rows, %lld values differ. %s\n", transport.rank, (long long)rows, wrong, text);
    fa_cp_destroy(cp);
    fa_cp_mpi_close(&transport);
    fa_destroy(handle);
    MPI_Finalize();
    return wrong != 0;
}
