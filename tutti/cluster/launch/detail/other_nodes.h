/// The launchers of the other nodes of a job, as one of them sees them.
/// Thread rule: the thread that launches; what it hears comes from another one.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tutti/base/file_descriptor.h"
#include "tutti/cluster/launch/launcher.h"
#include "tutti/cluster/rendezvous/job_links.h"

namespace tutti::detail {

/// A worker of another node that failed, or was lost.
struct FailureElsewhere {
  int worker = -1;  ///< -1: a whole node, or the rendezvous
  std::string words;
  bool told_by_launcher = false;  ///< which knows how it ended, and not only that it has gone
  size_t deaths_before = 0;       ///< of workers here, when it was heard of
};

/// The token of a job over several nodes; drawn on the host, where the rendezvous is a loopback
/// address and none was given. Throws UsageError.
Token token_of_nodes(const NodePlace& place);

class OtherNodes {
 public:
  /// Says hello at the rendezvous, which is served here when this is node 0, and waits until the
  /// launchers of all nodes are there. `num_workers` are of the whole job. Throws UsageError (no
  /// token, numbers or NodePlace::same that differ), Mismatch (wrong token), Timeout naming nodes.
  OtherNodes(const NodePlace& place, int num_workers);

  /// This launcher: "node 1 (ranks 2 to 3, host b, pid 77)".
  const std::string& name() const noexcept { return name_; }
  const std::string& job() const noexcept { return job_; }
  const Token& token() const noexcept { return token_; }
  /// Readable when first_failure() may have something new.
  int descriptor() const noexcept { return wake_.get(); }
  /// NodePlace::word of node 0.
  const std::string& word() const noexcept { return word_; }
  /// The first failure that was not of a worker in [first, end), in the best words for it so far.
  std::optional<FailureElsewhere> first_failure(int first, int end);

  /// Tells the other nodes how a worker of this one ended.
  void tell_failure(int worker, const std::string& words);

  /// Tells all launchers how the job has ended on this node: not empty.
  void tell_ending(const std::string& mine);
  /// What all nodes have told, this one too, in no order; nothing: some are still to come. Throws
  /// PeerLost naming a node that is gone, or has ended without a word.
  std::optional<std::vector<std::string>> endings();
  /// Tells all launchers that this one has read how the job has ended on all nodes.
  void tell_read();
  /// Whether all have, or cannot any more.
  bool all_have_read();

  /// Tells the other nodes that all workers of this one have ended.
  void tell_end();
  /// Whether the workers of all other nodes have ended, as far as has been heard.
  bool others_ended();
  /// Whether no worker of any node is left, as far as can be known: those of a lost node are gone.
  bool all_ended();

 private:
  void hear(FailureElsewhere failure);
  void hear_end(const std::string& name, const std::string& said);
  void meet(const NodePlace& place, const Deadline& deadline);

  const std::string name_;
  const int num_nodes_;
  const Token token_;
  std::string job_;
  std::string word_;
  FileDescriptor wake_;  // an eventfd
  std::mutex mutex_;     // guards what follows
  std::vector<FailureElsewhere> heard_;
  std::set<std::string> ended_;                 // names of launchers; "": the rendezvous
  std::map<std::string, std::string> endings_;  // what they said of it, by name
  std::set<std::string> read_;                  // who has read all of these
  std::unique_ptr<JobLinks> links_;             // last: its threads use the above
};

}  // namespace tutti::detail
