/// A manifest and tensors as a training of two replicas in two workers writes them, in memory.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "tutti/checkpoint/detail/names.h"
#include "tutti/checkpoint/manifest.h"
#include "tutti/checkpoint/state.h"

namespace tutti::test {

inline CheckpointManifest sound_manifest() {
  CheckpointManifest m;
  m.step = 14;
  m.version = 14;
  m.epoch = 3;
  m.step_in_epoch = 2;
  m.seed = 7;
  m.global_batch = 8;
  m.num_samples = 30;
  m.steps_per_epoch = 4;
  m.strategy = "multi_worker";
  m.replicas = 2;
  m.workers = 2;
  m.reduction_shape = "2";
  m.samples_sha256 = std::string(64, 'a');
  m.optimizer = "adam";
  m.learning_rate = 0.01;
  m.losses = "crossentropy";
  m.precision = "float32";
  m.metrics = {"loss"};
  m.tables = {"embedding table \"user\": 3 float32 a row"};
  m.columns = {"train_loss", "seconds"};
  m.train_seconds = 1.5;
  m.values = {{"train_loss", 0.25}};
  m.kept = {{"callbacks", R"({"0 early_stopping":"[1]"})"}, {"loss_scale", "[65536.0,12.0,0.0]"}};
  m.lives = "0123456789abcdef";
  m.files = {{"part-0-of-2.safetensors", 100, std::string(64, 'b')},
             {"part-1-of-2.safetensors", 90, std::string(64, '0')}};
  return m;
}

template <class T>
Array array_with(const std::vector<T>& values, std::vector<int64_t> shape) {
  Array array = Array::zeros(dtype_of<T>(), std::move(shape));
  std::ranges::copy(values, array.as<T>().begin());
  return array;
}

inline CheckpointTensors sound_tensors() {
  using namespace detail;
  CheckpointTensors all;
  const Array weight = array_with<float>({1, 2, 3, 4, 5, 6}, {2, 3});
  all[std::string(kParameters) + "linear.weight"] = weight;
  all[std::string(kKeptParameters) + "linear.weight"] = weight;
  all[std::string(kOptimizer) + "m/linear.weight"] = weight;
  all[std::string(kTables) + "0/keys"] = array_with<uint64_t>({4, 9}, {2});
  all[kScalars] = array_with<double>({0.01, 0.5, 0.25, 1, 14}, {1, 5});
  all[kHistoryRows] = array_with<double>({0.5, 1, 0.25, 1}, {2, 2});
  for (int rank = 0; rank < 2; ++rank) {
    all[buffer_name(rank, "norm.mean")] = array_with<float>({1, 2}, {2});
    all[buffer_name(rank, "norm.mean", kKeptBuffers)] = array_with<float>({1, 2}, {2});
    all[totals_name(rank)] = array_with<double>({16, 0, 1.5, 3, 1, 2, 16}, {7});
    all[kept_back_name(rank, "steps")] = array_with<int64_t>({14}, {});
    all[kept_back_name(rank, "residual/linear.weight")] = weight;
    all[replica_generator_name(rank)] = array_with<uint8_t>({1, 2, 3}, {3});
    all[generator_name(rank)] = array_with<uint8_t>({4, 5}, {2});
  }
  return all;
}

}  // namespace tutti::test
