#include "tutti/sync/replicated/whole_rules.h"

#include <fmt/format.h>
#include <torch/optim/optimizer.h>

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/sync/detail/gradients.h"
#include "tutti/sync/detail/updater_state.h"
#include "tutti/sync/replicated/detail/stepper.h"
#include "tutti/sync/tensors.h"

namespace tutti {
namespace {

struct WholeFactory {
  optim::WholeRule rule;

  std::unique_ptr<torch::optim::Optimizer> operator()(const std::vector<at::Tensor>&) const {
    throw UsageError(
        fmt::format("optimizer {} treats parameters by name and shape: give it to Optimizer or to "
                    "Model::compile(), which know them",
                    rule.name()));
  }
};

std::vector<std::string> trained_names(const Slots& layout) {
  std::vector<std::string> names;
  for (const ParameterSlot& slot : layout.slots)
    if (slot.trained) names.push_back(slot.name);
  return names;
}

class WholeStepper final : public detail::Stepper {
 public:
  WholeStepper(const optim::WholeRule& rule, const Slots& layout,
               std::vector<at::Tensor> parameters)
      : rule_(rule), layout_(layout), tensors_(std::move(parameters)), scalars_(tensors_.size()) {
    rule_.require_fitting(trained_names(layout));
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const ParameterSlot& slot = layout_.slots[i];
      parameters_.emplace_back(rule_, slot.name, slot.shape);
      std::vector<at::Tensor>& kept = states_.emplace_back();
      for (const optim::WholeState& state : parameters_.back().states())
        kept.push_back(at::zeros(state.shape, tensors_[i].options().requires_grad(false)));
    }
  }

  void step(double learning_rate) override {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const at::Tensor& gradient = tensors_[i].grad();
      if (!gradient.defined()) continue;
      scalars_[i] = parameters_[i].next(scalars_[i], learning_rate);
      std::vector<void*> states;
      for (const at::Tensor& state : states_[i]) states.push_back(state.data_ptr());
      const at::Tensor whole = gradient.contiguous();
      parameters_[i].update(layout_.slots[i].dtype, tensors_[i].data_ptr(), whole.data_ptr(),
                            states, scalars_[i]);
    }
    detail::bump_versions(tensors_);
  }

  double learning_rate() const override { return rule_.learning_rate(); }

  std::string kind() const override { return std::string(rule_.name()); }

  NamedTensors state() const override {
    NamedTensors state = named_states();
    state.emplace_back(detail::kScalarsName, detail::tensor_of_scalars(scalars_));
    return state;
  }

  void restore(const UpdaterState& state, const NamedTensors& parameters) override {
    NamedTensors own = named_states();
    scalars_ = detail::scalars_of(state, kind(), layout_, parameters, own);
    detail::copy_states(state, own);
  }

 private:
  NamedTensors named_states() const {
    NamedTensors named;
    for (size_t i = 0; i < tensors_.size(); ++i)
      for (size_t k = 0; k < states_[i].size() && layout_.slots[i].trained; ++k)
        named.emplace_back(
            detail::state_tensor_name(parameters_[i].states()[k].name, layout_.slots[i].name),
            states_[i][k]);
    return named;
  }

  const optim::WholeRule rule_;
  const Slots layout_;
  std::vector<at::Tensor> tensors_;
  std::vector<optim::WholeParameter> parameters_;
  std::vector<std::vector<at::Tensor>> states_;  // by parameter
  std::vector<optim::StepScalars> scalars_;
};

}  // namespace

TorchOptimizerFactory factory_of(const optim::WholeRule& rule) { return WholeFactory{rule}; }

const optim::WholeRule* whole_rule_of(const TorchOptimizerFactory& factory) {
  const auto* const whole = factory.target<WholeFactory>();
  return whole == nullptr ? nullptr : &whole->rule;
}

std::string more_than_a_rule(const TorchOptimizerFactory& factory) {
  const optim::WholeRule* const rule = whole_rule_of(factory);
  return rule == nullptr ? "" : rule->more_than_a_rule();
}

namespace detail {

StepperFactory steppers_of(TorchOptimizerFactory factory, const Slots& layout) {
  const optim::WholeRule* const rule = whole_rule_of(factory);
  if (rule == nullptr) return torch_steppers(std::move(factory));
  return [rule = *rule, layout](std::vector<at::Tensor> parameters) {
    return std::make_unique<WholeStepper>(rule, layout, std::move(parameters));
  };
}

}  // namespace detail
}  // namespace tutti
