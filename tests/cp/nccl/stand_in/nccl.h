/* Of NCCL what flashattn_cp_nccl.h and its tests call, between threads of one process or, by ncclCommInitRank, between processes. Its
 * statuses are those of a communicator that never blocks: it has never taken at once what it was given. */
#ifndef STAND_IN_NCCL_H
#define STAND_IN_NCCL_H

#include "cuda_runtime_api.h"

#define NCCL_VERSION_CODE 21800
typedef enum { ncclSuccess = 0, ncclInternalError = 3, ncclInvalidUsage = 5, ncclInProgress = 7 } ncclResult_t;
typedef enum { ncclInt8 = 0 } ncclDataType_t;
typedef struct StandInComm* ncclComm_t;
typedef struct {
    int blocking;
} ncclConfig_t;
#define NCCL_CONFIG_INITIALIZER {1}
typedef struct {
    char internal[128]; /* the folder where processes meet */
} ncclUniqueId;

ncclResult_t ncclGetUniqueId(ncclUniqueId* id);
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank);
ncclResult_t ncclCommUserRank(ncclComm_t comm, int* rank);
ncclResult_t ncclCommCount(ncclComm_t comm, int* count);
ncclResult_t ncclCommCuDevice(ncclComm_t comm, int* device);
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* split, ncclConfig_t* config);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* failure);
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);
ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream);

#endif
