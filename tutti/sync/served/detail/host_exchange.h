/// HostExchange: the workers of one host towards the parameter servers as one.
///
/// Each piece is carried by one worker (ps::Carriers). The others put what they have of it into
/// shared memory; it adds that to its own, in the one order, and pushes the sum. Parameters come to
/// it, and it writes them to the one storage that all replicas of the host read. So a host sends
/// and receives every piece once. docs/design/parameter_server.md, *Hosts*.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/ps/client/client.h"
#include "tutti/ps/spec/carriers.h"
#include "tutti/ps/values/partial_sums.h"
#include "tutti/sync/slots.h"
#include "tutti/sync/world.h"

namespace tutti::detail {

/// A step: push() of every piece, meet() by every replica, then finish() and next() once.
class HostExchange {
 public:
  /// Whether the workers of each host share memory, and some host has several.
  static bool possible(const World& world, int num_workers);

  /// Collective over the replicas of the host. `layout` and `spec` must outlive it; `own` is where
  /// the gradients of this worker's replicas lie, read within push() and finish().
  HostExchange(const World& world, const Slots& layout, const ps::Spec& spec, int worker,
               ps::Inputs own);
  /// Returns when the parameters that were asked for last have come, or after give_up().
  ~HostExchange();
  HostExchange(const HostExchange&) = delete;

  /// Parameters, by the layout's offsets; zeros at first. The first worker of a host writes the
  /// values that the job may begin with.
  std::byte* values() const noexcept { return values_; }
  const std::shared_ptr<const void>& owner() const noexcept { return memory_.owner; }
  bool is_first() const noexcept { return worker_ == host_.first; }

  /// Returns when all of the host are here. By one thread of each worker.
  void meet_all();
  /// Gets the parameters that the job begins with; collective as meet_all(). Returns the first
  /// step. `client` is used from then on until the end.
  int64_t start(ps::Client& client);

  /// This worker has all gradients of `piece`. Any thread.
  ///
  /// has_all  whether all parameters of the step have come
  void push(int piece, int64_t step, double learning_rate, const std::function<bool()>& has_all);
  /// Local replica `replica` has handed in all; returns when all replicas of the host have.
  void meet(int replica, const Deadline& deadline);
  /// Pushes what this worker carries and has not pushed.
  void finish();
  /// Parameters for `step` may be written.
  void next(int64_t step);

  /// Whether fill() would not wait.
  bool arrived(int piece, int64_t step) const {
    return here_[piece].load(std::memory_order_acquire) >= step;
  }
  /// Returns when the parameters of `piece` for `step` are in the storage. Any thread. Throws what
  /// Client::fetch() and Work::wait() do, here or where they failed before.
  void fill(int piece, int64_t step);

  /// Which worker's gradient of a piece that this one pushed last is not finite; this one when no
  /// other's is. Until parameters of the next step have come.
  int whose_gradient(int piece) const;

  /// This worker cannot go on: whatever waits here ends.
  void give_up() noexcept;

 private:
  // What a worker says of a piece that another one carries; in shared memory.
  struct alignas(64) Note {
    std::atomic<int64_t> steps;  // of which its gradients are here: 0 to steps - 1
    double learning_rate;
    int64_t cut;  // that it has marked before this step; 0: none
  };
  // A worker's part of the memory.
  struct Board {
    Note* notes = nullptr;              // by piece
    std::vector<uint8_t*> used;         // by piece: of each sum, of each segment
    std::vector<std::byte*> gradients;  // by piece that it does not carry: sum after sum
    std::vector<ps::PartialSum> sums;   // that it makes by itself
    int64_t num_bytes = 0;
  };
  // A rank that stands for sum number `sum` of `worker`.
  struct Source {
    int worker = -1;
    int sum = 0;
  };

  Board board_of(int worker, std::byte* memory) const;
  void allocate();
  void find_sources();
  bool carries(int piece) const { return carriers_.carries(worker_, piece); }
  int carrier(int piece) const { return carriers_.carrier(carriers_.host_of(worker_), piece); }
  void publish(int piece, int64_t step, double learning_rate, int64_t cut);
  void try_carry(int piece);
  bool all_there(int piece, int64_t step) const;
  void carry(int piece, int64_t step);
  const void* input_of(const ps::Piece& piece, int number, int rank,
                       const ps::Segment& segment) const;
  void write(int piece, int64_t step);
  void hand_on(int piece);
  void hear_of(int piece);
  void receive_steps();
  void receive(int64_t step);

  const World world_;
  const Slots& layout_;
  const ps::Spec& spec_;
  const int worker_;
  const ps::Inputs own_;
  const ps::Carriers carriers_;
  const ps::HostWorkers host_;
  std::vector<Group> inside_;  // by local replica: all replicas of the host
  Group workers_;              // of the host; used by the thread, and before it
  SharedParts memory_;
  std::vector<Board> boards_;  // by worker of the host
  std::byte* values_ = nullptr;
  std::vector<Source> sources_;       // by rank
  std::vector<ps::PartialSum> sums_;  // of the host
  ps::Client* client_ = nullptr;

  std::unique_ptr<std::atomic<int64_t>[]> ready_;    // by piece: steps that this worker has
  std::unique_ptr<std::atomic<int64_t>[]> carried_;  // by piece: steps that it has pushed
  std::unique_ptr<std::atomic<int64_t>[]> here_;     // by piece: step of the parameters
  std::atomic<double> learning_rate_{0};
  std::atomic<int64_t> entered_{-1};  // the step of the last push

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  int64_t wanted_ = 0;  // parameters for this step
  int64_t got_ = 0;
  bool ends_ = false;
  std::exception_ptr failure_;
  std::thread thread_;  // receives
};

}  // namespace tutti::detail
