/// Who takes part in `tutti_bench compare`: each trains a model for some steps and says its rate.
/// Thread rule: the main thread alone.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace tutti::bench {

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

/// ours: "mirrored", "multi_worker", "independent" (two that never talk), or "one_device" (one
/// replica). A process of its own each time.
std::unique_ptr<Contender> make_ours(const std::string& strategy, const std::string& data);

/// Processes of a program in bench/peer, pinned to cores of their own.
struct PeerPlan {
  std::string program = "step.py";
  std::string mode;  ///< its first word; empty: it has none and makes a thread for each core
  int processes = 1;
  int threads = 1;         ///< of each, with as many times the batch
  bool talk = false;       ///< they are ranks of one job
  bool deepspeed = false;  ///< and add through DeepSpeed's shared memory
  int devices = 1;         ///< of each, which share its threads (JAX)
};
/// They stay and wait for the next trial. Throws Error when they do not start.
std::unique_ptr<Contender> make_peers(const PeerPlan& plan, const std::string& data);
/// One replica in plain LibTorch with torch::optim (bench/plain_libtorch.cpp).
std::unique_ptr<Contender> make_plain_libtorch(const std::string& data);

}  // namespace tutti::bench
