// A transport between processes that a test forks: a socket for each pair of them, whose buffer is as small as the system allows, so that
// most messages wait in a full pipe until their receiver reads. It fails on demand.
#pragma once
#include <flashattn_cp.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <vector>

namespace test {

class Pipes {
  public:
    // Before the fork; each process then takes its rank's transport.
    explicit Pipes(int32_t ranks) : ranks_(ranks), ends_(size_t(ranks * ranks), -1) {
        for (int32_t a = 0; a < ranks; a++)
            for (int32_t b = a + 1; b < ranks; b++) {
                int pair[2];
                if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) != 0) abort();
                const int least = 1;
                for (int end : pair) setsockopt(end, SOL_SOCKET, SO_SNDBUF, &least, sizeof least);
                ends_[size_t(a * ranks + b)] = pair[0], ends_[size_t(b * ranks + a)] = pair[1];
            }
    }
    ~Pipes() {
        for (int end : ends_)
            if (end >= 0) close(end);
    }
    Pipes(const Pipes&) = delete;
    Pipes& operator=(const Pipes&) = delete;

    int64_t die_at = -1;  // the process kills itself when it starts group number die_at, counted from 0
    int64_t cut_at = -1;  // message number cut_at that it sends is a byte short

    fa_cp_transport_t transport(int32_t rank) {
        rank_ = rank;
        for (int32_t a = 0; a < ranks_; a++)  // the other processes' ends: a dead peer's socket then has no writer left
            for (int32_t b = 0; b < ranks_ && a != rank; b++) {
                int& end = ends_[size_t(a * ranks_ + b)];
                if (end >= 0) close(end);
                end = -1;
            }
        peers_.resize(size_t(ranks_));
        fa_cp_transport_t t = FA_CP_TRANSPORT_INIT;
        t.rank = rank, t.ranks = ranks_, t.user = this;
        t.start = start, t.wait = wait;
        t.abandon = [](void* user) {
            for (Peer& peer : static_cast<Pipes*>(user)->peers_) peer.out.clear(), peer.in.clear();
        };
        return t;
    }

  private:
    struct Head {
        uint64_t tag, bytes;
    };
    struct Transfer {
        uint64_t ticket;
        Head head;
        char* data;
        uint64_t done;  // bytes, the head's included
    };
    struct Peer {
        std::deque<Transfer> out, in;
    };

    static fa_status_t start(void* user, const fa_cp_message_t* messages, int64_t count, uint64_t* ticket) {
        Pipes& p = *static_cast<Pipes*>(user);
        if (p.groups_ == p.die_at) raise(SIGKILL);
        *ticket = uint64_t(++p.groups_);
        for (int64_t i = 0; i < count; i++) {
            const fa_cp_message_t& m = messages[i];
            const bool sends = m.direction == FA_CP_SEND;
            const uint64_t lost = sends && p.sent_++ == p.cut_at ? 1 : 0;
            Peer& peer = p.peers_[size_t(m.peer)];
            (sends ? peer.out : peer.in).push_back({*ticket, {m.tag, m.bytes - lost}, static_cast<char*>(m.data), 0});
        }
        return FA_OK;
    }

    static fa_status_t wait(void* user, uint64_t ticket, int64_t timeout_ms) {
        Pipes& p = *static_cast<Pipes*>(user);
        const auto limit = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
        while (!p.is_done(ticket)) {
            const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(limit - std::chrono::steady_clock::now()).count();
            if (timeout_ms >= 0 && left <= 0) return FA_TIMEOUT;
            std::vector<pollfd> files;
            std::vector<int32_t> whose;
            for (int32_t r = 0; r < p.ranks_; r++) {
                const Peer& peer = p.peers_[size_t(r)];
                const short events = short((peer.out.empty() ? 0 : POLLOUT) | (peer.in.empty() ? 0 : POLLIN));
                if (events) files.push_back({p.ends_[size_t(p.rank_ * p.ranks_ + r)], events, 0}), whose.push_back(r);
            }
            if (poll(files.data(), nfds_t(files.size()), timeout_ms < 0 ? -1 : int(left)) < 0) return FA_PEER_FAILED;
            for (size_t i = 0; i < files.size(); i++) {
                Peer& peer = p.peers_[size_t(whose[i])];
                if (files[i].revents & POLLOUT && !move(files[i].fd, peer.out, true)) return FA_PEER_FAILED;
                if (files[i].revents & (POLLIN | POLLHUP | POLLERR) && !move(files[i].fd, peer.in, false)) return FA_PEER_FAILED;
            }
        }
        return FA_OK;
    }

    bool is_done(uint64_t ticket) const {
        for (const Peer& peer : peers_)
            for (const auto* queue : {&peer.out, &peer.in})
                for (const Transfer& t : *queue)
                    if (t.ticket == ticket) return false;
        return true;
    }

    // As much as the socket takes or has, message after message. False: the peer is gone, or sends another message than is expected.
    static bool move(int file, std::deque<Transfer>& queue, bool sends) {
        while (!queue.empty()) {
            Transfer& t = queue.front();
            const bool in_head = t.done < sizeof t.head;
            const uint64_t at = in_head ? t.done : t.done - sizeof t.head, size = (in_head ? sizeof t.head : t.head.bytes) - at;
            Head got = t.head;
            ssize_t n = 0;
            if (size > 0) {
                char* data = (in_head ? reinterpret_cast<char*>(&got) : t.data) + at;
                n = sends ? send(file, data, size, MSG_NOSIGNAL) : recv(file, data, size, 0);
                if (n < 0 && (errno == EAGAIN || errno == EINTR)) return true;
                if (n <= 0 || (!sends && in_head && memcmp(&got, &t.head, sizeof got) != 0)) return false;
            }
            t.done += uint64_t(n);
            if (t.done == sizeof t.head + t.head.bytes) queue.pop_front();
        }
        return true;
    }

    int32_t ranks_, rank_ = 0;
    std::vector<int> ends_;  // [process][peer]
    std::vector<Peer> peers_;
    int64_t groups_ = 0, sent_ = 0;
};

// Runs body(rank) in as many processes; the status that each ended with, or −signal.
inline std::vector<int> in_processes(int32_t ranks, const std::function<int(int32_t)>& body) {
    std::vector<pid_t> processes;
    for (int32_t r = 0; r < ranks; r++) {
        processes.push_back(fork());
        if (processes.back() == 0) _exit(body(r));
    }
    std::vector<int> ends;
    for (pid_t process : processes) {
        int status = 0;
        waitpid(process, &status, 0);
        ends.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
    }
    return ends;
}

}  // namespace test
