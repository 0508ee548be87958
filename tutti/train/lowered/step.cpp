#include "tutti/train/lowered/step.h"

#include <fmt/format.h>

#include <map>
#include <optional>
#include <set>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/hlo/gradients.h"
#include "tutti/hlo/ops.h"
#include "tutti/nn/lower_graph.h"
#include "tutti/nn/lower_rule.h"

namespace tutti {
namespace {

DType dtype_of_buffer(const std::string& name) {
  return name.ends_with("num_batches_tracked") ? DType::int64 : DType::float32;
}

/// A program as it is written, with the list of its arguments and results.
class Writer {
 public:
  Writer(const std::string& name, int replicas) : program_(name) {
    program_.set_replicas(replicas);
  }

  hlo::Program& program() { return program_; }

  hlo::Value argument(Slot slot, const std::string& name, hlo::Type type) {
    made_.arguments.push_back({slot, name, type});
    const hlo::Value value = program_.argument(std::move(type), name);
    if (!is_kept(slot)) program_.comes_anew(value);
    return value;
  }
  void result(Slot slot, const std::string& name, hlo::Value value) {
    made_.results.push_back({slot, name, value.type()});
    program_.result(value, name);
  }
  /// The result takes over the argument's memory.
  void becomes(Slot slot, const std::string& name, hlo::Value argument, hlo::Value value) {
    made_.results.push_back({slot, name, value.type()});
    program_.give_away(argument, program_.result(value, name));
  }

  /// Parameters and buffers of a graph, each once, in its order.
  std::map<std::string, hlo::Value> model(const nn::Graph& graph) {
    std::map<std::string, hlo::Value> state;
    for (const nn::Node& node : graph.nodes())
      for (const nn::Parameter& parameter : node.parameters) {
        const std::string name = nn::full_name(node, parameter);
        if (state.contains(name)) continue;
        const Slot slot = !parameter.trainable ? Slot::buffer
                          : parameter.frozen   ? Slot::fixed
                                               : Slot::parameter;
        const DType dtype = parameter.trainable ? DType::float32 : dtype_of_buffer(name);
        state.emplace(name, argument(slot, name, {dtype, parameter.shape}));
      }
    return state;
  }

  std::vector<hlo::Value> inputs(const nn::Graph& graph, int64_t batch) {
    std::vector<hlo::Value> all;
    for (const nn::Port& port : graph.inputs()) {
      const nn::Node& node = graph.nodes()[static_cast<size_t>(port.node)];
      hlo::Type type{std::get<nn::op::Input>(node.op).dtype, node.shape};
      type.shape.insert(type.shape.begin(), batch);
      all.push_back(argument(Slot::input, port.name, std::move(type)));
    }
    return all;
  }

  LoweredProgram finish(int64_t steps = 1) {
    made_.text = program_.text(steps);
    return std::move(made_);
  }

 private:
  hlo::Program program_;
  LoweredProgram made_;
};

void require_batch(int64_t batch, int replicas) {
  if (batch < 1 || replicas < 1)
    throw UsageError(fmt::format("a lowered program of {} rows on {} replicas: both are 1 or more",
                                 batch, replicas));
}

/// Names of what is trained, in the order of the arguments.
std::vector<std::string> trained(const nn::Graph& graph) {
  std::vector<std::string> names;
  std::set<std::string> seen;
  for (const nn::Node& node : graph.nodes())
    for (const nn::Parameter& parameter : node.parameters)
      if (parameter.trainable && !parameter.frozen &&
          seen.insert(nn::full_name(node, parameter)).second)
        names.push_back(nn::full_name(node, parameter));
  return names;
}

/// The sum of what the rows of this replica lose.
hlo::Value weighted_loss(const Loss& loss, hlo::Value output, hlo::Value target,
                         hlo::Value row_weights, hlo::Value loss_weights) {
  const auto each = loss.kernel().lower(output, target);
  if (!each)
    throw UsageError(fmt::format(
        "loss \"{}\" is not written as StableHLO, so no step can be compiled of it: those of "
        "tutti::losses are; a kernel of your own says it by LossKernel::lower()",
        loss.name()));
  // Not their product alone: a row that fills up may lose anything.
  const hlo::Value counts = hlo::compare(row_weights, hlo::Comparison::ne, 0);
  const hlo::Value nothing = hlo::constant(each->program(), each->type(), 0);
  return hlo::reduce_sum(hlo::select(counts, *each * loss_weights, nothing), {0});
}

/// How many steps have changed nothing, since one whose loss was not finite.
class LeftOut {
 public:
  explicit LeftOut(hlo::Value before) : before_(before), after_(before) {}

  void look_at(hlo::Value loss) {
    loss.program().comment("whether this step changes anything: all losses were finite so far");
    const hlo::Value zero = hlo::constant(loss.program(), loss.type(), 0);
    const hlo::Value more = before_ + 1;
    // What is not finite has no difference of 0 to itself.
    const hlo::Value now =
        hlo::select(hlo::compare(loss - loss, hlo::Comparison::eq, 0), zero, more);
    after_ = hlo::select(hlo::compare(before_, hlo::Comparison::eq, 0), now, more);
  }

  hlo::Value unless(hlo::Value before, hlo::Value after) const {
    const hlo::Value good = hlo::compare(after_, hlo::Comparison::eq, 0);
    return hlo::select(hlo::broadcast(good, after.shape(), {}), after, before);
  }
  hlo::Value before() const { return before_; }
  hlo::Value after() const { return after_; }

 private:
  hlo::Value before_, after_;
};

}  // namespace

bool is_kept(Slot slot) noexcept {
  return slot == Slot::parameter || slot == Slot::fixed || slot == Slot::state ||
         slot == Slot::buffer || slot == Slot::left_out;
}

LoweredProgram lower_step(const nn::Graph& graph, const Loss& loss, const optim::Rule& rule,
                          const LoweredStepOptions& options) {
  require_batch(options.batch, options.replicas);
  if (graph.outputs().size() != 1)
    throw UsageError(
        fmt::format("a compiled step is of one output, this graph has {}", graph.outputs().size()));
  Writer writer("train_step", options.replicas);
  nn::LoweringInputs from{.training = true, .product = options.product};
  from.state = writer.model(graph);
  const std::vector<std::string> names = trained(graph);
  std::vector<hlo::Value> parameters;
  std::vector<std::vector<hlo::Value>> states;
  for (const std::string& name : names) {
    parameters.push_back(from.state.at(name));
    auto& own = states.emplace_back();
    for (int k = 0; k < rule.num_states(); ++k)
      own.push_back(writer.argument(Slot::state, fmt::format("{}.{}", name, rule.state_name(k)),
                                    parameters.back().type()));
  }
  from.inputs = writer.inputs(graph, options.batch);
  const hlo::Value target = writer.argument(Slot::target, "target", options.target);
  from.row_weights =
      writer.argument(Slot::row_weights, "row_weights", {DType::float32, {options.batch}});
  const hlo::Value loss_weights =
      writer.argument(Slot::loss_weights, "loss_weights", {DType::float32, {options.batch}});
  const hlo::Value scale = writer.argument(Slot::scale, "scale", {DType::float32, {}});
  const hlo::Value scalars =
      writer.argument(Slot::scalars, "scalars", {DType::float32, {nn::kLoweredScalars}});
  if (const auto dropouts = std::ssize(nn::dropouts_of(graph)); dropouts > 0) {
    from.dropout_keys =
        writer.argument(Slot::dropout_keys, "dropout_keys", {DType::uint32, {dropouts, 2}});
    from.first_row = writer.argument(Slot::first_row, "first_row", {DType::uint32, {2}});
  }

  std::optional<LeftOut> left_out;
  if (options.leaves_out_bad)
    left_out.emplace(writer.argument(Slot::left_out, ".left_out", {DType::float32, {}}));

  const nn::LoweredGraph lowered = nn::lower(graph, from);
  writer.program().comment(fmt::format("loss: {}", loss.name()));
  const hlo::Value sum =
      weighted_loss(loss, lowered.outputs[0], target, *from.row_weights, loss_weights);
  const hlo::Value sum_of_all = hlo::all_reduce(sum);
  if (left_out) left_out->look_at(sum_of_all);
  const auto becomes = [&](Slot slot, const std::string& name, hlo::Value before,
                           hlo::Value after) {
    writer.becomes(slot, name, before, left_out ? left_out->unless(before, after) : after);
  };
  writer.program().comment("backward pass");
  const std::vector<hlo::Value> gradients = hlo::gradients(sum * scale, parameters);
  for (size_t i = 0; i < names.size(); ++i) {
    writer.program().comment(fmt::format("update: {}", names[i]));
    const nn::LoweredUpdate update =
        nn::lower(rule, parameters[i], hlo::all_reduce(gradients[i]), states[i], scalars);
    becomes(Slot::parameter, names[i], parameters[i], update.parameter);
    for (size_t k = 0; k < states[i].size(); ++k)
      becomes(Slot::state, fmt::format("{}.{}", names[i], rule.state_name(int(k))), states[i][k],
              update.states[k]);
  }
  for (const auto& [name, buffer] : lowered.buffers)
    becomes(Slot::buffer, name, from.state.at(name), buffer);
  if (left_out) writer.becomes(Slot::left_out, ".left_out", left_out->before(), left_out->after());
  writer.program().comment("loss of all replicas");
  writer.result(Slot::loss, "loss", sum_of_all);
  if (options.outputs) writer.result(Slot::output, graph.outputs()[0].name, lowered.outputs[0]);
  return writer.finish(options.steps);
}

LoweredProgram lower_prediction(const nn::Graph& graph, int64_t batch, DType product,
                                int replicas) {
  require_batch(batch, replicas);
  Writer writer("predict", replicas);
  nn::LoweringInputs from{.product = product};
  from.state = writer.model(graph);
  from.inputs = writer.inputs(graph, batch);
  const nn::LoweredGraph lowered = nn::lower(graph, from);
  for (size_t i = 0; i < lowered.outputs.size(); ++i)
    writer.result(Slot::output, graph.outputs()[i].name, lowered.outputs[i]);
  return writer.finish();
}

hlo::Type target_type(const nn::Graph& graph, const Loss& loss, int64_t batch) {
  hlo::Shape shape = graph.output_shape();
  const bool labels = loss.kernel().takes_labels();
  if (labels) shape.pop_back();
  shape.insert(shape.begin(), batch);
  return {labels ? DType::int64 : DType::float32, shape};
}

}  // namespace tutti
