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
#include <string>
#include <vector>

#include "tutti/base/array.h"
#include "tutti/nn/graph.h"
#include "tutti/optim/rule.h"
#include "tutti/pjrt/client.h"
#include "tutti/train/losses/losses.h"

namespace tutti {

struct CompiledOptions {
  int replicas = 1;                 ///< from 1 to the client's devices
  DType product = DType::float32;   ///< or bfloat16: of what products are made
  uint64_t seed = 0;                ///< of dropouts' masks
  bool outputs = false;             ///< steps give the model's outputs too, for metrics
  Millis limit{kDefaultTimeLimit};  ///< of the waits in values() and predict()
};

/// What one replica gets of a batch.
struct CompiledPart {
  std::vector<Array> inputs;  ///< of graph.inputs(): [rows, shape...]
  Array target;               ///< [rows, ...]: int64 labels, or float32
  int64_t rows() const { return inputs.empty() ? 0 : inputs[0].shape().at(0); }
};

/// A step that may still be on its way.
class CompiledResult {
 public:
  /// The mean over the rows of all replicas, as fit() has it: where a loss leaves labels out, over
  /// the others. Timeout after the deadline names the devices that are
  /// not done; Error: what one said.
  double loss(const Deadline& deadline) const;

  /// Of each replica, its rows alone: [rows, ...]. UsageError unless CompiledOptions::outputs.
  std::vector<Array> outputs(const Deadline& deadline) const;

 private:
  friend class CompiledTrainer;
  CompiledResult() = default;
  pjrt::Results results_;
  std::vector<int64_t> rows_;
  double scale_ = 0;  ///< of the sum of the rows' losses
  int loss_place_ = 0, output_place_ = -1;
};

class CompiledTrainer {
 public:
  /// Parameters and buffers are 0 until load(), states as the rule begins them. UsageError, before
  /// anything is compiled, for what cannot be (lower_step), and for more replicas than devices.
  CompiledTrainer(nn::Graph graph, Loss loss, optim::Rule rule, pjrt::Client client,
                  CompiledOptions options = {});
  ~CompiledTrainer();
  CompiledTrainer(CompiledTrainer&&) noexcept;

  /// Puts values in their places on every device: parameters, buffers and states
  /// ("conv1.weight.exp_avg") by name; others stay. UsageError for a name that is not there, and
  /// for another type or shape.
  void load(const std::map<std::string, Array>& values);
  /// So many updates have been made: those of optimizers that correct their bias, and masks, go on
  /// from there.
  void set_updates(int64_t updates);
  int64_t updates() const;

  /// Parameters, states and buffers, from the first replica; floating buffers are the mean over
  /// replicas. Waits for the steps that are on their way.
  std::map<std::string, Array> values() const;

  /// Starts an update by a batch: a part for each replica, which may have different numbers of
  /// rows, also none, but not all of them. UsageError for parts of other shapes or types.
  CompiledResult step(const std::vector<CompiledPart>& parts, double learning_rate);

  /// What the model gives in evaluation, computed by the first device: [rows, ...] of each output.
  std::vector<Array> predict(const std::vector<Array>& inputs);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tutti
