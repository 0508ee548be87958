/// Trainings whose samples do not divide by the replicas, told in full by one string.
#pragma once

#include <fmt/format.h>
#include <torch/torch.h>

#include <cmath>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "tutti/train/model/model.h"

#include "tests/support/plain_training.h"

namespace tutti::test {

struct Uneven {
  int64_t samples;
  int replicas;
  int64_t batch;  ///< of all replicas

  std::string words() const {
    return fmt::format("{} samples, {} replicas, batch {}", samples, replicas, batch);
  }
};

/// Fewer samples than replicas, batches smaller than replicas, last batches of one, and all else.
inline std::vector<Uneven> uneven_cases(const std::vector<int>& replicas) {
  std::vector<Uneven> cases;
  for (const int64_t samples : {1, 2, 3, 5, 10, 17})
    for (const int count : replicas)
      for (const int64_t batch : {1, 2, 4, 7, 32}) cases.push_back({samples, count, batch});
  return cases;
}

/// Sample i of three classes: its number, then four features.
struct NumberedSamples {
  explicit NumberedSamples(int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      x.push_back(static_cast<float>(i));
      for (int64_t f = 0; f < 4; ++f)
        x.push_back(std::sin(static_cast<float>(i * 4 + f)) + (f == i % 3 ? 1.0F : 0.0F));
      y.push_back(i % 3);
      weights.push_back(0.25F + static_cast<float>(i % 5));
    }
  }
  int64_t count() const { return static_cast<int64_t>(y.size()); }
  data::Dataset plain() const {
    return data::from_arrays({data::array_of(x, {count(), 5}), data::array_of(y, {count()})});
  }
  data::Dataset weighted() const {
    return data::from_arrays({data::array_of(x, {count(), 5}), data::array_of(y, {count()}),
                              data::array_of(weights, {count()})});
  }

  std::vector<float> x, weights;
  std::vector<int64_t> y;
};

/// A module of a user's own, which neither needs to take an empty batch nor can: view() cannot
/// guess a length of no elements.
struct FeaturesNetImpl : torch::nn::Module {
  FeaturesNetImpl() {
    hidden = register_module("hidden", torch::nn::Linear(4, 8));
    last = register_module("last", torch::nn::Linear(8, 3));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor features = x.narrow(1, 1, 4).contiguous().view({x.size(0), -1});
    return last(torch::relu(hidden(features)));
  }
  torch::nn::Linear hidden{nullptr}, last{nullptr};
};
TORCH_MODULE(FeaturesNet);

/// How often each sample was trained on, by its number.
struct Seen {
  std::mutex mutex;
  std::map<int64_t, int> times;
};

/// Everything that `fit`, `evaluate` and `predict` say of one case, with all digits.
inline std::string uneven_story(const Strategy& strategy, const Uneven& uneven,
                                const OptimizerChoice& optimizer, const FitOptions& options = {},
                                bool weighted = false, Precision precision = Precision::float32) {
  Model model(strategy, [] { return FeaturesNet(); });
  model.compile({.optimizer = optimizer,
                 .loss = losses::sparse_categorical_crossentropy(),
                 .metrics = {metrics::accuracy(), metrics::f1()},
                 .precision = precision});
  const NumberedSamples samples(uneven.samples);
  const auto data = weighted ? samples.weighted() : samples.plain();
  FitOptions told = options;
  told.epochs = 2;
  told.verbose = 0;
  const History history = model.fit(data.shuffle().batch(uneven.batch), told);
  std::string story = fmt::format("{} {}", history.steps, history.images);
  for (const char* column : {"train_loss", "accuracy", "f1"})
    for (const double value : history.column(column)) story += fmt::format(" {:.17g}", value);
  const Scores scores = model.evaluate(data.batch(uneven.batch));
  story += fmt::format(" {} {:.17g} {:.17g}", scores.samples, scores.loss, scores.at("f1"));
  const at::Tensor outputs = model.predict(samples.plain().batch(uneven.batch));
  story += fmt::format(" {}x{}", outputs.size(0), outputs.size(1));
  for (int64_t i = 0; i < outputs.numel(); ++i)
    story += fmt::format(" {:.9g}", outputs.contiguous().data_ptr<float>()[i]);
  return story + " " + model.weights_sha256();
}

}  // namespace tutti::test
