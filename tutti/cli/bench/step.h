/// `tutti bench step`: what one training step costs, and where its time goes.
///
/// Measures the loop a user writes (Replicated, Optimizer::minimize, DistributedDataset), all steps
/// in one run(). Times are those of the worker's first replica. Thread rule: the main thread alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tutti/base/json.h"
#include "tutti/cli/train/job.h"

namespace tutti {
class Strategy;
}

namespace tutti::cli {

class TensorMemory;

struct StepFlags {
  JobFlags job;
  int64_t steps = 200;
  int64_t warmup = 20;
  bool preload = false;      ///< batches are made before the clock starts
  bool unfused = false;      ///< all-reduce, then an update on every replica
  bool by_autograd = false;  ///< layer by layer, not as planned
  std::string json;          ///< file; empty: none
  /// Behind those that are timed: their memory is counted.
  static constexpr int64_t kCountedSteps = 4;
  /// Steps that may meet a partial batch: those made before the clock starts are all whole.
  int64_t drawn_steps() const { return preload ? 0 : warmup + steps + kCountedSteps; }
};

/// How what is timed trains.
inline const FitFacts kTimed{.checkpoints = false};

/// Of a step over hosts that add up the gradients between them: what it is made of, and what of
/// that it hides.
struct OverHosts {
  int hosts = 0;
  double t1_ms = 0;       ///< the median step where nobody sends, of the slowest worker
  double t2_ms = 0;       ///< the median sum of all gradients while nobody computes
  double max_ms = 0;      ///< of both: what a step would be that hides all
  double exposed_ms = 0;  ///< by which a step is longer than t1
};

/// One step of the first replica: of those that were timed the one in the middle by how long they
/// took, of an even number the shorter of both.
struct MedianStep {
  double step_ms = 0;
  double data_ms = 0, compute_ms = 0, sync_ms = 0;  ///< in that order, one after another
};

/// Of the tensors that a step makes, all replicas of the process together, the most at one time:
/// activations, gradients, what operators need meanwhile.
struct StepMemory {
  /// By which the process had grown at most, since before the model was made and beyond one copy of
  /// its parameters, when the clock had stopped.
  int64_t resident = 0;
  int64_t planned = 0, by_autograd = 0;  ///< bytes; the same for a graph that is not planned
};

struct StepFigures {
  double images_per_second = 0;
  double step_ms_p50 = 0, step_ms_p99 = 0;
  double compute_ms = 0;  ///< forward and backward, mean of a step
  double sync_ms = 0;     ///< from the end of backward until the parameters are new
  double data_ms = 0;     ///< reading the replica's part of the batch
  MedianStep median;
  double loss = 0;                  ///< of the last step, over the global batch
  int64_t wire_bytes_per_step = 0;  ///< of gradients, that a replica sends
  int64_t gradient_bytes = 0;       ///< of one replica's
  StepMemory memory;
  std::optional<OverHosts> over_hosts{};
};

/// Trains under `strategy` and measures. Collective over workers; all of them get the same loss.
/// memory: for what a step's tensors take, made before the strategy; null: that is not counted.
StepFigures measure_steps(const StepFlags& flags, Strategy strategy, const nn::Graph& graph,
                          const data::Dataset& train, TensorMemory* memory);

/// The command: checks, starts workers where needed, prints a table and a JSON line, writes --json.
/// Besides Strategy's kinds it knows `independent`: each worker trains by itself on cores of its
/// own, all begin together, and images_per_second is their sum: the limit of any synchronous
/// training.
int bench_step(const StepFlags& flags);

}  // namespace tutti::cli
