/// A small GPT that is trained on a mesh.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "tutti/models/gpt.h"
#include "tutti/strategy/input/from_tensors.h"
#include "tutti/train/model/model.h"

namespace tutti::test {

/// How a training is dealt out. Those with the same product of replicas and microbatches and the
/// same number of blocks train the same bits.
struct MeshCase {
  std::string mesh;
  int microbatches = 1;
  std::string pipeline = "1f1b";
  int chunks = 0;
  std::string recompute = "none";
  int blocks = 2;
  std::vector<std::string> cut{};
  std::string shard{};

  /// One word for a command line, and back.
  std::string word() const {
    return fmt::format("{};{};{};{};{};{};{};{}", mesh, microbatches, pipeline, chunks, recompute,
                       blocks, fmt::join(cut, "/"), shard);
  }
  static MeshCase from(const std::string& word) {
    std::vector<std::string> fields(1);
    for (const char c : word) c == ';' ? (void)fields.emplace_back() : fields.back().push_back(c);
    MeshCase one{fields[0], std::stoi(fields[1]), fields[2], std::stoi(fields[3]),
                 fields[4], std::stoi(fields[5])};
    one.shard = fields[7];
    std::istringstream cuts(fields[6]);
    for (std::string layer; std::getline(cuts, layer, '/');) one.cut.push_back(layer);
    return one;
  }
};
inline void PrintTo(const MeshCase& one, std::ostream* out) { *out << one.word(); }

constexpr int64_t kVocabulary = 65, kContext = 12;

inline nn::Graph small_gpt(bool tied = true, double dropout = 0.1, int64_t layers = 3) {
  return models::gpt({.vocabulary = kVocabulary,
                      .context = kContext,
                      .layers = layers,
                      .heads = 4,
                      .features = 16,
                      .tied = tied,
                      .dropout = dropout});
}

/// Its embeddings, the head that is tied to them, the first block, and some of the second are
/// frozen.
inline nn::Graph frozen_gpt() {
  return nn::with_frozen(small_gpt(),
                         {"transformer.w*", "transformer.h.0", "transformer.h.1.*.bias"});
}

/// Batches of 16, 16 and a last one of 5.
inline data::Dataset small_text() {
  torch::manual_seed(3);
  const auto text = torch::randint(0, kVocabulary, {37, kContext + 1}, at::kLong);
  return data::from_tensors(
             {text.narrow(1, 0, kContext).contiguous(), text.narrow(1, 1, kContext).contiguous()})
      .shuffle()
      .batch(16);
}

inline StrategyOptions options_of(const std::string& kind, const MeshCase& one) {
  return {.kind = kind,
          .threads_per_replica = 1,
          .seed = 11,
          .mesh = one.mesh,
          .shard = one.shard,
          // So that each larger parameter is a unit.
          .shard_bucket_bytes =
              one.shard.empty() ? StrategyOptions().shard_bucket_bytes : int64_t{2} << 10,
          .tensor_blocks = one.blocks};
}

inline Model make_model(const Strategy& strategy, const MeshCase& one, const nn::Graph& graph) {
  Model model(strategy, [graph] { return graph; },
              {.cut = parallel::before(one.cut),
               .schedule = parallel::schedule_choice(one.pipeline, one.chunks),
               .recompute = parallel::recompute_choice(one.recompute)});
  model.compile(
      {.optimizer = optim::Recipe{optim::adamw({.learning_rate = 0.01, .weight_decay = 0.1}),
                                  {},
                                  {{.pattern = "*.bias", .weight_decay = 0}}},
       .loss = losses::sparse_categorical_crossentropy({.from_logits = true}),
       .metrics = {metrics::accuracy()}});
  return model;
}

struct MeshTraining {
  std::string weights;
  std::vector<double> figures;  ///< of each epoch: losses and accuracies, of the validation too
};

/// 21 steps.
inline MeshTraining train_on_mesh(const std::string& kind, const MeshCase& one,
                                  const nn::Graph& graph = small_gpt()) {
  Model model = make_model(Strategy(options_of(kind, one)), one, graph);
  const auto data = small_text();
  const History history = model.fit(data, {.epochs = 7,
                                           .validation = data,
                                           .verbose = 0,
                                           .validation_freq = 7,
                                           .microbatches = one.microbatches});
  MeshTraining training{model.weights_sha256(), {}};
  for (const auto& row : history.rows)
    std::copy_if(row.begin(), row.end() - 2, std::back_inserter(training.figures),
                 [](double figure) { return !std::isnan(figure); });  // of the validation
  return training;
}

}  // namespace tutti::test
