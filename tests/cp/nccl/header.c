/* flashattn_cp_nccl.h compiles as C99 with POSIX, and, included by header.cc, as C++11. */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200112L
#endif
#include <flashattn_cp_nccl.h>

fa_status_t open_and_close(ncclComm_t comm);
fa_status_t open_and_close(ncclComm_t comm) {
    fa_cp_transport_t transport;
    const fa_status_t status = fa_cp_nccl_open(comm, &transport);
    if (status == FA_OK) fa_cp_nccl_close(&transport);
    return status;
}
