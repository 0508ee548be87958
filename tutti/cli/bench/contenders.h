/// Who takes part in `bench compare`: each trains a model for some steps and says its rate.
/// Thread rule: the main thread alone.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace tutti::cli {

struct Trial {
  std::string model;
  int64_t batch = 64;  ///< of one replica
  int64_t steps = 100;
  int64_t warmup = 20;
};

class Contender {
 public:
  virtual ~Contender() = default;
  /// Images per second over all its replicas. Throws Error when it fails.
  virtual double images_per_second(const Trial& trial) = 0;
  /// Samples of one of its steps.
  virtual int64_t step_images(const Trial& trial) const = 0;
};

inline constexpr int kReplicas = 2;  ///< of every comparison but that of one replica

/// ours: "mirrored", "multi_worker", or "one_device" (one replica). A process of its own each time.
std::unique_ptr<Contender> make_ours(const std::string& strategy, const std::string& data);

/// PyTorch's DDP: two processes of one thread. The peers stay and wait for the next trial.
std::unique_ptr<Contender> make_ddp(const std::string& data);
/// One PyTorch process with two threads and the global batch.
std::unique_ptr<Contender> make_one_process(const std::string& data);
/// Two PyTorch processes of one thread, side by side, that never talk.
std::unique_ptr<Contender> make_separate(const std::string& data);
/// One replica in plain LibTorch with torch::optim (bench/plain_libtorch.cpp).
std::unique_ptr<Contender> make_plain_libtorch(const std::string& data);

}  // namespace tutti::cli
