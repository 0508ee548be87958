/// What stands behind a Model: shared by its .cpp files, not for users.
#pragma once

#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tutti/strategy/distributed_dataset.h"
#include "tutti/train/model.h"

namespace tutti {

namespace detail {

using Forward = std::function<at::Tensor(const at::Tensor&)>;

/// What compile() made.
struct Compiled {
  Optimizer optimizer;
  Loss loss;
  std::vector<Metric> metrics;
  std::optional<RateSchedule> rate;
  Precision precision;
  std::optional<int> num_states{};  ///< that the optimizer keeps for each parameter; unset: unknown

  /// `forward(x)` in this precision; outputs are float32.
  at::Tensor outputs(const Forward& forward, const at::Tensor& x) const;
};

/// Weights of the samples of a batch, [batch] float32, by its third column or by label; undefined:
/// all 1. Throws DataError for a weight that is negative or not finite, with its row.
at::Tensor sample_weights(std::span<const at::Tensor> columns,
                          const std::map<int64_t, double>& class_weight);

/// What the chief's callbacks want of a step.
enum class Stop : uint8_t { no, asked_for, failed };

/// What one replica has added up over the samples it saw.
struct Totals {
  double loss = 0;
  int64_t samples = 0;
  int64_t width = 0;           ///< of the outputs; 0: none seen yet
  std::vector<double> states;  ///< of all metrics, one behind the other; empty: no sample yet
  int signal = 0;              ///< that asked for an end
  Stop stop = Stop::no;        ///< a callback did
  int64_t bad_step = -1;       ///< first step whose loss was not finite

  /// Adds the metrics of some outputs; the loss is added by its kernel.
  void add_metrics(const std::vector<Metric>& all, const at::Tensor& output,
                   const at::Tensor& target);
  /// Adds loss, samples and states of `other`.
  void add(const Totals& other);

  /// Numbers that add up, with so many states (0 for those not there), and back.
  std::vector<double> packed(int64_t num_states) const;
  static Totals unpacked(std::span<const double> values);
};

/// Updates of so many batches, where `accumulate` of them make one; the last one may have fewer.
inline int64_t updates_of(int64_t batches, int64_t accumulate) {
  return (batches + accumulate - 1) / accumulate;
}

/// One training step on the only batch of `data`: what all replicas have added up.
Totals train_on_batch(Model::State& model, const data::Dataset& data, FitOptions options);

/// All that is known of some samples, by name.
Scores scores_of(const Totals& totals, const std::vector<Metric>& metrics);

/// How many states metrics have together, and whether that depends on the width of the outputs.
int64_t num_states(const std::vector<Metric>& metrics, int64_t width);
bool sized_by_width(const std::vector<Metric>& metrics);

/// Sums of all replicas of the world, added in the one order. Collective over workers.
Totals sum_over_world(Strategy& strategy, const std::vector<Metric>& metrics,
                      const PerReplica<Totals>& each);

/// The state of metric `number`; empty before the first sample.
std::span<const double> state_of(const Totals& totals, const std::vector<Metric>& metrics,
                                 size_t number);

/// Agrees over workers on whether anybody failed. Rethrows the own error; else names `what`.
/// Collective over workers.
void agree_on_failure(Strategy& strategy, const std::exception_ptr& own, const std::string& what);

/// Sum of one number a worker. Collective over workers.
double sum_over_workers(Strategy& strategy, double own);

/// Means as shown and kept: "loss" (with its prefix) and the metrics that are one number.
NamedValues means_of(const Totals& totals, const std::vector<Metric>& metrics,
                     const std::string& prefix);

}  // namespace detail

struct Model::State {
  State(Strategy strategy, std::function<detail::ErasedModel()> factory);

  const detail::Forward& forward(int local_rank) const;
  /// In the precision of compile(); before it in that of the parameters.
  at::Tensor outputs(int local_rank, const at::Tensor& inputs) const;
  detail::Compiled& require_compiled(std::string_view operation);

  /// Returns when the parameters are of one version, and there. Throws when they cannot be.
  void require_whole() const;

  /// Throws UsageError when the model cannot take this dataset; `needs_target` when it is scored.
  void check_data(std::string_view operation, const data::Dataset& dataset,
                  bool needs_target) const;

  /// Gives options their validation data where they ask for a split; returns the rest of `train`.
  data::Dataset split_off_validation(const data::Dataset& train, FitOptions& options) const;

  /// Throws UsageError when options, data and model do not fit.
  void check_fit(const data::Dataset& train, const FitOptions& options);

  Scores evaluate(const data::Dataset& dataset);
  void save(const std::filesystem::path& path);

  Strategy strategy;
  /// By module, since a resized world brings new replicas, whose factory runs later.
  std::shared_ptr<std::unordered_map<const torch::nn::Module*, detail::Forward>> forwards;
  ReplicatedModules modules;
  std::optional<nn::Graph> graph;
  std::optional<detail::Compiled> compiled;
};

}  // namespace tutti
