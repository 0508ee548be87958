// Layers that are functions of the program's own.
#include <torch/torch.h>

#include "tutti/hlo/ops.h"
#include "tutti/nn/graph_json.h"
#include "tutti/nn/graph_module.h"
#include "tutti/nn/lambda.h"
#include "tutti/nn/lower_graph.h"
#include "tutti/nn/to_onnx.h"

#include "tests/support/expect.h"

namespace tutti::lambdas {
namespace {

at::Tensor squared(at::TensorList in) { return in[0] * in[0]; }

nn::Graph squares(nn::Shape shape = {4}) {
  const auto x = nn::input({4});
  const auto layer = nn::lambda("squares", std::move(shape), squared).named("own");
  return {x, layer(nn::linear(4)(x))};
}

TEST(Lambda, HasItsValuesAndGradients) {
  const auto x = nn::input({3, 4}), y = nn::input({4});
  const auto layer = nn::lambda(
      "weighed", {3}, [](at::TensorList in) { return (in[0] * in[1].unsqueeze(1)).sum(2); });
  nn::GraphModule module({{{"x", x}, {"y", y}}, {{"z", layer(x, y)}}});
  const auto a = at::randn({2, 3, 4}).requires_grad_(), b = at::randn({2, 4}).requires_grad_();
  const at::Tensor z = module.forward_all({a, b})[0];
  EXPECT_TRUE(at::allclose(z, at::einsum("bij,bj->bi", {a, b})));
  z.sum().backward();
  EXPECT_TRUE(at::allclose(a.grad(), b.detach().unsqueeze(1).expand({2, 3, 4})));
  EXPECT_TRUE(at::allclose(b.grad(), a.detach().sum(1)));
}

TEST(Lambda, StandsInSummariesAndWords) {
  const nn::Graph graph = squares();
  EXPECT_THAT(graph.summary(), HasSubstr("own       [4]                      0\n"));
  EXPECT_EQ(nn::words_of(graph.nodes()[2]), "own = lambda(squares, [4], function) of [1]");
  nn::GraphModule module(graph);
  EXPECT_EQ(module.why_not_planned(), "lambda \"own\"");
  const auto copy = std::dynamic_pointer_cast<nn::GraphModule>(module.clone());
  const auto x = at::randn({2, 4});
  EXPECT_TRUE(at::equal(copy->forward(x), module.forward(x)));
}

TEST(Lambda, ThatGivesAnotherShapeIsAnError) {
  nn::GraphModule module(squares({2, 2}));
  EXPECT_THAT(message_of<UsageError>([&] { module.forward(at::zeros({3, 4})); }),
              HasSubstr("lambda \"own\" (squares): gave [3, 4], expected shape [3, 2, 2]"));
  const auto x = nn::input({4});
  nn::GraphModule nothing(
      {x, nn::lambda("nothing", {4}, [](at::TensorList) { return at::Tensor(); })(x)});
  EXPECT_THAT(message_of<UsageError>([&] { nothing.forward(at::zeros({3, 4})); }),
              HasSubstr("gave no tensor"));
}

TEST(Lambda, GivesTheDtypeThatItSays) {
  const auto x = nn::input({4});
  const auto of = [&](const at::ScalarType gives, DType says) {
    const auto given = [gives](at::TensorList in) { return in[0].detach().to(gives); };
    return nn::GraphModule({x, nn::lambda("cast", {4}, given, says).named("own")(x)});
  };
  const at::Tensor a = at::zeros({3, 4});
  EXPECT_THAT(message_of<UsageError>([&] { of(at::kLong, DType::float32).forward(a); }),
              AllOf(HasSubstr("lambda \"own\" (cast): gave Long, expected float32"),
                    HasSubstr("the last argument of lambda()")));
  EXPECT_THAT(message_of<UsageError>([&] { of(at::kFloat, DType::int64).forward(a); }),
              HasSubstr("gave Float, expected int64"));
  EXPECT_THAT(message_of<UsageError>([&] { of(at::kInt, DType::int64).forward(a); }),
              HasSubstr("gave Int, expected int64"));
  EXPECT_EQ(of(at::kLong, DType::int64).forward(a).scalar_type(), at::kLong);
  EXPECT_EQ(of(at::kBFloat16, DType::float32).forward(a).scalar_type(), at::kBFloat16);
  const auto same = [](at::TensorList in) { return in[0]; };
  const auto counts = nn::lambda("counts", {4}, same, DType::int64).named("own");
  EXPECT_EQ(nn::words_of(nn::Graph(x, counts(x)).nodes()[1]),
            "own = lambda(counts, [4], function of int64) of [0]");
  EXPECT_THAT(message_of<UsageError>([&] { nn::linear(2).named("fc")(counts(x)); }),
              HasSubstr("linear \"fc\": got values of int64, expected floating ones"));
}

TEST(Lambda, WithParametersOfItsOwnIsAnError) {
  const at::Tensor weight = at::ones({4}).requires_grad_(), scale = at::full({4}, 2.0);
  const auto x = nn::input({4});
  const auto with = [&](std::function<at::Tensor(at::TensorList)> function) {
    return nn::GraphModule({x, nn::lambda("own", {4}, std::move(function))(nn::linear(4)(x))});
  };
  const at::Tensor a = at::ones({3, 4});
  EXPECT_THAT(message_of<UsageError>([&] {
                with([&](at::TensorList in) { return at::sin(in[0] * weight); }).forward(a);
              }),
              HasSubstr("depends on parameters of its own, which nobody trains"));
  EXPECT_THAT(message_of<UsageError>([&] {
                with([&](at::TensorList in) { return weight.expand_as(in[0]); }).forward(a);
              }),
              HasSubstr("parameters of its own"));
  auto fixed = with([&](at::TensorList in) { return in[0] * scale + weight.detach(); });
  fixed.forward(a).sum().backward();
  EXPECT_TRUE(fixed.named_parameters()["linear_1.weight"].grad().defined());
  auto same = with([](at::TensorList in) { return in[0]; });
  same.forward(a).sum().backward();
  const at::NoGradGuard no_grad;
  with([&](at::TensorList in) { return in[0] * weight; }).forward(a);
}

TEST(Lambda, WithoutWordShapeOrFunctionIsAnError) {
  const auto x = nn::input({4});
  EXPECT_THAT(message_of<UsageError>([&] { nn::lambda("", {4}, squared)(x); }),
              HasSubstr("no word for what it computes"));
  EXPECT_THAT(message_of<UsageError>([&] { nn::lambda("s", {}, squared)(x); }),
              HasSubstr("an empty shape"));
  EXPECT_THAT(message_of<UsageError>([&] { nn::lambda("s", {0}, squared)(x); }),
              HasSubstr("each dimension is 0"));
  EXPECT_THAT(message_of<UsageError>([&] { nn::lambda("s", {4}, nullptr); }),
              HasSubstr("got no function"));
}

TEST(Lambda, HasNoOtherForm) {
  const nn::Graph graph = squares();
  EXPECT_THAT(nn::why_no_json(graph), "layer \"own\" is a function of the program's own (squares)");
  EXPECT_THAT(message_of<UsageError>([&] { nn::graph_to_json(graph); }),
              AllOf(HasSubstr("\"own\""), HasSubstr("which no file has")));
  EXPECT_THAT(message_of<UsageError>([&] { nn::to_onnx(nn::GraphModule(graph)); }),
              AllOf(HasSubstr("onnx: layer \"own\""), HasSubstr("(squares)")));
  hlo::Program program("graph");
  nn::LoweringInputs from{.inputs = {program.argument({DType::float32, {2, 4}}, "x")}};
  for (const nn::Parameter& parameter : graph.nodes()[1].parameters) {
    const std::string name = nn::full_name(graph.nodes()[1], parameter);
    from.state.emplace(name, program.argument({DType::float32, parameter.shape}, name));
  }
  EXPECT_THAT(message_of<UsageError>([&] { nn::lower(graph, from); }),
              HasSubstr("stablehlo: layer \"own\" is a function of the program's own"));
  const std::string text =
      R"({"format": "tutti graph 1", "inputs": [{"name":"x","node":0}],
          "outputs": [{"name":"y","node":1}], "nodes": [
          {"op":"input","name":"x","of":[],"with":{"shape":[4],"dtype":"float32"},"shape":[4]},
          {"op":"lambda","name":"own","of":[0],
           "with":{"what":"s","shape":[4],"function":1},"shape":[4]}]})";
  EXPECT_THAT(message_of<DataError>([&] { nn::graph_from_json(text, "here"); }),
              AllOf(HasSubstr("node 1 (\"own\")"), HasSubstr("which no file has")));
  const auto x = nn::input({4});
  EXPECT_EQ(nn::why_no_json({x, nn::relu()(x)}), "");
}

}  // namespace
}  // namespace tutti::lambdas
