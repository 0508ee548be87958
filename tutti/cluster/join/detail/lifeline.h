/// The worker's end of the lifeline: it ends the process when the launcher dies, and keeps what the
/// launcher says until somebody asks.
/// Thread rule: every function may be called from any thread.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/base/file_descriptor.h"
#include "tutti/cluster/join/join.h"
#include "tutti/cluster/rendezvous/detail/messages.h"
#include "tutti/net/descriptor_channel.h"

namespace tutti::detail {

class Lifeline {
 public:
  /// The one of this process; its thread starts at the first call and lives as long as the process.
  static Lifeline& of(const WorkerEnvironment& environment);

  void send(const Notice& message, std::span<const int> descriptors, const Deadline& deadline);

  /// Waits until every worker has said that it joined. Throws PeerLost naming the first that ended
  /// meanwhile, Timeout naming those that have not come.
  void wait_until_all_joined(const Deadline& deadline);

  /// The first worker that ended, and how, in words: "rank 1 was killed by SIGKILL". Empty while
  /// all live. While a group is being formed every worker is needed: its end is everybody's.
  std::string first_loss();

  /// Waits for share number `number` of worker 0. Throws PeerLost when a worker ended meanwhile,
  /// Timeout, or Error with worker 0's words when it was refused.
  FileDescriptor wait_for_share(int number, const Deadline& deadline);

  /// Use of(); this takes over the descriptor and starts the thread.
  explicit Lifeline(const WorkerEnvironment& environment);

 private:
  void listen();
  void keep(DescriptorChannel::Message received);

  const int worker_;
  DescriptorChannel channel_;
  std::mutex sending_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<bool> joined_;
  std::vector<std::string> lost_;         // in order of their ends: "rank 1 was killed by SIGKILL"
  std::map<int, FileDescriptor> shares_;  // by number
  std::map<int, std::string> refusals_;   // by number
};

}  // namespace tutti::detail
