/// Model: a network that is trained, tested and used under a strategy.
///
///   tutti::Model model(strategy, [] { return tutti::models::doodle_cnn({.classes = 10}); });
///   model.compile({.optimizer = tutti::optim::adam(), .loss = ..., .metrics = {...}});
///   model.fit(train, {.epochs = 5, .validation = test});
///   model.save("doodle.safetensors");
///
/// The factory is the scope: what it makes is made once per replica. Under multi_worker every
/// worker makes the same calls in the same order. Thread rule: one thread, that of its strategy.
#pragma once

#include <torch/nn/module.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/data/dataset.h"
#include "tutti/data/loader/loader.h"
#include "tutti/nn/precision.h"
#include "tutti/parallel/model/model_layout.h"
#include "tutti/strategy/choice/measures.h"
#include "tutti/strategy/modules/replicated.h"
#include "tutti/train/callbacks/callbacks.h"
#include "tutti/train/callbacks/schedules.h"
#include "tutti/train/losses/losses.h"
#include "tutti/train/metrics/metrics.h"
#include "tutti/train/model/detail/erased_model.h"
#include "tutti/train/model/detail/late_state.h"
#include "tutti/train/model/large_batch.h"
#include "tutti/train/report/history.h"
#include "tutti/train/report/progress.h"

namespace tutti {

/// One of tutti's rules, with clipping and parameter groups where wanted, trained by the fused
/// step; or any torch optimizer.
using OptimizerChoice = std::variant<optim::Recipe, TorchOptimizerFactory>;

/// What trains and scores one output of a model that has several.
struct OutputOptions {
  std::string name;  ///< the graph's; before what History and Scores show: "kind_accuracy"
  Loss loss;
  double weight = 1;  ///< of this loss in the sum that is minimised: finite, >= 0
  std::vector<Metric> metrics{};
};

/// Columns of the data are inputs, then targets, then maybe weights of samples: one column an input
/// and one an output, in the order of the graph's inputs and of `outputs`.
struct CompileOptions {
  OptimizerChoice optimizer = optim::adam();
  std::optional<Loss> loss{};  ///< of the model's only output
  /// Take outputs for logits where the loss does, unless they say otherwise: then UsageError.
  std::vector<Metric> metrics{};
  /// Rate of each step, in place of the optimizer's own; step: updates applied before it.
  std::optional<RateSchedule> learning_rate{};
  /// Of forward passes in fit, evaluate and predict; parameters, losses and metrics are float32.
  Precision precision = Precision::float32;
  /// Of losses, before backward(); steps that overflow are left out (Optimizer::scale_losses).
  /// Unset: losses are not scaled, which float32 and bfloat16 do not need.
  std::optional<optim::LossScaling> loss_scaling{};
  /// In place of loss and metrics. Of a graph, those of its outputs that are trained; of a module
  /// of one's own, the first tensors that forward gives, in its order. "loss" is then the weighted
  /// sum, and each output has its "NAME_loss" beside its metrics.
  std::vector<OutputOptions> outputs{};
  int64_t num_inputs = 1;  ///< of a module of one's own: columns that go in; a graph knows its own
  std::optional<LargeBatch> large_batch{};  ///< for batches beyond those that a rate was found for
  Measures measures{};                      ///< what is measured beside the training
  /// tpu: steps, 1 to 1,000, that one run of a program makes; their figures, and what callbacks
  /// decide by them, come with the last. UsageError above 1 elsewhere.
  int64_t steps_per_execution = 1;
};

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
  /// Who computes batches ahead, of training and validation: workers, bytes, batches ahead, what
  /// becomes of damaged samples (data/loader/loader.h). History::input says who waited for what.
  data::LoaderOptions loader{};
  int64_t batch = 32;  ///< of fit(inputs, targets), >= 1: the global batch
};

/// What weighs the samples of one batch; one of the two.
struct BatchWeights {
  at::Tensor sample_weights{};               ///< [batch] float32, finite, >= 0
  std::map<int64_t, double> class_weight{};  ///< as in FitOptions; in training alone
};

/// What evaluate() gives: the loss as a mean, and the metrics, of all samples.
struct Scores {
  double loss = 0;
  NamedValues metrics;  ///< those that are one number
  int64_t samples = 0;
  std::vector<std::pair<std::string, Matrix>> matrices{};  ///< the others
  /// The metric of that name; UsageError with the nearest one.
  double at(std::string_view metric) const;
  Matrix matrix(std::string_view metric) const;
};

class Model {
 public:
  /// `factory()` returns an nn::Graph, a ModuleHolder, a shared_ptr<Module> or a Module whose
  /// forward takes one or several tensors, and gives them. Ranks whose models differ get a
  /// Mismatch. On a mesh with stages or pieces of layers, and where layers are cut into blocks, it
  /// is an nn::Graph or a Sequential, dealt out as `layout` says: else, and for a layout that does
  /// not fit, UsageError. Without ModelLayout::input a Sequential is dealt out when data comes.
  template <class Factory>
  Model(Strategy strategy, Factory factory, const parallel::ModelLayout& layout = {})
      : Model(std::move(strategy),
              ErasedFactory([factory]() mutable { return detail::erase(factory()); }), layout) {}

  /// What to train with. Again: a new optimizer with fresh state. Throws UsageError without a loss,
  /// for outputs that the graph does not have, twice the same, or a weight out of range, and for
  /// two metrics of one name, or one called as a column of History; for a large batch with a torch
  /// optimizer, and a measure where nothing gives it.
  void compile(CompileOptions options);

  /// Trains. A last column of the data, after inputs and targets, is a weight a sample, [] float32:
  /// it multiplies the sample's loss, which is still divided by the number of samples. The batches
  /// of each epoch come from (seed, epoch) alone; the last, partial one counts by its true size.
  /// Where workers are not in step (parameter servers with a staleness) each batch is one worker's,
  /// `max_steps` counts the updates of all, and the chief alone validates. Ends after the running
  /// step with Interrupted when a signal asked for it (base/stop.h). Throws UsageError before the
  /// first step when options, data and model do not fit, or all parameters are frozen; in it when
  /// forward fails, with the layer or the module's parts, and what it got; in any when a loss does
  /// not depend on what is trained. Mismatch before the first step, on every worker, when one was
  /// asked for another training (options, seed, optimizer, names of losses, numbers of the data),
  /// where all workers meet in every step. Error when the loss is not finite, unless told to go on;
  /// what the strategy throws.
  History fit(const data::Dataset& train, FitOptions options = {});

  /// The same on tensors of the CPU, inputs [samples, ...] and targets [samples, ...]: shuffled
  /// anew in each epoch, in batches of `options.batch`.
  History fit(const at::Tensor& inputs, const at::Tensor& targets, FitOptions options = {});

  /// Loss and metrics over a dataset, with the replicas' buffers averaged. Needs compile().
  /// verbose: 0 silent; 1 a bar on stderr meanwhile, where that is a terminal.
  Scores evaluate(const data::Dataset& dataset, const data::LoaderOptions& loader = {},
                  int verbose = 0);

  /// One step of fit() on one global batch, of which every replica takes its part: the weights that
  /// fit() gets from the same batches, and loss and metrics of this batch alone, before the update.
  /// Every worker gives the whole batch. inputs [batch, ...], targets [batch, ...], on the CPU.
  /// Throws what fit() throws; UsageError where workers are not in step.
  Scores train_on_batch(const at::Tensor& inputs, const at::Tensor& targets,
                        const BatchWeights& weights = {});
  /// With one tensor for each input, and one for each of CompileOptions::outputs.
  Scores train_on_batch(const std::vector<at::Tensor>& inputs,
                        const std::vector<at::Tensor>& targets, const BatchWeights& weights = {});
  /// Loss and metrics of one global batch, as evaluate() gives them.
  Scores test_on_batch(const at::Tensor& inputs, const at::Tensor& targets,
                       const at::Tensor& sample_weights = {});
  Scores test_on_batch(const std::vector<at::Tensor>& inputs,
                       const std::vector<at::Tensor>& targets,
                       const at::Tensor& sample_weights = {});

  /// Outputs for all samples of a dataset's epoch 0, in its order, [samples, ...]; for a batch of
  /// inputs, [batch, ...], computed by this worker's first replica. In evaluation mode.
  /// UsageError when the model has several outputs, and for a dataset when one of them has not as
  /// many rows as samples went in.
  at::Tensor predict(const data::Dataset& dataset);
  at::Tensor predict(const at::Tensor& inputs);
  /// The same of a model with several inputs or outputs: a tensor for each output.
  std::vector<at::Tensor> predict_all(const data::Dataset& dataset);
  std::vector<at::Tensor> predict_all(const std::vector<at::Tensor>& inputs);

  /// Parameters and merged buffers as safetensors; rank 0's worker writes, of a graph NAME.json for
  /// load_model() beside NAME.safetensors too. Earlier files stay when that fails, which is an
  /// error on every worker. Rows of embedding tables are not in it: a warning names the tables.
  void save(const std::filesystem::path& path);
  /// Into all replicas. Of a checkpoint the rows of embedding tables too, with the state of their
  /// optimizer, where compile() has made such tables in this process; tables that stay as they are
  /// a warning names, with the reason. Behind compile() on parameter servers it begins another
  /// training there, of the loaded values; UsageError once they have trained the model. Throws
  /// DataError that lists what does not fit; then nothing has changed, unless it is in rows.
  void load(const std::filesystem::path& path);

  /// Of parameters and merged buffers (weights.h). Equal on all workers.
  std::string weights_sha256();

  /// A table of layers, output shapes and parameters. Shapes are those of a graph; of a Sequential
  /// when it is told that of a sample ({1, 28, 28}), of which it is given one of zeros, float32;
  /// other modules have their parts without them. UsageError for a shape that a layer does not
  /// take. Below it how many are trained and frozen, elements in buffers, and the bytes of a
  /// replica; parameters and states are there once for all replicas that share memory
  /// (docs/design/fused_step.md). Rows of embedding tables do not count.
  std::string summary(const std::vector<int64_t>& sample = {}) const;

  Strategy strategy() const;
  const ReplicatedModules& modules() const;
  /// Updates so far; UsageError before compile().
  Optimizer& optimizer();

  struct State;

 private:
  using ErasedFactory = std::function<detail::ErasedModel()>;
  Model(Strategy strategy, ErasedFactory factory, const parallel::ModelLayout& layout);
  void take_input_of(const data::Dataset& data);

  detail::LateState<State, CompileOptions> state_;
};

}  // namespace tutti
