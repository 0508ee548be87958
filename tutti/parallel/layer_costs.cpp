#include "tutti/parallel/layer_costs.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/nn/detail/graph_state.h"
#include "tutti/nn/detail/graph_step.h"
#include "tutti/nn/sample_context.h"
#include "tutti/parallel/detail/stage_parts.h"
#include "tutti/sync/tensors.h"

namespace tutti::parallel {
namespace {

constexpr int kTimes = 5;  // of which the median counts

int64_t elements_of(const nn::Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

// Between ranks of one host; what a slower link takes is for `tutti plan` to say.
constexpr LinkCost kLink{.latency = 2e-6, .seconds_per_byte = 1e-10};

/// The median of some runs, in seconds.
template <class Run>
double median_of(const Run& run) {
  std::array<double, kTimes> seconds{};
  for (double& one : seconds) one = run();
  std::ranges::nth_element(seconds, seconds.begin() + kTimes / 2);
  return seconds[kTimes / 2];
}

double seconds_since(TimePoint begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// What a layer reads: as inputs of the graph have it, zeros that name a token; else numbers.
at::Tensor sample_of(const nn::Graph& graph, int node, int64_t samples) {
  const nn::Node& from = graph.nodes()[static_cast<size_t>(node)];
  nn::Shape shape = from.shape;
  shape.insert(shape.begin(), samples);
  const auto* const input = std::get_if<nn::op::Input>(&from.op);
  if (input != nullptr && !is_floating(input->dtype))
    return at::zeros(shape, scalar_type_of(input->dtype));
  return at::ones(shape).set_requires_grad(input == nullptr);
}

/// Forward and backward of one layer, in seconds.
double seconds_of(const nn::Graph& graph, size_t place, int64_t samples) {
  const nn::Node& node = graph.nodes()[place];
  if (node.inputs.empty()) return 0;
  const nn::detail::LayerState state = nn::detail::draw_state(graph, place);
  nn::detail::GraphStep step = nn::detail::steps_of(graph, place, place + 1)[place];
  step.module = state.module.get();
  step.parameter = state.parameter;
  const nn::SampleContext of_none({});  // for dropout
  return median_of([&] {
    nn::detail::GraphStep::Values inputs;
    for (const int input : node.inputs) inputs.push_back(sample_of(graph, input, samples));
    const TimePoint begin = Clock::now();
    const at::Tensor output = step.run(inputs);
    if (output.requires_grad()) output.sum().backward();
    return seconds_since(begin);
  });
}

int64_t bytes_across(const nn::Graph& graph, size_t place) {
  int64_t elements = 0;
  for (const nn::Port& port : detail::values_across(graph, place))
    elements += elements_of(graph.shape_of(port));
  return 4 * elements;
}

/// Of its parameters, their gradients and the two states that adam has.
int64_t bytes_of(const nn::Node& node) {
  int64_t elements = 0;
  for (const nn::Parameter& parameter : node.parameters) elements += elements_of(parameter.shape);
  return 4 * 4 * elements;
}

/// balanced(), but that each stage has parameters where enough layers have: a stage without any has
/// nothing to train. Layers without go with the one before.
std::vector<size_t> balanced_with_parameters(const std::vector<LayerCost>& costs,
                                             const std::vector<bool>& trained, int stages) {
  std::vector<LayerCost> joined;
  std::vector<size_t> begins;
  bool last_trains = true;
  for (size_t i = 0; i < costs.size(); ++i) {
    if (!joined.empty() && (!trained[i] || !last_trains)) {
      last_trains = last_trains || trained[i];
      joined.back().seconds += costs[i].seconds;
      joined.back().bytes_memory += costs[i].bytes_memory;
      joined.back().bytes_out = costs[i].bytes_out;
    } else {
      last_trains = trained[i];
      joined.push_back(costs[i]);
      begins.push_back(i);
    }
  }
  if (joined.size() < static_cast<size_t>(stages)) return balanced(costs, stages, kLink);
  begins.push_back(costs.size());
  std::vector<size_t> cuts = balanced(joined, stages, kLink);
  for (size_t& cut : cuts) cut = begins[cut];
  return cuts;
}

}  // namespace

Cuts::Cuts(const nn::Graph& graph, const std::vector<NodeRole>& roles) : graph_(graph), begins_{0} {
  for (size_t place = 1; place < graph.nodes().size(); ++place) {
    const bool is_input = graph.nodes()[place].inputs.empty();
    const bool first = graph.nodes()[place - 1].inputs.empty();  // a stage of inputs alone
    if (!is_input && !first && why_no_cut(graph, roles, place).empty()) begins_.push_back(place);
  }
}

void Cuts::require_stages(int stages) const {
  if (static_cast<size_t>(stages) > begins_.size())
    throw UsageError(
        fmt::format("{} stages, but the model can be cut into {} at most, one a layer; take fewer "
                    "ranks on axis stage, or fewer stages a rank",
                    stages, begins_.size()));
}

std::vector<LayerCost> Cuts::measured(int64_t samples) const {
  auto generator = at::detail::getDefaultCPUGenerator();
  const at::Tensor drawn = generator.get_state();
  std::vector<LayerCost> costs;
  for (size_t i = 0; i < begins_.size(); ++i) {
    const size_t end = i + 1 < begins_.size() ? begins_[i + 1] : graph_.nodes().size();
    LayerCost& cost = costs.emplace_back();
    for (size_t place = begins_[i]; place < end; ++place) {
      cost.seconds += seconds_of(graph_, place, samples);
      cost.bytes_memory += bytes_of(graph_.nodes()[place]);
    }
    if (end < graph_.nodes().size()) cost.bytes_out = 2 * samples * bytes_across(graph_, end);
  }
  generator.set_state(drawn);
  return costs;
}

std::vector<size_t> Cuts::balanced(int stages) const {
  require_stages(stages);
  std::vector<bool> trained;
  for (size_t i = 0; i < begins_.size(); ++i) {
    const auto end = i + 1 < begins_.size() ? begins_[i + 1] : graph_.nodes().size();
    bool any = false;  // a tied head has a copy, which its owner trains
    for (size_t place = begins_[i]; place < end; ++place)
      any = any || (!graph_.nodes()[place].parameters.empty() &&
                    !std::holds_alternative<nn::op::TiedLinear>(graph_.nodes()[place].op));
    trained.push_back(any);
  }
  std::vector<size_t> begins = balanced_with_parameters(measured(), trained, stages);
  begins.pop_back();  // where the last stage ends
  for (size_t& begin : begins) begin = begins_[begin];
  return begins;
}

std::vector<size_t> balanced_cuts(torch::nn::Sequential whole, const Border& input, int stages) {
  constexpr int64_t kSamples = 8;
  const nn::SampleContext of_none({});
  auto shape = input.shape;
  shape.insert(shape.begin(), kSamples);
  at::Tensor x = at::zeros(shape, scalar_type_of(input.dtype));
  std::vector<LayerCost> costs;
  for (auto child = whole->begin(); child != whole->end(); ++child) {
    at::Tensor y;
    LayerCost& cost = costs.emplace_back();
    const bool training = child->ptr()->is_training();
    child->ptr()->eval();  // running statistics stay
    cost.seconds = median_of([&] {
      at::Tensor own = x.detach();
      if (own.is_floating_point()) own.set_requires_grad(true);
      const TimePoint begin = Clock::now();
      y = child->forward(own);
      if (y.requires_grad()) y.sum().backward();
      return seconds_since(begin);
    });
    for (at::Tensor& parameter : child->ptr()->parameters()) {
      cost.bytes_memory += 4 * static_cast<int64_t>(parameter.nbytes());
      parameter.mutable_grad().reset();
    }
    child->ptr()->train(training);
    cost.bytes_out = 2 * static_cast<int64_t>(y.nbytes());
    x = y.detach();
  }
  std::vector<bool> trained;
  for (const LayerCost& cost : costs) trained.push_back(cost.bytes_memory > 0);
  return balanced_with_parameters(costs, trained, stages);
}

}  // namespace tutti::parallel
