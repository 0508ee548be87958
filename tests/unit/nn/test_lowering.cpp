#include <torch/torch.h>

#include "tutti/base/random.h"
#include "tutti/hlo/gradients.h"
#include "tutti/nn/graph_module.h"
#include "tutti/nn/lower_graph.h"
#include "tutti/nn/lower_rule.h"
#include "tutti/nn/sample_context.h"

#include "tests/support/expect.h"
#include "tests/support/hlo_evaluate.h"
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
    inputs.push_back(input.dtype == DType::int64 ? at::randint(7, shape, at::kLong)
                                                 : at::randn(shape).requires_grad_());
  }
  const Tensors got = by_program(graph, *module, inputs, given);  // before buffers move
  expect_close(got, by_module(graph, *module, inputs, given), tolerance);
}

struct Row {
  const char* name;
  nn::Graph graph;
};

nn::Graph of(nn::Shape shape, const std::vector<nn::Layer>& layers) {
  const auto input = nn::input(std::move(shape));
  auto x = input;
  for (const nn::Layer& layer : layers) x = layer(x);
  return {input, x};
}

nn::Graph of_tokens(const std::vector<nn::Layer>& layers) {
  const auto input = nn::input({5}, DType::int64);
  auto x = input;
  for (const nn::Layer& layer : layers) x = layer(x);
  return {input, x};
}

nn::Graph tied() {
  const auto input = nn::input({5}, DType::int64);
  const auto embedding = nn::embedding(7, 6);
  return {input, nn::tied_linear(embedding)(nn::layer_norm()(embedding(input)))};
}

nn::Graph branches() {
  const auto input = nn::input({2, 4, 4});
  const auto shared = nn::conv2d(2, 3, {.padding = 1});
  const auto x = shared(input), y = shared(nn::tanh()(x));
  return {input, nn::concat({nn::add(x, y), nn::relu()(x), input})};
}

/// Three ways through an image, joined along its channels.
nn::Graph inception() {
  using namespace nn;
  const auto input = nn::input({2, 6, 5});
  const auto x = relu()(conv2d(4, 3, {.padding = 1})(input));
  const auto narrow = conv2d(2, 1)(x);
  const auto wide = relu()(conv2d(3, {1, 3}, {.padding = {0, 1}})(narrow));
  const auto pooled = max_pool2d(3, {.stride = 1, .padding = 1})(x);
  return {input, linear(3)(flatten()(concat({narrow, wide, pooled, input})))};
}

/// Two blocks, the second one with a convolution beside it.
nn::Graph residual() {
  using namespace nn;
  const auto input = nn::input({3, 6, 7});
  auto x = add(batch_norm2d()(conv2d(3, 3, {.padding = 1})(input)), input);
  x = add(conv2d(5, 1, {.stride = 2})(x),
          batch_norm2d()(conv2d(5, 3, {.stride = 2, .padding = 1})(relu()(x))));
  return {input, linear(4)(global_avg_pool2d()(relu()(x)))};
}

/// A convolution's image as it is, and as others read it.
nn::Graph image_for_all() {
  using namespace nn;
  const auto input = nn::input({2, 4, 5});
  const auto x = tanh()(conv2d(3, 3, {.padding = 1})(input));
  return {{{"x", input}},
          {{"image", x},
           {"softmax", softmax()(x)},
           {"rows", layer_norm()(linear(3)(x))},
           {"sequence", linear(2)(to_sequence()(x))}}};
}

nn::Graph two_ports() {
  const auto a = nn::input({4}), b = nn::input({6});
  const auto both = nn::concat({nn::linear(3)(a), nn::linear(5)(b)});
  return {{{"a", a}, {"b", b}}, {{"first", nn::linear(2)(both)}, {"second", nn::softmax()(both)}}};
}

const std::vector<Row>& rows() {
  using namespace nn;
  static const std::vector<Row> all{
      {"conv2d", of({3, 7, 6}, {conv2d(4, 3)})},
      {"conv2d_padded", of({3, 7, 6}, {conv2d(4, 3, {.padding = 1})})},
      {"conv2d_strided", of({3, 8, 7}, {conv2d(4, 3, {.stride = 2, .padding = 1})})},
      {"conv2d_left_over", of({2, 9, 8}, {conv2d(3, 2, {.stride = 3})})},
      {"conv2d_1x1_strided", of({4, 7, 7}, {conv2d(3, 1, {.stride = 2, .bias = false})})},
      {"conv2d_asymmetric", of({2, 8, 9}, {conv2d(3, {1, 5}, {.padding = {0, 2}})})},
      {"conv2d_groups", of({4, 6, 6}, {conv2d(6, 3, {.padding = 1, .groups = 2})})},
      {"conv2d_depthwise", of({4, 6, 6}, {conv2d(4, 3, {.stride = 2, .padding = 1, .groups = 4})})},
      {"linear", of({6}, {linear(4)})},
      {"linear_of_places", of({5, 6}, {linear(4, {.bias = false})})},
      {"embedding", of_tokens({embedding(7, 6)})},
      {"tied_linear", tied()},
      {"max_pool2d", of({2, 8, 8}, {max_pool2d(2)})},
      {"max_pool2d_left_over", of({2, 9, 8}, {relu(), max_pool2d(3)})},
      {"max_pool2d_large", of({2, 9, 8}, {max_pool2d(4)})},
      {"max_pool2d_overlaps", of({2, 9, 8}, {max_pool2d(3, {.stride = 2, .padding = 1})})},
      {"avg_pool2d", of({2, 9, 8}, {avg_pool2d(3, {.stride = 2, .padding = 1})})},
      {"adaptive_avg_pool2d", of({2, 7, 5}, {adaptive_avg_pool2d({3, 2})})},
      {"adaptive_avg_pool2d_repeats", of({2, 2, 3}, {adaptive_avg_pool2d({4, 4})})},
      {"adaptive_avg_pool2d_whole", of({2, 4, 3}, {adaptive_avg_pool2d(1)})},
      {"global_avg_pool2d", of({3, 4, 5}, {global_avg_pool2d()})},
      {"upsample2d", of({2, 3, 4}, {upsample2d(3)})},
      {"batch_norm2d", of({3, 4, 5}, {batch_norm2d({.momentum = 0.3})})},
      {"layer_norm", of({5, 6}, {layer_norm()})},
      {"self_attention", of({5, 8}, {self_attention(2)})},
      {"attention", of({5, 12}, {attention(2)})},
      {"attention_causal", of({5, 12}, {attention(2, {.causal = true})})},
      {"prepend_token", of({4, 6}, {prepend_token(), linear(3)})},
      {"add_position", of({4, 6}, {add_position()})},
      {"sequence", of({4, 3, 2}, {to_sequence(), first_of_sequence()})},
      {"dropout", of({5, 7}, {dropout(0.4)})},
      {"dropouts", of({9}, {dropout(0.4), linear(6), dropout(0.2)})},
      {"repeat_channels", of({1, 3, 3}, {repeat_channels(3)})},
      {"relu", of({9}, {relu()})},
      {"gelu", of({9}, {gelu()})},
      {"gelu_by_tanh", of({9}, {gelu({.by_tanh = true})})},
      {"tanh", of({9}, {tanh()})},
      {"softmax", of({3, 5}, {softmax()})},
      {"flatten", of({2, 3, 4}, {flatten(), linear(3)})},
      {"branches", branches()},
      {"conv2d_and_dense", of({1, 9, 7}, {conv2d(4, 3), relu(), max_pool2d(2), conv2d(3, 2), gelu(),
                                          flatten(), linear(3)})},
      {"conv2d_and_pools",
       of({2, 12, 11}, {conv2d(3, 3), max_pool2d(3, {.stride = 2, .padding = 1}), batch_norm2d(),
                        avg_pool2d(2, {.stride = 1}), upsample2d(2), adaptive_avg_pool2d({3, 2})})},
      {"conv2d_and_mean", of({2, 5, 4}, {conv2d(3, 2), adaptive_avg_pool2d(1), conv2d(2, 1)})},
      {"conv2d_and_dropout", of({2, 5, 4}, {conv2d(3, 3, {.padding = 1}), dropout(0.4),
                                            conv2d(2, 2), dropout(0.3), flatten(), dropout(0.2)})},
      {"conv2d_and_channels", of({2, 4, 3}, {conv2d(1, 1), repeat_channels(3), conv2d(2, 2)})},
      {"conv2d_of_groups",
       of({2, 6, 6}, {conv2d(4, 3, {.padding = 1}),
                      conv2d(6, 3, {.stride = 2, .padding = 1, .groups = 2}), max_pool2d(2)})},
      {"inception", inception()},
      {"residual", residual()},
      {"image_for_all", image_for_all()},
      {"ports", two_ports()},
  };
  return all;
}

class LoweredOperator : public Evaluated, public ::testing::WithParamInterface<size_t> {};

TEST_P(LoweredOperator, HasTheValuesAndGradientsOfTheModule) {
  for (const bool training : {true, false})
    expect_as_module(rows()[GetParam()].graph, {.training = training});
}

INSTANTIATE_TEST_SUITE_P(Each, LoweredOperator, ::testing::Range(size_t{0}, rows().size()),
                         [](const auto& info) { return std::string(rows()[info.param].name); });

TEST(LoweredOperators, AreAllInTheTable) {
  std::set<std::string_view> kinds;
  for (const Row& row : rows())
    for (const nn::Node& node : row.graph.nodes()) kinds.insert(nn::kind_of(node.op));
  EXPECT_EQ(kinds.size(), std::variant_size_v<nn::Op>);
}

class LoweredRule : public LoweredOperator {};

std::vector<optim::Rule> lowered_rules() {
  using namespace optim;
  return {sgd({.learning_rate = 0.1, .weight_decay = 0.01}),
          sgd({.learning_rate = 0.1, .momentum = 0.9}),
          sgd({.learning_rate = 0.1, .momentum = 0.9, .nesterov = true}),
          adam({.learning_rate = 0.01, .weight_decay = 0.01}),
          adamw({.learning_rate = 0.01}),
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
