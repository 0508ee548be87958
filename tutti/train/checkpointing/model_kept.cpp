#include "tutti/train/checkpointing/detail/model_kept.h"

#include <ATen/Context.h>
#include <fmt/format.h>
#include <torch/nn/module.h>

#include <cmath>
#include <limits>
#include <mutex>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/checkpoint/checkpoint.h"
#include "tutti/checkpoint/detail/names.h"
#include "tutti/queues/upload.h"
#include "tutti/strategy/detail/on_host.h"
#include "tutti/sync/tensors.h"
#include "tutti/train/checkpointing/detail/device_generators.h"
#include "tutti/train/model/detail/adapters.h"
#include "tutti/train/model/weights.h"

namespace tutti::detail {
namespace {

// One replica alone draws from the device's default generator, which torch::manual_seed sets.
at::Generator generator_of(ReplicaContext& replica) {
  return replica.num_replicas_in_sync() > 1
             ? replica.generator(replica.device())
             : at::globalContext().defaultGenerator(replica.device());
}

// Calls work(local, rank) for the local replicas whose outputs are here.
template <class Work>
void for_each_replica(const World& world, Work work) {
  for (int local = 0; local < world.local; ++local)
    if (world.leads_stage(local) && world.gives_outputs(local))
      work(local, world.replica_of(world.first_rank + local));
}

// Calls work(rest of the name, array) for tensors whose names begin so.
template <class Work>
void for_each_named(const CheckpointTensors& tensors, const std::string& prefix, Work work) {
  for (auto at = tensors.lower_bound(prefix); at != tensors.end() && at->first.starts_with(prefix);
       ++at)
    work(at->first.substr(prefix.size()), at->second);
}

at::Tensor needed(const CheckpointRead& read, const std::string& name) {
  if (!read.tensors.contains(name))
    throw DataError(fmt::format("{}: lacks \"{}\"", read.what, name));
  return tensor_of(read.tensors.at(name));
}

class KeptOptimizer final : public Kept {
 public:
  explicit KeptOptimizer(Model::State& model) : model_(model) {}
  std::string name() const override { return "optimizer"; }

  KeptTensors tensors() const override {
    KeptTensors kept;
    const auto* const averaged = updater().averaged();
    for (const auto& [name, tensor] : averaged ? averaged->last() : model_.parameters())
      kept.common.emplace_back(kParameters + name, tensor);
    const UpdaterState state = updater().state();
    for (const auto& [name, tensor] : state.tensors)
      kept.common.emplace_back(kOptimizer + name, tensor);
    if (state.replicas.empty()) return kept;
    for_each_replica(model_.strategy.world(), [&](int local, int rank) {
      for (const auto& [name, tensor] : state.replicas.at(static_cast<size_t>(local)))
        kept.own.emplace_back(kept_back_name(rank, name), tensor);
    });
    return kept;
  }

  void check(const CheckpointRead& read) const override {
    data::Safetensors weights;
    const auto add = [&](const std::string& name, const Array& array) {
      weights.arrays.push_back({name, array});
    };
    for_each_named(read.tensors, buffer_name(0, ""), add);
    for_each_named(read.tensors, kParameters, add);
    const ModelState shapes = model_.shapes();
    require_fit(shapes, weights, all_names(*model_.modules.module(0)), read.what);
    for (const auto& [name, buffer] : shapes.buffers) needed(read, buffer_name(0, name));
    for (const auto& [name, tensor] : shapes.parameters) needed(read, kParameters + name);
  }

  void load(const CheckpointRead& read) override {
    const auto does_not_fit = [&](const char* why) {
      return DataError(fmt::format("{}: the state of the optimizer does not fit: {}", read.what,
                                   plain_words(why)));
    };
    NamedTensors parameters;
    for (const auto& [name, tensor] : model_.shapes().parameters)
      parameters.emplace_back(name, needed(read, kParameters + name));
    try {
      updater().restore(state_in(read), parameters);
    } catch (const UsageError& error) {
      throw does_not_fit(error.what());
    } catch (const c10::Error& error) {
      throw does_not_fit(error.what());
    }
    model_.laid_out->weights_changed();
  }

 private:
  Updater& updater() const { return model_.compiled->optimizer.updater(); }

  static UpdaterState state_in(const CheckpointRead& read) {
    const CheckpointManifest& then = read.manifest;
    UpdaterState state{then.optimizer, then.version, then.learning_rate};
    const auto add_to = [](NamedTensors& tensors) {
      return [&tensors](const std::string& name, const Array& array) {
        tensors.emplace_back(name, tensor_of(array));
      };
    };
    for_each_named(read.tensors, kOptimizer, add_to(state.tensors));
    for (int rank = 0; rank < then.replicas; ++rank) {
      NamedTensors kept_back;
      for_each_named(read.tensors, kept_back_name(rank, ""), add_to(kept_back));
      if (!kept_back.empty()) state.replicas.push_back(std::move(kept_back));
    }
    return state;
  }

  Model::State& model_;
};

// Of a base that is in no checkpoint, by what it is known; its adapters are the optimizer's.
class KeptAdapters final : public Kept {
 public:
  explicit KeptAdapters(const nn::Adapted& module)
      : module_(module), words_(adapters_words(module)) {}
  std::string name() const override { return kAdaptersPart; }
  std::string words() const override { return words_; }
  void check(const CheckpointRead& read) const override {
    require_adapters(module_, read.manifest.kept.at(name()), read.what);
  }
  void load(const CheckpointRead&) override {}

 private:
  const nn::Adapted& module_;
  std::string words_;
};

class KeptTables final : public Kept {
 public:
  explicit KeptTables(SparseTables& tables) : tables_(tables) {}
  std::string name() const override { return "tables"; }

  KeptTensors tensors() const override {
    KeptTensors kept;
    for (const auto& [name, array] : tables_.state())
      kept.common.emplace_back(kTables + name, tensor_of(array));
    return kept;
  }

  void load(const CheckpointRead& read) override {
    std::map<std::string, Array> state;
    for_each_named(read.tensors, kTables, [&](const std::string& name, const Array& array) {
      state.emplace(name, array);
    });
    try {
      tables_.restore(state);
    } catch (const DataError& error) {
      throw DataError(fmt::format("{}: {}", read.what, error.what()));
    }
  }

 private:
  SparseTables& tables_;
};

class KeptBuffers final : public Kept {
 public:
  explicit KeptBuffers(Model::State& model) : model_(model) {}
  std::string name() const override { return "buffers"; }

  KeptTensors tensors() const override {
    const World& world = model_.strategy.world();
    KeptTensors kept;
    for (int local = 0; local < world.local; ++local)
      if (world.leads_stage(local))
        for (const auto& [name, buffer] : unique_buffers(*model_.modules.module(local)))
          kept.own.emplace_back(buffer_name(world.replica_of(world.first_rank + local), name),
                                buffer);
    return kept;
  }

  void load(const CheckpointRead& read) override {
    const World& world = model_.strategy.world();
    for (int local = 0; local < world.local; ++local)
      for (const auto& [name, buffer] : unique_buffers(*model_.modules.module(local)))
        copy_queued(buffer, tensor_of(buffer_of(read, world, local, name, kBuffers)));
  }

 private:
  Model::State& model_;
};

class KeptGenerators final : public Kept {
 public:
  explicit KeptGenerators(Strategy& strategy) : strategy_(strategy) {}
  std::string name() const override { return "generators"; }

  KeptTensors tensors() const override {
    const World& world = strategy_.world();
    Tensors drawn(static_cast<size_t>(world.local)), on_devices(drawn);
    const OnHost on_host(strategy_);
    strategy_.run([&](ReplicaContext& replica) {
      const auto local = static_cast<size_t>(replica.local_rank());
      drawn[local] = replica.generator().get_state();
      on_devices[local] = device_generator_state(replica);
    });
    KeptTensors kept;
    for_each_replica(world, [&](int local, int rank) {
      const auto place = static_cast<size_t>(local);
      kept.own.emplace_back(replica_generator_name(rank), drawn[place]);
      if (on_devices[place].defined())
        kept.own.emplace_back(device_generator_name(rank), on_devices[place]);
    });
    kept.own.emplace_back(generator_name(worker()),
                          at::detail::getDefaultCPUGenerator().get_state());
    return kept;
  }

  // What is one only LibTorch knows.
  void check(const CheckpointRead& read) const override {
    for (const auto& [name, array] : read.tensors) {
      if (!name.starts_with(kGenerators) || name.starts_with(kDeviceGenerators)) continue;
      try {
        at::detail::createCPUGenerator().set_state(tensor_of(array).clone());
      } catch (const c10::Error& error) {
        throw no_state(read, name, "a generator", error);
      }
    }
  }

  // Each replica gets its own where there are as many, and each process where there are as many.
  void load(const CheckpointRead& read) override {
    const OnHost on_host(strategy_);
    if (read.manifest.replicas == strategy_.num_replicas_in_sync())
      strategy_.run([&](ReplicaContext& replica) { load_of(replica, read); });
    const World& world = strategy_.world();
    if (read.manifest.workers != world.size / world.local) return;
    auto generator = at::detail::getDefaultCPUGenerator();
    generator.set_state(tensor_of(read.tensors.at(generator_name(worker()))).clone());
  }

 private:
  int worker() const { return strategy_.world().first_rank / strategy_.world().local; }

  static DataError no_state(const CheckpointRead& read, const std::string& name,
                            const std::string& of, const c10::Error& error) {
    return DataError(fmt::format("{}: tensor \"{}\" is no state of {}: {}", read.what, name, of,
                                 plain_words(error.what())));
  }

  static void load_of(ReplicaContext& replica, const CheckpointRead& read) {
    const Array& state = read.tensors.at(replica_generator_name(replica.replica()));
    replica.generator().set_state(tensor_of(state).clone());
    const std::string name = device_generator_name(replica.replica());
    const auto there = read.tensors.find(name);
    if (there == read.tensors.end()) return;
    try {
      restore_device_generator(replica, tensor_of(there->second).clone());
    } catch (const c10::Error& error) {
      throw no_state(read, name, "a generator of " + replica.device().str(), error);
    }
  }

  Strategy& strategy_;
};

// The scale, the good steps since it has changed, and those that were left out.
class KeptLossScale final : public Kept {
 public:
  KeptLossScale(Optimizer& optimizer, std::string name)
      : optimizer_(optimizer), name_(std::move(name)) {}
  std::string name() const override { return name_; }

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
  std::string name_;
};

}  // namespace

// ---- what operators on a device draw from ----

at::Tensor device_generator_state(ReplicaContext& replica) {
  if (replica.device().is_cpu()) return {};
  at::Generator generator = generator_of(replica);
  at::Generator fresh = at::globalContext()
                            .getAcceleratorHooksInterface(replica.device().type())
                            .getNewGenerator(replica.device().index());
  const std::scoped_lock lock(generator.mutex());
  fresh.set_current_seed(generator.current_seed());
  at::Tensor state = generator.get_state();
  return at::equal(state, fresh.get_state()) ? at::Tensor() : state;
}

void restore_device_generator(ReplicaContext& replica, const at::Tensor& state) {
  if (replica.device().is_cpu()) return;
  at::Generator generator = generator_of(replica);
  const std::scoped_lock lock(generator.mutex());
  generator.set_state(state);
}

// ---- the parts ----

std::unique_ptr<Kept> kept_tables(SparseTables& tables) {
  return std::make_unique<KeptTables>(tables);
}

std::unique_ptr<Kept> kept_loss_scale(Optimizer& optimizer, std::string name) {
  return std::make_unique<KeptLossScale>(optimizer, std::move(name));
}

std::unique_ptr<Kept> kept_generators(Strategy& strategy) {
  return std::make_unique<KeptGenerators>(strategy);
}

KeptParts kept_of(Model::State& model) {
  KeptParts parts;
  if (const auto* const own = adapted(*model.modules.module(0)))
    parts.push_back(std::make_unique<KeptAdapters>(*own));
  parts.push_back(std::make_unique<KeptOptimizer>(model));
  if (SparseTables* const tables = model.compiled->optimizer.tables())
    parts.push_back(kept_tables(*tables));
  parts.push_back(std::make_unique<KeptBuffers>(model));
  parts.push_back(kept_generators(model.strategy));
  if (model.compiled->optimizer.loss_scale())
    parts.push_back(kept_loss_scale(model.compiled->optimizer, "loss_scale"));
  return parts;
}

Array buffer_of(const CheckpointRead& read, const World& world, int local, const std::string& name,
                const char* which) {
  return read.manifest.replicas == world.num_replicas()
             ? read.tensors.at(buffer_name(world.replica_of(world.first_rank + local), name, which))
             : merged_buffer(name, read.tensors, read.manifest, which);
}

}  // namespace tutti::detail
