#include "tutti/sync/local_options.h"

#include "tutti/base/error.h"

namespace tutti {

void check_local(const LocalUpdates& local) {
  const auto in_range = [](const char* name, auto value, auto low, auto high, bool good) {
    if (!good)
      throw UsageError(
          fmt::format("local updates: {} is {}; expected {} to {}", name, value, low, high));
  };
  constexpr int64_t kMostSteps = 1'000'000'000;
  in_range("every (--local-steps)", local.every, 1, kMostSteps,
           local.every >= 1 && local.every <= kMostSteps);
  in_range("start_step (--local-start)", local.start_step, 0, int64_t{1} << 40,
           local.start_step >= 0 && local.start_step <= int64_t{1} << 40);
  const OuterOptimizer& outer = local.outer;
  in_range("outer.learning_rate (--outer-learning-rate)", outer.learning_rate, "above 0", 10,
           outer.learning_rate > 0 && outer.learning_rate <= 10);
  in_range("outer.momentum (--outer-momentum)", outer.momentum, 0, "below 1",
           outer.momentum >= 0 && outer.momentum < 1);
  if (outer.nesterov && outer.momentum == 0)
    throw UsageError(
        "local updates: outer.nesterov (--outer-nesterov) without outer.momentum; expected a "
        "momentum above 0, as 0.9");
}

}  // namespace tutti
