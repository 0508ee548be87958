/// Which samples the calling thread works on: the key of all random numbers of a training step.
///
/// Model::fit sets it around each forward pass. A loop of your own does so when its model has an
/// nn::Dropout:
///
///   nn::SampleContext here({.seed = 7, .step = step, .first_row = batch.first_row(replica)});
///   auto y = net->forward(x);
///
/// Thread rule: one context belongs to the thread that made it; contexts nest.
#pragma once

#include <cstdint>

namespace tutti::nn {

/// Place of a part of a global batch. Row i of the part is row first_row + i of the global batch,
/// so any number of replicas draws the same numbers for the same sample.
struct SamplePlace {
  uint64_t seed = 0;      ///< of the training
  int64_t step = 0;       ///< >= 0, different for every update of the training
  int64_t first_row = 0;  ///< >= 0, in the global batch
};

/// Makes `place` current in this thread until it goes out of scope.
class SampleContext {
 public:
  explicit SampleContext(SamplePlace place) noexcept;
  ~SampleContext();
  SampleContext(const SampleContext&) = delete;
  SampleContext& operator=(const SampleContext&) = delete;

  /// The innermost context of this thread, or null.
  static SampleContext* current() noexcept;

  const SamplePlace& place() const noexcept { return place_; }

  /// 0, 1, 2, ... in this context: numbers the calls of layers that have no number of their own.
  int64_t next_call() noexcept { return calls_++; }

 private:
  SamplePlace place_;
  int64_t calls_ = 0;
  SampleContext* outer_;
};

}  // namespace tutti::nn
