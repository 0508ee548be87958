#include "tutti/parallel/model/layer_costs.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <set>
#include <string>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/nn/detail/graph_state.h"
#include "tutti/nn/detail/graph_step.h"
#include "tutti/nn/sample_context.h"
#include "tutti/nn/value_types.h"
#include "tutti/parallel/model/detail/stage_parts.h"
#include "tutti/parallel/stages/detail/evaluation_mode.h"
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

/// What a layer reads: numbers, or zeros, which name a token, where its values are whole.
at::Tensor sample_of(const nn::Node& from, DType dtype, int64_t samples) {
  nn::Shape shape = from.shape;
  shape.insert(shape.begin(), samples);
  if (!is_floating(dtype)) return at::zeros(shape, scalar_type_of(dtype));
  return at::ones(shape).set_requires_grad(!std::holds_alternative<nn::op::Input>(from.op));
}

/// Forward and backward of one layer, in seconds.
double seconds_of(const nn::Graph& graph, const std::vector<DType>& types, size_t place,
                  int64_t samples) {
  const nn::Node& node = graph.nodes()[place];
  if (node.inputs.empty()) return 0;
  const nn::detail::LayerState state = nn::detail::draw_state(graph, place);
  nn::detail::GraphStep step = nn::detail::steps_of(graph, place, place + 1)[place];
  step.module = state.module.get();
  step.parameter = state.parameter;
  const nn::SampleContext of_none({});  // for dropout
  return median_of([&] {
    nn::detail::GraphStep::Values inputs;
    for (const int input : node.inputs) {
      const auto from = static_cast<size_t>(input);
      inputs.push_back(sample_of(graph.nodes()[from], types[from], samples));
    }
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

}  // namespace

Cuts::Cuts(const nn::Graph& graph, const std::vector<NodeRole>& roles) : graph_(graph), begins_{0} {
  std::set<std::string> owned;  // by a stage before
  for (size_t place = 0; place < graph.nodes().size(); ++place) {
    const nn::Node& node = graph.nodes()[place];
    const bool owns = !node.parameters.empty() && !owned.contains(node.name);
    if (owns && !owned.empty() && why_no_cut(graph, roles, place).empty()) begins_.push_back(place);
    if (owns) owned.insert(node.name);
  }
}

void Cuts::require_stages(int stages) const {
  if (static_cast<size_t>(stages) > begins_.size())
    throw UsageError(
        fmt::format("{} stages, but the model can be cut into {} at most, one a layer that has "
                    "parameters; take fewer ranks on axis stage, or fewer stages a rank",
                    stages, begins_.size()));
}

std::vector<LayerCost> Cuts::measured(int64_t samples) const {
  auto generator = at::detail::getDefaultCPUGenerator();
  const at::Tensor drawn = generator.get_state();
  const std::vector<DType> types = nn::value_types(graph_);
  std::vector<LayerCost> costs;
  for (size_t i = 0; i < begins_.size(); ++i) {
    const size_t end = i + 1 < begins_.size() ? begins_[i + 1] : graph_.nodes().size();
    LayerCost& cost = costs.emplace_back();
    for (size_t place = begins_[i]; place < end; ++place) {
      cost.seconds += seconds_of(graph_, types, place, samples);
      cost.bytes_memory += bytes_of(graph_.nodes()[place]);
    }
    if (end < graph_.nodes().size()) cost.bytes_out = 2 * samples * bytes_across(graph_, end);
  }
  generator.set_state(drawn);
  return costs;
}

std::vector<size_t> Cuts::balanced(int stages) const {
  require_stages(stages);
  std::vector<size_t> begins = parallel::balanced(measured(), stages, kLink);
  begins.pop_back();  // where the last stage ends
  for (size_t& begin : begins) begin = begins_[begin];
  return begins;
}

std::vector<size_t> balanced_cuts(torch::nn::Sequential whole, const Border& input, int stages) {
  constexpr int64_t kSamples = 2;
  const nn::SampleContext of_none({});
  auto shape = input.shape;
  shape.insert(shape.begin(), kSamples);
  at::Tensor x = at::zeros(shape, scalar_type_of(input.dtype));
  std::vector<LayerCost> costs;
  std::vector<size_t> begins;  // children that a stage may begin with: they have parameters
  bool owns = false;           // a child before has some
  for (auto child = whole->begin(); child != whole->end(); ++child) {
    at::Tensor y;
    const bool has_parameters = !child->ptr()->parameters().empty();
    if (begins.empty() || (has_parameters && owns)) {
      begins.push_back(static_cast<size_t>(child - whole->begin()));
      costs.emplace_back();
    }
    owns = owns || has_parameters;
    LayerCost& cost = costs.back();
    const detail::EvaluationMode evaluating(*child->ptr());  // running statistics stay
    cost.seconds += median_of([&] {
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
    cost.bytes_out = 2 * static_cast<int64_t>(y.nbytes());
    x = y.detach();
  }
  std::vector<size_t> cuts = balanced(costs, stages, kLink);
  begins.push_back(whole->size());
  for (size_t& cut : cuts) cut = begins[cut];
  return cuts;
}

}  // namespace tutti::parallel
