#include "tutti/train/checkpointing/detail/loop_parts.h"

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include <cmath>
#include <optional>
#include <type_traits>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/checkpoint/detail/names.h"
#include "tutti/queues/upload.h"
#include "tutti/sync/replicated/distributed_optimizer.h"
#include "tutti/sync/tensors.h"
#include "tutti/train/model/detail/adapters.h"
#include "tutti/train/model/weights.h"

namespace tutti::detail {

std::string KeptOfLoop::what(const CheckpointRead& read) const {
  return fmt::format("{}: \"{}\"", read.what, name_);
}

void KeptOfLoop::require_alike(const CheckpointRead& read, const std::string& prefix,
                               const NamedTensors& now) const {
  require_alike(read, read.under(prefix), now);
}

void KeptOfLoop::require_alike(const CheckpointRead& read, const std::string& name,
                               const at::Tensor& now) const {
  CheckpointTensors then;
  if (const auto found = read.tensors.find(name); found != read.tensors.end()) then.insert(*found);
  require_alike(read, std::move(then), {{name, now}});
}

void KeptOfLoop::require_alike(const CheckpointRead& read, CheckpointTensors rest,
                               const NamedTensors& now) const {
  std::vector<std::string> found;
  for (const auto& [name, tensor] : now) {
    const auto then = rest.extract(name);
    if (!then) {
      found.push_back(fmt::format("\"{}\" is missing", name));
    } else if (const at::Tensor one = tensor_of(then.mapped());
               one.scalar_type() != tensor.scalar_type() ||
               (one.sizes() != tensor.sizes() && tensor.scalar_type() != at::kByte)) {
      found.push_back(fmt::format("\"{}\" is {}, here {}", name, then.mapped().to_string(),
                                  c10::str(tensor.scalar_type(), " ", tensor.sizes())));
    }
  }
  for (const auto& [name, array] : rest) found.push_back(fmt::format("\"{}\" is not here", name));
  if (!found.empty())
    throw DataError(fmt::format("{}: does not fit\n  {}", what(read), fmt::join(found, "\n  ")));
}

// ---- modules ----

std::string LoopModules::words() const {
  const nn::Adapted* const module = adapted(*modules_[0]);
  if (module != nullptr && words_.empty()) words_ = adapters_words(*module);
  return words_;
}

KeptTensors LoopModules::tensors() const {
  KeptTensors kept;
  for (const auto& [name, tensor] : unique_parameters(*modules_[0]))
    kept.common.emplace_back(parameter_name(name), tensor);
  for (size_t local = 0; local < modules_.size(); ++local)
    for (const auto& [name, tensor] : unique_buffers(*modules_[local]))
      kept.own.emplace_back(buffer_of_rank(local, name), tensor);
  return kept;
}

void LoopModules::check(const CheckpointRead& read) const {
  data::Safetensors file;
  for (const auto& prefix : {parameter_name(""), buffer_name(0, name() + "/")})
    for (const auto& [rest, array] : read.under(prefix)) file.arrays.push_back({rest, array});
  require_fit(state_of(*modules_[0]), file, all_names(*modules_[0]), what(read));
  const nn::Adapted* const module = adapted(*modules_[0]);
  if (module == nullptr) return;
  const auto words = read.manifest.kept.find(name());
  if (words == read.manifest.kept.end())
    throw DataError(what(read) + ": does not say which weights its adapters stand beside");
  require_adapters(*module, words->second, what(read));
}

void LoopModules::load(const CheckpointRead& read) {
  const at::NoGradGuard no_grad;
  for (size_t local = 0; local < modules_.size(); ++local) {
    if (!updated_)
      for (const auto& [name, tensor] : unique_parameters(*modules_[local]))
        copy_queued(tensor, tensor_of(read.tensors.at(parameter_name(name))));
    for (const auto& [name, tensor] : unique_buffers(*modules_[local]))
      copy_queued(tensor, tensor_of(read.tensors.at(buffer_of_rank(local, name))));
  }
}

std::string LoopModules::parameter_name(const std::string& own) const {
  return fmt::format("{}{}/{}", kParameters, name(), own);
}

std::string LoopModules::buffer_of_rank(size_t local, const std::string& own) const {
  return buffer_name(world_.first_rank + static_cast<int>(local), name() + "/" + own);
}

namespace {

class LoopUpdater final : public KeptOfLoop {
 public:
  LoopUpdater(std::string name, const World& world, Optimizer& optimizer,
              const LoopModules& modules)
      : KeptOfLoop(std::move(name), "optimizer " + optimizer.updater().state().kind),
        world_(world),
        optimizer_(optimizer),
        modules_(modules) {
    if (optimizer.updater().averaged() != nullptr)
      throw UsageError(
          "Checkpoint: with local updates replicas differ from one averaging to the next, and the "
          "modules in it are of all; fit() keeps such trainings");
  }

  std::string words() const override {
    return dump_json(
        Json{{"version", optimizer_.version()}, {"learning_rate", optimizer_.learning_rate()}});
  }

  KeptTensors tensors() const override {
    const UpdaterState state = optimizer_.updater().state();
    KeptTensors kept;
    for (const auto& [name, tensor] : state.tensors) kept.common.emplace_back(of(name), tensor);
    for (size_t local = 0; local < state.replicas.size(); ++local)
      for (const auto& [name, tensor] : state.replicas[local])
        kept.own.emplace_back(held_back(world_.first_rank + static_cast<int>(local)) + name,
                              tensor);
    return kept;
  }

  void check(const CheckpointRead& read) const override {
    require_alike(read, of(""), optimizer_.updater().state().tensors);
    state_in(read);
  }

  void load(const CheckpointRead& read) override {
    Updater& updater = optimizer_.updater();
    NamedTensors parameters;
    for (const ParameterSlot& slot : updater.layout().slots)
      parameters.emplace_back(slot.name,
                              tensor_of(read.tensors.at(modules_.parameter_name(slot.name))));
    try {
      updater.restore(state_in(read), parameters);
    } catch (const UsageError& error) {
      throw DataError(fmt::format("{}: does not fit: {}", what(read), error.what()));
    }
  }

 private:
  std::string of(const std::string& own) const {
    return fmt::format("{}{}/{}", kOptimizer, name(), own);
  }
  std::string held_back(int rank) const { return kept_back_name(rank, name() + "/"); }

  UpdaterState state_in(const CheckpointRead& read) const {
    UpdaterState state = of_words(read, [&](const Json& words) {
      return UpdaterState{optimizer_.updater().state().kind, words.at("version").get<int64_t>(),
                          words.at("learning_rate").get<double>()};
    });
    for (const auto& [name, array] : read.under(of("")))
      state.tensors.emplace_back(name, tensor_of(array));
    for (int rank = 0; rank < read.manifest.replicas; ++rank) {
      NamedTensors own;
      for (const auto& [name, array] : read.under(held_back(rank)))
        own.emplace_back(name, tensor_of(array));
      if (!own.empty()) state.replicas.push_back(std::move(own));
    }
    return state;
  }

  const World& world_;
  Optimizer& optimizer_;
  const LoopModules& modules_;
};

// By itself, or what a DistributedOptimizer wraps.
class LoopTorchOptimizer final : public KeptOfLoop {
 public:
  LoopTorchOptimizer(std::string name, const World& world, torch::optim::Optimizer& optimizer,
                     DistributedOptimizer* distributed, NameOf name_of)
      : KeptOfLoop(std::move(name), "optimizer " + kind_of(optimizer)),
        world_(world),
        optimizer_(optimizer),
        distributed_(distributed),
        name_of_(std::move(name_of)) {}

  std::string words() const override {
    said_ = torch_state_of(optimizer_, name_of_);
    return said_->words;
  }

  KeptTensors tensors() const override {
    KeptTensors kept;
    const TorchState state =
        said_ ? *std::exchange(said_, {}) : torch_state_of(optimizer_, name_of_);
    for (const auto& [name, tensor] : state.tensors) kept.common.emplace_back(of(name), tensor);
    if (distributed_ != nullptr)
      for (const auto& [name, tensor] : distributed_->held_back())
        kept.own.emplace_back(held_back() + name, tensor);
    return kept;
  }

  void check(const CheckpointRead& read) const override {
    if (const std::string why = why_no_state_of(optimizer_, state_in(read), name_of_); !why.empty())
      throw DataError(fmt::format("{}: does not fit: {}", what(read), why));
    if (distributed_ != nullptr) require_alike(read, held_back(), distributed_->held_back());
  }

  void load(const CheckpointRead& read) override {
    try {
      restore(optimizer_, state_in(read), name_of_);
    } catch (const c10::Error& error) {
      throw DataError(
          fmt::format("{}: does not fit: {}", what(read), error.what_without_backtrace()));
    }
    if (distributed_ == nullptr) return;
    NamedTensors own;
    for (const auto& [name, array] : read.under(held_back()))
      own.emplace_back(name, tensor_of(array));
    distributed_->restore_held_back(own);
  }

 private:
  std::string of(const std::string& own) const {
    return fmt::format("{}{}/{}", kOptimizer, name(), own);
  }
  std::string held_back() const { return kept_back_name(world_.first_rank, name() + "/"); }

  TorchState state_in(const CheckpointRead& read) const {
    TorchState state{.tensors = {}, .words = read.manifest.kept.at(name())};
    for (const auto& [name, array] : read.under(of("")))
      state.tensors.emplace_back(name, tensor_of(array).clone());
    return state;
  }

  const World& world_;
  torch::optim::Optimizer& optimizer_;
  DistributedOptimizer* distributed_;
  NameOf name_of_;
  /// Of the words that a checkpoint begins with: its tensors come next.
  mutable std::optional<TorchState> said_;
};

class LoopVariable final : public KeptOfLoop {
 public:
  LoopVariable(std::string name, Variable& variable)
      : KeptOfLoop(std::move(name), "variable"), variable_(variable) {}

  KeptTensors tensors() const override {
    return {.common = {{kValues + name(), variable_.read()}}};
  }
  void check(const CheckpointRead& read) const override {
    require_alike(read, kValues + name(), variable_.read());
  }
  void load(const CheckpointRead& read) override {
    variable_.assign(tensor_of(read.tensors.at(kValues + name())).clone());
  }

 private:
  Variable& variable_;
};

class LoopTensor final : public KeptOfLoop {
 public:
  LoopTensor(std::string name, const at::Tensor& tensor)
      : KeptOfLoop(std::move(name), c10::str("tensor ", tensor.scalar_type(), " ", tensor.sizes())),
        tensor_(tensor) {}

  KeptTensors tensors() const override { return {.common = {{kValues + name(), tensor_}}}; }
  void check(const CheckpointRead& read) const override {
    require_alike(read, kValues + name(), tensor_);
  }
  void load(const CheckpointRead& read) override {
    copy_queued(tensor_, tensor_of(read.tensors.at(kValues + name())));
  }

 private:
  const at::Tensor& tensor_;
};

// Equal on all workers: in the manifest, where people read it.
template <class T>
class LoopNumber final : public KeptOfLoop {
  static constexpr bool kWhole = std::is_integral_v<T>;

 public:
  LoopNumber(std::string name, T& number, const char* kind = kWhole ? "whole number" : "number")
      : KeptOfLoop(std::move(name), kind), number_(number) {}

  std::string words() const override {
    if constexpr (!kWhole)
      if (!std::isfinite(number_)) return dump_json(Json(fmt::format("{}", number_)));
    return dump_json(Json(number_));
  }
  void check(const CheckpointRead& read) const override { number_in(read); }
  void load(const CheckpointRead& read) override { number_ = number_in(read); }

 private:
  T number_in(const CheckpointRead& read) const {
    return of_words(read, [&](const Json& json) {
      if constexpr (!kWhole) {
        if (json.is_string()) return std::stod(json.text());
        if (json.is_number()) return json.get<double>();
      } else if (json.is_number_integer() && json == json.get<T>()) {
        return json.get<T>();
      }
      throw read.damaged(name(), json.dump() + ", expected a " + kind());
    });
  }

  T& number_;
};

// A number for each local replica.
class LoopOwn final : public KeptOfLoop {
 public:
  LoopOwn(std::string name, const World& world, std::vector<double>& each)
      : KeptOfLoop(std::move(name), "numbers of each replica"), world_(world), each_(each) {}

  KeptTensors tensors() const override {
    require_one_each();
    KeptTensors kept;
    for (size_t local = 0; local < each_.size(); ++local)
      kept.own.emplace_back(of(local), at::scalar_tensor(each_[local], at::kDouble));
    return kept;
  }
  void check(const CheckpointRead& read) const override {
    require_one_each();
    for (size_t local = 0; local < each_.size(); ++local)
      require_alike(read, of(local), at::zeros({}, at::kDouble));
  }
  void load(const CheckpointRead& read) override {
    for (size_t local = 0; local < each_.size(); ++local)
      each_[local] = read.tensors.at(of(local)).as<double>()[0];
  }

 private:
  std::string of(size_t local) const {
    return own_name(world_.first_rank + static_cast<int>(local), name());
  }
  void require_one_each() const {
    if (std::ssize(each_) != world_.local)
      throw UsageError(
          fmt::format("{}: \"{}\" has {} numbers, expected one for each of {} local "
                      "replicas",
                      kLoop, name(), each_.size(), world_.local));
  }

  const World& world_;
  std::vector<double>& each_;
};

// LibTorch's default one, of a loop without a Strategy.
class LoopGenerator final : public Kept {
 public:
  explicit LoopGenerator(const World& world) : own_(generator_name(world.process())) {}
  std::string name() const override { return "generators"; }
  KeptTensors tensors() const override {
    return {.own = {{own_, at::detail::getDefaultCPUGenerator().get_state()}}};
  }
  void check(const CheckpointRead& read) const override {
    set(read, at::detail::createCPUGenerator());
  }
  void load(const CheckpointRead& read) override {
    set(read, at::detail::getDefaultCPUGenerator());
  }

 private:
  void set(const CheckpointRead& read, at::Generator generator) const {
    try {
      generator.set_state(tensor_of(read.tensors.at(own_)).clone());
    } catch (const c10::Error& error) {
      throw DataError(fmt::format("{}: tensor \"{}\" is no state of a generator: {}", read.what,
                                  own_, error.what_without_backtrace()));
    }
  }

  const std::string own_;
};

// It is the scheduler's own, for those that are derived from it.
struct StepsOfScheduler : torch::optim::LRScheduler {
  static unsigned& of(torch::optim::LRScheduler& scheduler) {
    return scheduler.*(&StepsOfScheduler::step_count_);
  }
};

}  // namespace

std::unique_ptr<KeptOfLoop> loop_updater(const std::string& name, const World& world,
                                         Optimizer& optimizer, const LoopModules& modules) {
  return std::make_unique<LoopUpdater>(name, world, optimizer, modules);
}

std::unique_ptr<KeptOfLoop> loop_optimizer(const std::string& name, const World& world,
                                           torch::optim::Optimizer& optimizer,
                                           DistributedOptimizer* distributed, NameOf name_of) {
  return std::make_unique<LoopTorchOptimizer>(name, world, optimizer, distributed,
                                              std::move(name_of));
}

std::unique_ptr<KeptOfLoop> loop_scheduler(const std::string& name,
                                           torch::optim::LRScheduler& scheduler) {
  return std::make_unique<LoopNumber<unsigned>>(name, StepsOfScheduler::of(scheduler), "scheduler");
}

std::unique_ptr<KeptOfLoop> loop_variable(const std::string& name, Variable& variable) {
  return std::make_unique<LoopVariable>(name, variable);
}

std::unique_ptr<KeptOfLoop> loop_tensor(const std::string& name, const at::Tensor& tensor) {
  return std::make_unique<LoopTensor>(name, tensor);
}

template <class T>
std::unique_ptr<KeptOfLoop> loop_number(const std::string& name, T& number) {
  return std::make_unique<LoopNumber<T>>(name, number);
}
template std::unique_ptr<KeptOfLoop> loop_number(const std::string& name, int& number);
template std::unique_ptr<KeptOfLoop> loop_number(const std::string& name, int64_t& number);
template std::unique_ptr<KeptOfLoop> loop_number(const std::string& name, double& number);

std::unique_ptr<KeptOfLoop> loop_own(const std::string& name, const World& world,
                                     std::vector<double>& each) {
  return std::make_unique<LoopOwn>(name, world, each);
}

std::unique_ptr<Kept> loop_generator(const World& world) {
  return std::make_unique<LoopGenerator>(world);
}

}  // namespace tutti::detail
