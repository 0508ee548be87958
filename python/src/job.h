/// Job: the ranks of the world as one job, seen from this process: its liveness channel.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/cluster/job_links.h"
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

/// A process that says nothing for so long is lost, unless TUTTI_SILENCE_LIMIT (seconds) says
/// otherwise: 30 s, or the limit of operations where that is shorter.
Millis silence_limit(Millis timeout);

/// A thread of each process says every few seconds that it lives, whatever the program does; rank
/// 0's process listens to all. Flight records carry the job's name and the rank.
/// Thread rule: every function may be called from any thread.
class Job {
 public:
  /// Collective over the ranks of `place`, the world's. Throws Timeout and PeerLost naming ranks.
  Job(MeetingPlace& place, const Reach& reach, Millis silence, const Deadline& deadline);

  /// Ends `engine` with PeerLost when one of `members`, ranks of the world, is lost.
  void follow(const std::shared_ptr<Engine>& engine, const std::vector<int>& members);

  /// Says that this process ends in order. The last call.
  void leave();

 private:
  std::mutex mutex_;
  std::unique_ptr<JobLinks> links_;  // guarded by mutex_; gone after leave()
};

/// A group's place in a job.
struct Membership {
  std::shared_ptr<Job> job;
  std::vector<int> members;  ///< of the group, as ranks of the job
};

/// The job that a group belongs to: made with the world's group (`world_ranks` empty) and found by
/// the groups of its ranks. A group without such a world is a job of its own. Collective.
Membership membership(MeetingPlace& place, const std::vector<int>& world_ranks, const Reach& reach,
                      Millis silence, const Deadline& deadline);

/// leave() of the world's job, when the program ends.
void leave_job();

}  // namespace tutti::python
