// Streams are queues of tasks with a thread each; events are flags that tasks set and wait for; ranks have a box for each pair, or, where
// they are processes, a named pipe.
#include <fcntl.h>
#include <nccl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include "comms.h"

namespace {

std::mutex mutex;  // of all that follows
std::condition_variable news;
std::atomic<int> cut_rank{-1}, patience_ms{-1};

using Lock = std::unique_lock<std::mutex>;

}  // namespace

struct StandInStream {
    std::deque<std::function<void()>> tasks;
    bool ends = false;
    std::thread thread;

    StandInStream() : thread([this] { run(); }) {}
    void run() {
        for (;;) {
            std::function<void()> task;
            {
                Lock lock(mutex);
                news.wait(lock, [this] { return ends || !tasks.empty(); });
                if (tasks.empty()) return;
                task = std::move(tasks.front());
                tasks.pop_front();
            }
            task();
        }
    }
};

struct StandInEvent {
    std::shared_ptr<bool> come = std::make_shared<bool>(true);  // of the last record
};

namespace {

void enqueue(cudaStream_t stream, std::function<void()> task) {
    if (!stream) {
        task();
        return;
    }
    Lock lock(mutex);
    stream->tasks.push_back(std::move(task));
    news.notify_all();
}

// Ranks that talk to each other, and what is split from them.
struct World {
    int ranks;
    std::map<std::pair<int, int>, std::deque<std::vector<char>>> boxes;
    std::vector<std::shared_ptr<World>> split;
    std::string folder;  // of the pipes between processes
    std::map<std::pair<int, int>, int> pipes;

    explicit World(int n, std::string where = "") : ranks(n), folder(std::move(where)) {}
    ~World() {
        for (const auto& pipe : pipes) close(pipe.second);
    }
    int pipe_of(int from, int to) {
        const auto [at, is_new] = pipes.emplace(std::pair(from, to), -1);
        if (!is_new) return at->second;
        const std::string path = folder + "/" + std::to_string(from) + "-" + std::to_string(to);
        mkfifo(path.c_str(), 0600);  // unless the other one has
        return at->second = open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
    }
};

}  // namespace

struct StandInComm {
    std::shared_ptr<World> world;
    int rank;
    bool blocking = true, aborted = false;
    size_t splits = 0;
    int pending = 0;  // tasks that have not ended
    ncclResult_t failure = ncclSuccess;
};

namespace {

struct Operation {
    bool sends;
    char* data;
    size_t bytes;
    int peer;
};
struct Group {
    int depth = 0;
    ncclComm_t comm = nullptr;
    cudaStream_t stream = nullptr;
    std::vector<Operation> operations;
};
thread_local Group group;

// Between processes: of each pair's messages in one direction the first moves as far as its pipe lets it.
bool move_through_pipes(ncclComm_t comm, std::vector<Operation>& operations) {
    std::map<std::pair<int, bool>, bool> busy;
    bool moved = false;
    for (Operation& o : operations) {
        bool& taken = busy[{o.peer, o.sends}];
        if (taken || o.bytes == 0) continue;
        taken = true;
        const int pipe = o.sends ? comm->world->pipe_of(comm->rank, o.peer) : comm->world->pipe_of(o.peer, comm->rank);
        const ssize_t n = o.sends ? write(pipe, o.data, o.bytes) : read(pipe, o.data, o.bytes);
        if (n <= 0) continue;
        moved = true;
        o.data += n;
        o.bytes -= size_t(n);
    }
    return moved;
}
void carry_out_through_pipes(ncclComm_t comm, std::vector<Operation> operations) {
    Lock lock(mutex);
    const auto all_done = [&] {
        for (const Operation& o : operations)
            if (o.bytes > 0) return false;
        return true;
    };
    while (!comm->aborted && !all_done()) {
        if (move_through_pipes(comm, operations)) continue;
        lock.unlock();
        std::this_thread::sleep_for(std::chrono::microseconds(500));
        lock.lock();
    }
    comm->pending--;
    news.notify_all();
}

void carry_out(ncclComm_t comm, const std::vector<Operation>& operations) {
    if (!comm->world->folder.empty()) return carry_out_through_pipes(comm, operations);
    Lock lock(mutex);
    for (const Operation& o : operations)
        if (o.sends) comm->world->boxes[{comm->rank, o.peer}].emplace_back(o.data, o.data + o.bytes - (cut_rank == comm->rank ? 1 : 0));
    news.notify_all();
    for (const Operation& o : operations) {
        if (o.sends) continue;
        auto& box = comm->world->boxes[{o.peer, comm->rank}];
        news.wait(lock, [&] { return comm->aborted || comm->failure != ncclSuccess || !box.empty(); });
        if (comm->aborted || comm->failure != ncclSuccess) break;
        if (box.front().size() == o.bytes) memcpy(o.data, box.front().data(), o.bytes);
        else comm->failure = ncclInvalidUsage;  // the stream goes on, as NCCL's does after an abort
        box.pop_front();
    }
    comm->pending--;
    news.notify_all();
}

ncclResult_t give(ncclComm_t comm, cudaStream_t stream, std::vector<Operation> operations) {
    {
        Lock lock(mutex);
        comm->pending++;
    }
    enqueue(stream, [comm, operations = std::move(operations)] { carry_out(comm, operations); });
    return comm->blocking ? ncclSuccess : ncclInProgress;
}

ncclResult_t add(bool sends, void* data, size_t bytes, int peer, ncclComm_t comm, cudaStream_t stream) {
    if (group.depth == 0) return give(comm, stream, {{sends, static_cast<char*>(data), bytes, peer}});
    group.comm = comm;
    group.stream = stream;
    group.operations.push_back({sends, static_cast<char*>(data), bytes, peer});
    return ncclSuccess;
}

}  // namespace

namespace test {

std::vector<ncclComm_t> make_comms(int ranks) {
    const auto world = std::make_shared<World>(ranks);
    std::vector<ncclComm_t> comms;
    for (int r = 0; r < ranks; r++) comms.push_back(new StandInComm{world, r});
    return comms;
}

void cut_messages_of(int rank) { cut_rank = rank; }
void go_on_after(int ms) { patience_ms = ms; }
void forget(const ncclUniqueId& id) { std::filesystem::remove_all(id.internal); }

}  // namespace test

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
    const std::string folder = std::filesystem::temp_directory_path() / "stand_in_XXXXXX";
    if (folder.size() >= sizeof id->internal) return ncclInternalError;
    strcpy(id->internal, folder.c_str());
    return mkdtemp(id->internal) ? ncclSuccess : ncclInternalError;
}
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
    *comm = new StandInComm{std::make_shared<World>(ranks, id.internal), rank};
    return ncclSuccess;
}

ncclResult_t ncclCommUserRank(ncclComm_t comm, int* rank) { return *rank = comm->rank, ncclSuccess; }
ncclResult_t ncclCommCount(ncclComm_t comm, int* count) { return *count = comm->world->ranks, ncclSuccess; }
ncclResult_t ncclCommCuDevice(ncclComm_t, int* device) { return *device = 0, ncclSuccess; }

ncclResult_t ncclCommSplit(ncclComm_t comm, int, int, ncclComm_t* split, ncclConfig_t* config) {
    Lock lock(mutex);
    auto& worlds = comm->world->split;
    if (worlds.size() == comm->splits) {
        const std::string& folder = comm->world->folder;
        const std::string part = folder.empty() ? "" : folder + "/" + std::to_string(comm->splits);
        if (!part.empty()) mkdir(part.c_str(), 0700);  // unless another rank has
        worlds.push_back(std::make_shared<World>(comm->world->ranks, part));
    }
    *split = new StandInComm{worlds[comm->splits++], comm->rank};
    (*split)->blocking = config->blocking != 0;
    return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* failure) {
    Lock lock(mutex);
    *failure = comm->failure;
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    Lock lock(mutex);
    news.wait(lock, [&] { return comm->pending == 0; });
    return comm->blocking ? ncclSuccess : ncclInProgress;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    delete comm;
    return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
    Lock lock(mutex);
    comm->aborted = true;
    news.notify_all();
    news.wait(lock, [&] { return comm->pending == 0; });
    lock.unlock();
    return ncclCommDestroy(comm);
}

ncclResult_t ncclGroupStart() {
    group.depth++;
    return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
    if (--group.depth > 0 || group.operations.empty()) return ncclSuccess;
    return give(group.comm, group.stream, std::exchange(group.operations, std::vector<Operation>()));
}
ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t, int peer, ncclComm_t comm, cudaStream_t stream) {
    return add(true, const_cast<void*>(data), count, peer, comm, stream);
}
ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t, int peer, ncclComm_t comm, cudaStream_t stream) {
    return add(false, data, count, peer, comm, stream);
}
ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t, ncclComm_t comm, cudaStream_t stream) {
    std::vector<Operation> all;
    for (int r = 0; r < comm->world->ranks; r++) {  // this rank's own to itself
        all.push_back({true, static_cast<char*>(const_cast<void*>(from)), count, r});
        all.push_back({false, static_cast<char*>(to) + size_t(r) * count, count, r});
    }
    return give(comm, stream, std::move(all));
}

cudaError_t cudaGetDeviceCount(int* count) { return *count = 8, cudaSuccess; }
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) { return *least = *greatest = 0, cudaSuccess; }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) { return *stream = new StandInStream, cudaSuccess; }
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    {
        Lock lock(mutex);
        stream->ends = true;
        news.notify_all();
    }
    stream->thread.join();
    delete stream;
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    Lock lock(mutex);
    const std::shared_ptr<bool> come = event->come;
    lock.unlock();
    const int patience = stream ? -1 : patience_ms.load();
    enqueue(stream, [come, patience] {
        Lock waiting(mutex);
        if (patience < 0) news.wait(waiting, [&] { return *come; });
        else news.wait_for(waiting, std::chrono::milliseconds(patience), [&] { return *come; });
    });
    return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return *event = new StandInEvent, cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    delete event;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    const auto come = std::make_shared<bool>(false);
    {
        Lock lock(mutex);
        event->come = come;
    }
    enqueue(stream, [come] {
        Lock lock(mutex);
        *come = true;
        news.notify_all();
    });
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
    Lock lock(mutex);
    return *event->come ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaMalloc(void** pointer, size_t bytes) { return *pointer = malloc(bytes), cudaSuccess; }
cudaError_t cudaFree(void* pointer) { return free(pointer), cudaSuccess; }
cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) { return cudaMalloc(pointer, bytes); }
cudaError_t cudaFreeHost(void* pointer) { return cudaFree(pointer); }
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
    enqueue(stream, [=] { memcpy(to, from, bytes); });
    return cudaSuccess;
}
