#include "tutti/train/fit/detail/parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tutti/base/json.h"
#include "tutti/checkpoint/detail/names.h"
#include "tutti/sync/tensors.h"
#include "tutti/train/checkpointing/detail/model_kept.h"

namespace tutti::detail {
namespace {

// What there was before the epoch that goes on; its numbers are facts of the manifest.
class KeptHistory final : public Kept {
 public:
  explicit KeptHistory(History& history) : history_(history) {}
  std::string name() const override { return "history"; }

  KeptTensors tensors() const override {
    const auto columns = static_cast<int64_t>(history_.columns.size());
    at::Tensor rows = at::empty({std::ssize(history_.rows), columns}, at::kDouble);
    auto* to = rows.data_ptr<double>();
    for (const auto& row : history_.rows) to = std::copy(row.begin(), row.end(), to);
    return {.common = {{kHistoryRows, rows}}};
  }

  void load(const CheckpointRead& read) override {
    history_.rows.clear();
    const Array& rows = read.tensors.at(kHistoryRows);
    for (int64_t i = 0; i < rows.shape().at(0); ++i) {
      const auto row = rows.rows(i, i + 1).as<double>();
      history_.rows.emplace_back(row.begin(), row.end());
    }
    const CheckpointManifest& then = read.manifest;
    history_.first_epoch = then.first_epoch;
    history_.images = then.images;
    history_.train_seconds = then.train_seconds;
    history_.validation_seconds = then.validation_seconds;
  }

 private:
  History& history_;
};

// The scale, the good steps since it has changed, and those that were left out.
class KeptLossScale final : public Kept {
 public:
  explicit KeptLossScale(Optimizer& optimizer) : optimizer_(optimizer) {}
  std::string name() const override { return "loss_scale"; }

  std::string words() const override {
    const auto scale = optimizer_.loss_scale();
    return words_of({scale->value(), static_cast<double>(scale->good_steps()),
                     static_cast<double>(scale->skipped())});
  }

  void check(const CheckpointRead& read) const override {
    const std::vector<double> numbers = read.numbers(name(), 3);
    if (!(numbers[0] > 0 && numbers[0] <= std::numeric_limits<float>::max()))
      throw read.damaged(name(), fmt::format("the scale is {}, expected above 0, up to the largest "
                                             "float32",
                                             numbers[0]));
    for (const double steps : {numbers[1], numbers[2]})
      if (!(steps >= 0 && steps <= kMostCounted && steps == std::floor(steps)))
        throw read.damaged(
            name(),
            fmt::format("a number of steps is {}, expected a whole number, 0 or more", steps));
  }

  void load(const CheckpointRead& read) override {
    const std::vector<double> numbers = read.numbers(name(), 3);
    auto scale = optimizer_.loss_scale().value();
    scale.restore(numbers[0], static_cast<int64_t>(numbers[1]), static_cast<int64_t>(numbers[2]));
    optimizer_.scale_losses(scale);
  }

 private:
  Optimizer& optimizer_;
};

// The state of each that has one, by place and name.
class KeptCallbacks final : public Kept {
 public:
  KeptCallbacks(CallbackRunner& callbacks, Model::State& model)
      : callbacks_(callbacks), model_(model) {}
  std::string name() const override { return "callbacks"; }
  std::string words() const override { return dump_json(Json(callbacks_.states())); }

  KeptTensors tensors() const override {
    const KeptWeights& weights = callbacks_.kept();
    KeptTensors kept;
    for (const auto& [name, tensor] : weights.parameters)
      kept.common.emplace_back(kKeptParameters + name, tensor);
    const World& world = model_.strategy.world();
    for (int local = 0; local < std::ssize(weights.buffers); ++local)
      if (world.leads_stage(local))
        for (const auto& [name, buffer] : weights.buffers[static_cast<size_t>(local)])
          kept.own.emplace_back(
              buffer_name(world.replica_of(world.first_rank + local), name, kKeptBuffers), buffer);
    return kept;
  }

  void check(const CheckpointRead& read) const override { states_in(read); }

  void load(const CheckpointRead& read) override {
    callbacks_.restore(states_in(read), weights_in(read), read.manifest.ended);
  }

 private:
  std::map<std::string, std::string> states_in(const CheckpointRead& read) const {
    const std::string& words = read.manifest.kept.at(name());
    try {
      return parse_json(words).get<std::map<std::string, std::string>>();
    } catch (const JsonError&) {
      throw read.damaged(name(), words + ", expected a text for each");
    }
  }

  KeptWeights weights_in(const CheckpointRead& read) const {
    KeptWeights kept;
    for (const auto& [name, parameter] : model_.shapes().parameters) {
      const auto found = read.tensors.find(kKeptParameters + name);
      if (found == read.tensors.end()) return {};
      kept.parameters.emplace_back(name, tensor_of(found->second));
    }
    const World& world = model_.strategy.world();
    for (int local = 0; local < world.local; ++local) {
      NamedTensors& own = kept.buffers.emplace_back();
      for (const auto& [name, buffer] : unique_buffers(*model_.modules.module(local)))
        own.emplace_back(name, tensor_of(buffer_of(read, world, local, name, kKeptBuffers)));
    }
    return kept;
  }

  CallbackRunner& callbacks_;
  Model::State& model_;
};

}  // namespace

std::unique_ptr<Kept> kept_history(History& history) {
  return std::make_unique<KeptHistory>(history);
}

std::unique_ptr<Kept> kept_loss_scale(Optimizer& optimizer) {
  return std::make_unique<KeptLossScale>(optimizer);
}

std::unique_ptr<Kept> kept_callbacks(CallbackRunner& callbacks, Model::State& model) {
  return std::make_unique<KeptCallbacks>(callbacks, model);
}

}  // namespace tutti::detail
