#include <torch/torch.h>

#include "tutti/base/random.h"
#include "tutti/hlo/gradients.h"
#include "tutti/nn/graph_module.h"
#include "tutti/nn/lower_graph.h"
#include "tutti/nn/lower_rule.h"
#include "tutti/nn/sample_context.h"

#include "tests/support/expect.h"
#include "tests/support/hlo_evaluate.h"
#include "tests/support/operator_graphs.h"
#include "tests/support/plain_arrays.h"

namespace tutti::lowering {
namespace {

using Tensors = std::map<std::string, at::Tensor>;

/// Numbers that are neither equal nor symmetrical, so that no mistake cancels out.
at::Tensor coefficients(const at::Tensor& like) {
  return (at::arange(like.numel(), at::kFloat) * 0.37 + 0.5).cos().reshape(like.sizes());
}

struct Given {
  bool training = true;
  int64_t batch = 3;
  nn::SamplePlace place{.seed = 11, .step = 4, .first_row = 5};
};

/// What LibTorch's module and autograd make of a graph and its inputs.
Tensors by_module(const nn::Graph& graph, nn::GraphModule& module, std::vector<at::Tensor>& inputs,
                  const Given& given) {
  module.train(given.training);
  const nn::SampleContext here(given.place);
  const auto outputs = module.forward_all(inputs);
  Tensors made;
  at::Tensor loss = at::zeros({});
  for (size_t i = 0; i < outputs.size(); ++i) {
    made["output " + graph.outputs()[i].name] = outputs[i].detach();
    loss = loss + (outputs[i] * coefficients(outputs[i])).sum();
  }
  loss.backward();
  for (const auto& parameter : module.named_parameters()) {
    if (!parameter.value().requires_grad()) continue;
    made["gradient " + parameter.key()] = parameter.value().grad().defined()
                                              ? parameter.value().grad()
                                              : at::zeros_like(parameter.value());
  }
  for (size_t i = 0; i < inputs.size(); ++i)
    if (inputs[i].requires_grad())
      made["gradient of input " + std::to_string(i)] = inputs[i].grad();
  if (given.training)
    for (const auto& buffer : module.named_buffers())
      made["buffer " + buffer.key()] = buffer.value();
  return made;
}

/// A program of the graph with its gradients, and what goes in.
struct Lowered {
  hlo::Program program{"graph"};
  std::vector<Array> arguments;
  std::vector<std::string> results;

  hlo::Value argument(const at::Tensor& tensor, const std::string& name) {
    arguments.push_back(plain_array(tensor));
    return program.argument({arguments.back().dtype(), arguments.back().shape()}, name);
  }
  void result(hlo::Value value, const std::string& name) {
    program.result(value, name);
    results.push_back(name);
  }
  Tensors run() const {
    const auto values = test::evaluate(program, arguments);
    Tensors made;
    for (size_t i = 0; i < values.size(); ++i) made[results[i]] = torch_tensor(values[i]);
    return made;
  }
};

nn::LoweringInputs lowering_inputs(const nn::Graph& graph, const nn::GraphModule& module,
                                   const std::vector<at::Tensor>& inputs, const Given& given,
                                   Lowered& to) {
  nn::LoweringInputs from{.training = given.training};
  for (const at::Tensor& input : inputs)
    from.inputs.push_back(to.argument(input, "x" + std::to_string(from.inputs.size())));
  for (const auto& named : module.named_parameters())
    from.state.emplace(named.key(), to.argument(named.value(), named.key()));
  for (const auto& named : module.named_buffers())
    from.state.emplace(named.key(), to.argument(named.value(), named.key()));
  const auto dropouts = nn::dropouts_of(graph);
  if (given.training && !dropouts.empty()) {
    at::Tensor keys = at::empty({std::ssize(dropouts), 2}, at::kUInt32);
    for (size_t i = 0; i < dropouts.size(); ++i) {
      const uint64_t key = random_key(
          given.place.seed, RandomPurpose::dropout,
          {static_cast<uint64_t>(given.place.step), static_cast<uint64_t>(dropouts[i]), 1});
      auto* words = static_cast<uint32_t*>(keys.data_ptr()) + 2 * i;
      words[0] = static_cast<uint32_t>(key);
      words[1] = static_cast<uint32_t>(key >> 32);
    }
    at::Tensor row = at::zeros({2}, at::kUInt32);
    auto* words = static_cast<uint32_t*>(row.data_ptr());
    words[0] = static_cast<uint32_t>(given.place.first_row);
    words[1] = static_cast<uint32_t>(given.place.first_row >> 32);
    from.dropout_keys = to.argument(keys, "keys");
    from.first_row = to.argument(row, "first_row");
  }
  return from;
}

Tensors by_program(const nn::Graph& graph, const nn::GraphModule& module,
                   const std::vector<at::Tensor>& inputs, const Given& given) {
  Lowered to;
  const nn::LoweringInputs from = lowering_inputs(graph, module, inputs, given, to);
  const nn::LoweredGraph lowered = nn::lower(graph, from);
  hlo::Value loss = hlo::constant(to.program, {DType::float32, {}}, 0);
  for (size_t i = 0; i < lowered.outputs.size(); ++i) {
    const hlo::Value output = lowered.outputs[i];
    to.result(output, "output " + graph.outputs()[i].name);
    const hlo::Value weighed = output * to.argument(coefficients(at::empty(output.shape())), "c");
    std::vector<int64_t> all(output.shape().size());
    std::iota(all.begin(), all.end(), 0);
    loss = loss + hlo::reduce_sum(weighed, all);
  }
  std::vector<hlo::Value> wanted;
  std::vector<std::string> names;
  for (const auto& named : module.named_parameters()) {
    if (!named.value().requires_grad()) continue;
    wanted.push_back(from.state.at(named.key()));
    names.push_back("gradient " + named.key());
  }
  for (size_t i = 0; i < inputs.size(); ++i)
    if (inputs[i].requires_grad()) {
      wanted.push_back(from.inputs[i]);
      names.push_back("gradient of input " + std::to_string(i));
    }
  const auto gradients = hlo::gradients(loss, wanted);
  for (size_t i = 0; i < gradients.size(); ++i) to.result(gradients[i], names[i]);
  for (const auto& [name, buffer] : lowered.buffers) to.result(buffer, "buffer " + name);
  return to.run();
}

void expect_close(const Tensors& got, const Tensors& expected, double tolerance) {
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(got.contains(name)) << name;
    const at::Tensor wanted = tensor.to(at::kDouble), made = got.at(name).to(at::kDouble);
    ASSERT_EQ(made.sizes(), wanted.sizes()) << name;
    const double scale =
        std::max(1.0, wanted.numel() > 0 ? wanted.abs().max().item<double>() : 1.0);
    const double apart = wanted.numel() > 0 ? (made - wanted).abs().max().item<double>() : 0;
    EXPECT_LE(apart, tolerance * scale) << name << ", of " << scale;
  }
}

void expect_as_module(const nn::Graph& graph, const Given& given = {}, double tolerance = 1e-5) {
  torch::manual_seed(7);
  const auto module = nn::make_module(graph);
  for (auto& buffer : module->named_buffers())
    if (buffer.key().ends_with("running_var")) buffer.value().uniform_(0.5, 2);
  std::vector<at::Tensor> inputs;
  for (const nn::Port& port : graph.inputs()) {
    std::vector<int64_t> shape = graph.shape_of(port);
    shape.insert(shape.begin(), given.batch);
    const auto& input = std::get<nn::op::Input>(graph.nodes()[static_cast<size_t>(port.node)].op);
    const int64_t numbers = port.name == "mask" ? 2 : 7;
    inputs.push_back(input.dtype == DType::int64 ? at::randint(numbers, shape, at::kLong)
                                                 : at::randn(shape).requires_grad_());
  }
  const Tensors got = by_program(graph, *module, inputs, given);  // before buffers move
  expect_close(got, by_module(graph, *module, inputs, given), tolerance);
}

using test::operator_graphs;
using test::graphs::of;

class LoweredOperator : public Evaluated, public ::testing::WithParamInterface<size_t> {};

TEST_P(LoweredOperator, HasTheValuesAndGradientsOfTheModule) {
  for (const bool training : {true, false})
    expect_as_module(operator_graphs()[GetParam()].graph, {.training = training});
}

INSTANTIATE_TEST_SUITE_P(Each, LoweredOperator,
                         ::testing::Range(size_t{0}, operator_graphs().size()),
                         [](const auto& info) {
                           return std::string(operator_graphs()[info.param].name);
                         });

TEST(LoweredOperators, AreAllInTheTable) {
  std::set<std::string_view> kinds;
  for (const auto& row : operator_graphs())
    for (const nn::Node& node : row.graph.nodes()) kinds.insert(nn::kind_of(node.op));
  EXPECT_EQ(kinds.size() + 1, std::variant_size_v<nn::Op>) << "a lambda is a function, and refused";
}

class LoweredRule : public LoweredOperator {};

std::vector<optim::Rule> lowered_rules() {
  using namespace optim;
  return {sgd({.learning_rate = 0.1, .weight_decay = 0.01}),
          sgd({.learning_rate = 0.1, .momentum = 0.9}),
          sgd({.learning_rate = 0.1, .momentum = 0.9, .nesterov = true}),
          adam({.learning_rate = 0.01, .weight_decay = 0.01}),
          adamw({.learning_rate = 0.01}),
          adam({.beta2 = 0.5, .amsgrad = true}),
          adamw({.beta2 = 0.5, .amsgrad = true}),
          adagrad({}),
          ftrl({.learning_rate = 0.1}),
          ftrl({.learning_rate = 0.5, .beta = 0.2, .l1 = 1, .l2 = 0.1}),
          rmsprop({.momentum = 0.5, .centered = true}),
          rmsprop({}),
          adadelta({}),
          adamax({}),
          nadam({}),
          nadam({.beta1 = 0.8, .momentum_decay = 0.5, .weight_decay = 0.03}),
          lion({.weight_decay = 0.1}),
          lars({.weight_decay = 0.01}),
          lamb({.weight_decay = 0.01})};
}

/// Three updates by the rule's kernels, beside as many by the program.
TEST_P(LoweredRule, MovesParametersAsItsKernelsDo) {
  const optim::Rule rule = lowered_rules()[GetParam()];
  torch::manual_seed(3);
  at::Tensor parameter = at::randn({5, 7});
  parameter[0].zero_();
  at::Tensor by_kernel = parameter.clone();
  std::vector<at::Tensor> states, of_kernel;
  for (int k = 0; k < rule.num_states(); ++k) {
    states.push_back(at::full({5, 7}, rule.state_start(k)));
    of_kernel.push_back(states.back().clone());
  }
  optim::StepScalars scalars;
  for (int step = 0; step < 3; ++step) {
    const at::Tensor gradient = at::randn({5, 7});
    scalars = rule.next(scalars, rule.learning_rate() / (1 + step));
    std::vector<void*> memory;
    for (const at::Tensor& state : of_kernel) memory.push_back(state.data_ptr());
    double trust = 1;
    if (rule.measures()) {
      optim::Squares squares;
      rule.measure(DType::float32, by_kernel.data_ptr(), gradient.data_ptr(), memory, 35, scalars,
                   std::span(&squares, 1));
      trust = rule.trust(squares);
    }
    rule.update(DType::float32, by_kernel.data_ptr(), gradient.data_ptr(), memory, 35, scalars,
                trust);

    Lowered to;
    const hlo::Value p = to.argument(parameter, "p"), g = to.argument(gradient, "g");
    std::vector<hlo::Value> before;
    for (const at::Tensor& state : states) before.push_back(to.argument(state, "state"));
    const hlo::Value numbers = to.argument(at::tensor(nn::lowered_scalars(scalars)), "scalars");
    const nn::LoweredUpdate update = nn::lower(rule, p, g, before, numbers);
    to.result(update.parameter, "p");
    for (size_t k = 0; k < states.size(); ++k) to.result(update.states[k], "s" + std::to_string(k));
    const Tensors made = to.run();
    parameter = made.at("p");
    Tensors expected{{"p", by_kernel}};
    for (size_t k = 0; k < states.size(); ++k) {
      states[k] = made.at("s" + std::to_string(k));
      expected["s" + std::to_string(k)] = of_kernel[k];
    }
    expect_close(made, expected, 1e-6);
  }
}

INSTANTIATE_TEST_SUITE_P(Each, LoweredRule, ::testing::Range(size_t{0}, lowered_rules().size()));

TEST(LoweredRules, AreAllOfThem) {
  std::set<std::string_view> names;
  for (const optim::Rule& rule : lowered_rules()) names.insert(rule.name());
  EXPECT_EQ(names.size(), optim::rule_names().size());
}

using LoweredBatchNorm = Evaluated;

TEST_F(LoweredBatchNorm, ThatIsFrozenInfers) {
  expect_as_module(
      nn::with_frozen(of({3, 4, 5}, {nn::batch_norm2d().named("norm"), nn::conv2d(2, 1)}),
                      {"norm"}),
      {.training = false});
}

using LoweredPool = Evaluated;

/// Of a channel's equal elements, with the channels first and, behind a convolution, last.
TEST_F(LoweredPool, GivesTheGradientToTheFirstOfEqualElements) {
  for (const auto& layers :
       {std::vector{nn::max_pool2d(2)}, std::vector{nn::conv2d(2, 1), nn::max_pool2d(3)}}) {
    const nn::Graph graph = of({2, 7, 6}, layers);
    torch::manual_seed(7);
    const auto module = nn::make_module(graph);
    std::vector<at::Tensor> inputs{at::ones({3, 2, 7, 6}).requires_grad_()};
    const Tensors got = by_program(graph, *module, inputs, {});
    expect_close(got, by_module(graph, *module, inputs, {}), 1e-5);
  }
}

using LoweredActivation = Evaluated;

/// At exact zeros, as ReLUs and masks give them, and at the ends of what is cut off.
TEST_F(LoweredActivation, HasLibTorchsSlopeWhereItBends) {
  for (const nn::Layer& layer :
       {nn::relu(), nn::relu6(), nn::gelu(), nn::gelu({.by_tanh = true}), nn::tanh(), nn::sigmoid(),
        nn::leaky_relu(0.2), nn::elu(0.7), nn::selu(), nn::silu(), nn::hard_sigmoid(),
        nn::hard_swish(), nn::softplus(), nn::mish(), nn::softmax(), nn::log_softmax()}) {
    const nn::Graph graph = of({8}, {layer});
    SCOPED_TRACE(graph.nodes()[1].name);
    const auto module = nn::make_module(graph);
    std::vector<at::Tensor> inputs{at::tensor({0.F, -0.F, 3.F, -3.F, 6.F, -6.F, 90.F, -90.F})
                                       .reshape({1, 8})
                                       .requires_grad_()};
    const Tensors got = by_program(graph, *module, inputs, {});
    expect_close(got, by_module(graph, *module, inputs, {}), 1e-6);
  }
}

using LoweredRecurrent = Evaluated;

TEST_F(LoweredRecurrent, OfTooManyStepsIsRefusedBeforeItIsUnrolled) {
  const auto refusal = [](int64_t length, const nn::RecurrentLayerOptions& options) {
    const nn::Graph graph = of({length, 1}, {nn::gru(1, options).named("long")});
    hlo::Program program("graph");
    nn::LoweringInputs from{.inputs = {program.argument({DType::float32, {1, length, 1}}, "x")}};
    for (const nn::Parameter& parameter : graph.nodes()[1].parameters)
      from.state.emplace("long." + parameter.name,
                         program.argument({DType::float32, parameter.shape}, parameter.name));
    return message_of<UsageError>([&] { nn::lower(graph, from); });
  };
  EXPECT_THAT(refusal(8193, {}),
              AllOf(HasSubstr("gru \"long\" is unrolled, 8193 steps x 1 layers x 1 directions"),
                    HasSubstr("at most 8192")));
  EXPECT_THAT(refusal(2049, {.layers = 2, .bidirectional = true}), HasSubstr("2049 steps x 2"));
}

TEST_F(LoweredRecurrent, LeavesOutTheStepsOfAMask) {
  for (const bool sequences : {true, false})
    for (auto* const make : {&nn::lstm, &nn::gru}) {
      const auto x = nn::input({5, 3}), mask = nn::input({5}, DType::int64);
      const auto layer = make(4, {.layers = 2, .bidirectional = true, .sequences = sequences});
      expect_as_module(nn::Graph({{"x", x}, {"mask", mask}}, {{"y", layer(x, mask)}}));
    }
}

using LoweredDropout = Evaluated;

/// The number of a row has 64 bits, of which the second word takes what the first one carries.
TEST_F(LoweredDropout, RowsBeyondFourBillionHaveTheirMasks) {
  expect_as_module(of({6}, {nn::dropout(0.5)}),
                   {.place = {.seed = 3, .step = 1, .first_row = (int64_t{1} << 32) - 2}});
}

/// Rows that only fill a batch up change neither the statistics nor what the others become.
TEST_F(LoweredBatchNorm, RowsThatFillABatchUpDoNotCount) {
  const nn::Graph graph = of({3, 4, 5}, {nn::batch_norm2d()});
  torch::manual_seed(7);
  const auto module = nn::make_module(graph);
  const at::Tensor x = at::randn({2, 3, 4, 5});
  Lowered to;
  std::vector<at::Tensor> inputs{at::cat({x, at::full({1, 3, 4, 5}, 100.0)})};
  nn::LoweringInputs from = lowering_inputs(graph, *module, inputs, {}, to);
  from.row_weights = to.argument(at::tensor({1.F, 1.F, 0.F}), "weights");
  const nn::LoweredGraph lowered = nn::lower(graph, from);
  to.result(hlo::slice(lowered.outputs[0], {0, 0, 0, 0}, {2, 3, 4, 5}), "output");
  for (const auto& [name, buffer] : lowered.buffers) to.result(buffer, name);
  const Tensors got = to.run();
  Tensors expected{{"output", module->forward(x).detach()}};
  for (const auto& buffer : module->named_buffers()) expected[buffer.key()] = buffer.value();
  expect_close(got, expected, 1e-5);
}

}  // namespace
}  // namespace tutti::lowering
