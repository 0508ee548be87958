/// What a loop of one's own has added to its Checkpoint, each as a Kept; not for users.
/// Thread rule: the thread of the loop, between runs.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tutti/base/json.h"
#include "tutti/checkpoint/detail/names.h"
#include "tutti/strategy/modules/replicated.h"
#include "tutti/strategy/values/variable.h"
#include "tutti/sync/replicated/detail/torch_state.h"
#include "tutti/sync/world.h"
#include "tutti/train/watch/detail/kept.h"

namespace torch::optim {
class LRScheduler;
}

namespace tutti {

class DistributedOptimizer;

namespace detail {

inline constexpr const char* kLoop = "loop";  ///< begins what is said

/// What was added under a name.
class KeptOfLoop : public Kept {
 public:
  /// `kind`: in words, of CheckpointManifest::loop; a loop goes on from the same ones.
  KeptOfLoop(std::string name, std::string kind) : name_(std::move(name)), kind_(std::move(kind)) {}
  std::string name() const override { return name_; }
  const std::string& kind() const noexcept { return kind_; }

 protected:
  /// For errors: the checkpoint and the name.
  std::string what(const CheckpointRead& read) const;
  /// What `of` makes of its words in what was read. DataError where they are not as it wants them.
  template <class Of>
  auto of_words(const CheckpointRead& read, Of of) const {
    try {
      return of(parse_json(read.manifest.kept.at(name_)));
    } catch (const JsonError& error) {
      throw read.damaged(name_, error.what());
    }
  }
  /// Tensors of what was read whose names begin with `prefix` are those that are there now:
  /// DataError that names each that is missing, not here, or of another dtype or shape (bytes may
  /// be of any length).
  void require_alike(const CheckpointRead& read, const std::string& prefix,
                     const NamedTensors& now) const;
  /// The same of the one that is called `name`.
  void require_alike(const CheckpointRead& read, const std::string& name,
                     const at::Tensor& now) const;

 private:
  void require_alike(const CheckpointRead& read, CheckpointTensors rest,
                     const NamedTensors& now) const;

  const std::string name_, kind_;
};

/// The modules of local replicas, or the one of this rank. Of those with adapters (nn/adapted.h)
/// the adapters, and in words which base these stand beside: it is to be there before the first
/// save.
class LoopModules final : public KeptOfLoop {
 public:
  LoopModules(std::string name, const World& world, std::vector<torch::nn::Module*> modules)
      : KeptOfLoop(std::move(name), kModule), world_(world), modules_(std::move(modules)) {}

  /// An Optimizer puts the parameters back, into its own memory.
  void updated() { updated_ = true; }
  const torch::nn::Module* first() const { return modules_[0]; }
  /// In checkpoints, of its parameter `own`.
  std::string parameter_name(const std::string& own) const;

  std::string words() const override;
  KeptTensors tensors() const override;
  void check(const CheckpointRead& read) const override;
  void load(const CheckpointRead& read) override;

 private:
  std::string buffer_of_rank(size_t local, const std::string& own) const;

  const World& world_;
  std::vector<torch::nn::Module*> modules_;
  mutable std::string words_;  // of a base, which never changes: once
  bool updated_ = false;
};

/// `modules`: that it trains.
std::unique_ptr<KeptOfLoop> loop_updater(const std::string& name, const World& world,
                                         Optimizer& optimizer, const LoopModules& modules);
/// `distributed`: that wraps it, or null.
std::unique_ptr<KeptOfLoop> loop_optimizer(const std::string& name, const World& world,
                                           torch::optim::Optimizer& optimizer,
                                           DistributedOptimizer* distributed, NameOf name_of);
std::unique_ptr<KeptOfLoop> loop_scheduler(const std::string& name,
                                           torch::optim::LRScheduler& scheduler);
std::unique_ptr<KeptOfLoop> loop_variable(const std::string& name, Variable& variable);
std::unique_ptr<KeptOfLoop> loop_tensor(const std::string& name, const at::Tensor& tensor);
/// int, int64_t, double.
template <class T>
std::unique_ptr<KeptOfLoop> loop_number(const std::string& name, T& number);
/// One for each local replica.
std::unique_ptr<KeptOfLoop> loop_own(const std::string& name, const World& world,
                                     std::vector<double>& each);
/// LibTorch's default generator of the CPU, of a loop without a Strategy.
std::unique_ptr<Kept> loop_generator(const World& world);

}  // namespace detail
}  // namespace tutti
