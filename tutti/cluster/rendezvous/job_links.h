/// JobLinks: what connects this process to the others of a job of several hosts: a listener, the
/// rendezvous, and the groups that end when a worker is lost.
/// Thread rule: every function may be called from any thread.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tutti/cluster/rendezvous/detail/rendezvous_server.h"
#include "tutti/cluster/rendezvous/rendezvous.h"
#include "tutti/comm/engine/engine.h"
#include "tutti/net/key_values.h"
#include "tutti/net/listener.h"

namespace tutti {

/// This process's place in a job, and where the job meets.
struct JobPlace {
  int worker = -1;  ///< -1: a launcher
  int num_workers = 1;
  HostPort rendezvous;
  bool hosts_rendezvous = false;  ///< the rendezvous is in this process
  std::string rendezvous_name = "the rendezvous, beside rank 0";
  std::string name;           ///< "rank 3 (host b, pid 77)"
  std::string interface;      ///< to be reached at: interface, subnet or address; "": by route
  Millis silence{30'000};     ///< after which a process that says nothing counts as lost
  Rendezvous::Events events;  ///< beside the end of groups
};

/// What TUTTI_INTERFACE says; "" when it is not set.
std::string interface_from_environment();

/// A name for the job of `token`, the same on all its hosts; it says nothing about the token.
std::string job_of_token(const Token& token);

/// The job's token. `what` begins the UsageError, with the cure, when none was given.
Token require_token(std::string_view what);

/// The same where none is needed `on_one_host`: token_of_host(job) when none was given.
Token require_token(std::string_view what, bool on_one_host, std::string_view job);

class JobLinks {
 public:
  /// Listens, serves or finds the rendezvous, says hello. Throws UsageError (refused, bad address),
  /// Mismatch (wrong token, another job), Timeout, PeerLost.
  JobLinks(JobPlace place, const Credentials& credentials, const Deadline& deadline);
  ~JobLinks();
  JobLinks(const JobLinks&) = delete;

  const std::shared_ptr<Listener>& listener() const noexcept { return listener_; }
  Rendezvous& rendezvous() noexcept { return *rendezvous_; }

  /// Values that the job's processes leave for each other, under keys of that name. It may outlive
  /// this, and throws PeerLost then.
  std::shared_ptr<KeyValues> key_values(std::string name) const;

  /// Ends `engine` with PeerLost, naming the worker, when one of `members` (workers; empty: any of
  /// the job) is lost; at once when one was before. The loss of the rendezvous counts as that of
  /// worker 0, beside which it is.
  void follow(const std::shared_ptr<Engine>& engine, const std::vector<int>& members = {});

  /// The first loss that would end a group of `members`, in words; "" while there is none.
  std::string first_loss(const std::vector<int>& members);

 private:
  struct Followed {
    std::weak_ptr<Engine> engine;
    std::vector<int> members;
  };

  void listen(const Credentials& credentials, const Deadline& deadline);
  std::unique_ptr<Link> link_to_rendezvous(const Credentials& credentials,
                                           const Deadline& deadline);
  void end_groups(int lost, const std::string& words);

  const JobPlace place_;
  std::unique_ptr<detail::RendezvousServer> server_;
  std::shared_ptr<Listener> listener_;

  std::mutex mutex_;  // guards what follows
  std::vector<Followed> followed_;
  std::vector<std::pair<int, std::string>> losses_;  // workers, and words

  std::shared_ptr<Rendezvous> rendezvous_;  // last: its thread uses all of the above
};

}  // namespace tutti
