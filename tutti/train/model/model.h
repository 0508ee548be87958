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
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tutti/data/dataset.h"
#include "tutti/data/loader/loader.h"
#include "tutti/parallel/model/model_layout.h"
#include "tutti/strategy/modules/replicated.h"
#include "tutti/train/model/compile_options.h"
#include "tutti/train/model/detail/erased_model.h"
#include "tutti/train/model/detail/late_state.h"
#include "tutti/train/model/fit_options.h"
#include "tutti/train/model/load_options.h"
#include "tutti/train/report/history.h"
#include "tutti/train/report/progress.h"

namespace tutti {

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

  /// The same on tensors of the CPU, inputs [samples, ...] and targets [samples, ...], as Keras's
  /// fit(x, y): in batches of `options.batch`, shuffled anew in each epoch unless `options.shuffle`
  /// is false; validation_split takes the last samples, as they lie. UsageError, before anything is
  /// done, for tensors without samples, of unlike numbers of them, elsewhere than on the CPU, of a
  /// dtype that no column has, or that the model does not take.
  History fit(const at::Tensor& inputs, const at::Tensor& targets, FitOptions options = {});
  /// With one tensor for each input, and one for each of CompileOptions::outputs; a last target
  /// more is the weights of the samples, [samples] float32.
  History fit(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& targets,
              FitOptions options = {});

  /// Loss and metrics over a dataset, with the replicas' buffers averaged. Needs compile().
  /// verbose: 0 silent; 1 a bar on stderr meanwhile, where that is a terminal.
  Scores evaluate(const data::Dataset& dataset, const data::LoaderOptions& loader = {},
                  int verbose = 0, const Callbacks& callbacks = {});
  /// The same on tensors, as fit() takes them, in batches of `options.batch`, which change the time
  /// that it takes and no number.
  Scores evaluate(const at::Tensor& inputs, const at::Tensor& targets,
                  const PassOptions& options = {});
  Scores evaluate(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& targets,
                  const PassOptions& options = {});

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
  at::Tensor predict(const data::Dataset& dataset, const Callbacks& callbacks = {});
  at::Tensor predict(const at::Tensor& inputs);
  /// Inputs [samples, ...] in batches of `options.batch`, of which every replica takes its part:
  /// what predict() of a dataset of them gives. Every worker gives all inputs.
  at::Tensor predict(const at::Tensor& inputs, const PassOptions& options);
  /// The same of a model with several inputs or outputs: a tensor for each output.
  std::vector<at::Tensor> predict_all(const data::Dataset& dataset,
                                      const Callbacks& callbacks = {});
  std::vector<at::Tensor> predict_all(const std::vector<at::Tensor>& inputs);
  std::vector<at::Tensor> predict_all(const std::vector<at::Tensor>& inputs,
                                      const PassOptions& options);

  /// Parameters and merged buffers as safetensors; rank 0's worker writes, of a graph NAME.json for
  /// load_model() beside NAME.safetensors too. Earlier files stay when that fails, which is an
  /// error on every worker. Rows of embedding tables are not in it: a warning names the tables.
  void save(const std::filesystem::path& path);
  /// Into all replicas. Of a checkpoint the rows of embedding tables too, with the state of their
  /// optimizer, where compile() has made such tables in this process; tables that stay as they are
  /// a warning names, with the reason. Behind compile() on parameter servers it begins another
  /// training there, of the loaded values; UsageError once they have trained the model. Throws
  /// DataError that lists what does not fit; then nothing has changed, unless it is in rows.
  /// What `options` leave out stays as it is; what was left out is returned, and logged.
  LoadReport load(const std::filesystem::path& path, const LoadOptions& options = {});

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
