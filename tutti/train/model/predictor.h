/// Predictor: a trained model that answers, for programs that do nothing else with it.
///
///   const auto predictor = tutti::Predictor::load("runs/doodles");
///   at::Tensor logits = predictor.predict(batch);           // from any thread, at the same time
///
///   const auto server = predictor.batched({.max_batch = 32});  // calls of many threads in one
///   pass
///
/// Thread rule: const functions may be called from any threads at the same time; copies share the
/// weights, which nobody changes. Each call computes on LibTorch's threads, as others do meanwhile:
/// at::set_num_threads(1) where many threads predict, or batched().
#pragma once

#include <torch/types.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/base/joined_calls.h"
#include "tutti/exported/from_export.h"
#include "tutti/nn/graph.h"

namespace tutti {

namespace detail {
class JoinedPredictions;
}

/// How calls of many threads are joined.
struct BatchingOptions {
  int64_t max_batch = 32;  ///< >= 1: rows of a pass; a call that has more is a pass of its own
  /// >= 0: how long the first call of a pass waits for others; 0: only what came during the pass
  /// before it is joined. A lone call takes so much longer.
  std::chrono::microseconds max_wait{1'000};
  /// After which a call that no pass has taken throws Timeout. A pass that has begun reads its
  /// inputs, and is waited for.
  Millis limit = kDefaultTimeLimit;
};

class Predictor {
 public:
  /// What find_saved_model() or find_saved_export() (saved_model.h) find: the folder of a training,
  /// a checkpoint, or a file of weights, with the graph or the .pt2 files beside them; or a .pt2
  /// file itself, with its own weights. On the CPU, in evaluation mode. Throws as these and
  /// module_of(), and as the other load().
  static Predictor load(const std::filesystem::path& place);

  /// A network that was written in Python, with `weights` as find_saved_model() takes them; empty:
  /// those of its file. UsageError where it has no graph of evaluation, or one that draws random
  /// numbers or changes what it keeps: calls would not be independent.
  static Predictor load(const FromExport& network, const std::filesystem::path& weights = {});

  /// Of a model with one input and output: [batch, input_shape...] to [batch, output_shape...], any
  /// batch, without gradients. Values as they go into the network: what becomes of photos and rows
  /// before is the caller's. UsageError for another shape or dtype, and for a model with several.
  at::Tensor predict(const at::Tensor& batch) const;

  /// A tensor for each of input_names(), all of one batch, to one for each of output_names().
  std::vector<at::Tensor> predict_all(const std::vector<at::Tensor>& inputs) const;

  /// The same model, whose calls are joined: rows that several threads ask for go through one
  /// forward pass, in one thread that the copies of what this gives share, and each call returns
  /// its own. A pass begins with max_batch rows, or when the first call has waited for max_wait.
  ///
  /// Answers are those of predict() of a batch of other calls' rows, too, whose number moves last
  /// bits. What a model throws for the rows of one call, that call alone throws: the others are
  /// computed again without. Calls that have begun when the last copy is destroyed end as any.
  /// UsageError for options that are out of range, and for a network of Python whose batch has a
  /// fixed size, or fewer rows than max_batch.
  Predictor batched(const BatchingOptions& options = {}) const;
  /// What batched() has joined until now; units are rows. UsageError for a predictor that joins
  /// none.
  CallCounts joined() const;

  const std::vector<std::string>& input_names() const noexcept { return parts_->inputs; }
  const std::vector<std::string>& output_names() const noexcept { return parts_->outputs; }

  /// UsageError for a network that was written in Python, which has none.
  const nn::Graph& graph() const;

 private:
  struct Parts {
    std::optional<nn::Graph> graph;
    std::vector<std::string> inputs, outputs;
    std::function<std::vector<at::Tensor>(at::TensorList)> forward;
    std::shared_ptr<const ExportedModule> exported{};     ///< null: of a graph
    std::shared_ptr<detail::JoinedPredictions> joined{};  ///< null: each call is a pass
  };
  std::vector<at::Tensor> outputs_of(at::TensorList inputs) const;
  explicit Predictor(Parts parts) : parts_(std::make_shared<const Parts>(std::move(parts))) {}
  std::shared_ptr<const Parts> parts_;
};

}  // namespace tutti
