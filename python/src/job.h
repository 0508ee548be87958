/// Job: the ranks of the world as one job, seen from this process: its liveness channel.
#pragma once

#include <sys/types.h>

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/cluster/rendezvous/job_links.h"
#include "tutti/net/meeting_place.h"

namespace tutti::python {

/// Where other hosts reach this process.
struct Reach {
  std::string towards;    ///< the address by which one gets to this host or name; "": loopback
  std::string interface;  ///< or this interface, subnet or address; "" when not told
};

/// Where this process listens, port 0. Throws UsageError, Error (no route), Timeout.
Address address_to_listen_at(const Reach& reach, const Deadline& deadline);

/// Random, and the same on all ranks: whoever can read the store can join the job anyway, so the
/// store may carry it.
Token agree_on_token(MeetingPlace& place, std::string_view key, const Deadline& deadline);

/// A process that says nothing for so long is lost: what TUTTI_SILENCE_LIMIT says (seconds), else
/// 30 s, or the limit of operations where that is shorter, 5 s at least.
Millis silence_limit(Millis timeout);

/// A thread of each process says every few seconds that it lives, whatever the program does; rank
/// 0's process listens to all. Thread rule: every function may be called from any thread.
class Job {
 public:
  /// Collective over the ranks of `place`. `of_world`: they are the world; messages say so, and
  /// flight records carry the job's name and the rank. Throws Timeout, PeerLost naming ranks.
  Job(MeetingPlace& place, bool of_world, const Reach& reach, Millis silence,
      const Deadline& deadline);
  ~Job();
  Job(const Job&) = delete;

  /// Ends `engine` with PeerLost when one of `members`, ranks of this job, is lost.
  void follow(const std::shared_ptr<Engine>& engine, const std::vector<int>& members);
  /// Who of `members` is lost, in words; "" none.
  std::string first_loss(const std::vector<int>& members);

  /// Says that this process ends in order. The last call; a forked child's does nothing.
  void leave();

 private:
  const pid_t pid_;
  std::mutex mutex_;
  std::unique_ptr<JobLinks> links_;  // guarded by mutex_; gone after leave()
};

/// A group's place in a job.
struct Membership {
  std::shared_ptr<Job> job;
  std::vector<int> members;  ///< of the group, as ranks of the job
};

/// Collective: makes the job of a group that belongs to none yet: the world, or a group beside a
/// world of another backend.
Membership make_job(MeetingPlace& place, bool of_world, const Reach& reach, Millis silence,
                    const Deadline& deadline);

/// leave() of all jobs, when the program ends.
void leave_jobs();

}  // namespace tutti::python
