/// What Model::fit(), evaluate() and predict() are told. Thread rule: values.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "tutti/base/deadline.h"
#include "tutti/data/dataset.h"
#include "tutti/data/loader/loader.h"
#include "tutti/train/callbacks/callbacks.h"
#include "tutti/train/report/progress.h"

namespace tutti {

enum class OnNan : uint8_t {
  stop,   ///< Error with epoch, step and the first tensor that was not finite
  go_on,  ///< a warning, once
  end,    ///< a warning; the step is left out, and fit() returns with the history so far
};

/// For experiments: a worker that sleeps `factor` - 1 times as long as it computes, in a step with
/// `probability`.
struct SlowWorker {
  double factor = 1;       ///< >= 1
  double probability = 1;  ///< 0 to 1, drawn by (seed, step)
};

struct FitOptions {
  int64_t epochs = 1;                         ///< >= 1: number of the last one, from 1
  std::optional<data::Dataset> validation{};  ///< evaluated after each epoch
  Callbacks callbacks{};                      ///< the same on every worker; see callbacks.h
  int64_t max_steps = 0;                      ///< ends after so many steps in all; 0: no limit
  std::optional<uint64_t> seed{};             ///< of order and dropout; unset: the strategy's
  int verbose = 1;  ///< 0 silent; 1 a bar on a terminal, else lines now and then; 2 a line an epoch
  OnNan on_nan = OnNan::stop;
  std::optional<SlowWorker> slow{};  ///< this worker is
  int64_t initial_epoch = 0;    ///< epochs that were done before: order and dropout go on there
  int64_t steps_per_epoch = 0;  ///< fewer than the data has batches; 0: all
  int64_t validation_freq = 1;  ///< epochs from one validation to the next; else NaN in History
  /// By label, one of the classes of a graph or dataset that knows them; those not named weigh 1.
  /// Multiplies the loss of a sample, in training alone.
  std::map<int64_t, double> class_weight{};
  /// Batches, 1 to 1,000,000, whose gradients are added without communication, to one update: that
  /// of one batch of all their samples. Steps, schedules, callbacks and max_steps count updates;
  /// the last one of an epoch may have fewer batches.
  int64_t accumulate = 1;
  /// Parts, 1 to 4096, that each replica's part of a batch is computed in, one after another; with
  /// stages, so that these have work at the same time. Gradients add up as those of as many
  /// replicas do: r replicas of m microbatches train as r m replicas, to the bit where m is a power
  /// of two.
  int microbatches = 1;
  CheckpointOptions checkpoints{};
  Millis stop_after{0};  ///< asks for an end as SIGTERM does, once so much time has gone; 0: never
  /// The last samples, in place of `validation`: a share above 0 and below 1 of those before the
  /// first shuffle, which are not trained on (data::Dataset::split_last). 0: none.
  double validation_split = 0;
  /// Who computes batches ahead, and what becomes of damaged samples (data/loader/loader.h).
  data::LoaderOptions loader{};
  int64_t batch = 32;                  ///< of fit(inputs, targets), >= 1: the global batch
  std::function<void()> when_begun{};  ///< on the chief, before a step: nothing refuses it any more
  /// As class_weight, of the outputs of those names (CompileOptions::outputs).
  std::map<std::string, std::map<int64_t, double>> class_weights{};
  bool shuffle = true;  ///< of fit(inputs, targets); a dataset says so itself
};

/// Of evaluate() and predict() of tensors.
struct PassOptions {
  int64_t batch = 32;            ///< >= 1: the global batch
  data::LoaderOptions loader{};  ///< of evaluate()
  int verbose = 0;        ///< of evaluate(): 0 silent; 1 a bar on stderr, where that is a terminal
  Callbacks callbacks{};  ///< what they see: PassFacts
};

/// What weighs the samples of one batch; one of the two.
struct BatchWeights {
  at::Tensor sample_weights{};               ///< [batch] float32, finite, >= 0
  std::map<int64_t, double> class_weight{};  ///< as in FitOptions; in training alone
};

}  // namespace tutti
