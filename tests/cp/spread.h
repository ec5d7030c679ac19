// A whole problem's case, cut up for ranks that are threads, computed by them and put together again.
#pragma once
#include <flashattn_cp.h>
#include <string>
#include <vector>
#include "stand_in.h"
#include "support/backward_case.h"
#include "support/shaped.h"

namespace test {

struct RankResult {
    fa_status_t status = FA_OK;
    std::string error, explained;
    uint64_t bytes = 0, messages = 0;
};

struct Spread {
    int32_t ranks = 1;
    fa_cp_desc_t desc = FA_CP_DESC_INIT;
    int64_t timeout_ms = 20000;
    int64_t page_size = 0;  // FA_CP_SHARD_KEYS: each rank's cache is cut into pages of so many keys
    int64_t gap = 0;        // elements between heads of local tensors: literal strides instead of dense ones
    // Changes of one rank's call, before it is made.
    std::function<void(int32_t rank, fa_attention_desc_t&, fa_cp_desc_t&, fa_forward_args_t&)> change = nullptr;
    std::function<void(int32_t rank, fa_backward_args_t&)> change_backward = nullptr;
    bool device = false;  // tensors and messages lie in the memory of each rank's handle
    // Another transport than the room's, in the memory of the rank's handle.
    std::function<fa_status_t(int32_t rank, fa_handle_t handle, fa_cp_transport_t* transport)> open = nullptr;
    std::function<void(int32_t rank, fa_cp_transport_t* transport)> close = nullptr;
    // Changes of what one rank's object is made with.
    std::function<void(int32_t rank, fa_cp_create_info_t&)> change_info = nullptr;
    bool own_devices = false;  // each rank has the device of its number
    int32_t silent_rank = -1;  // which makes no call
    bool again = false;        // a second call after the first, whose result counts
};

Spread by_rows(int32_t ranks, int32_t method, int32_t layout);

// o and LSE of the case are the ranks' (poisoned before).
std::vector<RankResult> run_spread(Case& test_case, const Spread& spread, StandIn& room);
// The same with a room of its own, and compared with the oracle: "" when all is right.
std::string spread_and_check(Case& test_case, const Spread& spread);

// fa_cp_backward of a case whose forward has been run, on one device: dq, dk, dv and dsinks of the case are the ranks'.
std::vector<RankResult> run_spread_backward(BackwardCase& backward, const Spread& spread, StandIn& room);
std::string spread_and_check_backward(const Handle& handle, BackwardCase& backward, const Spread& spread);

// Keys are cut at `cuts` (ascending fractions of each sequence's keys); every rank must get the same o and LSE.
std::string spread_keys_and_check(Case& test_case, const Spread& spread, const std::vector<double>& cuts);

}  // namespace test
