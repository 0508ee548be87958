/// CompiledUpdater: of parameters that programs of a compiler update, on devices that LibTorch does
/// not know (strategy tpu). Here is the host's copy of them, with the state of the optimizer: what
/// evaluation by LibTorch, checkpoints and users read, brought up to date when they do.
///
/// Of several processes each has a copy, and nothing here waits for another. docs/design/pjrt.md.
/// Thread rule: that of Updater; all replicas of a process are of one thread.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tutti/sync/updater.h"

namespace tutti {

/// Who makes the steps of a CompiledUpdater.
class CompiledSteps {
 public:
  /// As they are after every step that was begun, for which it waits, but for those that were left
  /// out. A process may ask for it alone: what all of them count stays as it is.
  struct Newest {
    /// Parameters, states ("conv1.weight.exp_avg") and buffers.
    std::map<std::string, at::Tensor> values;
    optim::StepScalars scalars;
    int64_t version = 0;
    int64_t left_out = 0;  ///< steps since, until take_back_left_out()
  };
  virtual Newest newest() = 0;
  /// The modules' buffers become those; the updater's parameters have done so.
  virtual void take_buffers(const Newest& newest) = 0;
  /// DeviceDecisions::forget_left_out().
  virtual int64_t take_back_left_out() = 0;

 protected:
  ~CompiledSteps() = default;
};

class CompiledUpdater final : public Updater,
                              public LateParameters,
                              public ParameterCopies,
                              public DeviceDecisions {
 public:
  /// `host`: the updater of the host's copy, which makes no step.
  CompiledUpdater(std::shared_ptr<Updater> host, optim::Rule rule);

  // ---- for who makes the steps ----
  /// From now on it is those; null: nobody. They outlive it, or take themselves away.
  void made_by(CompiledSteps* steps) noexcept { steps_ = steps; }
  void stepped(int64_t steps = 1) noexcept { ahead_ += steps; }
  /// Changes whenever the host's values were written: the devices are to load them again.
  int64_t writes() const noexcept { return writes_; }
  /// Those of the next step, as the host has them; UsageError where parameters differ in them.
  optim::StepScalars scalars() const;

  // ---- Updater ----
  /// UsageErrors: a function of LibTorch is not compiled.
  detail::GradientListener* begin(int replica, Overlap overlap) override;
  Verdict step(int replica, std::span<const at::Tensor> gradients, const Vote& vote,
               const Deadline& deadline) override;

  UpdaterView view(int replica) const override;
  void set_learning_rate(double learning_rate) override { host_->set_learning_rate(learning_rate); }
  void require_whole() const override { host_->require_whole(); }
  int64_t wire_bytes_per_step() const override { return 0; }
  UpdaterState state() const override;
  void restore(const UpdaterState& state, const NamedTensors& parameters) override;
  void rebind(const World& world, std::vector<NamedTensors> replicas) override;

  // ---- parts ----
  void complete() override { bring_back(); }
  void refresh() override { complete(); }
  void rethrow_failure() const override {}
  void take_over() override;
  void scale_losses(const optim::LossScale& scale) override;
  detail::DeviceLossScale* scale_of(int) const override { return nullptr; }
  int64_t forget_left_out() override;

 private:
  void bring_back() const;
  void take(const CompiledSteps::Newest& newest, const NamedTensors& parameters) const;
  NamedTensors parameters_here() const;

  std::shared_ptr<Updater> host_;
  optim::Rule rule_;
  CompiledSteps* steps_ = nullptr;
  mutable int64_t ahead_ = 0;  ///< steps that the devices have made, and the host's copy has not
  int64_t writes_ = 1;
};

std::shared_ptr<CompiledUpdater> make_compiled_updater(const World& world,
                                                       const optim::Recipe& recipe,
                                                       std::vector<NamedTensors> replicas);

/// What is said of a function of LibTorch under strategy tpu, behind "WHO: ".
inline constexpr const char* kNotCompiled =
    "strategy tpu compiles whole steps, and a function of LibTorch cannot be compiled; train an "
    "nn::Graph by Model (compile, fit), in a loop of your own by CompiledTrainer, or a program in "
    "StableHLO by ProgramTrainer (docs/guide/tpu.md)";

}  // namespace tutti
