#include "tutti/comm/mpi/calls.h"

#include <algorithm>
#include <atomic>
#include <thread>

namespace tutti::detail::mpi {
namespace {

struct Rules {
  std::mutex one_at_a_time;
  std::atomic<bool> serialized{false};
  std::atomic<bool> closed{false};
  std::mutex why_mutex;
  std::string why;
};

Rules& rules() {
  static Rules all;
  return all;
}

}  // namespace

void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "unknown error";
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw MpiError(fmt::format("{}: {} (MPI error {})", call, text, code));
}

std::unique_lock<std::mutex> enter_mpi() {
  Rules& all = rules();
  if (all.closed.load(std::memory_order_acquire)) {
    const std::scoped_lock lock(all.why_mutex);
    throw MpiError("MPI cannot be used any more in this process: " + all.why);
  }
  std::unique_lock<std::mutex> lock(all.one_at_a_time, std::defer_lock);
  if (all.serialized.load(std::memory_order_relaxed)) lock.lock();
  return lock;
}

void quarantine_mpi(const std::string& why) {
  Rules& all = rules();
  const std::scoped_lock lock(all.why_mutex);
  if (all.closed.load(std::memory_order_relaxed)) return;
  all.why = why;
  all.closed.store(true, std::memory_order_release);
}

void set_mpi_serialized(bool serialized) noexcept {
  rules().serialized.store(serialized, std::memory_order_relaxed);
}

Probe probe(MPI_Comm comm, int source, int tag) {
  const auto lock = enter_mpi();
  Probe found;
  int here = 0;
  MPI_Status status;
  check_mpi(MPI_Improbe(source, tag, comm, &here, &found.message, &status), "MPI_Improbe");
  if (here == 0) return found;
  MPI_Count bytes = 0;
  check_mpi(MPI_Get_elements_x(&status, MPI_BYTE, &bytes), "MPI_Get_elements_x");
  found.here = true;
  found.source = status.MPI_SOURCE;
  found.bytes = bytes;
  return found;
}

void Requests::add(MPI_Request request, int peer, bool receives) {
  requests_.push_back(request);
  transfers_.push_back({peer, receives});
}

void Requests::send(MPI_Comm comm, const void* data, int64_t bytes, int peer, int tag,
                    int64_t message_bytes) {
  const auto lock = enter_mpi();
  for (int64_t begin = 0; begin < bytes; begin += message_bytes) {
    const auto count = static_cast<int>(std::min(message_bytes, bytes - begin));
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(MPI_Isend(static_cast<const char*>(data) + begin, count, MPI_BYTE, peer, tag, comm,
                        &request),
              "MPI_Isend");
    add(request, peer, false);
  }
}

void Requests::receive(MPI_Comm comm, void* data, int64_t bytes, int peer, int tag,
                       int64_t message_bytes) {
  const auto lock = enter_mpi();
  for (int64_t begin = 0; begin < bytes; begin += message_bytes) {
    const auto count = static_cast<int>(std::min(message_bytes, bytes - begin));
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(
        MPI_Irecv(static_cast<char*>(data) + begin, count, MPI_BYTE, peer, tag, comm, &request),
        "MPI_Irecv");
    add(request, peer, true);
  }
}

void Requests::receive(Probe found, void* data) {
  const auto lock = enter_mpi();
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Imrecv(data, static_cast<int>(found.bytes), MPI_BYTE, &found.message, &request),
            "MPI_Imrecv");
  add(request, found.source, true);
}

void Requests::all_reduce(MPI_Comm comm, void* data, int count, MPI_Datatype type, MPI_Op op) {
  const auto lock = enter_mpi();
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Iallreduce(MPI_IN_PLACE, data, count, type, op, comm, &request), "MPI_Iallreduce");
  add(request, -1, true);
}

bool Requests::test(const std::function<void(const Done&)>& each) {
  if (requests_.empty()) return false;
  const int count = static_cast<int>(requests_.size());
  done_.resize(requests_.size());
  statuses_.resize(requests_.size());
  int completed = 0;
  {
    const auto lock = enter_mpi();
    const int code =
        MPI_Testsome(count, requests_.data(), &completed, done_.data(), statuses_.data());
    if (code == MPI_ERR_IN_STATUS)
      for (int i = 0; i < completed; ++i) check_mpi(statuses_[i].MPI_ERROR, "MPI_Testsome");
    check_mpi(code, "MPI_Testsome");
  }
  if (completed <= 0) return false;
  std::vector<Done> received;
  for (int i = 0; each && i < completed; ++i) {
    if (!transfers_[done_[i]].receives) continue;
    MPI_Count bytes = 0;
    check_mpi(MPI_Get_elements_x(&statuses_[i], MPI_BYTE, &bytes), "MPI_Get_elements_x");
    received.push_back({statuses_[i].MPI_SOURCE, bytes});
  }
  size_t kept = 0;
  for (size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] == MPI_REQUEST_NULL) continue;
    requests_[kept] = requests_[i];
    transfers_[kept++] = transfers_[i];
  }
  requests_.resize(kept);
  transfers_.resize(kept);
  for (const Done& done : received) each(done);
  return true;
}

std::vector<int> Requests::pending_peers() const {
  std::vector<int> peers;
  for (bool receives : {true, false}) {
    for (const Transfer& transfer : transfers_)
      if (transfer.receives == receives) peers.push_back(transfer.peer);
    if (!peers.empty()) break;
  }
  std::sort(peers.begin(), peers.end());
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  return peers;
}

bool Requests::stop(const Deadline& deadline) {
  for (size_t i = 0; i < requests_.size(); ++i) {
    // A collective (peer -1) cannot be cancelled, and libraries refuse it for sends.
    if (!transfers_[i].receives || transfers_[i].peer < 0) continue;
    const auto lock = enter_mpi();
    check_mpi(MPI_Cancel(&requests_[i]), "MPI_Cancel");
  }
  while (!requests_.empty() && !deadline.passed())
    if (!test()) std::this_thread::yield();
  return requests_.empty();
}

void Requests::add(Requests&& other) {
  requests_.insert(requests_.end(), other.requests_.begin(), other.requests_.end());
  transfers_.insert(transfers_.end(), other.transfers_.begin(), other.transfers_.end());
  other.requests_.clear();
  other.transfers_.clear();
}

void Backoff::pause() {
  if (++polls_ <= spins_) return;
  const TimePoint now = Clock::now();
  if (polls_ == spins_ + 1) since_ = now;
  // Rather late by an eighth than busy: a peer may need this core.
  std::this_thread::sleep_for(
      std::clamp<Clock::duration>((now - since_) / 8, std::chrono::microseconds(5), Millis{1}));
}

}  // namespace tutti::detail::mpi
