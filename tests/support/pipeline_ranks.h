/// A pipeline over ranks that are threads, and its oracle: plain autograd of the whole model in one
/// process, microbatch after microbatch, gradients added as ReductionShape::flat() says.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "tutti/base/reduction_shape.h"
#include "tutti/parallel/stages/pipeline.h"
#include "tutti/sync/tensors.h"

#include "tests/support/comm.h"

namespace tutti::test {

using Values = std::vector<at::Tensor>;

/// The same numbers wherever they are drawn.
inline at::Tensor drawn(at::IntArrayRef shape, uint64_t seed) {
  return at::randn(shape, at::detail::createCPUGenerator(seed));
}

struct PipelineLayer {
  Values parameters;
  std::function<Values(at::TensorList inputs, const Values& parameters)> forward;
  std::shared_ptr<torch::nn::Module> module{};  ///< more of it
};
/// A parameter of a layer is that of an earlier one.
struct TiedLayers {
  size_t owner = 0, owner_parameter = 0, reader = 0, reader_parameter = 0;
};

struct PipelineModel {
  std::function<std::vector<PipelineLayer>()> make;
  std::vector<TiedLayers> ties{};
  std::function<Values(int microbatch, int64_t size)> inputs;
  std::function<at::Tensor(int microbatch, at::TensorList outputs)> loss;
};

inline Values run_layers(const std::vector<PipelineLayer>& layers, size_t begin, size_t end,
                         at::TensorList inputs) {
  Values values = inputs.vec();
  for (size_t i = begin; i < end; ++i) values = layers[i].forward(values, layers[i].parameters);
  return values;
}

/// By layer and parameter; undefined where nothing uses it, and at readers of tied ones.
using LayerSums = std::vector<Values>;

inline at::Tensor added_as_a_tree(const Values& leaves) {
  Values partial = leaves;
  at::Tensor zeros;
  for (const at::Tensor& leaf : leaves)
    if (leaf.defined()) zeros = at::zeros_like(leaf);
  if (!zeros.defined()) return {};
  for (at::Tensor& one : partial)
    if (!one.defined()) one = zeros;
  const auto tree = ReductionShape::flat(static_cast<int>(leaves.size()));
  for (const auto& step : tree.steps())
    partial[static_cast<size_t>(step.into)] =
        at::add(partial[static_cast<size_t>(step.into)], partial[static_cast<size_t>(step.from)]);
  return partial[0];
}

inline LayerSums oracle_sums(const PipelineModel& model, const std::vector<int64_t>& sizes,
                             std::optional<nn::SamplePlace> place = {}) {
  at::set_num_threads(1);
  auto layers = model.make();
  Values all;
  for (const TiedLayers& tie : model.ties)
    layers[tie.reader].parameters[tie.reader_parameter] =
        layers[tie.owner].parameters[tie.owner_parameter];
  const auto is_reader = [&](size_t layer, size_t parameter) {
    for (const TiedLayers& tie : model.ties)
      if (tie.reader == layer && tie.reader_parameter == parameter) return true;
    return false;
  };
  for (size_t i = 0; i < layers.size(); ++i)
    for (size_t k = 0; k < layers[i].parameters.size(); ++k)
      if (layers[i].parameters[k].requires_grad() && !is_reader(i, k))
        all.push_back(layers[i].parameters[k]);
  std::vector<Values> leaves(all.size(), Values(sizes.size()));
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) continue;
    std::optional<nn::SampleContext> context;
    if (place) {
      context.emplace(
          nn::SamplePlace{place->seed, place->step,
                          std::accumulate(sizes.begin(), sizes.begin() + static_cast<ptrdiff_t>(i),
                                          place->first_row)});
    }
    const int microbatch = static_cast<int>(i);
    const Values outputs = run_layers(layers, 0, layers.size(), model.inputs(microbatch, sizes[i]));
    const at::Tensor loss = model.loss(microbatch, outputs);
    const auto gradients = torch::autograd::grad({loss}, all, {}, std::nullopt, false, true);
    for (size_t k = 0; k < all.size(); ++k) leaves[k][i] = gradients[k];
  }
  LayerSums sums;
  size_t next = 0;
  for (size_t i = 0; i < layers.size(); ++i) {
    sums.emplace_back();
    for (size_t k = 0; k < layers[i].parameters.size(); ++k) {
      const bool trained = layers[i].parameters[k].requires_grad() && !is_reader(i, k);
      sums.back().push_back(trained ? added_as_a_tree(leaves[next++]) : at::Tensor());
    }
  }
  return sums;
}

/// Stages of `ranks`' pipeline: stage s has the layers from cuts[s] to cuts[s + 1].
struct StagesOfModel {
  std::vector<PipelineLayer> layers;
  std::vector<size_t> cuts;

  int stage_of(size_t layer) const {
    int stage = 0;
    while (cuts[static_cast<size_t>(stage) + 1] <= layer) ++stage;
    return stage;
  }
};

inline std::vector<size_t> even_cuts(size_t layers, int stages) {
  std::vector<size_t> cuts;
  for (int s = 0; s <= stages; ++s)
    cuts.push_back(layers * static_cast<size_t>(s) / static_cast<size_t>(stages));
  return cuts;
}

/// What is at each border is found out by a dry run on one sample.
inline std::vector<std::vector<parallel::Border>> borders_of(const PipelineModel& model,
                                                             const StagesOfModel& stages) {
  const nn::SampleContext context({});
  const at::NoGradGuard no_gradient;
  std::vector<std::vector<parallel::Border>> borders(stages.cuts.size());
  Values values = model.inputs(0, 1);
  for (size_t s = 0; s + 2 < stages.cuts.size(); ++s) {
    values = run_layers(stages.layers, stages.cuts[s], stages.cuts[s + 1], values);
    for (const at::Tensor& value : values)
      borders[s + 1].push_back({value.sizes().slice(1).vec(), dtype_of(value.scalar_type())});
  }
  return borders;
}

/// Layer i of a stage is computed again where recompute[i % its size] says so.
inline std::vector<parallel::Span> spans_of(const StagesOfModel& stages, size_t stage,
                                            const std::vector<bool>& recompute) {
  std::vector<parallel::Span> spans;
  for (size_t i = stages.cuts[stage]; i < stages.cuts[stage + 1] && !recompute.empty(); ++i)
    spans.push_back(
        {.forward = [&stages,
                     i](at::TensorList x) { return run_layers(stages.layers, i, i + 1, x); },
         .recompute = recompute[spans.size() % recompute.size()]});
  return spans;
}

/// One rank's stages by chunk. Module parameters are those of the layers, in order.
inline std::vector<parallel::Stage> stages_of_rank(const PipelineModel& model,
                                                   const mesh::Schedule& schedule,
                                                   StagesOfModel& stages, int rank) {
  std::vector<std::vector<parallel::Tie>> ties(stages.cuts.size());
  for (const TiedLayers& tie : model.ties) {
    const int owner = stages.stage_of(tie.owner), reader = stages.stage_of(tie.reader);
    const at::Tensor& owners = stages.layers[tie.owner].parameters[tie.owner_parameter];
    at::Tensor& readers = stages.layers[tie.reader].parameters[tie.reader_parameter];
    if (owner == reader) {
      readers = owners;
      continue;
    }
    const std::string name = std::to_string(tie.owner) + "." + std::to_string(tie.owner_parameter);
    auto& of_reader = ties[static_cast<size_t>(reader)];
    const auto same =
        std::ranges::find_if(of_reader, [&](const parallel::Tie& one) { return one.name == name; });
    if (same != of_reader.end()) {  // two layers of one stage share its copy
      readers = same->parameter;
      continue;
    }
    readers = owners.detach().clone().requires_grad_(owners.requires_grad());
    ties[static_cast<size_t>(owner)].push_back({name, owners, owner, reader});
    of_reader.push_back({name, readers, owner, reader});
  }
  const auto borders = borders_of(model, stages);
  std::vector<parallel::Stage> chunks;
  for (int chunk = 0; chunk < schedule.chunks; ++chunk) {
    const auto s = static_cast<size_t>(schedule.stage_of(rank, chunk));
    auto module = std::make_shared<torch::nn::Module>();
    for (size_t i = stages.cuts[s]; i < stages.cuts[s + 1]; ++i) {
      const std::string name = "layer" + std::to_string(i);
      for (const at::Tensor& parameter : stages.layers[i].parameters)
        module->register_parameter(name + "_" + std::to_string(module->parameters().size()),
                                   parameter, parameter.requires_grad());
      if (stages.layers[i].module) module->register_module(name, stages.layers[i].module);
    }
    chunks.push_back(
        {.module = module,
         .forward =
             [&stages, s](at::TensorList inputs) {
               return run_layers(stages.layers, stages.cuts[s], stages.cuts[s + 1], inputs);
             },
         .inputs = s == 0 ? std::vector<parallel::Border>{} : borders[s],
         .outputs = s + 2 == stages.cuts.size() ? std::vector<parallel::Border>{} : borders[s + 1],
         .ties = ties[s]});
  }
  return chunks;
}

struct PipelineRun {
  std::vector<int64_t> sizes;
  std::string engine = "shm";
  parallel::PipelineOptions options{.limit = Millis(20'000)};
  std::optional<nn::SamplePlace> place{};
  std::vector<bool> recompute{};  ///< of a stage's layers, in turn; each is a span then
  std::vector<size_t> cuts{};     ///< empty: even
  int steps = 1;                  ///< sums are those of the last one
  /// On each rank, before the steps.
  std::function<void(parallel::Pipeline&, StagesOfModel&, Group)> before{};
};

inline parallel::Pipeline::Batch batch_of(const PipelineModel& model, const PipelineRun& run) {
  return {.sizes = run.sizes,
          .inputs = [&](int i) { return model.inputs(i, run.sizes[static_cast<size_t>(i)]); },
          .loss = model.loss,
          .place = run.place};
}

/// Sums from all ranks, by layer.
inline LayerSums pipeline_sums(const PipelineModel& model, const mesh::Schedule& schedule,
                               const PipelineRun& run) {
  LayerSums sums(model.make().size());
  run_all_members(make_engines(run.engine, schedule.ranks()), [&](const Group& group) {
    at::set_num_threads(1);
    StagesOfModel stages{model.make(), run.cuts};
    if (stages.cuts.empty()) stages.cuts = even_cuts(stages.layers.size(), schedule.stages());
    auto chunks = stages_of_rank(model, schedule, stages, group.rank());
    for (int chunk = 0; chunk < schedule.chunks; ++chunk)
      chunks[static_cast<size_t>(chunk)].spans = spans_of(
          stages, static_cast<size_t>(schedule.stage_of(group.rank(), chunk)), run.recompute);
    parallel::Pipeline pipeline(group, schedule, std::move(chunks), run.options);
    if (run.before) run.before(pipeline, stages, group);
    std::vector<Values> got;
    for (int step = 0; step < run.steps; ++step) got = pipeline.step(batch_of(model, run));
    for (int chunk = 0; chunk < schedule.chunks; ++chunk) {
      const auto s = static_cast<size_t>(schedule.stage_of(group.rank(), chunk));
      Values seen;
      auto next = got[static_cast<size_t>(chunk)].begin();
      for (size_t i = stages.cuts[s]; i < stages.cuts[s + 1]; ++i)
        for (const at::Tensor& parameter : stages.layers[i].parameters) {
          const auto is = [&](const at::Tensor& one) { return one.is_same(parameter); };
          const bool is_new = std::ranges::none_of(seen, is) && parameter.requires_grad();
          seen.push_back(parameter);
          sums[i].push_back(is_new ? *next++ : at::Tensor());
          if (parameter.grad().defined()) throw Error("a gradient was left in a parameter");
        }
      if (next != got[static_cast<size_t>(chunk)].end()) throw Error("more sums than parameters");
    }
  });
  return sums;
}

inline void expect_same_sums(const LayerSums& got, const LayerSums& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].size(), expected[i].size());
    for (size_t k = 0; k < got[i].size(); ++k) {
      const std::string place = "layer " + std::to_string(i) + ", parameter " + std::to_string(k);
      ASSERT_EQ(got[i][k].defined(), expected[i][k].defined()) << place;
      if (got[i][k].defined()) {
        ASSERT_TRUE(at::equal(got[i][k], expected[i][k])) << place;
      }
    }
  }
}

inline void expect_oracle(const PipelineModel& model, const mesh::Schedule& schedule,
                          const PipelineRun& run) {
  expect_same_sums(pipeline_sums(model, schedule, run), oracle_sums(model, run.sizes, run.place));
}

}  // namespace tutti::test
