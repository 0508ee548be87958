/// Pipeline: carries out a schedule (layout/schedule.h) on stages of a model that lie on several
/// ranks: microbatches flow forward and gradients back, as messages between ranks.
///
///   Pipeline pipeline(group, mesh::one_f_one_b({.ranks = 4, .microbatches = 8}), {my_stage},
///   {}); auto sums = pipeline.step({.sizes = std::vector<int64_t>(8, 16),
///                              .inputs = [&](int i) { return std::vector{images[i]}; },
///                              .loss = [&](int i, at::TensorList y) { return loss(y[0], i); }});
///
/// Schedule, number of stages and ranks change no bit of what comes out: microbatch i is leaf i of
/// the one tree of summation, ReductionShape::flat(m). So m microbatches, m a power of two, also
/// give the bits of m data replicas of one microbatch each. docs/design/pipeline.md.
///
/// Tensors between stages are on the CPU.
///
/// Thread rule: as its group, one thread a rank. Every rank makes the same calls in the same order.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "tutti/comm/group/group.h"
#include "tutti/mesh/schedule.h"
#include "tutti/nn/sample_context.h"
#include "tutti/parallel/stages/stage.h"

namespace tutti::parallel {

struct PipelineOptions {
  Millis limit = kDefaultTimeLimit;  ///< of each wait for another rank
  /// Called after each action of the schedule, also where its microbatch is empty. forward() has
  /// the Fs alone.
  std::function<void()> after_action{};
};

class Pipeline {
 public:
  /// Collective. `group` has a member for each rank of the schedule, and is the pipeline's alone
  /// while it works: messages of its own would need other tags. `chunks`: the stages of this rank,
  /// by chunk.
  ///
  /// Throws DataError for a schedule with a fault (mesh::check) and UsageError for stages that do
  /// not fit the schedule, where they are; Mismatch that names ranks and stages on all ranks that
  /// have no fault of their own, and where ranks have unlike schedules, neighbours unlike borders,
  /// or a tie is at one end alone.
  Pipeline(Group group, mesh::Schedule schedule, std::vector<Stage> chunks,
           PipelineOptions options);
  ~Pipeline();
  Pipeline(Pipeline&&) noexcept;
  Pipeline& operator=(Pipeline&&) noexcept;

  struct Batch {
    /// Samples of each microbatch of the schedule, the same on all ranks; 0: nothing is computed or
    /// sent for it.
    std::vector<int64_t> sizes;
    /// Asked on the rank of the first stage, in order: what Stage::forward gets.
    std::function<std::vector<at::Tensor>(int microbatch)> inputs;
    /// Asked on the rank of the last stage, once a microbatch, in order: one element, with its
    /// graph. Divide it by what all microbatches have together: sums are all that is made of it.
    std::function<at::Tensor(int microbatch, at::TensorList outputs)> loss;
    /// Where microbatch 0 begins. Set, forward and loss run in an nn::SampleContext of their
    /// microbatch's first row, in which calls are numbered on from stage to stage.
    std::optional<nn::SamplePlace> place;
  };

  /// Sums over the microbatches: for each chunk the trained ones of module->parameters(), each
  /// once, in order, in memory of their own. Undefined: none of the microbatches used it, or it is
  /// the copy of a tied parameter, whose gradient is part of its owner's. Parameters' own grad() is
  /// neither read nor written. Modules are in training mode or not, as the caller left them.
  ///
  /// Stages do not write into their inputs. Of a span with `recompute`, forward is a function of
  /// inputs, parameters, SampleContext and the generator that LibTorch's operators draw from, which
  /// is put back to where it was in the first pass; UsageError for layers in training mode with
  /// running statistics.
  ///
  /// Throws Timeout, PeerLost and Mismatch that say which stage waited for what of which other
  /// ("stage 2 (rank 2) waited for F of microbatch 3 from stage 1 (rank 1): ..."), and what the
  /// functions above throw. The group has failed then.
  std::vector<std::vector<at::Tensor>> step(const Batch& batch);

  /// Forward alone, without gradients; batch.loss is not asked. `take` is called on the rank of
  /// the last stage, in order. Throws as step().
  void forward(const Batch& batch,
               const std::function<void(int microbatch, std::vector<at::Tensor> outputs)>& take);

  /// After an update: the copies of tied parameters get their owners' new values. Collective;
  /// throws as step().
  void send_ties();

  const mesh::Schedule& schedule() const noexcept;

 private:
  class Executor;
  std::unique_ptr<Executor> executor_;
};

}  // namespace tutti::parallel
