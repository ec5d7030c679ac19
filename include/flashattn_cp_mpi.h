/* libflashattn-cp over MPI. These inline functions are compiled with the program's own mpi.h, so the library depends on no MPI and
 * makes no assumption about MPI_Comm. They need any MPI 3, and C99 or C++11.
 *
 *     MPI_Init(&argc, &argv);
 *     fa_cp_transport_t transport;
 *     if (fa_cp_mpi_open(MPI_COMM_WORLD, &transport) != FA_OK) …
 *     fa_cp_create_info_t info = FA_CP_CREATE_INFO_INIT;
 *     info.transport = &transport;
 *     …
 *     fa_cp_destroy(cp);
 *     fa_cp_mpi_close(&transport);
 *     MPI_Finalize();
 *
 * MPI must allow calls from the thread that uses the fa_cp_t. MPI handles dead ranks: mpirun of Open MPI and MPICH ends the others.
 * A rank that runs but does not answer gives FA_TIMEOUT. */
#ifndef FLASHATTN_CP_MPI_H
#define FLASHATTN_CP_MPI_H

#include <flashattn_cp.h>
#include <mpi.h>
#include <sched.h>
#include <stdlib.h>

typedef struct fa_cp_mpi_group_s {
    struct fa_cp_mpi_group_s* next;
    int count;
    MPI_Request* requests;
    MPI_Status* statuses;
    int* received; /* bytes that each request must bring; −1: it sends */
} fa_cp_mpi_group_t;

typedef struct fa_cp_mpi_s {
    MPI_Comm comm;
    fa_cp_mpi_group_t* groups; /* those with messages in flight */
    int broken;                /* a call failed, or did not end in time */
} fa_cp_mpi_t;

static inline void fa_cp_mpi_free_group(fa_cp_mpi_t* mpi, fa_cp_mpi_group_t* group) {
    fa_cp_mpi_group_t** at = &mpi->groups;
    while (*at && *at != group) at = &(*at)->next;
    if (*at) *at = group->next;
    free(group->requests);
    free(group->statuses);
    free(group->received);
    free(group);
}

static inline fa_cp_mpi_group_t* fa_cp_mpi_new_group(fa_cp_mpi_t* mpi, int64_t count) {
    fa_cp_mpi_group_t* group = (fa_cp_mpi_group_t*)calloc(1, sizeof *group);
    int i;
    if (!group) return NULL;
    group->requests = (MPI_Request*)malloc((size_t)count * sizeof *group->requests);
    group->statuses = (MPI_Status*)malloc((size_t)count * sizeof *group->statuses);
    group->received = (int*)malloc((size_t)count * sizeof *group->received);
    group->next = mpi->groups;
    mpi->groups = group;
    if (!group->requests || !group->statuses || !group->received) {
        fa_cp_mpi_free_group(mpi, group);
        return NULL;
    }
    for (i = 0; i < (int)count; i++) {
        group->requests[i] = MPI_REQUEST_NULL;
        group->received[i] = -1;
    }
    return group;
}

static inline fa_status_t fa_cp_mpi_failed(fa_cp_mpi_t* mpi, fa_status_t status) {
    mpi->broken = 1;
    return status;
}

static inline fa_status_t fa_cp_mpi_start(void* user, const fa_cp_message_t* messages, int64_t count, uint64_t* ticket) {
    fa_cp_mpi_t* mpi = (fa_cp_mpi_t*)user;
    fa_cp_mpi_group_t* group = count <= INT32_MAX ? fa_cp_mpi_new_group(mpi, count) : NULL;
    if (!group) return fa_cp_mpi_failed(mpi, FA_OUT_OF_MEMORY);
    *ticket = (uint64_t)(uintptr_t)group;
    for (; group->count < (int)count; group->count++) {
        const fa_cp_message_t* m = &messages[group->count];
        MPI_Request* request = &group->requests[group->count];
        const int bytes = (int)m->bytes, tag = (int)(m->tag & 0x7fff); /* MPI promises tags of 15 bits */
        int status;
        if (m->direction == FA_CP_RECEIVE) {
            group->received[group->count] = bytes;
            status = MPI_Irecv(m->data, bytes, MPI_BYTE, m->peer, tag, mpi->comm, request);
        } else {
            status = MPI_Isend(m->data, bytes, MPI_BYTE, m->peer, tag, mpi->comm, request);
        }
        if (status != MPI_SUCCESS) return fa_cp_mpi_failed(mpi, FA_PEER_FAILED);
    }
    return FA_OK;
}

/* MPI makes progress only inside its calls, so this polls. It yields between polls, because ranks may share a processor. */
static inline fa_status_t fa_cp_mpi_wait(void* user, uint64_t ticket, int64_t timeout_ms) {
    fa_cp_mpi_t* mpi = (fa_cp_mpi_t*)user;
    fa_cp_mpi_group_t* group = (fa_cp_mpi_group_t*)(uintptr_t)ticket;
    const double limit = MPI_Wtime() + 1e-3 * (double)timeout_ms;
    int i, done = 0, turn;
    for (turn = 0;; turn++) {
        if (MPI_Testall(group->count, group->requests, &done, group->statuses) != MPI_SUCCESS) return fa_cp_mpi_failed(mpi, FA_PEER_FAILED);
        if (done) break;
        if (timeout_ms >= 0 && MPI_Wtime() > limit) return fa_cp_mpi_failed(mpi, FA_TIMEOUT);
        if (turn > 100) sched_yield();
    }
    for (i = 0; i < group->count; i++) {
        int bytes = -1;
        if (group->received[i] < 0) continue;
        if (MPI_Get_count(&group->statuses[i], MPI_BYTE, &bytes) != MPI_SUCCESS || bytes != group->received[i])
            return fa_cp_mpi_failed(mpi, FA_PEER_FAILED);
    }
    fa_cp_mpi_free_group(mpi, group);
    return FA_OK;
}

static inline fa_status_t fa_cp_mpi_all_gather(void* user, const void* from, void* to, uint64_t bytes, uint64_t* ticket) {
    fa_cp_mpi_t* mpi = (fa_cp_mpi_t*)user;
    fa_cp_mpi_group_t* group = fa_cp_mpi_new_group(mpi, 1);
    if (!group) return fa_cp_mpi_failed(mpi, FA_OUT_OF_MEMORY);
    *ticket = (uint64_t)(uintptr_t)group;
    group->count = 1;
    if (MPI_Iallgather(from, (int)bytes, MPI_BYTE, to, (int)bytes, MPI_BYTE, mpi->comm, &group->requests[0]) != MPI_SUCCESS)
        return fa_cp_mpi_failed(mpi, FA_PEER_FAILED);
    return FA_OK;
}

/* -------------------------------------------------------------------------------------------------------------- open and close */

/* Opens a transport over a duplicate of comm, so that its messages never mix with the program's. Collective. On failure *transport
 * holds nothing to close. Errors: FA_INVALID_ARGUMENT (a transport of NULL), FA_OUT_OF_MEMORY, FA_PEER_FAILED. */
static inline fa_status_t fa_cp_mpi_open(MPI_Comm comm, fa_cp_transport_t* transport) {
    const fa_status_t status = fa_cp_transport_init(transport, sizeof *transport);
    fa_cp_mpi_t* mpi;
    if (status != FA_OK) return status;
    mpi = (fa_cp_mpi_t*)calloc(1, sizeof *mpi);
    if (!mpi) return FA_OUT_OF_MEMORY;
    if (MPI_Comm_dup(comm, &mpi->comm) != MPI_SUCCESS) {
        free(mpi);
        return FA_PEER_FAILED;
    }
    MPI_Comm_set_errhandler(mpi->comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(mpi->comm, &transport->rank);
    MPI_Comm_size(mpi->comm, &transport->ranks);
    transport->user = mpi;
    transport->start = fa_cp_mpi_start;
    transport->wait = fa_cp_mpi_wait;
    transport->all_gather = fa_cp_mpi_all_gather;
    return FA_OK;
}

/* Closes the transport, after fa_cp_destroy. Collective, unless the transport failed. Requests and the communicator are then left to
 * MPI, which cannot take them back, and the program should end with MPI_Abort. */
static inline void fa_cp_mpi_close(fa_cp_transport_t* transport) {
    fa_cp_mpi_t* mpi = (fa_cp_mpi_t*)transport->user;
    if (!mpi->broken) MPI_Comm_free(&mpi->comm);
    free(mpi);
    transport->user = NULL;
}

#endif
