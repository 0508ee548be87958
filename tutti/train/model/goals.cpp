// Outputs of a model and what compile() says of them.
#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/suggest.h"
#include "tutti/base/typed.h"
#include "tutti/exported/module.h"
#include "tutti/train/model/added_losses.h"
#include "tutti/train/model/detail/model_state.h"

namespace tutti {

static thread_local AddedLosses* added_on_thread = nullptr;

AddedLosses::AddedLosses() : AddedLosses("") {}
AddedLosses::AddedLosses(std::string refusal)
    : outer_(added_on_thread), refusal_(std::move(refusal)) {
  added_on_thread = this;
}
AddedLosses::~AddedLosses() { added_on_thread = outer_; }

static std::string words_of_losses(const at::Tensor& losses) {
  if (!losses.defined()) return "that are undefined";
  return fmt::format("{} {}", c10::toString(losses.scalar_type()), c10::str(losses.sizes()));
}

void add_loss(const at::Tensor& losses) {
  AddedLosses* const taker = added_on_thread;
  if (taker == nullptr) return;
  if (!taker->refusal_.empty()) throw UsageError("add_loss: " + taker->refusal_);
  if (!losses.defined() || losses.dim() > 1 || !at::isFloatingType(losses.scalar_type()))
    throw UsageError(fmt::format(
        "add_loss: got losses {}, expected floats [samples], one for each, or [] for all of them",
        words_of_losses(losses)));
  taker->all_.push_back(losses);
}

at::Tensor AddedLosses::of(int64_t samples) const {
  at::Tensor sum;
  for (const at::Tensor& one : all_) {
    if (one.dim() == 1 && one.size(0) != samples)
      throw UsageError(
          fmt::format("add_loss: got losses {}, expected [{}], one for each sample of this "
                      "replica's part, or [] for all of them",
                      words_of_losses(one), samples));
    const at::Tensor plain = one.to(at::kFloat);
    sum = sum.defined() ? sum + plain : plain;
  }
  return sum.defined() ? sum.expand({samples}) : sum;
}

void add_metric(const std::string& name, const at::Tensor& values) {
  AddedLosses* const taker = added_on_thread;
  if (taker == nullptr) return;
  const std::string what = fmt::format("add_metric \"{}\": ", name);
  if (!taker->refusal_.empty()) throw UsageError(what + taker->refusal_);
  if (!values.defined() || values.dim() > 1 || values.is_complex())
    throw UsageError(fmt::format(
        "{}got values {}, expected numbers [samples], one for each, or [] for all of them", what,
        words_of_losses(values)));
  taker->metrics_[name].push_back(values.detach().to(at::kDouble));
}

AddedMetrics AddedLosses::metrics(int64_t samples) const {
  const at::NoGradGuard no_grad;
  AddedMetrics all;
  for (const auto& [name, given] : metrics_) {
    std::vector<at::Tensor> each;
    for (const at::Tensor& one : given) {
      if (one.dim() == 1 && one.size(0) != samples)
        throw UsageError(
            fmt::format("add_metric \"{}\": got values {}, expected [{}], one for each sample of "
                        "this replica's part, or [] for all of them",
                        name, words_of_losses(one), samples));
      each.push_back(one.expand({samples}));
    }
    all.emplace(name, at::cat(each));
  }
  return all;
}

static thread_local const detail::GivenMetrics* given_on_thread = nullptr;

Metric metrics::added(const std::string& name) {
  if (name.empty()) throw UsageError("metrics::added: the name is empty, expected add_metric's");
  const auto add = [name](const SampleRows&, std::span<double> state) {
    if (given_on_thread == nullptr)
      throw UsageError(
          fmt::format("metrics::added(\"{}\") is of what forward gives add_metric() in fit() and "
                      "evaluate(); in a loop of one's own AddedLosses::metrics() has it",
                      name));
    const at::Tensor values = given_on_thread->read(name).to(at::kCPU).contiguous();
    double sum = 0;
    for (int64_t i = 0; i < values.numel(); ++i) sum += values.const_data_ptr<double>()[i];
    state[0] += sum;
    state[1] += static_cast<double>(values.numel());
  };
  return Metric(MetricDefinition{
      .name = name,
      .num_states = [](int64_t) { return 2; },
      .add = add,
      .value = [](std::span<const double> state) { return MetricSum{state[0], state[1]}.value(); },
      .ignored = std::numeric_limits<int64_t>::min()});  // its rows are samples, whatever labels a
                                                         // loss leaves out
}

}  // namespace tutti

namespace tutti::detail {

GivenMetrics::GivenMetrics(const AddedMetrics& given) : given_(given) { given_on_thread = this; }
GivenMetrics::~GivenMetrics() { given_on_thread = nullptr; }

const at::Tensor& GivenMetrics::read(const std::string& name) const {
  const auto found = given_.find(name);
  if (found == given_.end())
    throw UsageError(
        fmt::format("metrics::added(\"{}\"): forward has not called add_metric(\"{}\", ...); it "
                    "gives it in every pass, in training and in evaluation",
                    name, name));
  read_.insert(name);
  return found->second;
}

void GivenMetrics::require_read() const {
  for (const auto& [name, values] : given_)
    if (values.numel() > 0 && !read_.contains(name))
      throw UsageError(
          fmt::format("add_metric \"{}\": compile() has no such metric; name it there, so that "
                      "History has its column: .metrics = {{tutti::metrics::added(\"{}\")}}",
                      name, name));
}

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

at::Tensor checked_losses(const at::Tensor& losses, int64_t samples) {
  if (losses.defined() && losses.dim() == 1 && losses.size(0) == samples &&
      at::isFloatingType(losses.scalar_type()))
    return losses;
  throw UsageError(fmt::format(
      "a step of one's own gave losses {}, expected floats [{}]: one for each sample of its part, "
      "whose mean over the global batch is Model's",
      words_of_losses(losses), samples));
}

void check_outputs(const Tensors& outputs, int64_t samples) {
  if (outputs.size() == 1 && outputs[0].defined() && outputs[0].dim() > 0 &&
      outputs[0].size(0) == samples)
    return;
  throw UsageError(fmt::format(
      "a step of one's own gave {}, expected outputs of one tensor [{}, ...]: what the metrics are "
      "of, a row for each sample of its part",
      outputs.size() != 1    ? fmt::format("{} outputs", outputs.size())
      : outputs[0].defined() ? fmt::format("outputs {}", c10::str(outputs[0].sizes()))
                             : "an undefined output",
      samples));
}

}  // namespace

StepOutcome call_step(const Compiled& compiled, const OwnStep& step, torch::nn::Module& module,
                      const Forward& forward, const BatchParts& parts, AddedMetrics& metrics) {
  const Tensors inputs = parts.inputs.vec(), targets = parts.targets.vec();
  const AddedLosses added;
  StepOutcome made = step({.module = module,
                           .inputs = inputs,
                           .targets = targets,
                           .training = at::GradMode::is_enabled(),
                           .forward = [&](const std::vector<at::Tensor>& given) {
                             return compiled.outputs(forward, given);
                           }});
  made.losses = checked_losses(made.losses, inputs.at(0).size(0));
  if (const at::Tensor more = added.of(inputs[0].size(0)); more.defined())
    made.losses = made.losses + more;
  metrics = added.metrics(inputs[0].size(0));
  if (made.outputs.empty() && !compiled.goals[0].metrics.empty())
    throw UsageError(fmt::format(
        "a step of one's own gave no outputs, of which metric {} is computed; give them: "
        "{{.losses = ..., .outputs = {{...}}}}",
        compiled.goals[0].metrics[0].name()));
  if (made.outputs.empty()) made.outputs = {made.losses};  // of which nothing is computed
  check_outputs(made.outputs, inputs[0].size(0));
  return made;
}

at::Tensor added_by_forward(const Goals& goals, const AddedLosses& added, const BatchParts& parts) {
  at::Tensor more = added.of(parts.inputs[0].size(0));
  if (more.defined() && (goals.size() > 1 || counts_labels(goals)))
    throw UsageError(
        goals.size() > 1
            ? fmt::format("add_loss: the model has {} outputs, each with its loss, and which is "
                          "added to nobody knows; make it an output",
                          goals.size())
            : fmt::format("add_loss: loss {} leaves labels out, and is a mean over those that "
                          "count, not over samples",
                          goals[0].loss.name()));
  return more;
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

/// Of a model that train_step alone trains.
Loss loss_of_step() {
  return {"train_step", [](const at::Tensor&, const at::Tensor&) -> at::Tensor {
            throw UsageError("compile() was given train_step, and no loss");
          }};
}

void check_steps(const CompileOptions& options) {
  if (!options.train_step && !options.test_step) return;
  if (!options.outputs.empty())
    throw UsageError(
        fmt::format("compile: train_step and test_step are for models with one loss, `outputs` has "
                    "{}; add what "
                    "they lose in the step, and give metrics of one output",
                    options.outputs.size()));
  if (options.loss && options.loss->kernel().counted({}))
    throw UsageError(fmt::format(
        "compile: loss {} leaves labels out, and train_step or test_step gives a loss for each "
        "sample; leave one of them out",
        options.loss->name()));
}

Goals only_goal(const CompileOptions& options, const std::vector<std::string>& known) {
  if (!options.loss && options.train_step)
    return {{.name = "", .place = 0, .loss = loss_of_step(), .metrics = options.metrics}};
  if (!options.loss && options.test_step)
    throw UsageError(
        "compile: there is test_step alone, and nothing to train by; set train_step, too, or loss");
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
  check_steps(options);
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
