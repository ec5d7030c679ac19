// A transport between threads of one process, with faults on demand. Messages lie in host memory, or where handles have theirs: there they
// go through host memory, and waits of the library's are waits of the host, which a transport is free to do.
#pragma once
#include <flashattn_cp.h>
#include <gtest/gtest.h>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <vector>

namespace test {

class StandIn {
  public:
    explicit StandIn(int32_t ranks) : seats_(size_t(ranks)) {
        for (int32_t r = 0; r < ranks; r++) seats_[size_t(r)] = {this, r, 0, {}, nullptr, false, 0};
    }

    int32_t cut_rank = -1;  // whose message number cut_message, counted from 0, arrives a byte short
    int64_t cut_message = 0;
    int32_t mute_rank = -1;  // whose messages are lost from number mute_message on
    int64_t mute_message = 0;

    fa_cp_transport_t transport(int32_t rank) {
        fa_cp_transport_t t = FA_CP_TRANSPORT_INIT;
        t.rank = rank;
        t.ranks = int32_t(seats_.size());
        t.user = &seats_[size_t(rank)];
        t.start = start;
        t.wait = wait;
        t.abandon = [](void* user) { static_cast<Seat*>(user)->groups.clear(); };
        return t;
    }
    // The same of messages in the memory of the rank's handle.
    fa_cp_transport_t device_transport(int32_t rank, fa_handle_t handle) {
        fa_cp_transport_t t = transport(rank);
        seats_[size_t(rank)].handle = handle;
        t.flags = FA_CP_DEVICE_MEMORY;
        t.enter = [](void* user, void*) {
            Seat& seat = *static_cast<Seat*>(user);
            EXPECT_FALSE(seat.within) << "a call began within another";
            seat.within = true;
            return fa_status_t(FA_OK);
        };
        t.leave = [](void* user) {
            Seat& seat = *static_cast<Seat*>(user);
            EXPECT_TRUE(seat.within) << "a call ended that had not begun";
            EXPECT_TRUE(seat.groups.empty()) << "a group was not waited for";
            seat.within = false;
            return fa_status_t(FA_OK);
        };
        t.gather_host = gather_host;
        t.synchronize = [](void* user, int64_t) { return fa_synchronize(static_cast<Seat*>(user)->handle); };
        return t;
    }

  private:
    struct Letter {
        uint64_t tag;
        std::vector<char> text;
    };
    struct Seat {
        StandIn* room;
        int32_t rank;
        int64_t sent;
        std::map<uint64_t, std::vector<fa_cp_message_t>> groups;  // what is still to be received
        fa_handle_t handle;                                       // whose memory messages lie in; NULL: the host's
        bool within;                                              // a call
        uint64_t gathers;                                         // of host memory, so far
    };
    static constexpr uint64_t kOfHost = uint64_t(1) << 63;  // a tag's bit

    // Where a message lies.
    static void copy(const Seat& seat, uint64_t tag, void* to, const void* from, uint64_t bytes) {
        if (!seat.handle || tag & kOfHost) memcpy(to, from, bytes);
        else EXPECT_EQ(FA_OK, fa_copy(seat.handle, to, from, bytes)) << fa_last_error(seat.handle);
    }

    static fa_status_t gather_host(void* user, const void* from, void* to, uint64_t bytes, int64_t timeout_ms) {
        Seat& seat = *static_cast<Seat*>(user);
        const int32_t ranks = int32_t(seat.room->seats_.size());
        const uint64_t tag = kOfHost | seat.gathers++;
        std::vector<fa_cp_message_t> messages;
        for (int32_t r = 0; r < ranks; r++) {
            char* const part = static_cast<char*>(to) + uint64_t(r) * bytes;
            if (r == seat.rank) memcpy(part, from, bytes);
            else
                messages.push_back({r, FA_CP_SEND, bytes, const_cast<void*>(from), tag}),
                    messages.push_back({r, FA_CP_RECEIVE, bytes, part, tag});
        }
        uint64_t ticket;
        const fa_status_t status = start(user, messages.data(), int64_t(messages.size()), &ticket);
        return status == FA_OK ? wait(user, ticket, timeout_ms) : status;
    }

    static fa_status_t start(void* user, const fa_cp_message_t* messages, int64_t count, uint64_t* ticket) {
        Seat& seat = *static_cast<Seat*>(user);
        StandIn& room = *seat.room;
        std::lock_guard<std::mutex> lock(room.mutex_);
        *ticket = ++room.tickets_;
        std::vector<fa_cp_message_t>& receives = seat.groups[*ticket];
        for (int64_t i = 0; i < count; i++) {
            const fa_cp_message_t& m = messages[i];
            if (m.direction == FA_CP_RECEIVE) {
                receives.push_back(m);
                continue;
            }
            const int64_t number = seat.sent++;
            if (seat.rank == room.mute_rank && number >= room.mute_message) continue;
            const uint64_t lost = seat.rank == room.cut_rank && number == room.cut_message ? 1 : 0;
            std::vector<char> text(m.bytes - lost);
            if (!text.empty()) copy(seat, m.tag, text.data(), m.data, text.size());
            room.boxes_[{seat.rank, m.peer}].push_back({m.tag, std::move(text)});
        }
        room.news_.notify_all();
        return FA_OK;
    }

    static fa_status_t wait(void* user, uint64_t ticket, int64_t timeout_ms) {
        Seat& seat = *static_cast<Seat*>(user);
        StandIn& room = *seat.room;
        std::unique_lock<std::mutex> lock(room.mutex_);
        const auto limit = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
        for (const fa_cp_message_t& m : seat.groups[ticket]) {
            std::deque<Letter>& box = room.boxes_[{m.peer, seat.rank}];
            while (box.empty()) {
                if (timeout_ms < 0) room.news_.wait(lock);
                else if (room.news_.wait_until(lock, limit) == std::cv_status::timeout && box.empty()) return FA_TIMEOUT;
            }
            if (box.front().tag != m.tag || box.front().text.size() != m.bytes) return FA_PEER_FAILED;
            copy(seat, m.tag, m.data, box.front().text.data(), m.bytes);
            box.pop_front();
        }
        seat.groups.erase(ticket);
        return FA_OK;
    }

    std::mutex mutex_;
    std::condition_variable news_;
    std::map<std::pair<int32_t, int32_t>, std::deque<Letter>> boxes_;
    std::vector<Seat> seats_;
    uint64_t tickets_ = 0;
};

}  // namespace test
