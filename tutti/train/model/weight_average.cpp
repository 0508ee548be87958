#include "tutti/train/model/weight_average.h"

#include <fmt/format.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <functional>
#include <map>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/checkpoint/detail/names.h"
#include "tutti/queues/upload.h"
#include "tutti/strategy/membership/membership.h"
#include "tutti/sync/before_use.h"
#include "tutti/sync/tensors.h"
#include "tutti/train/watch/detail/kept.h"

namespace tutti {

struct WeightAverage::State {
  Model model;
  WeightAverageOptions options;
  NamedTensors average{};  ///< of the parameters that are trained; empty: none yet
  int64_t steps = 0;
  std::weak_ptr<void> in_use{};

  NamedTensors trained() const {
    NamedTensors parameters = unique_parameters(*model.modules().module(0));
    std::erase_if(parameters, [](const auto& item) { return !item.second.requires_grad(); });
    return parameters;
  }
  // What is trained may be other parameters than when the average began.
  NamedTensors trained_as_averaged() const {
    NamedTensors now = trained();
    const auto name = &NamedTensors::value_type::first;
    if (std::ranges::equal(now, average, {}, name, name)) return now;
    for (const auto& [had, value] : average)
      if (std::ranges::find(now, had, name) == now.end()) refuse_other(had, "is not trained now");
    for (const auto& [own, value] : now)
      if (std::ranges::find(average, own, name) == average.end())
        refuse_other(own, "is trained now, and was not when the average began");
    refuse_other(now.front().first, "stands in another order now");
  }
  [[noreturn]] static void refuse_other(const std::string& name, const char* how) {
    throw UsageError(
        fmt::format("weight_average: parameter \"{}\" {}; make another WeightAverage, or train "
                    "what was trained before (requires_grad)",
                    name, how));
  }
  void begin() {
    const at::NoGradGuard no_grad;
    for (const auto& [name, parameter] : trained())
      average.emplace_back(name, parameter.detach().clone());
  }
  // A product and a sum: what is rounded once (a + b c) depends on the kernel that a size gets.
  void take_in() {
    const at::NoGradGuard no_grad;
    const NamedTensors parameters = trained_as_averaged();
    for (size_t i = 0; i < average.size(); ++i) {
      require_ready(parameters[i].second);
      average[i]
          .second.mul_(options.momentum)
          .add_(parameters[i].second.detach() * (1 - options.momentum));
    }
    ++steps;
  }
  // Workers of a host may share the memory of the weights: what one has read it has read before
  // another writes, and all have written before one goes on. Collective over workers.
  void meet() const { model.strategy().membership().anybody(false); }
  void write(const NamedTensors& values) {
    const at::NoGradGuard no_grad;
    for (int local = 0; local < model.modules().size(); ++local) {
      const NamedTensors all = unique_parameters(*model.modules().module(local));
      const std::map<std::string, at::Tensor> parameters(all.begin(), all.end());
      for (const auto& [name, value] : values) copy_queued(parameters.at(name), value);
    }
    if (auto* const copies = model.optimizer().updater().parts().copies) copies->take_over();
  }
  // An error may be this worker's alone, and then no other comes to meet it. Those that share its
  // memory write the same values, and all meet before the next thing that they do together.
  void put_back(const NamedTensors& own, bool after_error) noexcept {
    try {
      if (!after_error) meet();
    } catch (const std::exception& error) {
      after_error = true;
      log(LogLevel::warning,
          "weight_average: not all workers have come to put the weights back; this one has its "
          "own again: {}",
          error.what());
    }
    try {
      write(own);
      if (!after_error) meet();
    } catch (const std::exception& error) {
      log(LogLevel::error, "weight_average: the weights could not be put back: {}", error.what());
    }
  }
  void require_possible();
};

void WeightAverage::State::require_possible() {
  const Strategy strategy = model.strategy();
  const char* why = nullptr;
  if (strategy.world().plugin != nullptr)
    why = "under strategy tpu weights are the plugin's";
  else if (model.optimizer().updater().parts().client != nullptr)
    why = "parameter servers have the weights, and each worker sees them late";
  else if (model.modules().whole() != nullptr)
    why = "on a mesh no rank has all weights";
  else if (strategy.options().shard == "parameters")
    why = "with shard \"parameters\" no rank has all weights between two steps";
  else if (model.optimizer().updater().averaged() != nullptr)
    why = "with local updates each replica has weights of its own until they are averaged";
  if (why != nullptr)
    throw UsageError(
        fmt::format("weight_average: {}; leave it out, or train under mirrored, multi_worker, "
                    "central_storage or "
                    "one_device",
                    why));
}

namespace {

constexpr const char* kName = "weight_average";

}  // namespace

namespace detail {
namespace {

/// Its tensors in checkpoints, under the names of the parameters.
class KeptAverage final : public Kept {
 public:
  KeptAverage(const NamedTensors& average, const int64_t& steps,
              std::function<void(NamedTensors, int64_t)> put, double momentum)
      : average_(average), steps_(steps), put_(std::move(put)), momentum_(momentum) {}

  std::string name() const override { return kName; }
  std::string words() const override { return words_of({momentum_, static_cast<double>(steps_)}); }
  KeptTensors tensors() const override {
    KeptTensors kept;
    for (const auto& [name, tensor] : average_) kept.common.emplace_back(kAverage + name, tensor);
    return kept;
  }
  void check(const CheckpointRead& read) const override {
    const double momentum = read.numbers(kName, 2)[0];
    if (momentum != momentum_)
      throw UsageError(fmt::format("{}: weight_average has momentum {} there, {} here", read.what,
                                   momentum, momentum_));
    const CheckpointTensors there = read.under(kAverage);
    for (const auto& [name, tensor] : average_) {
      const auto found = there.find(name);
      if (found == there.end() || found->second.shape() != tensor.sizes().vec() ||
          found->second.dtype() != dtype_of(tensor.scalar_type()))
        throw read.damaged(
            kName, fmt::format("of parameter \"{}\" there is {}", name,
                               found == there.end() ? "nothing" : found->second.to_string()));
    }
  }
  void load(const CheckpointRead& read) override {
    NamedTensors values;
    const CheckpointTensors there = read.under(kAverage);
    for (const auto& [name, tensor] : average_)
      values.emplace_back(name, tensor_of(there.at(name)).to(tensor.device()).clone());
    put_(std::move(values), std::lround(read.numbers(kName, 2)[1]));
  }

 private:
  const NamedTensors& average_;
  const int64_t& steps_;
  std::function<void(NamedTensors, int64_t)> put_;
  double momentum_;
};

}  // namespace
}  // namespace detail

WeightAverage::WeightAverage(const Model& model, const WeightAverageOptions& options)
    : state_(std::make_shared<State>(State{.model = model, .options = options})) {
  if (!(options.momentum >= 0 && options.momentum < 1))
    throw UsageError(
        fmt::format("weight_average: momentum is {}, must be >= 0 and below 1", options.momentum));
}

int64_t WeightAverage::steps() const noexcept { return state_->steps; }

std::shared_ptr<void> WeightAverage::use() {
  State& state = *state_;
  if (state.average.empty())
    throw UsageError("weight_average: use(): there was no training yet, and there is no average");
  if (!state.in_use.expired())
    throw UsageError("weight_average: use(): the averaged weights are in use already");
  NamedTensors own;
  for (const auto& [name, parameter] : state.trained_as_averaged())
    own.emplace_back(name, parameter.detach().clone());
  // Before anything is written, so that what fails on the way is put back, too.
  std::shared_ptr<void> scope(
      nullptr, [kept = state_, own = std::move(own), begun = std::uncaught_exceptions()](void*) {
        kept->put_back(own, std::uncaught_exceptions() > begun);
      });
  state.in_use = scope;
  state.meet();
  state.write(state.average);
  state.meet();
  return scope;
}

std::shared_ptr<void> WeightAverage::use_to_validate() {
  return state_->options.validates ? use() : nullptr;
}

void WeightAverage::on_train_begin(Training&) {
  state_->require_possible();
  if (!state_->in_use.expired())
    throw UsageError(
        "weight_average: the averaged weights are in use: let go of them before fit()");
  if (state_->average.empty())
    state_->begin();
  else
    state_->trained_as_averaged();
}

void WeightAverage::on_step_end(Training&) { state_->take_in(); }

std::shared_ptr<WeightAverage> detail::weight_average_of(const Callbacks& callbacks,
                                                         const ReplicatedModules& modules) {
  std::shared_ptr<WeightAverage> found;
  for (const auto& callback : callbacks) {
    auto average = std::dynamic_pointer_cast<WeightAverage>(callback);
    if (!average) continue;
    if (found)
      throw UsageError(
          "fit: callbacks: weight_average is there twice, and only one can be what is validated "
          "and kept in checkpoints; leave one out");
    if (&average->state_->model.modules() != &modules)
      throw UsageError("fit: callbacks: weight_average was made for another Model");
    found = std::move(average);
  }
  return found;
}

std::unique_ptr<detail::Kept> WeightAverage::kept() {
  return std::make_unique<detail::KeptAverage>(
      state_->average, state_->steps,
      [state = state_](NamedTensors average, int64_t steps) {
        state->average = std::move(average);
        state->steps = steps;
      },
      state_->options.momentum);
}

}  // namespace tutti
