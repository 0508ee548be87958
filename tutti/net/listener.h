/// Listener: where the other processes of a job connect to this one, for every purpose and group.
///
/// Bound to one address. A thread of its own accepts, authenticates (handshake.h) and keeps each
/// connection until somebody asks for it by purpose and group. Whoever cannot prove to be of the
/// job is turned away and logged with the address, and delays nobody. Thread rule: every function
/// may be called from any thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "tutti/base/deadline.h"
#include "tutti/net/address.h"
#include "tutti/net/credentials.h"
#include "tutti/net/handshake.h"
#include "tutti/net/link.h"

namespace tutti {

/// A connection that has proved to be of the job.
struct Arrival {
  std::unique_ptr<Link> link;  ///< its peer() is "rank 3 (10.0.0.7:41023)", or the address alone
  Facts facts;                 ///< what the other side says of itself
  Address from;
};

struct ListenerOptions {
  int max_pending = 256;          ///< handshakes at once; a quarter of the descriptors at most
  int max_kept = 4096;            ///< connections that nobody has asked for yet
  Millis handshake_limit{5'000};  ///< for one connection to prove itself
  Millis keep_limit{120'000};     ///< for somebody to ask for it
};

class Listener {
 public:
  /// Listens at `at`; port 0: one that the system chooses. Throws UsageError for 0.0.0.0 and ::
  /// (a job listens at one address only), Error when the address or port cannot be had.
  Listener(const Address& at, Credentials credentials, const ListenerOptions& options = {});
  /// Closes what was not asked for; whoever waits throws PeerLost.
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  const Address& address() const noexcept;
  /// Different for every listener there ever was: who connects names it in Facts::to, so that a
  /// process that took over an old port is told from the one that was meant.
  const std::string& identity() const noexcept;
  const Credentials& credentials() const noexcept;

  /// The next connection for that purpose and group, in the order of arrival. Throws Timeout;
  /// PeerLost after close().
  Arrival wait(const std::string& purpose, const std::string& group, const Deadline& deadline);
  /// The same without waiting.
  std::optional<Arrival> take(const std::string& purpose, const std::string& group);

  /// From now on `handler` gets every connection of that purpose, whatever its group, also those
  /// that came before. It is called in the listener's thread, must return at once, and may not call
  /// serve(). An empty one
  /// takes the handler away; when that returns, the old handler is in no call.
  void serve(const std::string& purpose, std::function<void(Arrival)> handler);

  /// Stops listening and wakes all waiters. Idempotent.
  void close() noexcept;

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace tutti
