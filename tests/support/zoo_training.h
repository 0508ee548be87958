/// Networks of the zoo, small enough to train a few steps in a test.
#pragma once

#include <torch/torch.h>

#include <cmath>
#include <string>
#include <vector>

#include "tutti/models/models.h"
#include "tutti/sync/tensors.h"
#include "tutti/train/model/model.h"

namespace tutti::test {

struct SmallNetwork {
  std::string name;
  nn::Shape input;
  double width;  ///< of its hidden layers
};

inline void PrintTo(const SmallNetwork& network, std::ostream* out) { *out << network.name; }

inline const std::vector<SmallNetwork>& small_zoo() {
  static const std::vector<SmallNetwork> all{
      {"alexnet", {3, 63, 63}, 1.0 / 32},
      {"doodle_cnn", {1, 28, 28}, 1},
      {"inception_v3", {3, 75, 75}, 1.0 / 16},
      {"lenet", {1, 28, 28}, 1},
      {"mlp", {1, 28, 28}, 1},
      {"resnet18", {3, 32, 32}, 1.0 / 8},
      {"resnet50", {1, 32, 32}, 1.0 / 16},
      {"vgg11", {1, 28, 28}, 1.0 / 32},
      {"vgg11_bn", {3, 32, 32}, 1.0 / 32},
      {"vit", {1, 28, 28}, 1},
      {"wide", {1, 28, 28}, 1.0 / 32},
  };
  return all;
}

/// Two batches of samples of three classes; of 5, two replicas get 3 and 2.
inline data::Dataset zoo_data(const nn::Shape& input, int64_t batch = 5) {
  const int64_t samples = 2 * batch;
  int64_t pixels = 1;
  std::vector<int64_t> shape{samples};
  for (const int64_t side : input) {
    pixels *= side;
    shape.push_back(side);
  }
  std::vector<float> x;
  std::vector<int64_t> y;
  for (int64_t i = 0; i < samples; ++i) y.push_back(i % 3);
  for (int64_t i = 0; i < samples * pixels; ++i) {
    x.push_back(std::sin(static_cast<float>(i % 9973) * (1 + static_cast<float>(i / pixels % 3))));
  }
  return data::from_arrays({data::array_of(x, shape), data::array_of(y, {samples})}).batch(batch);
}

struct ZooTraining {
  std::string before;  ///< weights_sha256()
  std::string after;
  double loss = 0;  ///< of the epoch
};

/// Four steps by fit() and one by train_on_batch(), on two replicas; `planned` or by autograd.
inline ZooTraining train_graph(const nn::Graph& graph, const std::string& kind,
                               bool planned = true) {
  Model model(Strategy({.kind = kind, .replicas = 2, .threads_per_replica = 1, .seed = 5}), [&] {
    auto module = nn::make_module(graph);
    module->set_planned(planned);
    return module;
  });
  model.compile({.optimizer = optim::adam({.learning_rate = 1e-3}),
                 .loss = losses::sparse_categorical_crossentropy()});
  ZooTraining training{.before = model.weights_sha256()};
  const auto data = zoo_data(graph.input_shape());
  const auto history = model.fit(data, {.epochs = 2, .verbose = 0});
  training.loss = history.column("train_loss").back();
  const auto batch = data.epoch({}).batch(1);
  model.train_on_batch(tensor_of(batch.columns[0]), tensor_of(batch.columns[1]));
  training.after = model.weights_sha256();
  return training;
}

inline ZooTraining train_of_zoo(const SmallNetwork& network, const std::string& kind,
                                bool planned = true) {
  return train_graph(
      models::model_by_name(network.name,
                            {.classes = 3, .input = network.input, .width = network.width}),
      kind, planned);
}

}  // namespace tutti::test
