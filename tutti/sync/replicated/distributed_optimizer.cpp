#include "tutti/sync/replicated/distributed_optimizer.h"

#include <ATen/Parallel.h>
#include <torch/optim/optimizer.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <functional>
#include <unordered_set>

#include "tutti/base/host.h"
#include "tutti/base/log.h"
#include "tutti/net/host_meeting.h"
#include "tutti/sync/replicated/detail/gradient_reducer.h"
#include "tutti/sync/tensors.h"

namespace tutti {
namespace {

// The module's parameters in its order, which all ranks share: what the optimizer trains.
struct Parameters {
  NamedTensors trained, others;
};

Parameters parameters_of(const torch::nn::Module& module,
                         const torch::optim::Optimizer& optimizer) {
  std::unordered_set<const void*> known;
  for (const auto& group : optimizer.param_groups())
    for (const auto& parameter : group.params()) known.insert(parameter.unsafeGetTensorImpl());
  Parameters all;
  for (auto& [name, tensor] : unique_parameters(module))
    (known.erase(tensor.unsafeGetTensorImpl()) != 0 ? all.trained : all.others)
        .emplace_back(name, tensor);
  if (!known.empty())
    throw UsageError(
        fmt::format("DistributedOptimizer: the optimizer trains {} tensors that are no "
                    "parameters of the module",
                    known.size()));
  if (all.trained.empty())
    throw UsageError("DistributedOptimizer: the optimizer trains no parameter");
  return all;
}

std::vector<at::Tensor> tensors_of(const NamedTensors& named) {
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : named) tensors.push_back(tensor);
  return tensors;
}

// Collective. Processes that may use the same cores take a share each, where nobody has said
// another number; LibTorch's default is all of them, in each.
void share_cores(Group& group, Millis limit) {
  const HostFacts& facts = host_facts();
  // A limit of the cgroup is that of its container, which numbers its processes itself.
  const uint64_t container = facts.cpu_quota ? facts.pid_namespace : 0;
  const auto number_of = [](const std::string& words) {
    return static_cast<int64_t>(std::hash<std::string>()(words));
  };
  std::array own{
      number_of(fmt::format("{} {} {}", boot_id(), container, fmt::join(facts.cores, ","))),
      number_of(fmt::format("{} {}", facts.pid_namespace, getpid()))};
  std::vector<int64_t> all(own.size() * static_cast<size_t>(group.size()));
  group.all_gather(span_of(std::span(own)), span_of(std::span(all)), limit).wait(limit);
  std::unordered_set<int64_t> processes;
  for (size_t rank = 0; rank < all.size(); rank += own.size())
    if (all[rank] == own[0]) processes.insert(all[rank + 1]);
  const int share = std::max(1, facts.usable_cores / static_cast<int>(processes.size()));
  const bool told =
      std::getenv("OMP_NUM_THREADS") != nullptr || std::getenv("MKL_NUM_THREADS") != nullptr;
  if (told || processes.size() == 1 || at::get_num_threads() <= share) return;
  log(LogLevel::info,
      "DistributedOptimizer: {} threads for LibTorch instead of {}, since {} processes share {} "
      "cores; OMP_NUM_THREADS says another number",
      share, at::get_num_threads(), processes.size(), facts.usable_cores);
  at::set_num_threads(share);
}

}  // namespace

struct DistributedOptimizer::State {
  State(Parameters named, torch::optim::Optimizer& optimizer_in, Group group,
        const DistributedOptimizerOptions& options)
      : optimizer(optimizer_in),
        parameters(tensors_of(named.trained)),
        others(std::move(named.others)),
        reducer(std::move(group), Slots::of(detail::slots_of(named.trained)), parameters,
                options.op, options.buckets, options.time_limit) {
    check_replicated(options.buckets);
  }

  // What has a gradient in the place of what is trained.
  std::string words_of_other() const {
    for (const auto& [name, parameter] : others)
      if (parameter.grad().defined())
        return fmt::format("; \"{}\", which the optimizer does not train, has one", name);
    return "";
  }

  torch::optim::Optimizer& optimizer;
  std::vector<at::Tensor> parameters;
  NamedTensors others;
  detail::GradientReducer reducer;
};

DistributedOptimizer::DistributedOptimizer(const torch::nn::Module& module,
                                           torch::optim::Optimizer& optimizer, Group group,
                                           const DistributedOptimizerOptions& options)
    : state_(std::make_unique<State>(parameters_of(module, optimizer), optimizer, group, options)) {
  share_cores(group, options.time_limit);
}

DistributedOptimizer::~DistributedOptimizer() = default;
DistributedOptimizer::DistributedOptimizer(DistributedOptimizer&&) noexcept = default;

void DistributedOptimizer::step() {
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : state_->parameters) gradients.push_back(parameter.grad());
  state_->reducer.finish(gradients, {});
  try {
    state_->reducer.wait();
  } catch (const detail::NothingTrained& nothing) {
    throw UsageError(fmt::format(
        "DistributedOptimizer: {}\n  before step() goes backward() from a loss of the module that "
        "it was made for{}",
        nothing.what(), state_->words_of_other()));
  }
  state_->optimizer.step();
}

void DistributedOptimizer::zero_grad() { state_->optimizer.zero_grad(); }

void broadcast_parameters(const torch::nn::Module& module, Group group, int root) {
  detail::compare_over_group(group, detail::describe(module), kDefaultTimeLimit);
  detail::broadcast_values(group, module, root, kDefaultTimeLimit);
}

}  // namespace tutti
