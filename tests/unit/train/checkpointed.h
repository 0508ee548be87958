/// A small training whose every kind of state is in checkpoints, and what must be equal of two.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "tutti/checkpoint/checkpoint.h"
#include "tutti/checkpoint/retention.h"
#include "tutti/train/callbacks/callbacks.h"

#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/train/small_model.h"

namespace tutti {

// Thrown by a callback: what cuts a training off, as far as fit can tell.
struct Cut : Error {
  using Error::Error;
};

inline Callbacks cut_after(int64_t step) {
  return {callbacks::lambda("cut", {.on_step_end = [step](Training& training) {
                              if (training.step() == step) throw Cut("cut");
                            }})};
}

// Batch statistics differ by replica, dropout draws by step, Adam has counts and two states.
inline nn::Graph graph_with_state() {
  const auto input = nn::input({1, 2, 2});
  auto x = nn::batch_norm2d()(nn::conv2d(6, 2)(input));
  return nn::Graph(input, nn::linear(3)(nn::dropout(0.3)(nn::flatten()(nn::relu()(x)))));
}

struct Setting {
  std::string kind = "mirrored";
  int replicas = 2;
  OptimizerChoice optimizer = optim::adam({.learning_rate = 0.01});
  Compression compression = {};
};

inline Model checkpointed_model(const Setting& c) {
  const Strategy strategy({.kind = c.kind,
                           .replicas = c.replicas,
                           .threads_per_replica = 1,
                           .seed = 7,
                           .compression = c.compression});
  Model model(strategy, [] { return graph_with_state(); });
  CompileOptions options = adam_and_accuracy();
  options.optimizer = c.optimizer;
  model.compile(options);
  return model;
}

inline data::Dataset pictures(int64_t count) { return three_classes(count, {1, 2, 2}); }

// 30 samples, batches of 8: four steps an epoch, the last one partial.
inline data::Dataset samples() { return pictures(30).shuffle().batch(8); }
inline data::Dataset flat_samples() { return three_classes(30).shuffle().batch(8); }

inline FitOptions three_epochs(CheckpointOptions checkpoints = {}) {
  return {.epochs = 3,
          .validation = pictures(9).batch(9),
          .verbose = 0,
          .checkpoints = std::move(checkpoints)};
}

/// All that must be equal: weights with buffers, and what History has but times.
struct Trained {
  std::string sha256;
  std::vector<std::vector<double>> columns;
  int64_t steps = 0;
  bool operator==(const Trained&) const = default;
  friend void PrintTo(const Trained& trained, std::ostream* out) {
    *out << trained.sha256.substr(0, 12) << ", " << trained.steps << " steps, "
         << ::testing::PrintToString(trained.columns);
  }
};

inline Trained trained_of(Model& model, const History& history) {
  Trained outcome{model.weights_sha256(), {}, history.steps};
  for (const std::string& name : history.columns)
    if (name != "seconds" && name != "images_per_second")
      outcome.columns.push_back(history.column(name));
  return outcome;
}

inline Trained straight(const Setting& c, FitOptions options = three_epochs()) {
  Model model = checkpointed_model(c);
  const History history = model.fit(samples(), std::move(options));
  return trained_of(model, history);
}

// Checkpoints of steps 10, 11 and 12.
inline void train_into(const std::filesystem::path& folder, CheckpointRetention retention = {}) {
  Model model = checkpointed_model({});
  model.fit(samples(),
            three_epochs({.folder = folder,
                          .every_steps = 1,
                          .newest_kept = retention.newest,
                          .best_kept = retention.best,
                          .monitor = retention.monitor.empty() ? "val_loss" : retention.monitor}));
}

inline Trained resumed_in(const std::filesystem::path& folder) {
  Model model = checkpointed_model({});
  const History history =
      model.fit(samples(), three_epochs({.folder = folder, .every_steps = 1, .resume = true}));
  return trained_of(model, history);
}

/// In the text of a file.
inline void replace_in(const std::filesystem::path& path, const std::string& from,
                       const std::string& to) {
  std::string text = get_bytes(path);
  const size_t at = text.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  put_bytes(path, text.replace(at, from.size(), to));
}

}  // namespace tutti
