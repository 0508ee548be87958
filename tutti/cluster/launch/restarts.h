/// Restarts: whether a job that failed starts again as a whole, when, and what is said of it.
///
/// It goes on from its newest checkpoint: fit() resumes by itself in a job that was started again,
/// from what a life of that job has written (started_again(), id_of_all_lives(), join.h). A step
/// that fails twice would fail for ever, and ends the job. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <utility>

#include "tutti/base/deadline.h"
#include "tutti/cluster/launch/launcher.h"

namespace tutti {

/// A pure decision: no clock, no I/O.
class Restarts {
 public:
  static constexpr Millis kFirstPause{1'000};
  static constexpr Millis kLongestPause{60'000};

  /// most  so often in all
  explicit Restarts(int most) : most_(most) {}

  struct Verdict {
    bool again = false;
    Millis pause{0};    ///< before that: doubles unless the job has come further than before
    std::string words;  ///< for people; "": nothing to say
  };
  /// After each life, the first one included. Success, the wish to end (a signal to the job,
  /// Interrupted), what starting again cannot mend (UsageError, DataError), and a node that did not
  /// say how it ended there, end the job.
  Verdict after(const LaunchResult& life);

 private:
  const int most_;
  int made_ = 0;
  Millis pause_{0};
  using TrainingStep = std::pair<int64_t, int64_t>;  // training, step
  TrainingStep furthest_{0, -1};
  std::set<TrainingStep> failed_at_;
};

/// launch(), and again as long as Restarts says so; the workers of all lives have TUTTI_LIVES in
/// their environment, those of later ones TUTTI_RESTART, too. Over several nodes each launcher does
/// so, with the same `most`: they tell each other how a life has ended, so that all decide alike.
/// `tell` gets failure_report() of each
/// life that failed, then the words of Restarts. Returns the last life. Throws what launch()
/// throws.
LaunchResult launch_with_restarts(LaunchOptions options, int most,
                                  const std::function<void(const std::string&)>& tell);

}  // namespace tutti
