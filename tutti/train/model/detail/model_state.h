/// What stands behind a Model: shared by its .cpp files, not for users.
#pragma once

#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tutti/strategy/input/distributed_dataset.h"
#include "tutti/strategy/membership/membership.h"
#include "tutti/train/model/added_losses.h"
#include "tutti/train/model/detail/laid_out.h"
#include "tutti/train/model/detail/large_batch.h"
#include "tutti/train/model/model.h"
#include "tutti/train/model/weights.h"

namespace tutti {

class ExportedModule;

namespace detail {

class PluginModel;

using Forward = std::function<Tensors(at::TensorList)>;

/// `forward`, which calls `module` and lives no longer; what LibTorch throws in it becomes a
/// UsageError with shapes and dtypes, and with the layer where the module is a Sequential.
Forward explained(const std::shared_ptr<torch::nn::Module>& module, Forward forward);

/// One output as compile() has it: what trains and scores it.
struct Goal {
  std::string name;  ///< empty: the model's only output
  size_t place = 0;  ///< in what forward gives
  Loss loss;
  double weight = 1;
  std::vector<Metric> metrics;

  /// What History and Scores call its metric, or "loss": "kind_accuracy".
  std::string quantity(const std::string& own) const {
    return name.empty() ? own : name + "_" + own;
  }
  /// UsageError when forward gave fewer, or several where the model has one loss.
  const at::Tensor& output(const Tensors& outputs) const;
};
using Goals = std::vector<Goal>;

/// Throws UsageError when they and the model do not fit, or two quantities have one name.
Goals goals_of(const CompileOptions& options, const std::optional<nn::Graph>& graph,
               const ExportedModule* exported = nullptr);

/// What compile() made.
struct Compiled {
  Optimizer optimizer;
  std::function<Optimizer()> make;  ///< another one, of the values that the modules have then
  Goals goals;
  std::optional<RateSchedule> rate;  ///< of a large batch: that of the last fit()
  Precision precision;
  std::string optimizer_words;      ///< optimizer_words() of what compile() was given
  std::string words;                ///< compile_words() of it; "" where nobody compares them
  std::optional<int> num_states{};  ///< that the optimizer keeps for each parameter; unset: unknown
  std::optional<LargeBatchParts> large_batch{};
  Measures measures{};
  int64_t steps_per_execution = 1;
  OwnStep train_step{}, test_step{};
  bool has_loss = true;  ///< compile() was given one, beside train_step

  /// `forward(x)` in this precision; outputs are float32.
  Tensors outputs(const Forward& forward, at::TensorList inputs) const;
};

/// Elements of a sample's target.
int64_t labels_a_sample(const at::Tensor& target);

/// The columns of a batch by what they are for.
struct BatchParts {
  at::TensorList inputs;
  at::TensorList targets;                   ///< one for each goal
  at::Tensor weights;                       ///< of samples, [batch] float32; undefined: all 1
  std::shared_ptr<const Tensors> masked{};  ///< the targets, where a mask has changed them
  Tensors own_weights{};  ///< by goal, in place of `weights`, where classes of several weigh
  AddedMetrics added{};   ///< what their forward pass has given add_metric()

  const at::Tensor& weights_of(size_t goal) const {
    return own_weights.empty() ? weights : own_weights[goal];
  }
};

/// By goal, the weights of its labels; empty: all weigh 1.
using LabelWeights = std::vector<std::map<int64_t, double>>;
/// What fit() was told of them.
LabelWeights label_weights_of(const Goals& goals, const FitOptions& options);

/// Whether the last of so many columns is a mask: which positions count.
bool has_mask(at::TensorList columns, int64_t num_inputs, const Goals& goals);

/// The targets among the columns; where there is a mask, with the loss's ignore_label in place of
/// the labels that do not count.
Tensors targets_of(at::TensorList columns, int64_t num_inputs, const Goals& goals);

/// `columns` stay the caller's. Weights are the last column's, or those of labels. Throws DataError
/// for a weight that is negative or not finite, with its row.
BatchParts parts_of(at::TensorList columns, int64_t num_inputs, const Goals& goals,
                    const LabelWeights& by_label = {});

/// What the sums of a step's losses are divided by: what all replicas have of it.
struct Divisors {
  double samples = 1;
  std::vector<double> counted{};  ///< by goal: labels that count; empty: no loss leaves any out

  /// What the sum of goal `number`'s LossKernel over some samples is multiplied by.
  double scale(const Goals& goals, size_t number, const at::Tensor& target) const;
};

/// A replica's part of a batch by a train_step or test_step of the user's: losses [samples], and
/// one tensor of outputs for the goal; `metrics`: what its passes gave add_metric(). UsageError
/// where it gives something else.
StepOutcome call_step(const Compiled& compiled, const OwnStep& step, torch::nn::Module& module,
                      const Forward& forward, const BatchParts& parts, AddedMetrics& metrics);

/// What the forward pass of `parts` has given add_loss(), [samples]; undefined: nothing. UsageError
/// where these goals have no place for it.
at::Tensor added_by_forward(const Goals& goals, const AddedLosses& added, const BatchParts& parts);

/// Has metrics::added() of this thread read `given` while it lives.
class GivenMetrics {
 public:
  explicit GivenMetrics(const AddedMetrics& given);
  ~GivenMetrics();
  GivenMetrics(const GivenMetrics&) = delete;
  /// UsageError for what no metric has read.
  void require_read() const;
  /// Of some samples; UsageError where nobody has given it.
  const at::Tensor& read(const std::string& name) const;

 private:
  const AddedMetrics& given_;
  mutable std::set<std::string> read_;
};

/// Whether the loss of a goal is a mean over what counts (LossKernel::counted).
bool counts_labels(const Goals& goals);

/// Throws UsageError when a metric needs more memory than there should be for it, of outputs of
/// `width` values; `operation` begins the message.
void require_room(std::string_view operation, const std::vector<Metric>& metrics, int64_t width);

/// Weights that a callback remembers.
struct KeptWeights {
  NamedTensors parameters;            ///< empty: none are kept
  std::vector<NamedTensors> buffers;  ///< by local replica
};

/// What the chief's callbacks want of a step.
enum class Stop : uint8_t { no, asked_for, failed };

/// What one output has added up.
struct OutputTotals {
  double loss = 0;
  double counted = 0;          ///< what the loss is divided by, where not by samples
  int64_t width = 0;           ///< of the outputs; 0: none seen yet
  std::vector<double> states;  ///< of all metrics, one behind the other; empty: no sample yet

  /// `sum` over the samples of `target`, as the kernel has added it.
  void add_loss(const LossKernel& kernel, const at::Tensor& target, double sum);
  /// `weights` of the samples, [samples] float32, or undefined.
  void add_metrics(const std::vector<Metric>& all, const at::Tensor& output,
                   const at::Tensor& target, const at::Tensor& weights = {});
  void add(const OutputTotals& other);
};

/// Updates of so many batches, where `accumulate` of them make one; the last one may have fewer.
inline int64_t updates_of(int64_t batches, int64_t accumulate) {
  return (batches + accumulate - 1) / accumulate;
}

/// What one replica has added up over the samples it saw.
struct Totals {
  std::vector<OutputTotals> outputs;  ///< one for each goal; empty: none seen yet
  int64_t samples = 0;
  int signal = 0;         ///< that asked for an end
  Stop stop = Stop::no;   ///< a callback did
  int64_t bad_step = -1;  ///< first step whose loss was not finite

  /// These samples' part of the loss to minimise, with a graph; adds their losses.
  at::Tensor add_losses(const Goals& goals, const Tensors& outputs, const BatchParts& parts,
                        const Divisors& by);
  /// The same without a graph.
  void add_losses(const Goals& goals, const Tensors& outputs, const BatchParts& parts);
  void add_metrics(const Goals& goals, const Tensors& outputs, const BatchParts& parts);
  /// Losses of the samples that are there already, [samples] for the only goal.
  void add_known(const at::Tensor& losses, const at::Tensor& weights);
  /// Adds losses, samples and states of `other`.
  void add(const Totals& other);

  /// Sum of the losses of all samples, outputs by their weights.
  double loss(const Goals& goals) const;
  /// Of the outputs of each goal; 0 where none was seen.
  std::vector<int64_t> widths(const Goals& goals) const;

  /// Numbers that add up, with as many states as outputs of these widths have (0 counts as 1), and
  /// back.
  std::vector<double> packed(const Goals& goals, std::span<const int64_t> widths) const;
  static Totals unpacked(const Goals& goals, std::span<const double> values);
  /// Why numbers from elsewhere are none that packed() can have made; "" when they may be.
  static std::string why_not_packed(const Goals& goals, std::span<const double> values);
};

/// Whether the number of states depends on the width of the outputs.
bool sized_by_width(const std::vector<Metric>& metrics);

/// Sums of all replicas of the world, added in the one order. Collective over workers.
Totals sum_over_world(Strategy& strategy, const Goals& goals, const PerReplica<Totals>& each);

/// Names of what is one number: loss, losses of named outputs, metrics.
std::vector<std::string> quantities_of(const Goals& goals);

/// Agrees over workers on whether anybody failed. Rethrows the own error; else names `what`.
/// Collective over workers.
void agree_on_failure(Strategy& strategy, const std::exception_ptr& own, const std::string& what);

/// Sum of one number a worker. Collective over workers.
double sum_over_workers(Strategy& strategy, double own);

/// Means as shown and kept, in the order of quantities_of().
NamedValues means_of(const Totals& totals, const Goals& goals);

/// All that is known of some samples, by name.
Scores scores_of(const Totals& totals, const Goals& goals);

/// One training step on the only batch of `data`: what all replicas have added up.
Totals train_on_batch(Model::State& model, const data::Dataset& data, FitOptions options);

}  // namespace detail

struct Model::State {
  State(Strategy strategy, std::function<detail::ErasedModel()> factory,
        const parallel::ModelLayout& layout);

  /// The first replica's, where the model is of a .pt2 file; null elsewhere.
  const ExportedModule* exported() const;
  const detail::Forward& forward(int local_rank) const;
  /// In the precision of compile(); before it in that of the parameters.
  detail::Tensors outputs(int local_rank, at::TensorList inputs) const;
  /// Whether a replica's layers are on several ranks, so that no rank has a forward of its own.
  bool has_stages() const { return strategy.world().mesh.size(mesh::Axis::stage) > 1; }
  detail::Compiled& require_compiled(std::string_view operation);
  /// The recipe in `choice`, and initial values, as a large batch wants them; adds words about it.
  OptimizerChoice changed_for(detail::LargeBatchParts& parts, const OptimizerChoice& choice) const;

  /// The parameters of the whole model: module 0's own, or, on a mesh, copies of what all ranks
  /// have. Collective over workers.
  NamedTensors parameters() const;
  /// What files have: parameters(), with adapters the weights that they give, and merged buffers.
  /// Collective over workers.
  ModelState weights() const;
  /// All that the whole model has, of which names, dtypes and shapes are read.
  ModelState shapes() const;

  /// Returns when the parameters are of one version, and there. Throws when they cannot be.
  void require_whole() const;
  void refresh() const;  ///< parameters that come late are the newest of all workers

  /// Throws UsageError when the model cannot take this dataset; `needs_target` when it is scored.
  void check_data(std::string_view operation, const data::Dataset& dataset,
                  bool needs_target) const;

  /// Gives options their validation data where they ask for a split; returns the rest of `train`.
  data::Dataset split_off_validation(const data::Dataset& train, FitOptions& options) const;

  /// Throws UsageError where nothing says what is evaluated.
  void require_test(std::string_view operation);
  /// Throws UsageError when options, data and model do not fit.
  void check_fit(const data::Dataset& train, const FitOptions& options);

  /// Why a batch norm cannot train on batches that are cut by these shares; "": it can.
  std::string objection_of_batch_norms(const data::Dataset& train, const FitOptions& options,
                                       std::span<const double> shares) const;

  /// `operation` begins what is said of a sample. `bar` is shown what replica 0 has done.
  Scores evaluate(std::string_view operation, const data::Dataset& dataset,
                  const data::LoaderOptions& loader, const Callbacks& callbacks,
                  EvaluationBar* bar = nullptr);
  void save(const std::filesystem::path& path);
  /// Parameters of all replicas were written otherwise than by an update: the next goes on from
  /// these.
  void weights_written();

  Strategy strategy;
  std::shared_ptr<detail::LaidOut> laid_out;
  /// By module, since a resized world brings new replicas, whose factory runs later.
  std::shared_ptr<std::unordered_map<const torch::nn::Module*, detail::Forward>> forwards;
  ReplicatedModules modules;
  std::optional<nn::Graph> graph;
  int64_t num_inputs = 1;
  std::optional<detail::Compiled> compiled;
  std::shared_ptr<detail::PluginModel> plugin;  ///< of strategy tpu; null elsewhere
};

}  // namespace tutti
