#pragma once
#include <flashattn_cp_nccl.h>
#include <cstdio>
#include <string>
#include <vector>

// A transport of flashattn_cp_nccl.h that notes when each group of a call's messages was ready to go, done, needed, and waited for no more.
class Trace {
  public:
    void attach(fa_cp_transport_t* transport) {
        inner_ = *transport;
        transport->user = this;
        transport->start = [](void* user, const fa_cp_message_t* messages, int64_t count, uint64_t* ticket) {
            const auto inner = [&](const fa_cp_transport_t& wrapped) { return wrapped.start(wrapped.user, messages, count, ticket); };
            return of(user).started(inner, ticket);
        };
        transport->all_gather = [](void* user, const void* from, void* to, uint64_t bytes, uint64_t* ticket) {
            const auto inner = [&](const fa_cp_transport_t& wrapped) { return wrapped.all_gather(wrapped.user, from, to, bytes, ticket); };
            return of(user).started(inner, ticket);
        };
        transport->wait = [](void* user, uint64_t ticket, int64_t timeout_ms) { return of(user).waited(ticket, timeout_ms); };
        transport->abandon = [](void* user) { of(user).inner_.abandon(of(user).inner_.user); };
        transport->enter = [](void* user, void* stream) {
            Trace& trace = of(user);
            const fa_status_t status = trace.inner_.enter(trace.inner_.user, stream);
            trace.mark(&trace.begin_, trace.nccl()->work);
            return status;
        };
        transport->leave = [](void* user) {
            Trace& trace = of(user);
            trace.mark(&trace.end_, trace.nccl()->work);
            return trace.inner_.leave(trace.inner_.user);
        };
        transport->gather_host = [](void* user, const void* from, void* to, uint64_t bytes, int64_t timeout_ms) {
            return of(user).inner_.gather_host(of(user).inner_.user, from, to, bytes, timeout_ms);
        };
        transport->synchronize = [](void* user, int64_t timeout_ms) {
            return of(user).inner_.synchronize(of(user).inner_.user, timeout_ms);
        };
    }
    void on() { on_ = true, groups_.clear(); }
    // What there was, as JSON, in milliseconds. The device has done it all.
    std::string off() {
        char text[160];
        on_ = false;
        snprintf(text, sizeof text, "{\"ms\": %.4f, \"groups\": [", ms(end_));
        std::string all = text;
        for (const Group& g : groups_) {
            snprintf(text, sizeof text, "%s{\"ready\": %.4f, \"done\": %.4f, \"needed\": %.4f, \"resumed\": %.4f}",
                     &g == groups_.data() ? "" : ", ", ms(g.ready), ms(g.done), ms(g.needed), ms(g.resumed));
            all += text;
        }
        return all + "]}";
    }

  private:
    struct Group {
        uint64_t ticket;
        cudaEvent_t ready, done, needed, resumed;
    };
    fa_cp_transport_t inner_;
    bool on_ = false;
    cudaEvent_t begin_ = nullptr, end_ = nullptr;
    std::vector<Group> groups_;

    static Trace& of(void* user) { return *static_cast<Trace*>(user); }
    const fa_cp_nccl_t* nccl() const { return static_cast<const fa_cp_nccl_t*>(inner_.user); }
    void mark(cudaEvent_t* event, cudaStream_t stream) {
        if (on_ && cudaEventCreate(event) == cudaSuccess) cudaEventRecord(*event, stream);
    }
    float ms(cudaEvent_t event) const {
        float took = 0;
        return event && cudaEventElapsedTime(&took, begin_, event) == cudaSuccess ? took : -1;
    }
    template <class Start>
    fa_status_t started(const Start& start, const uint64_t* ticket) {
        Group g{};
        mark(&g.ready, nccl()->work);
        const fa_status_t status = start(inner_);
        mark(&g.done, nccl()->messages);
        g.ticket = status == FA_OK ? *ticket : 0;
        if (on_) groups_.push_back(g);
        return status;
    }
    fa_status_t waited(uint64_t ticket, int64_t timeout_ms) {
        Group* found = nullptr;
        for (Group& g : groups_)
            if (on_ && g.ticket == ticket && !g.needed) found = &g;
        if (found) mark(&found->needed, nccl()->work);
        const fa_status_t status = inner_.wait(inner_.user, ticket, timeout_ms);
        if (found) mark(&found->resumed, nccl()->work);
        return status;
    }
};
