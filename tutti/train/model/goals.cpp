// Outputs of a model and what compile() says of them.
#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/suggest.h"
#include "tutti/base/typed.h"
#include "tutti/exported/module.h"
#include "tutti/train/model/detail/model_state.h"

namespace tutti::detail {

void require_one_input(at::TensorList inputs) {
  if (inputs.size() != 1)
    throw UsageError(fmt::format(
        "the model's forward takes one tensor, got {}; several come as const std::vector<Tensor>&",
        inputs.size()));
}

const at::Tensor& Goal::output(const Tensors& outputs) const {
  if (name.empty() && outputs.size() != 1)
    throw UsageError(
        fmt::format("compile: there is one loss, and the model's forward gives {} tensors; say by "
                    "CompileOptions::outputs which loss each of them has",
                    outputs.size()));
  if (place >= outputs.size())
    throw UsageError(
        fmt::format("compile: output \"{}\" is number {} of what the model's forward gives, which "
                    "gives {}",
                    name, place + 1, outputs.size()));
  return outputs[place];
}

namespace {

/// What the model calls its outputs, where it does.
std::vector<std::string> output_names(const std::optional<nn::Graph>& graph,
                                      const ExportedModule* exported) {
  std::vector<std::string> names;
  if (graph)
    for (const nn::Port& port : graph->outputs()) names.push_back(port.name);
  else if (exported != nullptr &&
           exported->program().output_tree.kind == pt2::Tree::Kind::dictionary)
    names = exported->output_names();
  return names;
}

/// Where an output stands in what forward gives; of a module of one's own, where it is listed.
size_t place_of_output(const std::string& name, size_t listed,
                       const std::vector<std::string>& known) {
  if (known.empty()) return listed;
  const auto found = std::ranges::find(known, name);
  if (found == known.end()) throw UsageError("compile: " + unknown_message("output", name, known));
  return static_cast<size_t>(found - known.begin());
}

void check_output(const OutputOptions& output, std::set<std::string>& seen) {
  if (output.name.empty()) throw UsageError("compile: an output has no name");
  if (!seen.insert(output.name).second)
    throw UsageError(fmt::format("compile: output \"{}\" is there twice", output.name));
  if (!(output.weight >= 0 && std::isfinite(output.weight)))
    throw UsageError(fmt::format("compile: output \"{}\": weight is {}, must be finite and >= 0",
                                 output.name, output.weight));
  if (!fits_float32(output.weight))
    throw UsageError(fmt::format("compile: output \"{}\": weight is {}, must be {}", output.name,
                                 output.weight, kFloat32Range));
}

Goals only_goal(const CompileOptions& options, const std::vector<std::string>& known) {
  if (!options.loss)
    throw UsageError(
        "compile: there is no loss; set loss, or outputs where the model has several of them");
  if (known.size() > 1) {
    std::vector<std::string> names;
    for (const std::string& name : known) names.push_back('"' + name + '"');
    throw UsageError(
        fmt::format("compile: the model has outputs {}; say by CompileOptions::outputs which loss "
                    "each of them has",
                    fmt::join(names, ", ")));
  }
  return {{.name = "", .place = 0, .loss = *options.loss, .weight = 1, .metrics = options.metrics}};
}

/// Those of History's columns, which are found by name, and of Scores.
void require_unlike_names(const Goals& goals) {
  std::set<std::string> taken{"loss", "train_loss", "val_loss", "seconds", "images_per_second"};
  for (const Measure& measure : kMeasures) taken.emplace(measure.name);
  const auto take = [&taken](const std::string& name, const char* mend) {
    if (!taken.insert(name).second || !taken.insert("val_" + name).second)
      throw UsageError(
          fmt::format("compile: there would be two quantities called \"{}\"; {}", name, mend));
  };
  for (const Goal& goal : goals)
    if (!goal.name.empty()) take(goal.quantity("loss"), "give the output another name");
  for (const Goal& goal : goals)
    for (const Metric& metric : goal.metrics)
      take(goal.quantity(metric.name()),
           "give one of the metrics another name: metric.named(\"...\")");
}

/// Metrics take outputs for what the loss takes them, and leave out what it does; of a graph their
/// room is known.
Goals checked(Goals goals, const std::optional<nn::Graph>& graph) {
  require_unlike_names(goals);
  for (Goal& goal : goals) {
    const LossKernel& loss = goal.loss.kernel();
    for (Metric& metric : goal.metrics)
      metric = metric.following(loss.from_logits()).ignoring(loss.ignored_label());
    if (!graph) continue;
    const nn::Shape& shape = graph->shape_of(graph->outputs()[goal.place]);
    const int64_t width = shape.empty() ? 1 : shape.back();
    require_room("compile", goal.metrics, width);
    if (const auto classes = loss.classes(); classes && *classes != width)
      throw UsageError(
          fmt::format("compile: loss {}: got {} class_weights, expected {}, one a class",
                      goal.loss.name(), *classes, width));
  }
  return goals;
}

}  // namespace

Goals goals_of(const CompileOptions& options, const std::optional<nn::Graph>& graph,
               const ExportedModule* exported) {
  if (options.num_inputs < 1)
    throw UsageError(
        fmt::format("compile: num_inputs is {}, must be 1 or more", options.num_inputs));
  if (graph && options.num_inputs != 1 &&
      options.num_inputs != static_cast<int64_t>(graph->inputs().size()))
    throw UsageError(fmt::format("compile: num_inputs is {}, the graph has {}; leave it out",
                                 options.num_inputs, graph->inputs().size()));
  if (exported != nullptr && options.num_inputs != 1 &&
      options.num_inputs != std::ssize(exported->input_names()))
    throw UsageError(fmt::format("compile: num_inputs is {}, the export has {}; leave it out",
                                 options.num_inputs, exported->input_names().size()));
  const auto known = output_names(graph, exported);
  if (options.outputs.empty()) return checked(only_goal(options, known), graph);
  if (options.loss || !options.metrics.empty())
    throw UsageError("compile: loss and metrics are those of each output: give outputs alone");
  Goals goals;
  std::set<std::string> seen;
  for (const OutputOptions& output : options.outputs) {
    check_output(output, seen);
    goals.push_back({.name = output.name,
                     .place = place_of_output(output.name, goals.size(), known),
                     .loss = output.loss,
                     .weight = output.weight,
                     .metrics = output.metrics});
  }
  if (std::ranges::all_of(goals, [](const Goal& goal) { return goal.weight == 0; }))
    throw UsageError("compile: all outputs have a weight of 0, so that nothing is trained");
  return checked(std::move(goals), graph);
}

}  // namespace tutti::detail
