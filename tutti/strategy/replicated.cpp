#include "tutti/strategy/replicated.h"

#include <torch/nn/module.h>

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/sync/tensors.h"

namespace tutti {
namespace {

using Modules = std::vector<std::shared_ptr<torch::nn::Module>>;

// Puts LibTorch's default generator back to where it was.
class KeepDefaultGenerator {
 public:
  KeepDefaultGenerator() : state_(at::detail::getDefaultCPUGenerator().get_state()) {}
  ~KeepDefaultGenerator() {
    auto generator = at::detail::getDefaultCPUGenerator();
    generator.set_state(state_);
  }

 private:
  at::Tensor state_;
};

}  // namespace

struct ReplicatedModules::State final : WorldMember {
  State(Strategy strategy_in, Factory factory_in)
      : strategy(std::move(strategy_in)), factory(std::move(factory_in)) {}

  // One after another, each from the same seed, so that every replica starts the same.
  void make_until(int count) {
    const KeepDefaultGenerator keep;
    while (static_cast<int>(modules.size()) < count) {
      torch::manual_seed(strategy.options().seed);
      auto module = factory();
      if (!module) throw UsageError("the model factory returned null");
      module->train(training);
      modules.push_back(std::move(module));
    }
  }

  // Modules from number `fresh` on take the values of the first; the others keep what is theirs,
  // such as batch statistics.
  void agree_inside(size_t fresh) {
    const std::string first = detail::describe(*modules[0]);
    for (size_t i = 1; i < modules.size(); ++i)
      detail::require_same(first, detail::describe(*modules[i]),
                           strategy.world().first_rank + static_cast<int>(i));
    for (size_t i = fresh; i < modules.size(); ++i) detail::copy_values(*modules[0], *modules[i]);
  }

  void rebind(const World& world) override {
    if (static_cast<int>(modules.size()) > world.local) modules.resize(world.local);
    const size_t kept = modules.size();
    make_until(world.local);
    agree_inside(kept);
  }

  Strategy strategy;
  Factory factory;
  Modules modules;
  bool training = true;
};

ReplicatedModules::ReplicatedModules(Strategy strategy, Factory factory)
    : state_(std::make_shared<State>(std::move(strategy), std::move(factory))) {
  State& state = *state_;
  const World& world = state.strategy.world();
  state.make_until(world.local);
  if (world.one_process() || world.apart) {
    state.agree_inside(1);
  } else {
    state.strategy.run([&](ReplicaContext& replica) {
      auto& module = *state.modules[replica.local_rank()];
      detail::compare_over_group(replica.group(), detail::describe(module), world.time_limit);
      detail::broadcast_values(replica.group(), module, 0, world.time_limit);
    });
  }
  state.strategy.follow(state_);
}

const std::shared_ptr<torch::nn::Module>& ReplicatedModules::module(int local_rank) const {
  return state_->modules.at(local_rank);
}

const std::shared_ptr<torch::nn::Module>& ReplicatedModules::module(
    const ReplicaContext& replica) const {
  state_->strategy.require_own(replica, "Replicated");
  return module(replica.local_rank());
}

int ReplicatedModules::size() const noexcept { return static_cast<int>(state_->modules.size()); }

Strategy ReplicatedModules::strategy() const { return state_->strategy; }

void ReplicatedModules::train(bool on) {
  state_->training = on;
  for (const auto& module : state_->modules) module->train(on);
}

namespace {

// Of the lowest worker that is there.
void take_first(Strategy& strategy, const at::Tensor& value) {
  const MemorySpan span = span_of(value);
  auto* const bytes = static_cast<std::byte*>(span.data);
  const auto all = strategy.meet({bytes, static_cast<size_t>(value.nbytes())});
  std::ranges::copy(all.begin()->second, bytes);
}

}  // namespace

NamedTensors ReplicatedModules::merged_buffers() const {
  NamedTensors merged;
  std::vector<NamedTensors> each;
  for (const auto& module : state_->modules) each.push_back(unique_buffers(*module));
  Strategy strategy = state_->strategy;
  const World& world = strategy.world();
  for (size_t i = 0; i < each[0].size(); ++i) {
    std::vector<at::Tensor> values;
    for (const auto& buffers : each) values.push_back(buffers[i].second);
    if (values[0].is_floating_point()) {
      PerReplica<at::Tensor> all(std::move(values), world.first_rank);
      merged.emplace_back(each[0][i].first, strategy.reduce(ReduceOp::mean, all));
      continue;
    }
    std::vector<at::Tensor> copies;
    for (const auto& value : values) copies.push_back(value.detach().contiguous().clone());
    if (world.apart)
      take_first(strategy, copies[0]);
    else if (!world.one_process())
      strategy.run([&](ReplicaContext& replica) {
        replica.group()
            .broadcast(span_of(copies[replica.local_rank()]), 0, world.time_limit)
            .wait(world.time_limit);
      });
    merged.emplace_back(each[0][i].first, copies[0]);
  }
  return merged;
}

}  // namespace tutti
