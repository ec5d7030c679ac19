// Messages between ranks, and what ranks agree on before and after a call.
#pragma once
#include "cp/cp.h"

namespace fa {
namespace cp {

// A group of messages that travel together. The same groups are started in the same order on all ranks.
class Group {
  public:
    explicit Group(fa_cp_s* cp) : cp_(cp) {}
    void send(int32_t peer, const void* data, uint64_t bytes) { add(peer, FA_CP_SEND, const_cast<void*>(data), bytes); }
    void receive(int32_t peer, void* data, uint64_t bytes) { add(peer, FA_CP_RECEIVE, data, bytes); }
    // A failure of the transport is final for the object.
    fa_status_t start();
    // what: of the sentence, "keys and values".
    fa_status_t wait(const char* what);
    // Of messages that the transport puts together by itself.
    fa_status_t started(fa_status_t status, uint64_t ticket);

  private:
    void add(int32_t peer, int32_t direction, void* data, uint64_t bytes);
    fa_cp_s* cp_;
    int64_t count_ = 0;
    uint64_t ticket_ = 0;
    bool out_of_memory_ = false, started_ = false;
};

// to[ranks][bytes]: what each rank has at `from`, in host memory.
fa_status_t gather_host(fa_cp_s* cp, const void* from, void* to, uint64_t bytes, const char* what);
// The same where tensors are. The own part is the caller's to copy, unless the transport gathers by itself, which is what it returns.
fa_status_t start_all_gather(fa_cp_s* cp, const void* from, void* to, uint64_t bytes, bool* copies_own, Group* group);

// The stream that the following groups are ordered on; and the end of its work.
fa_status_t enter(fa_cp_s* cp, void* stream);
fa_status_t leave(fa_cp_s* cp);

// What ranks must give alike, as hashes, so that a sentence can say what differs.
struct Fingerprint {
    uint64_t operation, descriptor, spread, lengths;
};
constexpr uint64_t kHelloBytes = 48;  // what a rank says of itself
uint64_t hash_bytes(uint64_t hash, const void* data, uint64_t bytes);
constexpr uint64_t kHashOfNothing = 0xcbf29ce484222325u;

// Every rank comes here with its own status. FA_OK if all have that and the same fingerprint, else a status on each; its own where
// it is not FA_OK.
fa_status_t agree(fa_cp_s* cp, fa_status_t status, const Fingerprint& fingerprint);

}  // namespace cp
}  // namespace fa
