#include "tutti/strategy/modules/replicated.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/queues/host_copies.h"
#include "tutti/queues/out_of_memory.h"
#include "tutti/strategy/detail/on_host.h"
#include "tutti/strategy/membership/membership.h"
#include "tutti/strategy/modules/whole_model.h"
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

// A module with running statistics: LibTorch's batch norms, ours, and those written like them.
struct Norm {
  std::string name;
  std::shared_ptr<torch::nn::Module> module;
  std::vector<at::Tensor> parameters;
  bool stilled = false;  // by still(): it goes on as its model does once it is thawed

  bool frozen() const {
    const auto trained = [](const at::Tensor& parameter) { return parameter.requires_grad(); };
    return !parameters.empty() && std::ranges::none_of(parameters, trained);
  }
};

std::vector<Norm> norms_of(const torch::nn::Module& model) {
  std::vector<Norm> norms;
  for (const auto& part : model.named_modules()) {
    const torch::nn::Module& module = *part.value();
    const auto buffers = module.named_buffers(/*recurse=*/false);
    if (buffers.contains("running_mean") && buffers.contains("running_var"))
      norms.push_back({part.key(), part.value(), module.parameters(/*recurse=*/false)});
  }
  return norms;
}

// Those that are frozen to evaluation mode.
void still(std::vector<Norm>& norms, const torch::nn::Module& model) {
  for (Norm& norm : norms) {
    const bool frozen = norm.frozen();
    if (frozen && norm.module->is_training()) {
      norm.module->eval();
      norm.stilled = true;
    } else if (!frozen && norm.stilled) {
      norm.module->train(model.is_training());
      norm.stilled = false;
    }
  }
}

}  // namespace

struct ReplicatedModules::State final : WorldMember {
  State(Strategy strategy_in, Factory factory_in)
      : strategy(std::move(strategy_in)), factory(std::move(factory_in)) {}

  // One after another, each from the same seed, so that every replica starts the same.
  void make_until(int count) {
    const KeepDefaultGenerator keep;
    while (static_cast<int>(modules.size()) < count) {
      torch::manual_seed(strategy.options().seed);
      auto module = factory(static_cast<int>(modules.size()));
      if (!module) throw UsageError("the model factory returned null");
      if (const World& world = strategy.world(); world.on_devices())
        with_memory(world.queues[modules.size()], "while the model is made",
                    [&] { module->to(world.queues[modules.size()].device()); });
      modules.push_back(std::move(module));
      norms.emplace_back();
      train(modules.size() - 1);
    }
  }

  void train(size_t local) {
    modules[local]->train(training);
    norms[local] = norms_of(*modules[local]);
    still(norms[local], *modules[local]);
  }

  void in_run(Moment moment, int local) override {
    if (moment == Moment::begins) still(norms.at(local), *modules[local]);
    if (moment == Moment::ends) warn_of_moved(local);
  }

  void warn_of_moved(int local) const {
    for (const Norm& norm : norms.at(local))
      if (norm.module->is_training() && norm.frozen())
        log_once(
            "frozen batch norm", LogLevel::warning,
            "batch norm \"{}\" is frozen, but was put into training mode inside run(), so that "
            "its statistics have moved; call modules().train() outside, which leaves it",
            norm.name);
  }

  // Gradients of two replicas would go to one place.
  void require_own_parameters() const {
    std::unordered_map<const at::TensorImpl*, int> owner;
    for (int local = 0; local < static_cast<int>(modules.size()); ++local)
      for (const auto& [name, parameter] : unique_parameters(*modules[local])) {
        if (!parameter.requires_grad()) continue;
        const auto [first, fresh] = owner.emplace(parameter.unsafeGetTensorImpl(), local);
        if (fresh) continue;
        const int rank = strategy.world().first_rank;
        throw UsageError(
            fmt::format("the factory gave the same module twice: parameter \"{}\" of replica {} is "
                        "replica {}'s; "
                        "make all layers inside the factory, which is called once a replica",
                        name, rank + local, rank + first->second));
      }
  }

  // Modules from number `fresh` on take the values of the first; the others keep what is theirs,
  // such as batch statistics.
  void agree_inside(size_t fresh) {
    require_own_parameters();
    const std::string first = detail::describe(*modules[0]);
    for (size_t i = 1; i < modules.size(); ++i)
      detail::require_same(first, detail::describe(*modules[i]),
                           strategy.world().first_rank + static_cast<int>(i));
    for (size_t i = fresh; i < modules.size(); ++i)
      detail::copy_values(*modules[0], *modules[i], strategy.world().time_limit);
  }

  void rebind(const World& world) override {
    const size_t kept = std::min(modules.size(), static_cast<size_t>(world.local));
    modules.resize(kept);
    norms.resize(kept);
    make_until(world.local);
    agree_inside(kept);
  }

  Strategy strategy;
  Factory factory;
  Modules modules;
  std::vector<std::vector<Norm>> norms;  // by local replica
  bool training = true;
  std::unique_ptr<WholeModel> whole;  // on a mesh of several ranks a replica
};

ReplicatedModules::ReplicatedModules(Strategy strategy, Factory factory, const ModelParts& parts)
    : state_(std::make_shared<State>(std::move(strategy), std::move(factory))) {
  State& state = *state_;
  const World& world = state.strategy.world();
  state.make_until(world.local);
  if (world.model_ranks() == 1 && !state.strategy.membership().in_step()) {
    state.agree_inside(1);
  } else {
    state.require_own_parameters();
    const detail::OnHost on_host(state.strategy);
    state.strategy.run([&](ReplicaContext& replica) {
      auto& module = *state.modules[replica.local_rank()];
      const Group alike =
          world.model_ranks() == 1 ? replica.group() : replica.group_of(mesh::Axis::data);
      detail::compare_over_group(alike, detail::describe(module), world.time_limit);
      detail::broadcast_values(alike, module, 0, world.time_limit);
    });
  }
  if (world.model_ranks() > 1)
    state.whole = std::make_unique<WholeModel>(state.strategy, state.modules, parts);
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

const WholeModel* ReplicatedModules::whole() const noexcept { return state_->whole.get(); }

void ReplicatedModules::train(bool on) const {
  state_->training = on;
  for (size_t local = 0; local < state_->modules.size(); ++local) state_->train(local);
}

namespace {

// Of the lowest worker that is there; of workers in step the others need bring nothing.
void take_first(Strategy& strategy, const at::Tensor& value) {
  const Membership& members = strategy.membership();
  const std::span own(static_cast<std::byte*>(span_of(value).data), value.nbytes());
  const bool brings = !members.in_step() || strategy.world().process() == 0;
  const auto all = members.exchange(brings ? own : std::span<std::byte>());
  std::ranges::copy(all.begin()->second, own.begin());
}

// Of the replicas that a rank's part is of, then of all parts.
NamedTensors merged_on_mesh(Strategy& strategy, const Modules& modules, const WholeModel& whole) {
  const World& world = strategy.world();
  std::vector<std::map<std::string, at::Tensor>> own(modules.size());
  strategy.run([&](ReplicaContext& replica) {
    const auto local = static_cast<size_t>(replica.local_rank());
    Group alike = replica.group_of(mesh::Axis::data);
    for (const auto& [name, buffer] : unique_buffers(*modules[local])) {
      const at::Tensor value = buffer.detach().contiguous().clone();
      if (value.is_floating_point())
        alike.all_reduce_now(span_of(value), ReduceOp::mean, world.time_limit);
      else
        alike.broadcast(span_of(value), 0, world.time_limit).wait(world.time_limit);
      own[local].emplace(name, value);
    }
  });
  return whole.gather(whole.buffers(), [&](int local, const std::string& name) {
    return own[static_cast<size_t>(local)].at(name);
  });
}

}  // namespace

NamedTensors ReplicatedModules::merged_buffers() const {
  if (state_->whole) return merged_on_mesh(state_->strategy, state_->modules, *state_->whole);
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
    const at::Tensor first =
        on_host(values[0], Deadline(patience_with_device(world.time_limit)), "a replica's buffer")
            .detach()
            .contiguous()
            .clone();
    take_first(strategy, first);
    merged.emplace_back(each[0][i].first, first);
  }
  return merged;
}

}  // namespace tutti
