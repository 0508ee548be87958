// A pipeline has the bits of plain autograd of the whole model, whatever the schedule, the cut and
// the ranks.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>

#include "tutti/nn/dense.h"
#include "tutti/nn/dropout.h"
#include "tutti/parallel/stages/pipeline.h"

#include "tests/support/message_of.h"
#include "tests/support/pipeline_ranks.h"

namespace tutti::parallel {
namespace {

using test::batch_of;
using test::drawn;
using test::expect_oracle;
using test::PipelineLayer;
using test::PipelineModel;
using test::PipelineRun;
using test::StagesOfModel;
using test::Values;

at::Tensor trained(at::IntArrayRef shape, uint64_t seed) {
  return (drawn(shape, seed) / 3).requires_grad_();
}

/// Its weight is put off where backward is split, the scale is not.
PipelineLayer dense_layer(int64_t width, uint64_t seed) {
  return {{trained({width, width}, seed), trained({width}, seed + 1), trained({width}, seed + 2)},
          [](at::TensorList x, const Values& p) {
            return Values{nn::dense(x[0], p[0], p[1], nn::Activation::relu) * p[2] + x[0]};
          }};
}

PipelineModel dense_model(size_t layers, int64_t width = 6) {
  return {
      .make =
          [=] {
            std::vector<PipelineLayer> all;
            for (size_t i = 0; i < layers; ++i) all.push_back(dense_layer(width, 10 * i));
            return all;
          },
      .inputs =
          [=](int i, int64_t size) {
            return Values{drawn({size, width}, 1000 + static_cast<uint64_t>(i))};
          },
      .loss = [](int i,
                 at::TensorList y) { return (y[0] - static_cast<double>(i)).square().sum() / 8; }};
}

std::vector<int64_t> of_two(int microbatches) {
  return std::vector<int64_t>(static_cast<size_t>(microbatches), 2);
}

struct NamedSchedule {
  const char* name;
  int chunks;
};
const NamedSchedule kSchedules[] = {{"gpipe", 1},       {"1f1b", 1},  {"interleaved", 2},
                                    {"interleaved", 3}, {"zb-h1", 1}, {"zb-v", 1},
                                    {"dualpipe-v", 1}};

class PipelineBy : public ::testing::TestWithParam<NamedSchedule> {
 protected:
  /// Nothing where the schedule does not take so many.
  std::optional<mesh::Schedule> schedule(int ranks, int microbatches) const {
    const auto [name, chunks] = GetParam();
    if (name == std::string("interleaved") && microbatches % ranks != 0) return std::nullopt;
    return mesh::schedule_by_name(name,
                                  {.ranks = ranks, .microbatches = microbatches, .chunks = chunks});
  }
  mesh::Schedule schedule_of_two() const { return *schedule(2, 4); }
};

TEST_P(PipelineBy, HasTheBitsOfOneProcess) {
  const PipelineModel model = dense_model(12);
  for (int microbatches = 1; microbatches <= 8; ++microbatches) {
    const auto expected = test::oracle_sums(model, of_two(microbatches));
    for (int ranks = 1; ranks <= 4; ++ranks) {
      const auto one = schedule(ranks, microbatches);
      if (!one) continue;
      SCOPED_TRACE(fmt::format("{} ranks, {} microbatches", ranks, microbatches));
      test::expect_same_sums(test::pipeline_sums(model, *one, {.sizes = of_two(microbatches)}),
                             expected);
    }
  }
}

TEST_P(PipelineBy, TakesUnevenAndEmptyMicrobatches) {
  const PipelineModel model = dense_model(7);
  for (const auto& sizes :
       std::vector<std::vector<int64_t>>{{2, 1, 1, 1}, {1, 1, 1, 0}, {0, 0, 0, 0}, {0, 3, 0, 1}})
    expect_oracle(model, schedule_of_two(), {.sizes = sizes});
}

TEST_P(PipelineBy, SendsLongMessagesOverTcp) {
  expect_oracle(dense_model(8, 300), schedule_of_two(),
                {.sizes = {64, 64, 64, 64}, .engine = "tcp", .steps = 2});
}

TEST_P(PipelineBy, SendsLongMessagesBetweenProcessesMemory) {
  expect_oracle(dense_model(8, 300), schedule_of_two(),
                {.sizes = {64, 64, 64, 64}, .engine = "shm staged", .steps = 2});
}

/// A table that four layers read; numbers and values go by layers that do not use them.
PipelineModel tied_model() {
  return {.make =
              [] {
                const auto by = [](at::TensorList x, const at::Tensor& first) {
                  Values values = x.vec();
                  values[0] = first;
                  return values;
                };
                std::vector<PipelineLayer> all;
                all.push_back({{trained({9, 6}, 1)}, [](at::TensorList x, const Values& p) {
                                 const at::Tensor words = at::embedding(p[0], x[0]);
                                 return Values{words.mean(1), x[0], words.tanh()};
                               }});
                for (uint64_t i = 1; i < 6; ++i)
                  all.push_back({dense_layer(6, 10 * i).parameters,
                                 [by, i](at::TensorList x, const Values& p) {
                                   at::Tensor y = nn::dense(x[0], p[0], p[1]) * p[2];
                                   if (i % 2 == 0) y = y + x[2].sum(1);
                                   if (i == 4) y = y * at::embedding(p[3], x[1]).mean(1);
                                   return by(x, y);
                                 }});
                all[4].parameters.push_back(trained({9, 6}, 1));
                all.push_back({{trained({9, 6}, 1)}, [by](at::TensorList x, const Values& p) {
                                 return by(x, x[0] + at::embedding(p[0], x[1]).sum(1));
                               }});
                all.push_back({{trained({9, 6}, 1)}, [](at::TensorList x, const Values& p) {
                                 return Values{nn::dense(x[0], p[0])};
                               }});
                return all;
              },
          .ties = {{0, 0, 4, 3}, {0, 0, 6, 0}, {0, 0, 7, 0}},
          .inputs =
              [](int i, int64_t size) {
                return Values{
                    at::remainder(at::arange(size * 4, at::kLong) * 5 + i, 9).view({size, 4})};
              },
          .loss = [](int, at::TensorList y) { return y[0].square().mean(); }};
}

TEST_P(PipelineBy, TiesParametersAndLetsValuesGoBy) {
  for (int ranks = 1; ranks <= 4; ++ranks)
    if (const auto one = schedule(ranks, 4); one && one->stages() <= 8) {
      SCOPED_TRACE(ranks);
      expect_oracle(tied_model(), *one, {.sizes = {2, 3, 0, 2}});
    }
}

TEST_P(PipelineBy, RecomputesWithTheSameBits) {
  for (const std::vector<bool>& recompute : {std::vector{true}, {true, false}, {false, true}}) {
    expect_oracle(dense_model(8), schedule_of_two(), {.sizes = of_two(4), .recompute = recompute});
    expect_oracle(tied_model(), schedule_of_two(), {.sizes = {2, 3, 0, 2}, .recompute = recompute});
  }
}

/// Layers that count their own calls of random numbers.
PipelineModel dropout_model() {
  PipelineModel model = dense_model(8);
  model.make = [make = model.make] {
    auto layers = make();
    for (PipelineLayer& layer : layers) {
      nn::Dropout drop(0.4);
      layer.module = drop.ptr();
      layer.forward = [forward = layer.forward, drop](at::TensorList x, const Values& p) mutable {
        return Values{drop(forward(x, p)[0])};
      };
    }
    return layers;
  };
  return model;
}

TEST_P(PipelineBy, DrawsTheSameNumbersForTheSameSamples) {
  const nn::SamplePlace place{.seed = 3, .step = 5, .first_row = 16};
  for (const std::vector<bool>& recompute : {std::vector<bool>{}, {true}, {false, true}})
    expect_oracle(dropout_model(), schedule_of_two(),
                  {.sizes = {2, 1, 0, 2}, .place = place, .recompute = recompute});
}

TEST_P(PipelineBy, RunsForwardAloneBetweenSteps) {
  const PipelineModel model = dense_model(12);
  const PipelineRun plain{.sizes = {2, 1, 0, 3}};
  PipelineRun run = plain;
  run.before = [&](Pipeline& pipeline, StagesOfModel&, const Group& group) {
    const auto layers = model.make();
    for (int round = 0; round < 2; ++round) {
      std::vector<int> taken;
      pipeline.forward(batch_of(model, plain), [&](int i, Values y) {
        taken.push_back(i);
        EXPECT_FALSE(y.at(0).requires_grad());
        EXPECT_TRUE(at::equal(y[0], test::run_layers(layers, 0, layers.size(),
                                                     model.inputs(i, plain.sizes.at(i)))[0]));
      });
      const auto& schedule = pipeline.schedule();
      const bool last = schedule.rank_of(schedule.stages() - 1) == group.rank();
      EXPECT_EQ(taken, last ? (std::vector{0, 1, 3}) : std::vector<int>{});
      pipeline.step(batch_of(model, plain));
    }
  };
  expect_oracle(model, schedule_of_two(), run);
}

TEST_P(PipelineBy, SaysWhenEachActionHasEnded) {
  const PipelineModel model = dense_model(8);
  const mesh::Schedule schedule = schedule_of_two();
  std::atomic<int64_t> ended{0};
  PipelineRun run{.sizes = {2, 0, 1, 0}};
  run.options.after_action = [&] { ++ended; };
  run.before = [&](Pipeline& pipeline, StagesOfModel&, const Group&) {
    pipeline.forward(batch_of(model, run), {});
  };
  expect_oracle(model, schedule, run);
  int64_t actions = schedule.stages() * schedule.microbatches;  // of forward()
  for (const auto& of_rank : schedule.actions) actions += std::ssize(of_rank);
  EXPECT_EQ(ended, actions);
}

INSTANTIATE_TEST_SUITE_P(Schedules, PipelineBy, ::testing::ValuesIn(kSchedules),
                         [](const auto& info) {
                           std::string name = info.param.name + std::to_string(info.param.chunks);
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

TEST(Pipeline, CutsSevenLayersIntoThreeStagesAnywhere) {
  const auto schedule = mesh::zb_h1({.ranks = 3, .microbatches = 4});
  for (const auto& cuts :
       std::vector<std::vector<size_t>>{{0, 2, 4, 7}, {0, 1, 6, 7}, {0, 5, 6, 7}, {0, 3, 3, 7}})
    expect_oracle(dense_model(7), schedule, {.sizes = of_two(4), .cuts = cuts});
}

TEST(Pipeline, HasTheBitsOfDataReplicas) {
  const PipelineModel model = dense_model(4);
  test::LayerSums replicas(4);
  test::run_all_members(test::make_engines("shm", 4), [&](Group group) {
    at::set_num_threads(1);
    const auto layers = model.make();
    Values all;
    for (const PipelineLayer& layer : layers)
      all.insert(all.end(), layer.parameters.begin(), layer.parameters.end());
    const int i = group.rank();
    const at::Tensor loss = model.loss(i, test::run_layers(layers, 0, 4, model.inputs(i, 2)));
    auto gradients = torch::autograd::grad({loss}, all);
    for (size_t k = 0; k < gradients.size(); ++k) {
      gradients[k] = gradients[k].contiguous();
      group.all_reduce_now(span_of(gradients[k]), ReduceOp::sum);
      if (i == 0) replicas[k / 3].push_back(gradients[k]);
    }
  });
  const auto schedule = mesh::one_f_one_b({.ranks = 2, .microbatches = 4});
  test::expect_same_sums(test::pipeline_sums(model, schedule, {.sizes = of_two(4)}), replicas);
}

TEST(Pipeline, LeavesFrozenParametersAndStagesWithoutAnyAlone) {
  PipelineModel model = dense_model(6);
  model.make = [make = model.make] {
    auto layers = make();
    for (const at::Tensor& one : layers[0].parameters) one.detach_();
    layers[2] = {{}, [](at::TensorList x, const Values&) { return Values{x[0].tanh()}; }};
    layers[3].parameters[0].detach_();
    return layers;
  };
  for (const char* name : {"1f1b", "zb-h1"})
    expect_oracle(model, mesh::schedule_by_name(name, {.ranks = 3, .microbatches = 4}),
                  {.sizes = of_two(4), .cuts = {0, 2, 3, 6}});
  expect_oracle(model, mesh::zb_v({.ranks = 2, .microbatches = 4}),
                {.sizes = of_two(4), .cuts = {0, 1, 2, 3, 6}});
}

/// One parameter is used by some microbatches alone, another one's output by nobody.
TEST(Pipeline, KnowsParametersThatMicrobatchesDoNotUse) {
  PipelineModel model = dense_model(4);
  model.make = [make = model.make] {
    auto layers = make();
    layers[1].forward = [](at::TensorList x, const Values& p) {
      at::Tensor y = nn::dense(x[0], p[0]);
      if (x[0].size(0) == 2) y = y * p[2];
      return Values{y, nn::dense(x[0], p[1].diag())};
    };
    layers[2].forward = [](at::TensorList x, const Values& p) {
      return Values{nn::dense(x[0], p[0], p[1])};
    };
    return layers;
  };
  for (const char* name : {"gpipe", "zb-h1"})
    expect_oracle(model, mesh::schedule_by_name(name, {.ranks = 2, .microbatches = 4}),
                  {.sizes = {2, 1, 2, 1}, .cuts = {0, 2, 4}});
}

/// Kernels of convolutions follow the strides of what they get.
TEST(Pipeline, KeepsTheOrderOfDimensionsAcrossBorders) {
  const PipelineModel model{
      .make =
          [] {
            std::vector<PipelineLayer> all;
            for (uint64_t i = 0; i < 4; ++i)
              all.push_back({{trained({5, 5, 3, 3}, i)}, [](at::TensorList x, const Values& p) {
                               EXPECT_TRUE(x[0].is_contiguous(at::MemoryFormat::ChannelsLast));
                               return Values{at::relu(at::conv2d(
                                   x[0], p[0].contiguous(at::MemoryFormat::ChannelsLast)))};
                             }});
            return all;
          },
      .inputs =
          [](int i, int64_t size) {
            return Values{drawn({size, 5, 12, 12}, static_cast<uint64_t>(i))
                              .contiguous(at::MemoryFormat::ChannelsLast)};
          },
      .loss = [](int, at::TensorList y) { return y[0].square().sum(); }};
  for (const int ranks : {1, 2, 4})
    expect_oracle(model, mesh::one_f_one_b({.ranks = ranks, .microbatches = 4}),
                  {.sizes = of_two(4)});
}

TEST(Pipeline, SendsTiedValuesAfterAnUpdate) {
  for (const char* name : {"1f1b", "zb-v"}) {
    const PipelineModel model = tied_model();
    PipelineRun run{.sizes = of_two(4)};
    run.before = [](Pipeline& pipeline, StagesOfModel& stages, const Group&) {
      const at::NoGradGuard no_gradient;
      stages.layers[0].parameters[0].mul_(0.5);  // every rank has layers of its own
      pipeline.send_ties();
    };
    PipelineModel updated = model;
    updated.make = [make = model.make] {
      auto layers = make();
      const at::NoGradGuard no_gradient;
      layers[0].parameters[0].mul_(0.5);
      return layers;
    };
    const auto schedule = mesh::schedule_by_name(name, {.ranks = 2, .microbatches = 4});
    test::expect_same_sums(test::pipeline_sums(model, schedule, run),
                           test::oracle_sums(updated, run.sizes));
  }
}

}  // namespace
}  // namespace tutti::parallel
