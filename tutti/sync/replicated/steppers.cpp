#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include <cstring>
#include <sstream>

#include "tutti/base/error.h"
#include "tutti/sync/detail/step_plan.h"
#include "tutti/sync/detail/updater_state.h"
#include "tutti/sync/replicated/detail/stepper.h"
#include "tutti/sync/tensors.h"

namespace tutti::detail {
namespace {

class TorchStepper final : public Stepper {
 public:
  TorchStepper(TorchOptimizerFactory factory, std::vector<at::Tensor> parameters)
      : factory_(std::move(factory)), optimizer_(factory_(std::move(parameters))) {
    if (!optimizer_) throw UsageError("the optimizer factory returned null");
  }

  void step(double learning_rate) override {
    if (learning_rate != this->learning_rate())
      for (auto& group : optimizer_->param_groups()) group.options().set_lr(learning_rate);
    optimizer_->step();
  }

  double learning_rate() const override {
    return optimizer_->param_groups().at(0).options().get_lr();
  }

  std::string kind() const override { return "torch"; }

  NamedTensors state() const override {
    torch::serialize::OutputArchive archive;
    optimizer_->save(archive);
    std::ostringstream out;
    archive.save_to(out);
    const std::string bytes = out.str();
    at::Tensor tensor = at::empty({std::ssize(bytes)}, at::kByte);
    std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
    return {{kTorchState, tensor}};
  }

  void restore(const UpdaterState& state, const NamedTensors&) override {
    const at::Tensor bytes = tensor_named(state, kTorchState).contiguous();
    torch::serialize::InputArchive archive;
    archive.load_from(static_cast<const char*>(bytes.data_ptr()), bytes.nbytes());
    optimizer_->load(archive);
  }

 private:
  static constexpr const char* kTorchState = "torch_optimizer";
  TorchOptimizerFactory factory_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

class RuleStepper final : public Stepper {
 public:
  RuleStepper(const optim::Recipe& recipe, const Slots& layout, std::vector<at::Tensor> parameters)
      : recipe_(recipe),
        layout_(layout),
        plan_(recipe, layout),
        parameters_(std::move(parameters)),
        scalars_(parameters_.size()),
        squares_(plan_.clips_norms() ? plan_.num_blocks() : 0),
        measured_(plan_.measures() ? plan_.num_blocks() : 0) {
    const optim::Rule& rule = recipe_.rule();
    for (const auto& parameter : parameters_)
      for (int state = 0; state < rule.num_states(); ++state)
        states_.push_back(at::full_like(parameter.detach(), rule.state_start(state), {},
                                        at::MemoryFormat::Contiguous));
  }

  void step(double learning_rate) override {
    clip();
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const at::Tensor& gradient = parameters_[i].grad();
      if (!gradient.defined()) continue;
      const auto parameter = static_cast<int>(i);
      const optim::Rule& rule = plan_.rule(parameter);
      scalars_[i] = rule.next(scalars_[i], plan_.rate(parameter, learning_rate));
      std::vector<void*> states;
      for (int k = 0; k < rule.num_states(); ++k)
        states.push_back(states_[i * rule.num_states() + k].data_ptr());
      const DType dtype = dtype_of(gradient.scalar_type());
      const int64_t count = parameters_[i].numel();
      if (rule.measures())
        rule.measure(dtype, parameters_[i].data_ptr(), gradient.data_ptr(), states, count,
                     scalars_[i], std::span(measured_).subspan(plan_.block_at(parameter, 0)));
      rule.update(dtype, parameters_[i].data_ptr(), gradient.data_ptr(), states, count, scalars_[i],
                  plan_.trust(parameter, measured_));
    }
    bump_versions(parameters_);
  }

  double learning_rate() const override { return recipe_.rule().learning_rate(); }

  std::string kind() const override { return std::string(recipe_.rule().name()); }

  NamedTensors state() const override {
    NamedTensors state = named_states();
    state.emplace_back(kScalarsName, tensor_of_scalars(scalars_));
    return state;
  }

  void restore(const UpdaterState& state, const NamedTensors& parameters) override {
    NamedTensors own = named_states();
    scalars_ = scalars_of(state, kind(), layout_, parameters, own);
    copy_states(state, own);
  }

 private:
  NamedTensors named_states() const {
    const optim::Rule& rule = recipe_.rule();
    NamedTensors states;
    for (int k = 0; k < rule.num_states(); ++k)
      for (size_t i = 0; i < parameters_.size(); ++i)
        if (layout_.slots[i].trained)
          states.emplace_back(
              state_tensor_name(rule.state_name(k), layout_.slots[i].name),
              states_[i * static_cast<size_t>(rule.num_states()) + static_cast<size_t>(k)]);
    return states;
  }

  // In place: these are the sums, which no two parameters share.
  void clip() {
    std::vector<uint8_t> used(parameters_.size());
    const auto for_each_used = [&](auto&& visit) {
      for (size_t i = 0; i < parameters_.size(); ++i)
        if (const at::Tensor& sum = parameters_[i].grad(); sum.defined())
          visit(static_cast<int>(i), dtype_of(sum.scalar_type()), sum.data_ptr(), sum.numel());
    };
    if (plan_.clips_values())
      for_each_used([&](int, DType dtype, void* sum, int64_t count) {
        plan_.clip_values(dtype, sum, count);
      });
    if (!plan_.clips_norms()) return;
    for_each_used([&](int parameter, DType dtype, const void* sum, int64_t count) {
      used[parameter] = 1;
      optim::square_blocks(dtype, sum, count,
                           std::span(squares_).subspan(plan_.block_at(parameter, 0)));
    });
    const std::vector<double> scales = plan_.scales(squares_, used);
    for_each_used([&](int parameter, DType dtype, void* sum, int64_t count) {
      scale_gradient(dtype, sum, count, scales[parameter]);
    });
  }

  const optim::Recipe recipe_;
  const Slots layout_;
  const StepPlan plan_;
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> states_;
  std::vector<optim::StepScalars> scalars_;
  std::vector<double> squares_;  // of every block
  std::vector<optim::Squares> measured_;
};

}  // namespace

StepperFactory torch_steppers(TorchOptimizerFactory factory) {
  return [factory = std::move(factory)](std::vector<at::Tensor> parameters) {
    return std::make_unique<TorchStepper>(factory, std::move(parameters));
  };
}

StepperFactory rule_steppers(const optim::Recipe& recipe, const Slots& layout) {
  return [recipe, layout](std::vector<at::Tensor> parameters) {
    return std::make_unique<RuleStepper>(recipe, layout, std::move(parameters));
  };
}

}  // namespace tutti::detail
