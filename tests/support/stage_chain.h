/// Passes of a graph's stages, chained by hand as a pipeline does it, and of the whole module.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "tutti/nn/graph_module.h"
#include "tutti/nn/sample_context.h"
#include "tutti/parallel/model/graph_stage.h"

namespace tutti::test {

using parallel::GraphStage;
using parallel::Plan;
using parallel::StageRange;
using parallel::TensorGroup;
using parallel::Tie;
using Tensors = std::map<std::string, at::Tensor>;
using Modules = std::vector<std::shared_ptr<GraphStage>>;

constexpr int64_t kSamples = 3;
constexpr uint64_t kSeed = 11;

/// On one core, as ranks compute.
class OnOneCore : public ::testing::Test {
 protected:
  void SetUp() override { at::set_num_threads(1); }
  void TearDown() override { at::set_num_threads(threads_); }

 private:
  int threads_ = at::get_num_threads();
};

/// The same for each call.
inline std::vector<at::Tensor> inputs_of(const nn::Graph& graph) {
  std::vector<at::Tensor> inputs;
  for (const nn::Port& port : graph.inputs()) {
    auto [shape, dtype] = std::get<nn::op::Input>(graph.nodes()[static_cast<size_t>(port.node)].op);
    shape.insert(shape.begin(), kSamples);
    const int64_t count =
        std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies());
    const at::Tensor numbers = at::arange(count, at::kLong).view(shape);
    inputs.push_back(dtype == DType::int64 ? at::remainder(numbers * 37 + 5, 65)
                                           : at::sin(numbers.to(at::kFloat) * 0.7));
  }
  return inputs;
}

/// Weights of the loss's sum, so that each output has another gradient.
inline at::Tensor weights_for(const at::Tensor& output) {
  return at::cos(at::arange(output.numel(), at::kFloat) * 0.3).view(output.sizes());
}

/// What a pass leaves.
struct Pass {
  std::vector<at::Tensor> outputs;
  Tensors weights;  // before it
  Tensors gradients;
  Tensors buffers;  // after it
};

inline void add_state(Pass& pass, const torch::nn::Module& module) {
  for (const auto& item : module.named_parameters()) {
    pass.weights[item.key()] = item.value().detach().clone();
    pass.gradients[item.key()] = item.value().grad();
  }
  for (const auto& item : module.named_buffers()) pass.buffers[item.key()] = item.value().clone();
}

inline Pass pass_of_whole(const nn::Graph& graph) {
  torch::manual_seed(kSeed);
  const auto module = nn::make_module(graph);
  module->set_planned(false);
  const nn::SampleContext here({.seed = 3, .step = 2});
  Pass pass{.outputs = module->forward_all(inputs_of(graph))};
  at::Tensor loss = at::zeros({});
  for (const at::Tensor& output : pass.outputs) loss = loss + (output * weights_for(output)).sum();
  loss.backward();
  add_state(pass, *module);
  return pass;
}

inline Modules modules_of(const nn::Graph& graph, const std::vector<StageRange>& stages,
                          const TensorGroup& group = TensorGroup(), const Plan& plan = {}) {
  std::vector<int> all(stages.size());
  std::iota(all.begin(), all.end(), 0);
  torch::manual_seed(kSeed);
  return make_stages(graph, stages, all, group, plan);
}

/// As a pipeline hands it on: memory of its own, in the order of the dimensions.
inline at::Tensor sent(const at::Tensor& x) {
  at::Tensor got = x.detach().clone(at::MemoryFormat::Contiguous);
  return got.set_requires_grad(got.is_floating_point());
}

/// Forward through the stages and backward through them, as a pipeline does it.
inline Pass pass_of_chain(const nn::Graph& graph, const Modules& modules) {
  const nn::SampleContext here({.seed = 3, .step = 2});
  std::vector<std::vector<at::Tensor>> taken, given;
  std::vector<at::Tensor> values = inputs_of(graph);
  for (const auto& module : modules) {
    taken.push_back(values);
    given.push_back(module->forward(values));
    values.clear();
    for (const at::Tensor& x : given.back()) values.push_back(sent(x));
  }
  Pass pass{.outputs = given.back()};
  std::vector<at::Tensor> above;
  for (const at::Tensor& output : pass.outputs) above.push_back(weights_for(output));
  for (size_t stage = modules.size(); stage-- > 0;) {
    std::vector<at::Tensor> roots, gradients;
    for (size_t i = 0; i < above.size(); ++i)
      if (given[stage][i].requires_grad() && above[i].defined()) {
        roots.push_back(given[stage][i]);
        gradients.push_back(above[i]);
      }
    if (!roots.empty()) torch::autograd::backward(roots, gradients);
    above.clear();
    for (const at::Tensor& x : taken[stage])
      above.push_back(x.grad().defined() ? x.grad().contiguous() : at::Tensor());
  }
  for (const auto& module : modules) add_state(pass, *module);
  for (const auto& module : modules)
    for (const Tie& tie : module->ties())
      if (module->named_parameters().find(tie.name) == nullptr)
        pass.gradients[tie.name] = pass.gradients[tie.name] + tie.parameter.grad();
  return pass;
}

inline void expect_same(const Tensors& got, const Tensors& expected, const char* what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(got.contains(name)) << what << ' ' << name;
    const at::Tensor& other = got.at(name);
    ASSERT_EQ(other.defined(), tensor.defined()) << what << ' ' << name;
    if (!tensor.defined()) continue;
    EXPECT_TRUE(at::equal(other, tensor)) << what << ' ' << name;
  }
}

inline void expect_same(const Pass& got, const Pass& expected) {
  ASSERT_EQ(got.outputs.size(), expected.outputs.size());
  for (size_t i = 0; i < got.outputs.size(); ++i)
    EXPECT_TRUE(at::equal(got.outputs[i], expected.outputs[i])) << "output " << i;
  expect_same(got.weights, expected.weights, "initial value of");
  expect_same(got.gradients, expected.gradients, "gradient of");
  expect_same(got.buffers, expected.buffers, "buffer");
}

/// Ranges that the graph can be cut into, with a layer in each.
inline std::vector<std::vector<StageRange>> all_cuts(const nn::Graph& graph, int stages) {
  const size_t end = graph.nodes().size();
  std::vector<std::vector<StageRange>> all;
  const auto add = [&](std::vector<StageRange> ranges) {
    for (const auto& [from, to] : ranges) {
      bool layer = false;
      for (size_t i = from; i < to; ++i)
        layer |= !std::holds_alternative<nn::op::Input>(graph.nodes()[i].op);
      if (!layer) return;
    }
    all.push_back(std::move(ranges));
  };
  for (size_t first = 1; first < end; ++first) {
    if (stages == 2) add({{0, first}, {first, end}});
    if (stages == 3)
      for (size_t second = first + 1; second < end; ++second)
        add({{0, first}, {first, second}, {second, end}});
  }
  return all;
}

inline std::string name_of_cut(const nn::Graph& graph, const std::vector<StageRange>& stages) {
  std::string name = "cut before";
  for (size_t i = 1; i < stages.size(); ++i) name += " " + graph.nodes()[stages[i].begin].name;
  return name;
}

}  // namespace tutti::test
