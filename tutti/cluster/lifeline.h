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
#include "tutti/cluster/join.h"
#include "tutti/cluster/messages.h"
#include "tutti/net/descriptor_channel.h"

namespace tutti::detail {

class Lifeline {
 public:
  /// The one of this process; its thread starts at the first call and lives as long as the process.
  static Lifeline& of(const WorkerEnvironment& environment);

  void send(const Message& message, std::span<const int> descriptors, const Deadline& deadline);

  /// Waits until every worker has said that it joined. Throws PeerLost naming one that ended
  /// before, Timeout naming those that have not come.
  void wait_until_all_joined(const Deadline& deadline);

  /// Waits for share number `number` of worker 0. Throws PeerLost, Timeout, or Error with worker
  /// 0's words when it was refused.
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
  std::map<int, std::string> lost_;       // worker -> how it ended
  std::map<int, FileDescriptor> shares_;  // by number
  std::map<int, std::string> refusals_;   // by number
};

}  // namespace tutti::detail
