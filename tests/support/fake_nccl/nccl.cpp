// An NCCL between the threads of a test. What ranks call in one group is one kernel a rank: a task
// that is done once all ranks' queues have come to theirs.
#include <algorithm>
#include <cstring>
#include <deque>
#include <type_traits>

#include "tests/support/fake_cuda/fake_cuda.h"
#include "tests/support/fake_nccl/machine.h"

using tutti::test::FakeRules;
using tutti::test::fake_cuda::Lock;
using tutti::test::fake_cuda::lock_of_all;
using tutti::test::fake_cuda::Mark;
using tutti::test::fake_nccl::complain;
using tutti::test::fake_nccl::machine;
using tutti::test::fake_nccl::World;

namespace {

struct Call {
  enum Kind { all_reduce, reduce, reduce_scatter, all_gather, broadcast, send, recv } kind;
  const void* from = nullptr;
  void* to = nullptr;
  size_t count = 0;
  ncclDataType_t type = ncclUint8;
  ncclRedOp_t op = ncclSum;
  int root = 0;  // or the peer
  int rank = 0;
  bool done = false;
};
using Pending = std::shared_ptr<Call>;

}  // namespace

struct tutti::test::fake_nccl::World {
  int size = 0;
  std::map<int, std::shared_ptr<FakeComm>> members;
  std::map<uint64_t, std::vector<Pending>> collectives;
  std::map<std::pair<int, int>, std::deque<Pending>> sends, receives;
  std::vector<std::pair<int, int>> split_keys;  // (color, key), by rank
  int split_count = 0;
  std::map<int, std::shared_ptr<World>> parts;
};

struct FakeComm {
  std::shared_ptr<World> world;
  int rank = 0;
  int polls_left = 0;
  ncclResult_t state = ncclSuccess;
  uint64_t collectives = 0;
  std::vector<std::pair<Pending, cudaStream_t>> launching;  // on no stream before it is ready
  std::deque<Mark> kernels;                                 // behind each that has not run
  std::vector<Pending> all;                                 // that it was ever given
  FakeComm** part = nullptr;                                // of a split that is under way
  bool finalized = false;
  bool gone = false;
};

namespace {

thread_local int group_depth = 0;
thread_local std::vector<std::tuple<FakeComm*, Pending, cudaStream_t>> group_calls;

size_t bytes_of(ncclDataType_t type) {
  constexpr size_t kBytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
  return kBytes[type];
}

// Integers wrap.
template <class T>
T combine(ncclRedOp_t op, T a, T b) {
  if (op == ncclMax) return std::max(a, b);
  if (op == ncclMin) return std::min(a, b);
  if constexpr (std::is_integral_v<T>) {
    const auto left = static_cast<uint64_t>(a);
    const auto right = static_cast<uint64_t>(b);
    return static_cast<T>(op == ncclProd ? left * right : left + right);
  } else {
    return op == ncclProd ? a * b : a + b;
  }
}

template <class T>
std::vector<std::byte> reduced_as(const std::vector<Pending>& calls, size_t count) {
  std::vector<std::byte> result(count * sizeof(T));
  for (size_t i = 0; i < count; ++i) {
    T total{};
    for (size_t r = 0; r < calls.size(); ++r) {
      T value;
      std::memcpy(&value, static_cast<const char*>(calls[r]->from) + i * sizeof(T), sizeof(T));
      total = r == 0 ? value : combine(calls[0]->op, total, value);
    }
    if (calls[0]->op == ncclAvg) total = static_cast<T>(total / static_cast<T>(calls.size()));
    std::memcpy(result.data() + i * sizeof(T), &total, sizeof(T));
  }
  return result;
}

std::vector<std::byte> reduced(const std::vector<Pending>& calls, size_t count) {
  switch (calls[0]->type) {
    case ncclFloat32: return reduced_as<float>(calls, count);
    case ncclFloat64: return reduced_as<double>(calls, count);
    case ncclInt32: return reduced_as<int32_t>(calls, count);
    case ncclInt64: return reduced_as<int64_t>(calls, count);
    case ncclUint8: return reduced_as<uint8_t>(calls, count);
    default: complain(false, "a type that these tests do not add"); return {};
  }
}

void copy(void* to, const void* from, size_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, bytes);
}

// Every member has made the call; by rank.
void carry_out(const std::vector<Pending>& calls) {
  const Call& first = *calls[0];
  for (const Pending& call : calls)
    complain(call->kind == first.kind && call->count == first.count && call->type == first.type &&
                 call->root == first.root,
             "ranks disagree on a collective");
  const size_t n = calls.size();
  const size_t bytes = first.count * bytes_of(first.type);
  std::vector<std::byte> whole;
  switch (first.kind) {
    case Call::all_reduce:
    case Call::reduce: whole = reduced(calls, first.count); break;
    case Call::reduce_scatter: whole = reduced(calls, first.count * n); break;
    case Call::all_gather:
      for (const Pending& call : calls) {
        const auto* const from = static_cast<const std::byte*>(call->from);
        whole.insert(whole.end(), from, from + bytes);
      }
      break;
    default: {
      const auto* const from = static_cast<const std::byte*>(calls[first.root]->from);
      whole.assign(from, from + bytes);
    }
  }
  for (size_t r = 0; r < n; ++r) {
    const bool receives = first.kind != Call::reduce || static_cast<int>(r) == first.root;
    const size_t offset = first.kind == Call::reduce_scatter ? r * bytes : 0;
    const size_t length = first.kind == Call::reduce_scatter ? bytes : whole.size();
    if (receives) copy(calls[r]->to, whole.data() + offset, length);
    calls[r]->done = true;
  }
}

void post_message(World& world, const Pending& call) {
  const bool sends = call->kind == Call::send;
  const auto pair = sends ? std::pair(call->rank, call->root) : std::pair(call->root, call->rank);
  auto& mine = sends ? world.sends[pair] : world.receives[pair];
  auto& theirs = sends ? world.receives[pair] : world.sends[pair];
  if (theirs.empty()) return mine.push_back(call);
  const Pending other = theirs.front();
  theirs.pop_front();
  if (other->done) return;
  complain(other->count == call->count, "a message of another length");
  const Call& from = sends ? *call : *other;
  const Call& to = sends ? *other : *call;
  copy(to.to, from.from, from.count * bytes_of(from.type));
  call->done = other->done = true;
}

// What an aborted communicator was given is done without effect, for its peers it never is.
void post(FakeComm& comm, const Pending& call) {
  if (machine().rules.hang || call->done) return;
  World& world = *comm.world;
  if (call->kind == Call::send || call->kind == Call::recv) return post_message(world, call);
  auto& calls = world.collectives[comm.collectives++];
  calls.push_back(call);
  if (static_cast<int>(calls.size()) < world.size) return;
  const bool is_cut_off = std::ranges::any_of(calls, [](const Pending& one) { return one->done; });
  if (is_cut_off) return;
  std::sort(calls.begin(), calls.end(),
            [](const Pending& a, const Pending& b) { return a->rank < b->rank; });
  carry_out(calls);
}

bool all_done(const std::vector<Pending>& calls) {
  return std::ranges::all_of(calls, [](const Pending& call) { return call->done; });
}

// False where its queue cannot come to a kernel, or has none. It may run this one's peers in turn.
bool run_next_kernel(FakeComm& comm) {
  auto& kernels = comm.kernels;
  while (!kernels.empty() && reached(kernels.front())) kernels.pop_front();
  if (kernels.empty()) return false;
  const Mark next = kernels.front();
  return try_to_reach(next);
}

// The task of one rank's kernel; true when it has run. Its peers' queues run as far as they can.
bool run_kernel(FakeComm& comm, const std::vector<Pending>& calls, bool& posted) {
  if (!posted)
    for (const Pending& call : calls) post(comm, call);
  posted = true;
  for (const auto& [rank, peer] : comm.world->members)
    while (peer.get() != &comm && !all_done(calls) && run_next_kernel(*peer)) {
    }
  return all_done(calls);
}

// The calls of a group are on the stream now.
void put_on_stream(const std::shared_ptr<FakeComm>& comm) {
  const auto launching = std::exchange(comm->launching, {});
  if (launching.empty()) return;
  std::vector<Pending> calls;
  for (const auto& [call, stream] : launching) calls.push_back(call);
  auto& queue = tutti::test::fake_nccl::queue_of(launching.front().second);
  enqueue_attempt(queue, "a kernel of NCCL",
                  [comm, calls = std::move(calls), posted = false]() mutable {
                    return run_kernel(*comm, calls, posted);
                  });
  comm->kernels.push_back(mark_of(queue));
}

FakeComm* add_member(const std::shared_ptr<World>& world, int rank) {
  auto& comms = machine().comms;
  FakeComm* const comm = comms.emplace_back(std::make_shared<FakeComm>()).get();
  comm->world = world;
  comm->rank = rank;
  comm->state = ncclInProgress;
  comm->polls_left = machine().rules.polls_until_ready;
  world->members[rank] = comms.back();
  return comm;
}

void begin_progress(FakeComm& comm) {
  if (comm.state == ncclRemoteError) return;  // stays
  comm.state = ncclInProgress;
  comm.polls_left = machine().rules.polls_until_ready;
}

// The last rank of a split has called: all members of each color get their communicators.
void make_part(FakeComm& comm) {
  World& world = *comm.world;
  const auto [color, key] = world.split_keys[comm.rank];
  if (color >= 0) {
    std::vector<std::pair<int, int>> order;  // (key, rank)
    for (int r = 0; r < world.size; ++r)
      if (world.split_keys[r].first == color) order.emplace_back(world.split_keys[r].second, r);
    std::sort(order.begin(), order.end());
    const auto mine = std::find(order.begin(), order.end(), std::pair(key, comm.rank));
    auto& part = world.parts[color];
    if (part == nullptr) part = std::make_shared<World>();
    part->size = static_cast<int>(order.size());
    *comm.part = add_member(part, static_cast<int>(mine - order.begin()));
  }
  comm.part = nullptr;
}

bool is_ready(FakeComm& comm) {
  const bool all_here = static_cast<int>(comm.world->members.size()) == comm.world->size;
  const bool all_split = comm.part == nullptr || comm.world->split_count == comm.world->size;
  return all_here && all_split && !machine().rules.never_ready && --comm.polls_left < 0;
}

std::shared_ptr<FakeComm> owner_of(FakeComm* comm) {
  const auto& comms = machine().comms;
  return *std::ranges::find(comms, comm, [](const auto& one) { return one.get(); });
}

ncclResult_t add_call(FakeComm* comm, cudaStream_t stream, Call call, const char* name) {
  const Lock lock(lock_of_all());
  machine().calls.emplace_back(name);
  complain(group_depth == 1, std::string(name) + " outside a group");
  complain(!comm->gone, std::string(name) + " after the end of the communicator");
  complain(comm->state != ncclInProgress, std::string(name) + " while in progress");
  call.rank = comm->rank;
  group_calls.emplace_back(comm, std::make_shared<Call>(call), stream);
  return ncclSuccess;
}

}  // namespace

namespace tutti::test {

bool fake_nccl::is_launching_on(cudaStream_t stream) {
  for (const auto& comm : machine().comms)
    for (const auto& [call, on] : comm->launching)
      if (on == stream) return true;
  return false;
}

void reset_fakes(const FakeRules& rules) {
  const Lock lock(lock_of_all());
  fake_cuda::run_all();
  for (const auto& comm : machine().comms) comm->world->members.clear();
  machine() = {.rules = rules, .streams = machine().streams};
}

void set_fake_rules(const FakeRules& rules) {
  const Lock lock(lock_of_all());
  machine().rules = rules;
}

void set_fake_state(ncclResult_t state) {
  const Lock lock(lock_of_all());
  for (const auto& comm : machine().comms)
    if (!comm->gone) comm->state = state;
}

std::vector<std::string> fake_calls() {
  const Lock lock(lock_of_all());
  return machine().calls;
}

std::vector<std::string> fake_complaints() {
  const Lock lock(lock_of_all());
  std::vector<std::string> all = machine().complaints;
  if (!machine().live.empty())
    all.push_back(std::to_string(machine().live.size()) + " objects of CUDA were not given back");
  for (const auto& comm : machine().comms)
    if (!comm->gone) all.emplace_back("a communicator was not given back");
  return all;
}

}  // namespace tutti::test

const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclRemoteError ? "remote process exited" : "an error of NCCL";
}
const char* ncclGetLastError(ncclComm_t /*comm*/) { return "the last words"; }

ncclResult_t ncclGetVersion(int* version) {
  const Lock lock(lock_of_all());
  *version = machine().rules.version;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const Lock lock(lock_of_all());
  const std::string text = "world " + std::to_string(++machine().ids);
  *id = {};
  std::memcpy(id->internal, text.data(), text.size());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  const Lock lock(lock_of_all());
  complain(config->size == sizeof *config && config->magic == kFakeMagic,
           "a config without a start");
  complain(config->blocking == 0, "a communicator that blocks");
  auto& world = machine().worlds[id.internal];
  if (world == nullptr) world = std::make_shared<World>();
  world->size = size;
  *comm = add_member(world, rank);
  return ncclInProgress;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* part,
                           ncclConfig_t* config) {
  const Lock lock(lock_of_all());
  complain(config->blocking == 0, "a part that blocks");
  complain(comm->state == ncclSuccess, "a split while in progress");
  World& world = *comm->world;
  world.split_keys.resize(static_cast<size_t>(world.size));
  world.split_keys[comm->rank] = {color, key};
  ++world.split_count;
  comm->part = part;
  begin_progress(*comm);
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  const Lock lock(lock_of_all());
  complain(!comm->gone, "asked after the end of the communicator");
  if (comm->state == ncclInProgress && is_ready(*comm)) {
    comm->state = ncclSuccess;
    if (comm->part != nullptr) make_part(*comm);
    put_on_stream(owner_of(comm));
  }
  *state = comm->state;
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  const Lock lock(lock_of_all());
  machine().calls.emplace_back("ncclCommFinalize");
  complain(!comm->gone, "finalized after its end");
  comm->finalized = true;
  begin_progress(*comm);
  return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  const Lock lock(lock_of_all());
  machine().calls.emplace_back("ncclCommDestroy");
  complain(comm->finalized && comm->state == ncclSuccess, "destroyed before it was finalized");
  comm->gone = true;
  return ncclSuccess;
}

// Kernels give up; the others learn of it as of a remote process that is gone.
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  const Lock lock(lock_of_all());
  machine().calls.emplace_back("ncclCommAbort");
  complain(!comm->gone, "aborted after its end");
  comm->gone = true;
  for (const auto& [rank, member] : comm->world->members) {
    if (member.get() != comm && !member->gone) member->state = ncclRemoteError;
  }
  for (const Pending& call : comm->all) call->done = true;
  comm->launching.clear();
  return ncclSuccess;
}

ncclResult_t ncclCommUserRank(ncclComm_t comm, int* rank) {
  *rank = comm->rank;
  return ncclSuccess;
}

ncclResult_t ncclCommCount(ncclComm_t comm, int* size) {
  *size = comm->world->size;
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  const Lock lock(lock_of_all());
  machine().calls.emplace_back("ncclGroupStart");
  complain(++group_depth == 1, "a group inside a group");
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  const Lock lock(lock_of_all());
  machine().calls.emplace_back("ncclGroupEnd");
  complain(group_depth-- == 1, "the end of no group");
  for (auto& [comm, call, stream] : group_calls) {
    begin_progress(*comm);
    comm->launching.emplace_back(call, stream);
    comm->all.push_back(call);
  }
  group_calls.clear();
  return ncclInProgress;
}

ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return add_call(comm, stream, {Call::all_reduce, send, receive, count, type, op},
                  "ncclAllReduce");
}

ncclResult_t ncclReduce(const void* send, void* receive, size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  return add_call(comm, stream, {Call::reduce, send, receive, count, type, op, root}, "ncclReduce");
}

ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return add_call(comm, stream, {Call::reduce_scatter, send, receive, count, type, op},
                  "ncclReduceScatter");
}

ncclResult_t ncclAllGather(const void* send, void* receive, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  return add_call(comm, stream, {Call::all_gather, send, receive, count, type}, "ncclAllGather");
}

ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream) {
  return add_call(comm, stream, {Call::broadcast, send, receive, count, type, ncclSum, root},
                  "ncclBroadcast");
}

ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return add_call(comm, stream, {Call::send, data, nullptr, count, type, ncclSum, peer},
                  "ncclSend");
}

ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return add_call(comm, stream, {Call::recv, nullptr, data, count, type, ncclSum, peer},
                  "ncclRecv");
}
