/// How a job has ended on one node, as the launchers of the others learn it, so that all decide
/// alike whether it starts again. Not for users. Pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tutti/cluster/launch/launcher.h"

namespace tutti::detail {

struct NodeEnding {
  int node = 0;
  int exit_code = 0;
  int signal = 0;          ///< that came to the job there
  std::string root_cause;  ///< in words; empty on success
  int worker = -1;         ///< that is the cause, as far as that node knows; -1: none
  bool own = false;        ///< it is of that node, which has seen it end: what follows is known
  std::string error_class;
  int64_t training = 0;
  int64_t step = -1;
};

NodeEnding ending_of(const LaunchResult& result, int node);
std::string encode(const NodeEnding& ending);
/// Throws Error for a text that is none.
NodeEnding decode_ending(std::string_view text);

/// What `result`, of node `node`, becomes once it is known how the job has ended on all: a signal
/// or a failure anywhere is the job's, and all have the same cause: that of the lowest node which
/// saw it end and does not blame another's error, else that of the lowest one that has any. Not of
/// `all`, which may be empty: why it is not known; "": nobody asked.
void take_over(LaunchResult& result, std::vector<NodeEnding> all, int node,
               const std::string& silent = "");

}  // namespace tutti::detail
