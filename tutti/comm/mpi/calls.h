/// MPI calls as this engine makes them: nonblocking, checked, in pieces that an int can count.
///
/// Thread rule: functions may be called from any thread; a Requests belongs to one at a time.
#pragma once

#include <mpi.h>

#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"

namespace tutti::detail::mpi {

/// A call of MPI failed.
class MpiError : public Error {
 public:
  using Error::Error;
};

/// Throws MpiError with MPI's own words when `code` is not MPI_SUCCESS. `call`: "MPI_Isend".
void check_mpi(int code, const char* call);

/// Held around every MPI call: a real lock only where MPI allows one thread at a time. Throws
/// MpiError once MPI must not be used any more (quarantine_mpi).
std::unique_lock<std::mutex> enter_mpi();

/// From here on every call of this process throws `why`: a receive that could not be cancelled
/// would write into memory that its owner has taken back.
void quarantine_mpi(const std::string& why);

/// Whether `MPI_Init_thread` gave MPI_THREAD_SERIALIZED only.
void set_mpi_serialized(bool serialized) noexcept;

/// A message that may be taken from the queue: whether one is there, and from whom.
struct Probe {
  bool here = false;
  MPI_Message message = MPI_MESSAGE_NULL;
  int source = 0;
  int64_t bytes = 0;
};
/// `source`: a rank or MPI_ANY_SOURCE.
Probe probe(MPI_Comm comm, int source, int tag);

/// Transfers in flight, each with its peer.
class Requests {
 public:
  struct Done {
    int source;     ///< of a receive
    int64_t bytes;  ///< of a receive
  };

  /// Longer data goes in several messages of at most `message_bytes`; both sides cut alike. Nothing
  /// for 0 bytes.
  void send(MPI_Comm comm, const void* data, int64_t bytes, int peer, int tag,
            int64_t message_bytes = kOneMessage);
  void receive(MPI_Comm comm, void* data, int64_t bytes, int peer, int tag,
               int64_t message_bytes = kOneMessage);
  /// Takes what probe() found.
  void receive(Probe found, void* data);
  /// MPI_Iallreduce in place.
  void all_reduce(MPI_Comm comm, void* data, int count, MPI_Datatype type, MPI_Op op);

  /// Advances; true when something was completed. `each`, when given, is told of
  /// each receive that was.
  bool test(const std::function<void(const Done&)>& each = {});
  bool idle() const noexcept { return requests_.empty(); }

  /// Peers of receives that are in flight; when there is none, those of sends. -1: unknown.
  std::vector<int> pending_peers() const;

  /// Cancels what can be, and waits for the rest. False when a transfer could still touch its
  /// memory at `deadline`.
  bool stop(const Deadline& deadline);

  /// Takes over the other's transfers.
  void add(Requests&& other);

 private:
  static constexpr int64_t kOneMessage = int64_t{1} << 30;
  struct Transfer {
    int peer;
    bool receives;
  };

  void add(MPI_Request request, int peer, bool receives);

  std::vector<MPI_Request> requests_;
  std::vector<Transfer> transfers_;  ///< in step with requests_
  std::vector<int> done_;            ///< scratch of test()
  std::vector<MPI_Status> statuses_;
};

/// Waits that poll: short spins, then sleeps that grow with the wait, up to 1 ms.
class Backoff {
 public:
  explicit Backoff(int spins) : spins_(spins) {}
  void pause();
  void reset() noexcept { polls_ = 0; }
  /// True once spinning has ended: time to look at clocks and processes.
  bool slow() const noexcept { return polls_ > spins_; }

 private:
  int spins_;
  int polls_ = 0;
  TimePoint since_{};
};

}  // namespace tutti::detail::mpi
