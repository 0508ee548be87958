#include "tutti/data/hold_out.h"

#include <cmath>

#include "tutti/base/error.h"

namespace tutti::data {

Halves hold_out(const Dataset& all, HoldOutOptions options) {
  const int64_t samples = all.num_samples();
  if (!(options.share > 0 && options.share < 1))
    throw UsageError(
        fmt::format("hold_out(): got a share of {}, expected more than 0 and less "
                    "than 1",
                    options.share));
  const auto kept =
      static_cast<int64_t>(std::floor(static_cast<double>(samples) * (1 - options.share)));
  if (kept < 1)
    throw UsageError(
        fmt::format("a share of {} of {} sample{} is held out: none is left to train "
                    "on",
                    options.share, samples, samples == 1 ? "" : "s"));
  const Dataset mixed = all.shuffle({.seed = options.seed, .each_epoch = false});
  return {mixed.take(kept), mixed.skip(kept)};
}

}  // namespace tutti::data
