/// Who takes part in `tutti_bench compare`: each trains a model for some steps and says its rate.
/// Thread rule: the main thread alone.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tutti/base/json.h"
#include "tutti/cli/bench/child.h"

#include "bench/compare/checkout.h"

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

inline const std::string kDdp = "PyTorch DDP, Gloo";
inline const std::string kOneProcess = "PyTorch, 2 threads";
inline const std::string kSeparate = "PyTorch, 2 that never talk";
inline const std::string kCompiled = "PyTorch compiled, 2 threads";
inline const std::string kCompiledRanks = "PyTorch compiled, DeepSpeed";
inline const std::string kJax = "JAX, 2 cores";
inline const std::string kJaxDevices = "JAX, 2 devices";
inline const std::string kJaxSeparate = "JAX, 2 that never talk";

/// All of them, by name.
const std::map<std::string, PeerPlan>& peer_plans();

/// What a peer needs besides PyTorch, and is left out without; empty where that is nothing.
std::string package_of(const std::string& name);

/// The processes of a plan, which stay and wait for commands as peer/talk.py has them.
class PeerProcesses {
 public:
  /// Throws Error when they do not start.
  PeerProcesses(PeerPlan plan, const std::string& data);
  /// Of each process. Throws Error when one ends.
  std::vector<Json> answers(const Json& command);
  const PeerPlan& plan() const noexcept { return plan_; }

 private:
  std::vector<std::string> command_of(int rank, const std::string& data) const;

  PeerPlan plan_;
  ScratchFile store_;  // through which ranks meet
  std::vector<cli::Child> children_;
};

std::unique_ptr<Contender> make_peers(const PeerPlan& plan, const std::string& data);
/// One replica in plain LibTorch with torch::optim (bench/plain_libtorch.cpp).
std::unique_ptr<Contender> make_plain_libtorch(const std::string& data);

}  // namespace tutti::bench
