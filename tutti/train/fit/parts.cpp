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

// What each local replica has added up in the epoch that goes on.
class KeptTotals final : public Kept {
 public:
  KeptTotals(Model::State& model, std::vector<Totals>& each) : model_(model), each_(each) {}
  std::string name() const override { return "totals"; }

  KeptTensors tensors() const override {
    const World& world = model_.strategy.world();
    KeptTensors kept;
    for (int local = 0; local < world.local; ++local) {
      if (!world.leads_stage(local) || !world.gives_outputs(local)) continue;
      Totals totals = each_.empty() ? Totals{} : each_[static_cast<size_t>(local)];
      totals.signal = 0;
      kept.own.emplace_back(
          totals_name(world.replica_of(world.first_rank + local)),
          at::tensor(totals.packed(goals(), totals.widths(goals())), at::kDouble));
    }
    return kept;
  }

  void check(const CheckpointRead& read) const override {
    for (int rank = 0; rank < read.manifest.replicas; ++rank)
      if (const std::string why = Totals::why_not_packed(goals(), numbers_in(read, rank));
          !why.empty())
        throw DataError(
            fmt::format("{}: tensor \"{}\": got {}", read.what, totals_name(rank), why));
  }

  // With another number of replicas the first one has what all had.
  void load(const CheckpointRead& read) override {
    const World& world = model_.strategy.world();
    each_.assign(static_cast<size_t>(world.local), {});
    for (int rank = 0; rank < read.manifest.replicas; ++rank) {
      const int replica = read.manifest.replicas == world.num_replicas() ? rank : 0;
      for (int local = 0; local < world.local; ++local)
        if (world.replica_of(world.first_rank + local) == replica && world.gives_outputs(local))
          each_[static_cast<size_t>(local)].add(Totals::unpacked(goals(), numbers_in(read, rank)));
    }
  }

 private:
  const Goals& goals() const { return model_.compiled->goals; }
  static std::span<const double> numbers_in(const CheckpointRead& read, int rank) {
    return read.tensors.at(totals_name(rank)).as<double>();
  }

  Model::State& model_;
  std::vector<Totals>& each_;
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

std::unique_ptr<Kept> kept_totals(Model::State& model, std::vector<Totals>& each) {
  return std::make_unique<KeptTotals>(model, each);
}

std::unique_ptr<Kept> kept_callbacks(CallbackRunner& callbacks, Model::State& model) {
  return std::make_unique<KeptCallbacks>(callbacks, model);
}

}  // namespace tutti::detail
