/// Small models whose replicas are on the fake's devices.
#pragma once

#include <string>
#include <vector>

#include "tests/support/fake_cuda/fake_cuda_test.h"
#include "tests/unit/train/checkpointed.h"

namespace tutti {

/// Where the replicas of one training are.
struct DevicePlace {
  std::string kind;
  int replicas;
  std::string device;
  std::string shares_file{};
};

/// In turn on one device, on devices of their own, on parts of one.
inline const std::vector<DevicePlace>& device_places() {
  static const std::vector<DevicePlace> all{{"one_device", 1, "cuda:0"},
                                            {"one_device", 2, "cuda:1"},
                                            {"mirrored", 2, "cuda:0,1"},
                                            {"mirrored", 2, "cuda:0x2"}};
  return all;
}

inline Strategy strategy_at(const DevicePlace& place) {
  return Strategy({.kind = place.kind,
                   .replicas = place.replicas,
                   .threads_per_replica = 1,
                   .device = place.device,
                   .seed = 7,
                   .shares_file = place.shares_file});
}

/// With batch statistics, dropout, Adam and two metrics.
inline Model model_at(const DevicePlace& place) {
  Model model(strategy_at(place), [] { return graph_with_state(); });
  model.compile(adam_and_accuracy());
  return model;
}

inline std::string words_of(const DevicePlace& place) {
  return place.kind + " " + std::to_string(place.replicas) + " " + place.device;
}

}  // namespace tutti
