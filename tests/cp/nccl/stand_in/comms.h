// Communicators of as many ranks, each of which has its own; and what a test does to them.
#pragma once
#include <nccl.h>
#include <cstdint>
#include <vector>

namespace test {

std::vector<ncclComm_t> make_comms(int ranks);
// From now on a rank's messages arrive a byte short, over all communicators that were split from these; −1: no rank's.
void cut_messages_of(int rank);
// The default stream goes on without an event that has not come after so long, as a device's host does, which does not wait for it: what it
// computes from then on is worth nothing. −1: it waits.
void go_on_after(int ms);
// Removes the folder where processes met.
void forget(const ncclUniqueId& id);

}  // namespace test
