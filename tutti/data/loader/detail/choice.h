/// How many workers keep up: a decision on figures alone.
#pragma once

#include <string>

namespace tutti::data::detail {

/// Of some steps, in seconds a step, all replicas of this loader together.
struct LoadFigures {
  double period = 0;   ///< a step without its waiting for input
  double compute = 0;  ///< of cores, to make its parts
  double blocked = 0;  ///< asleep inside of stages
  double reading = 0;  ///< asleep in reads of sources
  int free_cores = 0;  ///< that no replica keeps busy
};

struct WorkerChoice {
  int at_once = 0;  ///< in stages other than reads
  int readers = 0;  ///< threads more, that wait for reads
  int threads() const noexcept { return at_once + readers; }
  bool operator==(const WorkerChoice&) const = default;
};

/// The fewest that keep up with 10 % to spare. Work for which no core is free stays with the
/// replicas, who wait for it anyway: a thread more would but change who computes.
WorkerChoice choose_workers(const LoadFigures& figures);

/// `asked` that compute at once, and as many readers as reads want.
WorkerChoice with_workers(int asked, const LoadFigures& figures);

std::string words_of(const WorkerChoice& choice, const LoadFigures& figures);

}  // namespace tutti::data::detail
