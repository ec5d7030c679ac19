/* Ranks over MPI of which the last misbehaves: mpi_fault differ | refuse | silent | cut | killed. Each rank ends with 0 if it got the
 * status that it should have. */
#include <flashattn_cp_mpi.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { ROWS = 64, HEADS = 4, DIM = 16, LIMIT_MS = 4000 };

static float q[ROWS * HEADS * DIM], k[ROWS * HEADS * DIM], v[ROWS * HEADS * DIM], o[ROWS * HEADS * DIM];
static int cutting;

static fa_status_t cut_start(void* user, const fa_cp_message_t* messages, int64_t count, uint64_t* ticket) {
    fa_cp_message_t copy[64];
    int64_t i;
    if (count > 64) return FA_INTERNAL;
    memcpy(copy, messages, (size_t)count * sizeof *messages);
    for (i = 0; i < count && cutting; i++)
        if (copy[i].direction == FA_CP_SEND) copy[i].bytes--;
    return fa_cp_mpi_start(user, copy, count, ticket);
}

int main(int argc, char** argv) {
    const char* fault = argc > 1 ? argv[1] : "";
    fa_handle_t handle = NULL;
    fa_cp_t cp = NULL;
    fa_cp_transport_t transport;
    fa_cp_create_info_t info = FA_CP_CREATE_INFO_INIT;
    fa_create_info_t cpu = FA_CREATE_INFO_INIT;
    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    fa_cp_desc_t spread = FA_CP_DESC_INIT;
    fa_forward_args_t args = FA_FORWARD_ARGS_INIT;
    fa_status_t status = FA_OK, expected = FA_OK;
    double began;
    int last, right;

    MPI_Init(&argc, &argv);
    cpu.backend = FA_BACKEND_CPU;
    if (fa_create(&handle, &cpu) != FA_OK || fa_cp_mpi_open(MPI_COMM_WORLD, &transport) != FA_OK) MPI_Abort(MPI_COMM_WORLD, 2);
    last = transport.rank == transport.ranks - 1;
    cutting = last && strcmp(fault, "cut") == 0;
    transport.start = cut_start;
    transport.all_gather = NULL; /* so that statuses are cut, too */
    info.transport = &transport;
    info.timeout_ms = LIMIT_MS;
    if (fa_cp_create(&cp, handle, &info) != FA_OK) MPI_Abort(MPI_COMM_WORLD, 2);

    d.q_dtype = FA_F32;
    d.batch = 1;
    d.heads_q = HEADS;
    d.seqlen_q = d.seqlen_k = ROWS;
    d.dim_qk = DIM;
    spread.shard = FA_CP_SHARD_ROWS;
    spread.method = FA_CP_METHOD_RING;
    args.q = q;
    args.k = k;
    args.v = v;
    args.o = o;
    if (strcmp(fault, "differ") == 0) {
        d.softcap = last ? 1.f : 2.f;
        expected = FA_PEERS_DISAGREE;
    } else if (strcmp(fault, "refuse") == 0) {
        if (last) args.q = NULL;
        expected = last ? FA_INVALID_ARGUMENT : FA_PEER_FAILED;
    } else if (strcmp(fault, "silent") == 0) {
        expected = last ? FA_OK : FA_TIMEOUT; /* it never calls */
    } else if (strcmp(fault, "cut") == 0) {
        expected = last ? FA_OK : FA_PEER_FAILED;
    } else if (strcmp(fault, "killed") == 0 && last) {
        abort();
    }
    began = MPI_Wtime();
    if (!(last && strcmp(fault, "silent") == 0)) status = fa_cp_forward(cp, &d, &spread, &args);
    right = (status == expected || (cutting && status != FA_OK)) && MPI_Wtime() - began < 1e-3 * 4 * LIMIT_MS;
    printf("rank %d: %s (%s), expected %s\n", transport.rank, fa_status_name(status), fa_cp_last_error(cp), fa_status_name(expected));
    fflush(stdout);
    if (strcmp(fault, "silent") == 0 || strcmp(fault, "cut") == 0) {
        /* Requests are left that MPI_Finalize would wait for: the ranks tell each other how it was, and end. */
        int all = 0;
        MPI_Allreduce(&right, &all, 1, MPI_INT, MPI_LAND, MPI_COMM_WORLD);
        MPI_Abort(MPI_COMM_WORLD, all ? 42 : 1);
    }
    fa_cp_destroy(cp);
    fa_cp_mpi_close(&transport);
    fa_destroy(handle);
    MPI_Finalize();
    return !right;
}
