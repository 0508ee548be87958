#include <torch/torch.h>

#include "tutti/nn/graph_module.h"
#include "tutti/nn/lower_rule.h"
#include "tutti/train/lowered/step.h"

#include "tests/support/expect.h"
#include "tests/support/hlo_evaluate.h"
#include "tests/support/plain_arrays.h"

namespace tutti::lowered_steps {
namespace {

nn::Graph small_net() {
  const auto input = nn::input({2, 6, 6});
  // A bias before a batch norm has no gradient but rounding, which Adam makes steps of.
  auto x = nn::conv2d(4, 3, {.padding = 1, .bias = false}).named("conv")(input);
  x = nn::max_pool2d(2)(nn::relu()(nn::batch_norm2d().named("norm")(x)));
  return {input, nn::linear(3).named("dense")(nn::flatten()(x))};
}

LoweredStepOptions options_of(const nn::Graph& graph, const Loss& loss, int64_t batch,
                              int replicas = 1) {
  return {.batch = batch, .replicas = replicas, .target = target_type(graph, loss, batch)};
}

/// What a step takes that is not the model's.
struct BatchOf {
  at::Tensor x, y, weights;
  double samples = 0;
};

/// Arguments in the program's order; `model` has parameters, states and buffers by name.
std::vector<Array> arguments_of(const LoweredProgram& program,
                                const std::map<std::string, Array>& model, const BatchOf& batch,
                                const optim::StepScalars& scalars) {
  std::vector<Array> arguments;
  for (const SlotOf& slot : program.arguments) {
    switch (slot.slot) {
      case Slot::input: arguments.push_back(plain_array(batch.x)); break;
      case Slot::target: arguments.push_back(plain_array(batch.y)); break;
      case Slot::row_weights:
      case Slot::loss_weights: arguments.push_back(plain_array(batch.weights)); break;
      case Slot::scale:
        arguments.push_back(plain_array(at::tensor(1 / float(batch.samples)).reshape({})));
        break;
      case Slot::scalars:
        arguments.push_back(plain_array(at::tensor(nn::lowered_scalars(scalars))));
        break;
      default: arguments.push_back(model.at(slot.name));
    }
  }
  return arguments;
}

std::map<std::string, Array> model_of(const LoweredProgram& program,
                                      const nn::GraphModule& module) {
  std::map<std::string, Array> model;
  for (const SlotOf& slot : program.arguments)
    if (slot.slot == Slot::state) model[slot.name] = Array::zeros(slot.type.dtype, slot.type.shape);
  for (const auto& named : module.named_parameters())
    model[named.key()] = plain_array(named.value());
  for (const auto& named : module.named_buffers()) model[named.key()] = plain_array(named.value());
  return model;
}

BatchOf batch_of(int64_t rows) {
  return {at::randn({rows, 2, 6, 6}), at::randint(3, {rows}), at::ones({rows}), double(rows)};
}

double loss_of(const LoweredProgram& program, const std::vector<Array>& results) {
  for (size_t i = 0; i < results.size(); ++i)
    if (program.results[i].slot == Slot::loss) return results[i].as<float>()[0];
  return -1;
}

void take_over(const LoweredProgram& program, const std::vector<Array>& results,
               std::map<std::string, Array>& model) {
  for (size_t i = 0; i < results.size(); ++i)
    if (program.results[i].slot != Slot::loss) model[program.results[i].name] = results[i];
}

using LoweredStep = Evaluated;

test::Evaluation compiled(const LoweredProgram& program, int replicas) {
  return test::Evaluation(program.text, replicas);
}

/// Five steps of Adam, beside LibTorch's module, the loss's kernel and the rule's.
TEST_F(LoweredStep, TrainsAsTheModuleDoes) {
  const nn::Graph graph = small_net();
  const Loss loss = losses::sparse_categorical_crossentropy();
  const optim::Rule rule = optim::adam({.learning_rate = 0.01});
  torch::manual_seed(2);
  const auto module = nn::make_module(graph);
  const LoweredProgram program = lower_step(graph, loss, rule, options_of(graph, loss, 8));
  const test::Evaluation step = compiled(program, 1);
  auto model = model_of(program, *module);
  std::map<std::string, std::vector<at::Tensor>> states;
  optim::StepScalars scalars;
  for (int i = 0; i < 5; ++i) {
    const BatchOf batch = batch_of(8);
    scalars = rule.next(scalars, rule.learning_rate());
    const auto results = step.run({arguments_of(program, model, batch, scalars)})[0];
    take_over(program, results, model);

    module->zero_grad();
    double total = 0;
    loss.kernel().scaled_sum(module->forward(batch.x), batch.y, 1.0 / 8, total, {}).backward();
    EXPECT_NEAR(loss_of(program, results), total, 1e-4 * std::abs(total)) << "step " << i;
    for (auto& named : module->named_parameters()) {
      at::NoGradGuard no_grad;
      auto& own = states[named.key()];
      if (own.empty()) own = {at::zeros_like(named.value()), at::zeros_like(named.value())};
      const at::Tensor gradient = named.value().grad().contiguous();
      const std::array<void*, 2> memory{own[0].data_ptr(), own[1].data_ptr()};
      rule.update(DType::float32, named.value().data_ptr(), gradient.data_ptr(), memory,
                  named.value().numel(), scalars);
    }
  }
  for (const auto& named : module->named_parameters()) {
    const at::Tensor made = at::from_blob(model.at(named.key()).data(), named.value().sizes());
    EXPECT_LE((made - named.value()).abs().max().item<double>(), 1e-3) << named.key();
  }
  for (const auto& named : module->named_buffers()) {
    if (!named.value().is_floating_point()) continue;
    const at::Tensor made = torch_tensor(model.at(named.key()));
    EXPECT_LE((made - named.value()).abs().max().item<double>(), 1e-4) << named.key();
  }
}

/// Two replicas, one with a row that only fills its part up, against one with the rows of both; a
/// net without statistics of its part.
TEST_F(LoweredStep, OfTwoReplicasIsThatOfOne) {
  const auto input = nn::input({2, 6, 6});
  const nn::Graph graph(input, nn::linear(3).named("dense")(nn::tanh()(
                                   nn::linear(5).named("hidden")(nn::flatten()(input)))));
  const Loss loss = losses::sparse_categorical_crossentropy();
  const optim::Rule rule = optim::sgd({.learning_rate = 0.1, .momentum = 0.9});
  torch::manual_seed(2);
  const auto module = nn::make_module(graph);
  const LoweredProgram one = lower_step(graph, loss, rule, options_of(graph, loss, 7));
  const LoweredProgram two = lower_step(graph, loss, rule, options_of(graph, loss, 4, 2));
  const BatchOf whole = batch_of(7);
  const auto part = [&](int64_t begin, int64_t rows) {
    BatchOf of{at::zeros({4, 2, 6, 6}), at::zeros({4}, at::kLong), at::zeros({4}), 7};
    of.x.narrow(0, 0, rows).copy_(whole.x.narrow(0, begin, rows));
    of.y.narrow(0, 0, rows).copy_(whole.y.narrow(0, begin, rows));
    of.weights.narrow(0, 0, rows).fill_(1);
    return of;
  };
  const optim::StepScalars scalars = rule.next({}, rule.learning_rate());
  const auto model = model_of(one, *module);
  const auto expected = compiled(one, 1).run({arguments_of(one, model, whole, scalars)})[0];
  const auto got = compiled(two, 2).run({arguments_of(two, model, part(0, 4), scalars),
                                         arguments_of(two, model, part(4, 3), scalars)});
  for (size_t i = 0; i < expected.size(); ++i)
    for (const auto& replica : got)
      for (int64_t k = 0; k < expected[i].num_elements(); ++k)
        EXPECT_NEAR(replica[i].as<float>()[size_t(k)], expected[i].as<float>()[size_t(k)], 1e-6)
            << two.results[i].name;
}

TEST(LoweredSteps, SayWhatCannotBeCompiled) {
  const nn::Graph graph = small_net();
  const Loss own("own", [](const at::Tensor& output, const at::Tensor&) { return output.sum(1); });
  EXPECT_THAT(message_of<UsageError>(
                  [&] { lower_step(graph, own, optim::adam(), options_of(graph, own, 4)); }),
              AllOf(HasSubstr("loss \"own\" is not written as StableHLO"), HasSubstr("lower()")));
  EXPECT_THAT(message_of<UsageError>([&] { lower_prediction(graph, 0); }), HasSubstr("0 rows"));
}

TEST(LoweredSteps, FrozenParametersStayAndHaveNoState) {
  const nn::Graph graph = nn::with_frozen(small_net(), {"conv"});
  const Loss loss = losses::sparse_categorical_crossentropy();
  const LoweredProgram program = lower_step(graph, loss, optim::adam(), options_of(graph, loss, 4));
  std::set<std::string> results;
  for (const SlotOf& slot : program.results) results.insert(slot.name);
  EXPECT_FALSE(results.contains("conv.weight"));
  EXPECT_TRUE(results.contains("norm.weight"));
  for (const SlotOf& slot : program.arguments) {
    EXPECT_EQ(slot.slot == Slot::fixed, slot.name == "conv.weight");
    EXPECT_FALSE(slot.slot == Slot::state && slot.name.starts_with("conv."));
  }
}

}  // namespace
}  // namespace tutti::lowered_steps
