// All-reduce, then a step on every replica: for any torch optimizer, and for our own rules as the
// oracle of the fused step.

#include <torch/torch.h>

#include <atomic>

#include "tutti/comm/reduce_kernels.h"
#include "tutti/sync/gradient_reducer.h"
#include "tutti/sync/tensors.h"

namespace tutti {
namespace {

// What makes the step on one replica once its gradients are the sums.
class Stepper {
 public:
  virtual ~Stepper() = default;
  virtual void step(double learning_rate) = 0;
  virtual double learning_rate() const = 0;
  virtual std::unique_ptr<Stepper> clone_for(std::vector<at::Tensor> parameters) const = 0;
};

class TorchStepper final : public Stepper {
 public:
  TorchStepper(TorchOptimizerFactory factory, std::vector<at::Tensor> parameters)
      : factory_(std::move(factory)), optimizer_(factory_(std::move(parameters))) {
    if (!optimizer_) throw UsageError("the optimizer factory returned null");
  }

  // Groups with learning rates of their own keep them until somebody sets a new one.
  void step(double learning_rate) override {
    if (learning_rate != this->learning_rate())
      for (auto& group : optimizer_->param_groups()) group.options().set_lr(learning_rate);
    optimizer_->step();
  }

  double learning_rate() const override {
    return optimizer_->param_groups().at(0).options().get_lr();
  }

  std::unique_ptr<Stepper> clone_for(std::vector<at::Tensor> parameters) const override {
    return std::make_unique<TorchStepper>(factory_, std::move(parameters));
  }

 private:
  TorchOptimizerFactory factory_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

class RuleStepper final : public Stepper {
 public:
  RuleStepper(const optim::Rule& rule, std::vector<at::Tensor> parameters)
      : rule_(rule), parameters_(std::move(parameters)), scalars_(parameters_.size()) {
    for (const auto& parameter : parameters_)
      for (int state = 0; state < rule_.num_states(); ++state)
        states_.push_back(at::zeros_like(parameter, at::MemoryFormat::Contiguous));
  }

  void step(double learning_rate) override {
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const at::Tensor& gradient = parameters_[i].grad();
      if (!gradient.defined()) continue;
      scalars_[i] = rule_.next(scalars_[i], learning_rate);
      std::vector<void*> states;
      for (int k = 0; k < rule_.num_states(); ++k)
        states.push_back(states_[i * rule_.num_states() + k].data_ptr());
      rule_.update(dtype_of(gradient.scalar_type()), parameters_[i].data_ptr(), gradient.data_ptr(),
                   states, parameters_[i].numel(), scalars_[i]);
    }
    detail::bump_versions(parameters_);
  }

  double learning_rate() const override { return rule_.learning_rate(); }

  std::unique_ptr<Stepper> clone_for(std::vector<at::Tensor> parameters) const override {
    return std::make_unique<RuleStepper>(rule_, std::move(parameters));
  }

 private:
  optim::Rule rule_;
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> states_;
  std::vector<optim::StepScalars> scalars_;
};

using StepperFactory = std::function<std::unique_ptr<Stepper>(std::vector<at::Tensor>)>;

struct Lane {
  std::vector<at::Tensor> parameters;
  std::unique_ptr<Stepper> stepper;
  std::unique_ptr<detail::GradientReducer> reducer;  // none when replicas take turns
  std::vector<at::Tensor> keep;                      // gradients of this turn
};

class ReplicatedUpdater final : public Updater {
 public:
  ReplicatedUpdater(const World& world, StepperFactory factory, std::vector<NamedTensors> replicas,
                    const ReplicatedOptions& options)
      : factory_(std::move(factory)),
        options_(options),
        layout_(Layout::of(detail::slots_of(replicas.at(0)))) {
    bind(world, std::move(replicas), {});
    learning_rate_ = lanes_[0].stepper->learning_rate();
  }

  void begin(int replica) override {
    if (world_.in_turn() && replica == 0) pushed_in_turn_ = 0;
    detail::require_cleared(layout_, lanes_.at(replica).parameters);
  }

  int64_t push(int replica, std::span<const at::Tensor> gradients, double weight) override {
    Lane& lane = lanes_.at(replica);
    const int64_t next = version_ + 1;
    if (!world_.in_turn()) {
      lane.reducer->finish(gradients, weight);
      return next;
    }
    lane.keep.assign(lane.parameters.size(), {});
    for (size_t i = 0; i < gradients.size() && weight != 0; ++i) {
      if (!gradients[i].defined()) continue;
      detail::check_gradient(layout_.slots[i], gradients[i]);
      lane.keep[i] = gradients[i].contiguous();
    }
    if (++pushed_in_turn_ == world_.local) update_in_turn();
    return next;
  }

  void acquire(int replica, int64_t at_least, const Deadline&) override {
    if (world_.in_turn()) return;
    Lane& lane = lanes_.at(replica);
    lane.reducer->wait();
    double learning_rate = learning_rate_;  // rank 0's counts
    world_.groups[replica]
        .broadcast({&learning_rate, 1, DType::float64}, 0, world_.time_limit)
        .wait(world_.time_limit);
    step(lane, learning_rate);
    version_ = at_least;  // every lane writes the same value
  }

  int64_t version() const override { return version_; }
  void set_learning_rate(double learning_rate) override {
    optim::require_learning_rate(learning_rate);
    learning_rate_ = learning_rate;
  }
  double learning_rate() const override { return learning_rate_; }
  void require_whole() const override {}  // each replica has parameters of its own

  const std::vector<at::Tensor>& parameters(int replica) const override {
    return lanes_.at(replica).parameters;
  }
  const Layout& layout() const override { return layout_; }

  void rebind(const World& world, std::vector<NamedTensors> replicas) override {
    if (!world.one_process() || !world_.one_process())
      throw UsageError("a world of several workers cannot be resized while it runs");
    if (world.local > world_.local)
      throw UsageError(
          "replicas with a torch optimizer cannot be added: its state cannot be copied");
    std::vector<std::unique_ptr<Stepper>> steppers;
    for (int local = 0; local < world.local; ++local)
      steppers.push_back(std::move(lanes_[local].stepper));
    bind(world, std::move(replicas), std::move(steppers));
  }

 private:
  void bind(const World& world, std::vector<NamedTensors> replicas,
            std::vector<std::unique_ptr<Stepper>> steppers);
  void update_in_turn();
  static void step(Lane& lane, double learning_rate);

  StepperFactory factory_;
  ReplicatedOptions options_;
  Layout layout_;
  World world_;
  std::vector<Lane> lanes_;
  std::atomic<double> learning_rate_{0};
  std::atomic<int64_t> version_{0};
  int pushed_in_turn_ = 0;
};

// A first binding gives each replica memory of its own: an earlier fused step may have left all of
// them on one storage.
void ReplicatedUpdater::bind(const World& world, std::vector<NamedTensors> replicas,
                             std::vector<std::unique_ptr<Stepper>> steppers) {
  world_ = world;
  lanes_.clear();
  lanes_.resize(world_.local);
  for (int local = 0; local < world_.local; ++local) {
    Lane& lane = lanes_[local];
    for (auto& [name, tensor] : replicas[local]) {
      if (steppers.empty()) tensor.set_data(tensor.detach().clone());
      lane.parameters.push_back(tensor);
    }
    lane.stepper = steppers.empty() ? factory_(lane.parameters) : std::move(steppers[local]);
  }
  if (world_.in_turn()) return;
  detail::for_each_local(world_, [&](int local) {
    Lane& lane = lanes_[local];
    lane.reducer = std::make_unique<detail::GradientReducer>(
        world_.groups[local], layout_, lane.parameters, ReduceOp::sum, options_, world_.time_limit);
  });
}

void ReplicatedUpdater::step(Lane& lane, double learning_rate) {
  at::NoGradGuard no_grad;
  lane.stepper->step(learning_rate);
}

void ReplicatedUpdater::update_in_turn() {
  std::vector<const void*> inputs(world_.size);
  for (size_t i = 0; i < layout_.slots.size(); ++i) {
    const ParameterSlot& slot = layout_.slots[i];
    bool used = false;
    for (int replica = 0; replica < world_.local; ++replica) {
      const at::Tensor& gradient = lanes_[replica].keep[i];
      inputs[replica] = gradient.defined() ? gradient.data_ptr() : nullptr;
      used |= gradient.defined();
    }
    for (Lane& lane : lanes_) {
      at::Tensor sum;
      if (used) {
        sum = at::empty(slot.shape, lane.parameters[i].options());
        reduce_inputs(slot.dtype, ReduceOp::sum, world_.shape, inputs, sum.data_ptr(),
                      slot.num_elements);
      }
      lane.parameters[i].mutable_grad() = sum;
    }
  }
  for (Lane& lane : lanes_) {
    step(lane, learning_rate_);
    for (at::Tensor& parameter : lane.parameters) parameter.mutable_grad().reset();
    lane.keep.clear();
  }
  version_ = version_ + 1;
  pushed_in_turn_ = 0;
}

}  // namespace

std::shared_ptr<Updater> make_replicated_updater(const World& world, TorchOptimizerFactory factory,
                                                 std::vector<NamedTensors> replicas,
                                                 const ReplicatedOptions& options) {
  return std::make_shared<ReplicatedUpdater>(
      world,
      [factory = std::move(factory)](std::vector<at::Tensor> parameters) {
        return std::make_unique<TorchStepper>(factory, std::move(parameters));
      },
      std::move(replicas), options);
}

std::shared_ptr<Updater> make_replicated_updater(const World& world, const optim::Rule& rule,
                                                 std::vector<NamedTensors> replicas,
                                                 const ReplicatedOptions& options) {
  return std::make_shared<ReplicatedUpdater>(
      world,
      [rule](std::vector<at::Tensor> parameters) {
        return std::make_unique<RuleStepper>(rule, std::move(parameters));
      },
      std::move(replicas), options);
}

}  // namespace tutti
