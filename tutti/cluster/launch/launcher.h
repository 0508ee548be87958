/// The local launcher: starts workers by exec, forwards what they print, ends the whole tree.
///
/// Thread rule: one launch at a time in a process, and nothing else in it starts processes
/// meanwhile (orphans of the job become children of this process, and are ended with it).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tutti/base/deadline.h"

namespace tutti {

/// This launcher among those of a job over several nodes; each starts as many workers. All of them
/// hold the job's token (TUTTI_TOKEN_FILE or TUTTI_TOKEN); where the rendezvous is a loopback
/// address, all of them are on this host, and draw one where none was given.
struct NodePlace {
  int node = 0;                       ///< 0-based; node 0 has the rendezvous
  int num_nodes = 1;                  ///< 1: no rendezvous and no token
  std::string rendezvous;             ///< host:port, of node 0
  std::string job;                    ///< id of the job; "": made from the token
  Millis limit{kDefaultTimeLimit};    ///< wait for the other launchers
  Millis silence{kDefaultTimeLimit};  ///< node 0: a process that says nothing for so long is lost
  std::string same{};                 ///< what all nodes were given alike, in words: "--servers 2"
  std::string word{};                 ///< of node 0: told to LaunchOptions::prepare on every node
};

struct WorkerResult;

struct LaunchOptions {
  int num_workers = 1;  ///< on this node, 1 to kMaxRanks
  NodePlace nodes{};
  std::vector<std::string> command;  ///< program and arguments; searched in PATH when without '/'
  std::vector<std::string> environment;  ///< extra NAME=value for each worker
  /// Called once, when all nodes have met and before the first worker starts, with the word of node
  /// 0. Returns more NAME=value for each worker. May start processes, which stay the caller's own.
  std::function<std::vector<std::string>(const std::string& word)> prepare{};
  /// Called for each worker that has ended and is not started again, and for the first that failed
  /// on another node: its number, and how it ended ("exited with code 1").
  std::function<void(int worker, const std::string& ending)> lost{};
  bool end_together = false;  ///< several nodes: stay until the workers of all of them have ended
  /// Several nodes: and learn how the job has ended on the others (LaunchResult::root_elsewhere).
  bool tell_endings = false;
  Millis failure_grace{2'000};  ///< after the first failure the rest may end with their own error
  Millis signal_grace{2'000};   ///< after SIGTERM or SIGINT to the job, before SIGKILL
  bool asked_grace = true;      ///< longer where a worker asks for it (ask_for_grace)
  bool end_on_failure = true;   ///< false: the rest go on (asynchronous and elastic jobs)
  /// Where it is false: a worker that is stopped (SIGSTOP) for so long, when no other one is left
  /// to go on, is ended and named.
  Millis stopped_limit{kDefaultTimeLimit};
  int restarts = 0;            ///< failed workers are started again alone, so often in all; not for
                               ///< programs whose workers form a Group, which one cannot join late
                               ///< (launch_with_restarts, restarts.h)
  bool first_leads = false;    ///< once worker 0 has ended, the rest end as after a failure
  bool announce = true;        ///< print `worker I pid P` at start
  bool prefix_output = true;   ///< forward output line by line behind `[worker]`
  bool handle_signals = true;  ///< forward SIGINT and SIGTERM; a second one ends at once
};

struct WorkerResult {
  int worker = 0;    ///< number in the whole job
  int replicas = 1;  ///< ranks that it held, as join_replicas() said
  int pid = 0;
  int exit_code = -1;                ///< when it exited
  int signal = 0;                    ///< when it was killed by one
  bool stopped_by_launcher = false;  ///< SIGTERM or SIGKILL came from us
  std::string error;                 ///< what report_failure() said in it, if anything
  std::string error_class;           ///< of that: "UsageError", "PeerLost", ...
  bool told = false;                 ///< all of its error was logged when it ended, since the job
                                     ///< went on
  std::vector<std::string> last_lines;
  int64_t training = 0;  ///< that it was in, and
  int64_t step = -1;     ///< which step of that, as report_step() said; -1: it said nothing

  /// "rank 1"; "worker 1 (ranks 2 to 3)" where it held several.
  std::string name() const;
  /// "was killed by SIGKILL", "exited with code 3: <first line of its error>".
  std::string ending() const;
  /// What follows on that first line: "" or "\n...".
  std::string more_of_error() const;
  bool failed() const noexcept { return signal != 0 || exit_code != 0; }
  /// Its own error says that the program's use or input is wrong: no record of the job's last
  /// operations is kept, and it would fail again.
  bool is_bad_input() const { return error_class == "UsageError" || error_class == "DataError"; }
  /// Its own error says that it follows from another worker's.
  bool follows() const { return error_class == "PeerLost" || error_class == "FailedElsewhere"; }
};

struct LaunchResult {
  int exit_code = 0;       ///< 0, the first failure's code, or 128 + signal
  std::string root_cause;  ///< "rank 1 was killed by SIGKILL"; empty on success
  int root_worker = -1;    ///< whose failure that was, in the whole job; -1 on success or after a
                           ///< signal to the job
  int signal = 0;          ///< the first that came to the job, also where it had failed before
  int64_t oom_kills = 0;   ///< processes that the kernel killed in this cgroup for lack of memory
  std::string flight_records;  ///< folder with those of this node's workers; "": there are none
  std::vector<WorkerResult> workers;
  /// With tell_endings: whose failure that was, where that is not root(): number (-1: no worker's),
  /// class, training and step. All nodes have the same cause, the one or the other.
  std::optional<WorkerResult> root_elsewhere{};
  std::string silent_node{};  ///< with tell_endings: why not all nodes have told; "": they have

  /// Whose failure that was, if it is one of these; nullptr.
  const WorkerResult* root() const;
};

/// Runs the workers to their end. Throws UsageError when the program is not there or not
/// executable, or the number of workers is not possible, Error when there is no memory for the
/// segment. Nothing of the job outlives the call, nor the launcher itself should it be killed.
///
/// The root cause is the first failure in time that was not itself the loss of a peer; failures of
/// the others follow from it. A worker that is still stopped (SIGSTOP) when
/// the others have given up on it is the cause though it dies last.
LaunchResult launch(const LaunchOptions& options);

/// What to print after a failed run: the other workers in a line, their errors but for those that
/// follow from another's, each once, the last lines of the one that failed first, and last the root
/// cause with all of its error; of an error that was told already one line. Empty after success.
std::string failure_report(const LaunchResult& result);

}  // namespace tutti
