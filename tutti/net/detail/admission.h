/// Admission: takes connections at a listening socket and lets in who proves to be of the job, many
/// at once, so that a slow or hostile one delays nobody. For Listener's own use.
///
/// Invariants: at most max_pending handshakes are under way, each for at most its limit; to make
/// room the oldest goes, first one that has not even sent a valid hello. Thread rule: one thread;
/// stop() from any.
#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <string_view>

#include "tutti/base/deadline.h"
#include "tutti/base/file_descriptor.h"
#include "tutti/net/address.h"
#include "tutti/net/credentials.h"
#include "tutti/net/detail/socket_link.h"
#include "tutti/net/handshake.h"

namespace tutti::detail {

/// Logs who was turned away, as a warning with the address, and emits the event "net.refused"
/// (from, why). Of a flood it logs the first of each window, then how many more there were.
class RefusalLog {
 public:
  static constexpr int kLines = 20;  ///< logged a window
  static constexpr Millis kWindow{10'000};

  explicit RefusalLog(std::string place) : place_(std::move(place)) {}
  /// `from` is the other side's address; `now` is given for tests.
  void refused(const std::string& from, std::string_view why, TimePoint now);
  /// Says how many more there were, once the window is over; at once when `ends`.
  void sum_up(TimePoint now, bool ends);

 private:
  std::string place_;
  TimePoint window_{};
  int in_window_ = 0;
  std::string last_;  // who was turned away last
};

/// Bounds on what strangers can take.
struct AdmissionLimits {
  size_t max_pending = 256;  ///< handshakes at once; a quarter of the descriptors at most
  Millis handshake{5'000};   ///< for one of them
};

class Admission {
 public:
  /// Gets who was let in, in the thread of run(). `from` is none for a Unix socket. What it throws
  /// is logged as a refusal.
  using Admitted =
      std::function<void(std::unique_ptr<SocketLink>, const Facts&, const Address& from)>;

  /// `socket` listens and does not wait; `place` names it in the log: "port 29500". `identity` goes
  /// into the handshake.
  Admission(FileDescriptor socket, std::string place, const Credentials& credentials,
            std::string identity, const AdmissionLimits& limits, Admitted admitted);

  /// Works until stop(). Calls `tick` at least once a second.
  void run(const std::function<void()>& tick);
  void stop() noexcept;

 private:
  /// A connection that has not proved itself yet. Its link is named by where it comes from.
  struct Pending {
    Pending(std::unique_ptr<SocketLink> link, const Address& from, Handshake handshake)
        : link(std::move(link)), from(from), handshake(std::move(handshake)) {}

    std::unique_ptr<SocketLink> link;
    Address from;
    Handshake handshake;
    TimePoint since = Clock::now();
  };
  using PendingAt = std::list<Pending>::iterator;

  void wait();         ///< until something comes or is due, and moves it on
  void accept_some();  ///< not all: others want their turn
  void take(FileDescriptor socket, const Address& from);
  void make_room();                 ///< drops the one that deserves it most
  void move_on(PendingAt pending);  ///< removes it when it has proved itself or failed
  void refuse(PendingAt pending, std::string_view why);
  void drop_late();
  Millis until_next() const;

  const FileDescriptor socket_;
  const FileDescriptor wake_;
  const Credentials credentials_;
  const std::string identity_;
  AdmissionLimits limits_;
  const Admitted admitted_;
  std::list<Pending> pending_;  // oldest first
  TimePoint accepts_again_{};   // after a shortage of descriptors
  RefusalLog log_;
  std::atomic<bool> stopped_{false};
};

}  // namespace tutti::detail
