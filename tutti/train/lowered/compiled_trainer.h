/// CompiledTrainer: trains a Graph on the devices of a PJRT plugin, its whole step one program.
///
///   const auto client = pjrt::Client::open(pjrt::find_plugin("cpu"),
///                                          {.options = pjrt::options_for("cpu", 2)});
///   CompiledTrainer trainer(graph, losses::sparse_categorical_crossentropy(), optim::adam(),
///   client,
///                           {.replicas = 2});
///   trainer.load(values);                                   // parameters and buffers, by name
///   auto step = trainer.step({part0, part1}, 1e-3);         // starts it, and returns
///   double loss = step.loss(Deadline(limit));               // waits for it: a mean over the batch
///
/// Parameters, states of the optimizer and buffers stay on the devices. A program is compiled once
/// for a number of rows that a replica has, and serves smaller parts, too, filled up with rows that
/// count nothing. docs/design/pjrt.md.
/// Thread rule: one thread at a time.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/optim/rule.h"
#include "tutti/train/losses/losses.h"
#include "tutti/train/lowered/compiled_model.h"

namespace tutti {

/// What one replica gets of a batch.
struct CompiledPart {
  std::vector<Array> inputs;  ///< of graph.inputs(): [rows, shape...]
  Array target;               ///< [rows, ...]: int64 labels, or float32
  Array weights{};            ///< [rows] float32: what each row's loss counts; empty: 1
  int64_t rows() const { return inputs.empty() ? 0 : inputs[0].shape().at(0); }
};

/// A step that may still be on its way.
class CompiledResult {
 public:
  /// The mean over the rows of all replicas, as fit() has it: where a loss leaves labels out, over
  /// the others. Timeout after the deadline names the devices that are
  /// not done; Error: what one said.
  double loss(const Deadline& deadline) const;
  /// What loss() is the mean of: the sum over all rows of what they lose, times their weights.
  double sum(const Deadline& deadline) const;
  /// loss() over sum(); 0: no label counts.
  double scale() const noexcept { return scale_; }

  /// Of each replica, its rows alone: [rows, ...]. UsageError unless CompiledOptions::outputs.
  std::vector<Array> outputs(const Deadline& deadline) const;

 private:
  friend class CompiledTrainer;
  struct Run;
  CompiledResult() = default;
  std::shared_ptr<Run> run_;   ///< of the program, which may have made several steps
  int64_t number_ = 0;         ///< of this step among them
  std::vector<int64_t> rows_;  ///< by replica
  double scale_ = 0;           ///< of the sum of the rows' losses
};

class CompiledTrainer {
 public:
  /// Parameters and buffers are 0 until load(), states as the rule begins them. UsageError, before
  /// anything is compiled, for what cannot be (lower_step), and for more replicas than devices.
  CompiledTrainer(nn::Graph graph, Loss loss, optim::Rule rule, pjrt::Client client,
                  const CompiledOptions& options = {});
  ~CompiledTrainer();
  CompiledTrainer(CompiledTrainer&&) noexcept;

  /// CompiledModel::load() and values(): of states too, "conv1.weight.exp_avg".
  void load(const std::map<std::string, Array>& values);
  std::map<std::string, Array> values() const;
  /// So many updates have been made: those of optimizers that correct their bias, and masks, go on
  /// from there. Without scalars they are what that many updates at the rule's own rate make of
  /// them.
  void set_updates(int64_t updates, const std::optional<optim::StepScalars>& scalars = {});
  int64_t updates() const;
  const optim::StepScalars& scalars() const;
  /// Of dropouts' masks from the next step on.
  void set_seed(uint64_t seed);

  /// What take_back_left_out() makes of it all; waits for the steps that are on their way, and
  /// changes nothing.
  struct Made {
    int64_t updates = 0, left_out = 0;
    optim::StepScalars scalars{};
  };
  Made made() const;
  /// With CompiledOptions::leaves_out_bad: a step whose loss is not finite changes nothing on the
  /// devices, neither does any after it, until this is called. Returns how many steps were left
  /// out, which updates() does not count any more. Waits for the steps that are on their way.
  /// UsageError where it comes more than 4,096 steps late.
  int64_t take_back_left_out();

  /// Starts an update by a batch: a part for each replica, which may have different numbers of
  /// rows, also none, but not all of them. UsageError for parts of other shapes or types. Of
  /// several processes each gives the parts of its replicas, and process 0's rate counts:
  /// collective, so that nothing is begun which another process does not begin too.
  CompiledResult step(const std::vector<CompiledPart>& parts, double learning_rate);
  /// As many updates, one after the other, by one run of a program: the host has to do with the
  /// devices once. steps[number][replica], each at its own rate.
  std::vector<CompiledResult> steps(const std::vector<std::vector<CompiledPart>>& steps,
                                    const std::vector<double>& learning_rates);

  /// What a replica without rows takes.
  CompiledPart part_without_rows() const;
  /// UsageError for a part that step() does not take; what the loss throws for its targets, a
  /// RowError where it is one row's.
  void check(const CompiledPart& part) const;

  /// What the model gives in evaluation, computed by all devices: [rows, ...] of each output.
  std::vector<Array> predict(const std::vector<Array>& inputs);

  CompiledModel& model() noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tutti
