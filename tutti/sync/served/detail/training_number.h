/// TrainingNumber: which training of its job an optimizer on parameter servers is.
///
/// All workers run one program, which makes its optimizers in one order. A worker's steps for a
/// coordinator may be begun anew, and are of one training. Thread rule: any thread.
#pragma once

#include <string>

#include "tutti/sync/served_options.h"

namespace tutti::detail {

class TrainingNumber {
 public:
  /// The next of this worker of `job` in this process. Throws UsageError for a second one at once
  /// in a job with a coordinator.
  TrainingNumber(const ServedPlace& place, const std::string& job);
  /// Gives it back, unless it has joined.
  ~TrainingNumber();
  TrainingNumber(const TrainingNumber&) = delete;

  int number() const noexcept { return number_; }
  void joined() noexcept { joined_ = true; }

 private:
  const bool coordinated_;
  const std::string key_;
  int number_ = 0;
  bool joined_ = false;
};

}  // namespace tutti::detail
