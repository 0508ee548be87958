#include "tutti/train/model/batch_norm_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>

#include "tutti/base/error.h"
#include "tutti/data/dataset.h"

namespace tutti {

namespace {

/// A batch norm that is frozen whole takes no statistics of a batch.
bool infers(const nn::Node& norm) {
  return std::ranges::all_of(norm.parameters, [](const nn::Parameter& parameter) {
    return parameter.frozen || !parameter.trainable;
  });
}

const nn::Node* batch_norm_over_one_pixel(const nn::Graph& graph) {
  for (const nn::Node& node : graph.nodes()) {
    const auto* norm = std::get_if<nn::op::BatchNorm2d>(&node.op);
    const bool of_one_part = norm != nullptr && !norm->synchronized && !infers(node);
    if (of_one_part && node.shape[1] == 1 && node.shape[2] == 1) return &node;
  }
  return nullptr;
}

/// The first replica whose share of a batch is one sample.
std::optional<int> alone(int64_t batch, const SharedBatches& batches) {
  for (int rank = 0; rank < batches.replicas; ++rank) {
    if (data::share(batch, batches.replicas, rank, batches.shares).size() == 1) return rank;
  }
  return std::nullopt;
}

int64_t last_batch(int64_t samples, int64_t global_batch) {
  return samples % global_batch == 0 ? global_batch : samples % global_batch;
}

/// The nearest global batch with which nobody is alone; 0: there is none.
int64_t one_that_works(const SharedBatches& batches) {
  const auto works = [&](int64_t size) {
    return size >= batches.replicas && size <= batches.samples && !alone(size, batches) &&
           !alone(last_batch(batches.samples, size), batches);
  };
  const int64_t here = std::min(batches.global_batch, batches.samples);
  for (int64_t away = 1; away <= batches.samples; ++away) {
    if (works(here + away)) return here + away;
    if (works(here - away)) return here - away;
  }
  return 0;
}

}  // namespace

std::string objection_of_batch_norms_to(const nn::Graph& graph, const SharedBatches& batches) {
  const nn::Node* norm = batch_norm_over_one_pixel(graph);
  if (norm == nullptr) return {};
  const int64_t full = std::min(batches.global_batch, batches.samples);
  const int64_t last = last_batch(batches.samples, batches.global_batch);
  const int64_t per_epoch = (batches.samples - 1) / batches.global_batch + 1;

  std::optional<int> rank = alone(full, batches);
  std::string which = fmt::format("batches of {}", full);
  if (!rank && batches.steps >= per_epoch) {
    rank = alone(last, batches);
    which = fmt::format("the last batch of {}", last);
  }
  if (!rank) return {};
  const int64_t other = one_that_works(batches);
  return fmt::format(
      "\"{}\" is a batch norm over one pixel and needs two samples, since one value has no "
      "variance; replica {} of {} would get 1 sample of {}\n  {}",
      norm->name, *rank, batches.replicas, which,
      other > 0
          ? fmt::format("try a global batch size of {}", other)
          : fmt::format("no batch size serves {} samples: use more of them, or fewer replicas",
                        batches.samples));
}

void require_batch_norm_input(std::string_view operation, const nn::Graph& graph,
                              const SharedBatches& batches) {
  if (const std::string why = objection_of_batch_norms_to(graph, batches); !why.empty())
    throw UsageError(fmt::format("{}: {}", operation, why));
}

}  // namespace tutti
