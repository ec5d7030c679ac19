/* libflashattn-cp over NCCL or RCCL, in device memory. These inline functions are compiled with the program's own nccl.h (with
 * __HIP_PLATFORM_AMD__ rccl/rccl.h), so the library depends on neither. They need NCCL 2.18 or later, and C99 with POSIX, or C++11.
 * Link the runtime that nccl.h names (cudart or amdhip64).
 *
 *     cudaSetDevice(device);                                       one device a rank
 *     ncclCommInitRank(&comm, ranks, id, rank);
 *     fa_cp_transport_t transport;
 *     if (fa_cp_nccl_open(comm, &transport) != FA_OK) …
 *     info.device = device; info.memory = FA_MEMORY_DEVICE;        of the handle
 *     …
 *     fa_cp_destroy(cp);
 *     fa_cp_nccl_close(&transport);
 *     ncclCommDestroy(comm);
 *
 * Messages run on the transport's stream, at the same time as the call's work. Only the exchanges at the beginning and at the end of a
 * call wait on the host: 48 bytes from each rank, after all earlier messages. If the program has a faster way to exchange host memory
 * between its ranks, such as MPI, it sets transport.gather_host to its own function.
 *
 * If a rank dies or does not arrive, the others get a status. The communicator never blocks, and its errors are polled within the time
 * limit. After a failure it is aborted, which ends the waits on the device. The program's own communicator is not affected. */
#ifndef FLASHATTN_CP_NCCL_H
#define FLASHATTN_CP_NCCL_H

#include <flashattn_cp.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#ifdef __HIP_PLATFORM_AMD__
#include <hip/hip_runtime_api.h>
#include <rccl/rccl.h>
#define FA_CP_GPU(name) hip##name
#define FA_CP_HOST_MALLOC(pointer, bytes) hipHostMalloc(pointer, bytes, 0)
#define FA_CP_HOST_FREE hipHostFree
#else
#include <cuda_runtime_api.h>
#include <nccl.h>
#define FA_CP_GPU(name) cuda##name
#define FA_CP_HOST_MALLOC(pointer, bytes) cudaHostAlloc(pointer, bytes, 0)
#define FA_CP_HOST_FREE cudaFreeHost
#endif

#if NCCL_VERSION_CODE < 21800
#error "flashattn_cp_nccl.h needs ncclCommSplit of NCCL 2.18 or later"
#endif

#define FA_CP_NCCL_ROOM ((uint64_t)1 << 20) /* bytes of a buffer of gather_host: those of all ranks, and a copy of this rank's */
#define FA_CP_NCCL_OPENING 60000            /* time limit for opening and closing, in ms */

typedef struct fa_cp_nccl_group_s {
    struct fa_cp_nccl_group_s* next;
    FA_CP_GPU(Event_t) done;
    int under_way;
} fa_cp_nccl_group_t;

typedef struct fa_cp_nccl_s {
    ncclComm_t comm; /* NULL: aborted */
    int ranks, device;
    FA_CP_GPU(Stream_t) messages, work; /* the transport's own, and the call's */
    FA_CP_GPU(Event_t) before, gathered, asked, end;
    int within, ended;          /* within: between enter and leave; ended: leave has been called */
    int64_t timeout_ms;         /* that of the call's first exchange */
    char *room, *host_room;     /* FA_CP_NCCL_ROOM bytes on the device, and pinned */
    fa_cp_nccl_group_t* groups; /* all groups, kept for reuse */
} fa_cp_nccl_t;

/* Makes the rank's device current. Returns the device that was current, for fa_cp_nccl_back. */
static inline int fa_cp_nccl_on_device(const fa_cp_nccl_t* nccl) {
    int device = nccl->device;
    FA_CP_GPU(GetDevice)(&device);
    if (device != nccl->device) FA_CP_GPU(SetDevice)(nccl->device);
    return device;
}
static inline fa_status_t fa_cp_nccl_back(const fa_cp_nccl_t* nccl, int device, fa_status_t status) {
    if (device != nccl->device) FA_CP_GPU(SetDevice)(device);
    return status;
}

static inline int64_t fa_cp_nccl_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static inline fa_status_t fa_cp_nccl_of(FA_CP_GPU(Error_t) error) {
    if (error == FA_CP_GPU(Success)) return FA_OK;
    return error == FA_CP_GPU(ErrorMemoryAllocation) ? FA_OUT_OF_MEMORY : FA_DEVICE_ERROR;
}

/* Waits until the communicator has accepted an operation. This may need the peers, because NCCL connects ranks at their first message. */
static inline fa_status_t fa_cp_nccl_settle(ncclComm_t comm, ncclResult_t given, int64_t timeout_ms) {
    const int64_t begin = fa_cp_nccl_ms();
    while (given == ncclInProgress) {
        ncclResult_t asked = ncclCommGetAsyncError(comm, &given);
        if (asked != ncclSuccess) return FA_PEER_FAILED;
        if (given != ncclInProgress) break;
        if (timeout_ms >= 0 && fa_cp_nccl_ms() - begin > timeout_ms) return FA_TIMEOUT;
        sched_yield();
    }
    return given == ncclSuccess ? FA_OK : FA_PEER_FAILED;
}

/* Waits for an event. After a failure, the stream continues and the event completes. The event is therefore queried before the error: if
 * it completed only because of a failure, the error is already there. */
static inline fa_status_t fa_cp_nccl_until(fa_cp_nccl_t* nccl, FA_CP_GPU(Event_t) event, int64_t timeout_ms) {
    const int64_t begin = fa_cp_nccl_ms();
    for (;;) {
        ncclResult_t failure = ncclSuccess;
        FA_CP_GPU(Error_t) error = FA_CP_GPU(EventQuery)(event);
        if (ncclCommGetAsyncError(nccl->comm, &failure) != ncclSuccess || (failure != ncclSuccess && failure != ncclInProgress))
            return FA_PEER_FAILED;
        if (error != FA_CP_GPU(ErrorNotReady)) return fa_cp_nccl_of(error);
        if (timeout_ms >= 0 && fa_cp_nccl_ms() - begin > timeout_ms) return FA_TIMEOUT;
        sched_yield();
    }
}

static inline fa_cp_nccl_group_t* fa_cp_nccl_new_group(fa_cp_nccl_t* nccl) {
    fa_cp_nccl_group_t* group = nccl->groups;
    while (group && group->under_way) group = group->next;
    if (group) return group;
    group = (fa_cp_nccl_group_t*)calloc(1, sizeof *group);
    if (!group) return NULL;
    if (FA_CP_GPU(EventCreateWithFlags)(&group->done, FA_CP_GPU(EventDisableTiming)) != FA_CP_GPU(Success)) {
        free(group);
        return NULL;
    }
    group->next = nccl->groups;
    nccl->groups = group;
    return group;
}

/* Orders the next messages after the work that the call has enqueued so far. */
static inline fa_status_t fa_cp_nccl_behind_work(fa_cp_nccl_t* nccl) {
    FA_CP_GPU(Error_t) error = FA_CP_GPU(EventRecord)(nccl->before, nccl->work);
    if (error == FA_CP_GPU(Success)) error = FA_CP_GPU(StreamWaitEvent)(nccl->messages, nccl->before, 0);
    return fa_cp_nccl_of(error);
}
/* Waits until the communicator has accepted the messages, and gives a ticket for their completion. */
static inline fa_status_t fa_cp_nccl_started(fa_cp_nccl_t* nccl, fa_cp_nccl_group_t* group, ncclResult_t given, uint64_t* ticket) {
    fa_status_t status = fa_cp_nccl_settle(nccl->comm, given, nccl->timeout_ms);
    if (status == FA_OK) status = fa_cp_nccl_of(FA_CP_GPU(EventRecord)(group->done, nccl->messages));
    group->under_way = status == FA_OK;
    *ticket = (uint64_t)(uintptr_t)group;
    return status;
}

static inline fa_status_t fa_cp_nccl_start(void* user, const fa_cp_message_t* messages, int64_t count, uint64_t* ticket) {
    fa_cp_nccl_t* nccl = (fa_cp_nccl_t*)user;
    const int device = fa_cp_nccl_on_device(nccl);
    fa_cp_nccl_group_t* group = nccl->comm ? fa_cp_nccl_new_group(nccl) : NULL;
    fa_status_t status = !nccl->comm ? FA_PEER_FAILED : group ? fa_cp_nccl_behind_work(nccl) : FA_OUT_OF_MEMORY;
    ncclResult_t result, end;
    int64_t i;
    if (status != FA_OK) return fa_cp_nccl_back(nccl, device, status);
    result = ncclGroupStart();
    for (i = 0; i < count && (result == ncclSuccess || result == ncclInProgress); i++) {
        const fa_cp_message_t* m = &messages[i];
        result = m->direction == FA_CP_RECEIVE ? ncclRecv(m->data, (size_t)m->bytes, ncclInt8, m->peer, nccl->comm, nccl->messages)
                                               : ncclSend(m->data, (size_t)m->bytes, ncclInt8, m->peer, nccl->comm, nccl->messages);
    }
    end = ncclGroupEnd();
    if (result == ncclSuccess || result == ncclInProgress) result = end;
    return fa_cp_nccl_back(nccl, device, fa_cp_nccl_started(nccl, group, result, ticket));
}

static inline fa_status_t fa_cp_nccl_wait(void* user, uint64_t ticket, int64_t timeout_ms) {
    fa_cp_nccl_t* nccl = (fa_cp_nccl_t*)user;
    fa_cp_nccl_group_t* group = (fa_cp_nccl_group_t*)(uintptr_t)ticket;
    const int device = fa_cp_nccl_on_device(nccl);
    const fa_status_t status = fa_cp_nccl_of(FA_CP_GPU(StreamWaitEvent)(nccl->work, group->done, 0));
    (void)timeout_ms; /* the stream waits, not the host */
    group->under_way = 0;
    return fa_cp_nccl_back(nccl, device, status);
}

static inline fa_status_t fa_cp_nccl_all_gather(void* user, const void* from, void* to, uint64_t bytes, uint64_t* ticket) {
    fa_cp_nccl_t* nccl = (fa_cp_nccl_t*)user;
    const int device = fa_cp_nccl_on_device(nccl);
    fa_cp_nccl_group_t* group = nccl->comm ? fa_cp_nccl_new_group(nccl) : NULL;
    fa_status_t status = !nccl->comm ? FA_PEER_FAILED : group ? fa_cp_nccl_behind_work(nccl) : FA_OUT_OF_MEMORY;
    if (status == FA_OK)
        status = fa_cp_nccl_started(nccl, group, ncclAllGather(from, to, (size_t)bytes, ncclInt8, nccl->comm, nccl->messages), ticket);
    return fa_cp_nccl_back(nccl, device, status);
}

/* Gathers one piece that fits the buffer. This rank's bytes are stored after those of all ranks. */
static inline fa_status_t fa_cp_nccl_gather_piece(fa_cp_nccl_t* nccl, const void* from, size_t bytes, int64_t timeout_ms) {
    const size_t own = (size_t)nccl->ranks * bytes;
    fa_status_t status;
    memcpy(nccl->host_room + own, from, bytes);
    status = fa_cp_nccl_of(
        FA_CP_GPU(MemcpyAsync)(nccl->room + own, nccl->host_room + own, bytes, FA_CP_GPU(MemcpyHostToDevice), nccl->messages));
    if (status == FA_OK)
        status = fa_cp_nccl_settle(nccl->comm, ncclAllGather(nccl->room + own, nccl->room, bytes, ncclInt8, nccl->comm, nccl->messages),
                                   timeout_ms);
    if (status == FA_OK)
        status = fa_cp_nccl_of(FA_CP_GPU(MemcpyAsync)(nccl->host_room, nccl->room, own, FA_CP_GPU(MemcpyDeviceToHost), nccl->messages));
    if (status == FA_OK) status = fa_cp_nccl_of(FA_CP_GPU(EventRecord)(nccl->gathered, nccl->messages));
    return status == FA_OK ? fa_cp_nccl_until(nccl, nccl->gathered, timeout_ms) : status;
}

static inline fa_status_t fa_cp_nccl_gather_host(void* user, const void* from, void* to, uint64_t bytes, int64_t timeout_ms) {
    fa_cp_nccl_t* nccl = (fa_cp_nccl_t*)user;
    const uint64_t most = FA_CP_NCCL_ROOM / ((uint64_t)nccl->ranks + 1);
    const int device = fa_cp_nccl_on_device(nccl);
    fa_status_t status = nccl->comm ? FA_OK : FA_PEER_FAILED;
    uint64_t at, n;
    int r;
    nccl->timeout_ms = timeout_ms;
    for (at = 0; at < bytes && status == FA_OK; at += n) {
        n = bytes - at < most ? bytes - at : most;
        status = fa_cp_nccl_gather_piece(nccl, (const char*)from + at, (size_t)n, timeout_ms);
        for (r = 0; r < nccl->ranks && status == FA_OK; r++)
            memcpy((char*)to + (uint64_t)r * bytes + at, nccl->host_room + (uint64_t)r * n, (size_t)n);
    }
    return fa_cp_nccl_back(nccl, device, status);
}

static inline fa_status_t fa_cp_nccl_enter(void* user, void* stream) {
    fa_cp_nccl_t* nccl = (fa_cp_nccl_t*)user;
    const int device = fa_cp_nccl_on_device(nccl);
    nccl->work = (FA_CP_GPU(Stream_t))stream;
    nccl->within = 1;
    return fa_cp_nccl_back(nccl, device, nccl->ended ? fa_cp_nccl_of(FA_CP_GPU(StreamWaitEvent)(nccl->work, nccl->end, 0)) : FA_OK);
}

static inline fa_status_t fa_cp_nccl_leave(void* user) {
    fa_cp_nccl_t* nccl = (fa_cp_nccl_t*)user;
    const int device = fa_cp_nccl_on_device(nccl);
    const fa_status_t status = fa_cp_nccl_of(FA_CP_GPU(EventRecord)(nccl->end, nccl->work));
    nccl->within = 0;
    nccl->ended = nccl->ended || status == FA_OK;
    return fa_cp_nccl_back(nccl, device, status);
}

static inline fa_status_t fa_cp_nccl_synchronize(void* user, int64_t timeout_ms) {
    fa_cp_nccl_t* nccl = (fa_cp_nccl_t*)user;
    const int device = fa_cp_nccl_on_device(nccl);
    fa_status_t status = nccl->comm ? FA_OK : FA_PEER_FAILED;
    if (status == FA_OK && nccl->within) {
        status = fa_cp_nccl_of(FA_CP_GPU(EventRecord)(nccl->asked, nccl->work));
        if (status == FA_OK) status = fa_cp_nccl_until(nccl, nccl->asked, timeout_ms);
    } else if (status == FA_OK && nccl->ended) {
        status = fa_cp_nccl_until(nccl, nccl->end, timeout_ms);
    }
    return fa_cp_nccl_back(nccl, device, status);
}

static inline void fa_cp_nccl_abandon(void* user) {
    fa_cp_nccl_t* nccl = (fa_cp_nccl_t*)user;
    const int device = fa_cp_nccl_on_device(nccl);
    if (nccl->comm) ncclCommAbort(nccl->comm);
    nccl->comm = NULL;
    nccl->within = 0;
    fa_cp_nccl_back(nccl, device, FA_OK);
}

/* Creates the stream, events and buffers of a transport. The stream has the highest priority, so messages run before other work. */
static inline FA_CP_GPU(Error_t) fa_cp_nccl_make(fa_cp_nccl_t* nccl) {
    int least = 0, greatest = 0, i;
    FA_CP_GPU(Event_t)* const events[] = {&nccl->before, &nccl->gathered, &nccl->asked, &nccl->end};
    FA_CP_GPU(Error_t) error = FA_CP_GPU(DeviceGetStreamPriorityRange)(&least, &greatest);
    if (error == FA_CP_GPU(Success)) error = FA_CP_GPU(StreamCreateWithPriority)(&nccl->messages, FA_CP_GPU(StreamNonBlocking), greatest);
    for (i = 0; i < 4 && error == FA_CP_GPU(Success); i++)
        error = FA_CP_GPU(EventCreateWithFlags)(events[i], FA_CP_GPU(EventDisableTiming));
    if (error == FA_CP_GPU(Success)) error = FA_CP_GPU(Malloc)((void**)&nccl->room, FA_CP_NCCL_ROOM);
    if (error == FA_CP_GPU(Success)) error = FA_CP_HOST_MALLOC((void**)&nccl->host_room, FA_CP_NCCL_ROOM);
    return error;
}

/* -------------------------------------------------------------------------------------------------------------- open and close */

/* Closes the transport, after fa_cp_destroy. Collective, unless the transport failed. */
static inline void fa_cp_nccl_close(fa_cp_transport_t* transport) {
    fa_cp_nccl_t* nccl = (fa_cp_nccl_t*)transport->user;
    const int device = fa_cp_nccl_on_device(nccl);
    if (nccl->comm) {
        if (fa_cp_nccl_settle(nccl->comm, ncclCommFinalize(nccl->comm), FA_CP_NCCL_OPENING) == FA_OK) ncclCommDestroy(nccl->comm);
        else ncclCommAbort(nccl->comm);
    }
    while (nccl->groups) {
        fa_cp_nccl_group_t* group = nccl->groups;
        nccl->groups = group->next;
        FA_CP_GPU(EventDestroy)(group->done);
        free(group);
    }
    if (nccl->before) FA_CP_GPU(EventDestroy)(nccl->before);
    if (nccl->gathered) FA_CP_GPU(EventDestroy)(nccl->gathered);
    if (nccl->asked) FA_CP_GPU(EventDestroy)(nccl->asked);
    if (nccl->end) FA_CP_GPU(EventDestroy)(nccl->end);
    if (nccl->messages) FA_CP_GPU(StreamDestroy)(nccl->messages);
    if (nccl->room) FA_CP_GPU(Free)(nccl->room);
    if (nccl->host_room) FA_CP_HOST_FREE(nccl->host_room);
    fa_cp_nccl_back(nccl, device, FA_OK);
    free(nccl);
    transport->user = NULL;
}

/* Opens a transport over a duplicate of comm, so that its messages never mix with the program's. Collective. The communicator's device
 * is current. It waits for all ranks, as ncclCommInitRank does. On failure *transport holds nothing to close. Errors:
 * FA_INVALID_ARGUMENT (a transport of NULL), FA_OUT_OF_MEMORY, FA_DEVICE_ERROR, FA_PEER_FAILED, FA_TIMEOUT. */
static inline fa_status_t fa_cp_nccl_open(ncclComm_t comm, fa_cp_transport_t* transport) {
    fa_status_t status = fa_cp_transport_init(transport, sizeof *transport);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t own = NULL;
    fa_cp_nccl_t* nccl;
    int rank = 0;
    if (status != FA_OK) return status;
    nccl = (fa_cp_nccl_t*)calloc(1, sizeof *nccl);
    if (!nccl) return FA_OUT_OF_MEMORY;
    transport->user = nccl;
    nccl->timeout_ms = FA_CP_NCCL_OPENING;
    config.blocking = 0;
    if (ncclCommUserRank(comm, &rank) != ncclSuccess || ncclCommCount(comm, &nccl->ranks) != ncclSuccess ||
        ncclCommCuDevice(comm, &nccl->device) != ncclSuccess)
        status = FA_PEER_FAILED;
    if (status == FA_OK) status = fa_cp_nccl_of(fa_cp_nccl_make(nccl));
    if (status == FA_OK) status = fa_cp_nccl_settle(comm, ncclCommSplit(comm, 0, rank, &own, &config), FA_CP_NCCL_OPENING);
    if (status == FA_OK) status = fa_cp_nccl_settle(own, ncclInProgress, FA_CP_NCCL_OPENING);
    nccl->comm = own;
    if (status != FA_OK) {
        fa_cp_nccl_abandon(nccl);
        fa_cp_nccl_close(transport);
        return status;
    }
    transport->flags = FA_CP_DEVICE_MEMORY;
    transport->rank = rank;
    transport->ranks = nccl->ranks;
    transport->start = fa_cp_nccl_start;
    transport->wait = fa_cp_nccl_wait;
    transport->all_gather = fa_cp_nccl_all_gather;
    transport->abandon = fa_cp_nccl_abandon;
    transport->enter = fa_cp_nccl_enter;
    transport->leave = fa_cp_nccl_leave;
    transport->gather_host = fa_cp_nccl_gather_host;
    transport->synchronize = fa_cp_nccl_synchronize;
    return FA_OK;
}

#endif
