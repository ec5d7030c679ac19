#include "cp/exchange.h"
#include <stdlib.h>
#include <string.h>

namespace fa {
namespace cp {

constexpr uint64_t kLongestMessage = uint64_t(1) << 30;  // MPI counts in int
constexpr uint64_t kTagsOfGroup = 256;                   // pieces of a message; 128 groups in flight fit the 15 bits of a tag

// The object's transport is of no use any more: its peers wait for other messages than it will send.
static fa_status_t give_up(fa_cp_s* cp, fa_status_t status, const char* what) {
    cp->failed = true;
    if (cp->transport.abandon) cp->transport.abandon(cp->transport.user);
    const fa_cp_transport_t& t = cp->transport;
    switch (status) {
        case FA_TIMEOUT:
            return fail(&cp->message, status, "rank %d of %d waited %lld ms for %s: a peer does not answer", t.rank, t.ranks,
                        ll(cp->timeout_ms), what);
        case FA_OUT_OF_MEMORY:
            return fail(&cp->message, status, "rank %d of %d has no memory for the messages of %s", t.rank, t.ranks, what);
        default:
            return fail(&cp->message, FA_PEER_FAILED, "rank %d of %d could not exchange %s: the transport said %s", t.rank, t.ranks, what,
                        fa_status_name(status));
    }
}

void Group::add(int32_t peer, int32_t direction, void* data, uint64_t bytes) {
    char* from = static_cast<char*>(data);
    for (uint64_t piece = 0, at = 0; at < bytes; piece++) {
        Slab& slab = cp_->slab[kMessages];
        if ((uint64_t(count_) + 1) * sizeof(fa_cp_message_t) > slab.bytes) {
            const uint64_t wanted = (uint64_t(count_) + 16) * 2 * sizeof(fa_cp_message_t);
            char* grown = static_cast<char*>(realloc(slab.data, wanted));
            if (!grown) {
                out_of_memory_ = true;
                return;
            }
            slab = {grown, wanted};
        }
        const uint64_t length = bytes - at < kLongestMessage ? bytes - at : kLongestMessage;
        fa_cp_message_t* messages = reinterpret_cast<fa_cp_message_t*>(slab.data);
        messages[count_++] = {peer, direction, length, from + at, cp_->groups * kTagsOfGroup + piece % kTagsOfGroup};
        if (direction == FA_CP_SEND) {
            cp_->bytes_sent += length;
            cp_->messages_sent++;
        }
        at += length;
    }
}

fa_status_t Group::start() {
    cp_->groups++;
    if (out_of_memory_) return give_up(cp_, FA_OUT_OF_MEMORY, "a group");
    if (count_ == 0) return FA_OK;
    const fa_cp_message_t* messages = reinterpret_cast<const fa_cp_message_t*>(cp_->slab[kMessages].data);
    const fa_status_t status = cp_->transport.start(cp_->transport.user, messages, count_, &ticket_);
    if (status != FA_OK) return give_up(cp_, status, "a group of messages");
    started_ = true;
    return FA_OK;
}

fa_status_t Group::wait(const char* what) {
    if (!started_) return FA_OK;
    const fa_status_t status = cp_->transport.wait(cp_->transport.user, ticket_, cp_->timeout_ms);
    return status == FA_OK ? FA_OK : give_up(cp_, status, what);
}

fa_status_t Group::started(fa_status_t status, uint64_t ticket) {
    cp_->groups++;
    ticket_ = ticket;
    started_ = status == FA_OK;
    return started_ ? FA_OK : give_up(cp_, status, "a group of messages");
}

// Does the transport gather so many bytes by itself?
static bool gathers(const fa_cp_transport_t& transport, uint64_t bytes) {
    return transport.all_gather && bytes > 0 && bytes <= kLongestMessage / uint64_t(transport.ranks);
}

static void count_gathered(fa_cp_s* cp, uint64_t bytes) {
    const uint64_t others = uint64_t(cp->transport.ranks - 1);
    cp->bytes_sent += bytes * others;
    cp->messages_sent += others;
}

fa_status_t start_all_gather(fa_cp_s* cp, const void* from, void* to, uint64_t bytes, bool* copies_own, Group* group) {
    const fa_cp_transport_t& t = cp->transport;
    *copies_own = gathers(t, bytes);
    if (*copies_own) {
        uint64_t ticket = 0;
        count_gathered(cp, bytes);
        const fa_status_t status = t.all_gather(t.user, from, to, bytes, &ticket);
        return group->started(status, ticket);
    }
    for (int32_t peer = 0; peer < t.ranks; peer++) {
        if (peer == t.rank) continue;
        group->send(peer, from, bytes);
        group->receive(peer, static_cast<char*>(to) + uint64_t(peer) * bytes, bytes);
    }
    return group->start();
}

fa_status_t gather_host(fa_cp_s* cp, const void* from, void* to, uint64_t bytes, const char* what) {
    const fa_cp_transport_t& t = cp->transport;
    if (cp->device) {
        count_gathered(cp, bytes);
        const fa_status_t status = t.gather_host(t.user, from, to, bytes, cp->timeout_ms);
        return status == FA_OK ? FA_OK : give_up(cp, status, what);
    }
    Group group(cp);
    bool copied = false;
    FA_TRY(start_all_gather(cp, from, to, bytes, &copied, &group));
    if (!copied && bytes > 0) memcpy(static_cast<char*>(to) + uint64_t(t.rank) * bytes, from, bytes);
    return group.wait(what);
}

fa_status_t enter(fa_cp_s* cp, void* stream) {
    if (!cp->device || cp->transport.ranks == 1) return FA_OK;
    const fa_status_t status = cp->transport.enter(cp->transport.user, stream);
    if (status != FA_OK) return give_up(cp, status, "the stream of a call");
    cp->entered = true;
    return FA_OK;
}

fa_status_t leave(fa_cp_s* cp) {
    if (!cp->entered) return FA_OK;
    cp->entered = false;
    const fa_status_t status = cp->failed ? FA_OK : cp->transport.leave(cp->transport.user);
    return status == FA_OK ? FA_OK : give_up(cp, status, "the stream of a call");
}

fa_status_t synchronize(fa_cp_s* cp) {
    if (!cp->device || cp->transport.ranks == 1) return FA_OK;
    const fa_status_t status = cp->transport.synchronize(cp->transport.user, cp->timeout_ms);
    return status == FA_OK ? FA_OK : give_up(cp, status, "the work of its calls");
}

uint64_t hash_bytes(uint64_t hash, const void* data, uint64_t bytes) {  // FNV-1a
    const unsigned char* at = static_cast<const unsigned char*>(data);
    for (uint64_t i = 0; i < bytes; i++) hash = (hash ^ at[i]) * 0x100000001b3u;
    return hash;
}

namespace {

// What a rank says of itself. Its size never changes: ranks of two versions must be able to tell.
struct Hello {
    uint64_t version;
    int64_t status;
    Fingerprint fingerprint;
};
static_assert(sizeof(Hello) == kHelloBytes, "frozen");
constexpr uint64_t kVersion = (uint64_t('F') << 56 | uint64_t('A') << 48 | uint64_t('c') << 40 | uint64_t('p') << 32) + FA_VERSION;

const char* difference(const Fingerprint& a, const Fingerprint& b) {
    if (a.operation != b.operation) return "makes another call, or asks for other gradients";
    if (a.descriptor != b.descriptor) return "gave another attention descriptor";
    if (a.spread != b.spread) return "gave another fa_cp_desc_t";
    return a.lengths != b.lengths ? "gave other values of cu_seqlens, causal_offset or dropout seeds" : nullptr;
}

}  // namespace

fa_status_t agree(fa_cp_s* cp, fa_status_t own, const Fingerprint& fingerprint) {
    const int32_t ranks = cp->transport.ranks;
    Hello* all = reinterpret_cast<Hello*>(cp->slab[kHello].data);  // of fa_cp_create
    all[ranks] = {kVersion, own, fingerprint};
    const Message message = cp->message;  // of the own status
    FA_TRY(gather_host(cp, all + ranks, all, sizeof(Hello), "the ranks' statuses"));
    if (own != FA_OK) {
        cp->message = message;
        return own;
    }
    for (int32_t r = 0; r < ranks; r++) {
        if (all[r].version != all[0].version) {
            cp->failed = true;
            const bool swapped = all[r].version == __builtin_bswap64(all[0].version);
            return fail(&cp->message, FA_PEERS_DISAGREE, "rank %d %s than rank 0", r,
                        swapped ? "stores numbers in another byte order" : "runs another version of the library");
        }
    }
    for (int32_t r = 0; r < ranks; r++) {
        if (all[r].status == FA_OK) continue;
        return fail(&cp->message, FA_PEER_FAILED, "rank %d gave up the call with %s", r, fa_status_name(fa_status_t(all[r].status)));
    }
    for (int32_t r = 1; r < ranks; r++) {
        if (const char* what = difference(all[0].fingerprint, all[r].fingerprint))
            return fail(&cp->message, FA_PEERS_DISAGREE, "rank %d %s than rank 0", r, what);
    }
    return FA_OK;
}

}  // namespace cp
}  // namespace fa
