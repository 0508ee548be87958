#include "tutti/sync/distributed_optimizer.h"

#include <torch/optim/optimizer.h>

#include <unordered_set>

#include "tutti/sync/detail/gradient_reducer.h"
#include "tutti/sync/tensors.h"

namespace tutti {
namespace {

// The module's parameters that the optimizer trains, in the module's order, which all ranks share.
NamedTensors trained_parameters(const torch::nn::Module& module,
                                const torch::optim::Optimizer& optimizer) {
  std::unordered_set<const void*> known;
  for (const auto& group : optimizer.param_groups())
    for (const auto& parameter : group.params()) known.insert(parameter.unsafeGetTensorImpl());
  NamedTensors trained;
  for (auto& [name, tensor] : unique_parameters(module))
    if (known.erase(tensor.unsafeGetTensorImpl())) trained.emplace_back(name, tensor);
  if (!known.empty())
    throw UsageError(
        fmt::format("DistributedOptimizer: the optimizer trains {} tensors that are no "
                    "parameters of the module",
                    known.size()));
  if (trained.empty()) throw UsageError("DistributedOptimizer: the optimizer trains no parameter");
  return trained;
}

std::vector<at::Tensor> tensors_of(const NamedTensors& named) {
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : named) tensors.push_back(tensor);
  return tensors;
}

}  // namespace

struct DistributedOptimizer::State {
  State(const NamedTensors& named, torch::optim::Optimizer& optimizer_in, Group group,
        const DistributedOptimizerOptions& options)
      : optimizer(optimizer_in),
        parameters(tensors_of(named)),
        reducer(std::move(group), Layout::of(detail::slots_of(named)), parameters, options.op,
                options.buckets, options.time_limit) {
    check_replicated(options.buckets);
  }

  torch::optim::Optimizer& optimizer;
  std::vector<at::Tensor> parameters;
  detail::GradientReducer reducer;
};

DistributedOptimizer::DistributedOptimizer(const torch::nn::Module& module,
                                           torch::optim::Optimizer& optimizer, Group group,
                                           const DistributedOptimizerOptions& options)
    : state_(std::make_unique<State>(trained_parameters(module, optimizer), optimizer,
                                     std::move(group), options)) {}

DistributedOptimizer::~DistributedOptimizer() = default;
DistributedOptimizer::DistributedOptimizer(DistributedOptimizer&&) noexcept = default;

void DistributedOptimizer::step() {
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : state_->parameters) gradients.push_back(parameter.grad());
  state_->reducer.finish(gradients, 1.0);
  state_->reducer.wait();
  state_->optimizer.step();
}

void DistributedOptimizer::zero_grad() { state_->optimizer.zero_grad(); }

void broadcast_parameters(const torch::nn::Module& module, Group group, int root) {
  detail::compare_over_group(group, detail::describe(module), kDefaultTimeLimit);
  detail::broadcast_values(group, module, root, kDefaultTimeLimit);
}

}  // namespace tutti
