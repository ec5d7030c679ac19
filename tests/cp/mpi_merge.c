/* Decoding over MPI from a cache whose keys are spread over the ranks: every rank gets what one process has from the whole cache. */
#include <flashattn_cp_mpi.h>
#include <stdio.h>
#include <string.h>

enum { KEYS = 400, HEADS = 4, DIM = 32, ROW = HEADS * DIM };

static float q[ROW], k[KEYS * ROW], v[KEYS * ROW], o[ROW], whole[ROW];

static void fill(float* x, int n, unsigned seed) {
    for (int i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 8) / (float)(1 << 23) - 1.0f;
    }
}

static void check(fa_status_t status, const char* sentence) {
    if (status == FA_OK) return;
    fprintf(stderr, "%s: %s\n", fa_status_name(status), sentence);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

int main(int argc, char** argv) {
    fa_handle_t handle;
    fa_cp_t cp;
    fa_cp_transport_t transport;
    fa_cp_create_info_t info = FA_CP_CREATE_INFO_INIT;
    fa_create_info_t cpu = FA_CREATE_INFO_INIT;
    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    fa_cp_desc_t spread = FA_CP_DESC_INIT;
    fa_forward_args_t args = FA_FORWARD_ARGS_INIT;
    int begin, end, wrong = 0;

    MPI_Init(&argc, &argv);
    cpu.backend = FA_BACKEND_CPU;
    check(fa_create(&handle, &cpu), fa_last_error(NULL));
    check(fa_param_set(handle, FA_PARAM_THREADS, 1), fa_last_error(handle));
    check(fa_cp_mpi_open(MPI_COMM_WORLD, &transport), "MPI");
    info.transport = &transport;
    check(fa_cp_create(&cp, handle, &info), fa_cp_last_error(NULL));

    d.q_dtype = FA_F32;
    d.batch = 1, d.heads_q = HEADS, d.seqlen_q = 1, d.seqlen_k = KEYS, d.dim_qk = DIM;
    fill(q, ROW, 1), fill(k, KEYS * ROW, 2), fill(v, KEYS * ROW, 3);
    args.q = q, args.k = k, args.v = v, args.o = whole;
    check(fa_forward_ex(handle, &d, &args), fa_last_error(handle));

    /* The first rank has fewer keys than the others. */
    begin = transport.rank == 0 ? 0 : KEYS / 10 + (transport.rank - 1) * (KEYS - KEYS / 10) / (transport.ranks - 1);
    end = transport.ranks == 1 ? KEYS : KEYS / 10 + transport.rank * (KEYS - KEYS / 10) / (transport.ranks - 1);
    d.seqlen_k = end - begin;
    args.k = k + begin * ROW, args.v = v + begin * ROW, args.o = o;
    spread.shard = FA_CP_SHARD_KEYS;
    check(fa_cp_forward(cp, &d, &spread, &args), fa_cp_last_error(cp));
    for (int i = 0; i < ROW; i++) wrong += !(o[i] - whole[i] < 1e-6f && whole[i] - o[i] < 1e-6f);
    printf("rank %d: keys %d to %d, %d values differ\n", transport.rank, begin, end, wrong);
    fa_cp_destroy(cp);
    fa_cp_mpi_close(&transport);
    fa_destroy(handle);
    MPI_Finalize();
    return wrong != 0;
}
