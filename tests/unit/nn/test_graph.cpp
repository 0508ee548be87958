#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>

#include "tutti/base/error.h"
#include "tutti/nn/layers.h"

#include "tests/support/message_of.h"

namespace tutti {
namespace {

using nn::Shape;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Number of windows of `kernel` that start every `stride` places, found by walking.
int64_t walk(int64_t side, int64_t kernel, int64_t stride, int64_t padding) {
  int64_t count = 0;
  for (int64_t at = -padding; at + kernel <= side + padding; at += stride) ++count;
  return count;
}

TEST(GraphShapes, ConvolutionsAndPoolsAgreeWithWalking) {
  for (int64_t side : {7, 8, 28}) {
    for (int64_t kernel : {1, 2, 3, 5}) {
      for (int64_t stride : {1, 2, 3}) {
        for (int64_t padding : {0, 1}) {
          const auto in = nn::input({2, side, side + 1});
          const int64_t high = walk(side, kernel, stride, padding);
          const int64_t wide = walk(side + 1, kernel, stride, padding);
          EXPECT_EQ(nn::conv2d(4, kernel, {.stride = stride, .padding = padding})(in).shape(),
                    (Shape{4, high, wide}));
          if (2 * padding <= kernel) {
            const nn::PoolOptions options{.stride = stride, .padding = padding};
            EXPECT_EQ(nn::max_pool2d(kernel, options)(in).shape(), (Shape{2, high, wide}));
            EXPECT_EQ(nn::avg_pool2d(kernel, options)(in).shape(), (Shape{2, high, wide}));
          }
        }
      }
    }
  }
}

TEST(GraphShapes, TheOthersSayWhatTheyGive) {
  const auto image = nn::input({1, 4, 6});
  EXPECT_EQ(nn::max_pool2d(2)(image).shape(), (Shape{1, 2, 3}));
  EXPECT_EQ(nn::flatten()(image).shape(), (Shape{24}));
  EXPECT_EQ(nn::linear(5)(nn::flatten()(image)).shape(), (Shape{5}));
  EXPECT_EQ(nn::linear(5)(image).shape(), (Shape{1, 4, 5}));
  EXPECT_EQ(nn::relu()(image).shape(), image.shape());
  EXPECT_EQ(nn::softmax()(image).shape(), image.shape());
  EXPECT_EQ(nn::dropout(0.5)(image).shape(), image.shape());
  EXPECT_EQ(nn::batch_norm2d()(image).shape(), image.shape());
  EXPECT_EQ(nn::add(image, image).shape(), image.shape());
  EXPECT_EQ(nn::repeat_channels(3)(image).shape(), (Shape{3, 4, 6}));
  EXPECT_EQ(nn::repeat_channels(3)(nn::repeat_channels(3)(image)).shape(), (Shape{3, 4, 6}));
  EXPECT_EQ(nn::global_avg_pool2d()(image).shape(), (Shape{1}));
  EXPECT_EQ(nn::adaptive_avg_pool2d({2, 9})(image).shape(), (Shape{1, 2, 9}));
  EXPECT_EQ(nn::upsample2d(3)(image).shape(), (Shape{1, 12, 18}));
  EXPECT_EQ(nn::conv2d(5, {1, 3}, {.padding = {0, 1}})(image).shape(), (Shape{5, 4, 6}));
  EXPECT_EQ(nn::conv2d(5, {4, 3}, {.stride = 2})(image).shape(), (Shape{5, 1, 2}));
  EXPECT_EQ(nn::concat({image, nn::repeat_channels(3)(image)}).shape(), (Shape{4, 4, 6}));
  EXPECT_EQ(nn::gelu()(nn::tanh()(image)).shape(), image.shape());
  const auto sequence = nn::to_sequence()(nn::conv2d(8, 2, {.stride = 2})(image));
  EXPECT_EQ(sequence.shape(), (Shape{6, 8}));
  EXPECT_EQ(nn::layer_norm()(sequence).shape(), (Shape{6, 8}));
  EXPECT_EQ(nn::self_attention(4)(sequence).shape(), (Shape{6, 8}));
  EXPECT_EQ(nn::add_position()(sequence).shape(), (Shape{6, 8}));
  EXPECT_EQ(nn::prepend_token()(sequence).shape(), (Shape{7, 8}));
  EXPECT_EQ(nn::first_of_sequence()(sequence).shape(), (Shape{8}));
}

TEST(GraphShapes, OfSequencesAndTransposedConvolutions) {
  const auto strokes = nn::input({100, 3}), image = nn::input({4, 5, 6});
  const auto count = nn::input({1}, DType::int64), mask = nn::input({100});
  EXPECT_EQ(nn::conv1d(8, 5, {.stride = 2, .padding = 2})(strokes).shape(), (Shape{50, 8}));
  EXPECT_EQ(nn::max_pool1d(3)(strokes).shape(), (Shape{33, 3}));
  EXPECT_EQ(nn::avg_pool1d(3, {.stride = 1, .padding = 1})(strokes).shape(), (Shape{100, 3}));
  EXPECT_EQ(nn::global_max_pool1d()(strokes).shape(), (Shape{3}));
  EXPECT_EQ(nn::lstm(7)(strokes).shape(), (Shape{7}));
  EXPECT_EQ(nn::lstm(7, {.bidirectional = true})(strokes, mask).shape(), (Shape{14}));
  EXPECT_EQ(nn::gru(7, {.layers = 3, .sequences = true})(strokes, count).shape(), (Shape{100, 7}));
  EXPECT_EQ(
      nn::conv_transpose1d(2, 4, {.stride = 3, .padding = 1, .output_padding = 2})(strokes).shape(),
      (Shape{99 * 3 - 2 + 4 + 2, 2}));
  EXPECT_EQ(nn::conv_transpose2d(2, {3, 2}, {.stride = 2})(image).shape(), (Shape{2, 11, 12}));
  EXPECT_EQ(nn::group_norm(2)(image).shape(), image.shape());
  EXPECT_EQ(nn::reshape({-1, 10})(image).shape(), (Shape{12, 10}));
  EXPECT_EQ(nn::permute({1, 2, 0})(image).shape(), (Shape{5, 6, 4}));
  EXPECT_EQ(nn::slice(1, 3)(image).shape(), (Shape{4, 5, 2}));
  EXPECT_EQ(nn::multiply(nn::sigmoid()(image), image).shape(), image.shape());
}

TEST(GraphErrors, SayLayerGotAndExpected) {
  const auto image = nn::input({4, 8, 8});
  const auto row = nn::input({784});
  const struct {
    const char* name;
    std::function<void()> call;
    std::vector<std::string> says;
  } cases[] = {
      {"conv on a row", [&] { nn::conv2d(16, 3)(row); }, {"conv2d", "[784]", "[channels, height"}},
      {"named", [&] { nn::conv2d(16, 3).named("stem")(row); }, {"conv2d \"stem\""}},
      {"no channels", [&] { nn::conv2d(0, 3)(image); }, {"out_channels is 0", "1 or more"}},
      {"kernel 0", [&] { nn::conv2d(1, 0)(image); }, {"kernel is 0"}},
      {"stride -1", [&] { nn::conv2d(1, 3, {.stride = -1})(image); }, {"stride is -1"}},
      {"padding -1", [&] { nn::conv2d(1, 3, {.padding = -1})(image); }, {"padding is -1"}},
      {"kernel too large", [&] { nn::conv2d(1, 9)(image); }, {"kernel of 9", "[4, 8, 8]"}},
      {"groups", [&] { nn::conv2d(6, 3, {.groups = 4})(image); }, {"groups is 4", "4 input"}},
      {"units", [&] { nn::linear(-2)(row); }, {"linear", "units is -2"}},
      {"pool padding", [&] { nn::max_pool2d(2, {.padding = 2})(image); }, {"half the kernel"}},
      {"avg padding", [&] { nn::avg_pool2d(2, {.padding = 2})(image); }, {"half the kernel"}},
      {"add", [&] { nn::add(image, row); }, {"add", "[4, 8, 8]", "[784]"}},
      {"dropout", [&] { nn::dropout(1.0)(row); }, {"probability is 1", "below 1"}},
      {"repeat", [&] { nn::repeat_channels(3)(image); }, {"1 or 3 channels", "[4, 8, 8]"}},
      {"momentum", [&] { nn::batch_norm2d({.momentum = 2})(image); }, {"momentum is 2"}},
      {"epsilon", [&] { nn::batch_norm2d({.epsilon = 0})(image); }, {"epsilon is 0"}},
      {"adaptive", [&] { nn::adaptive_avg_pool2d({2, 0})(image); }, {"width is 0"}},
      {"upsample", [&] { nn::upsample2d(0)(image); }, {"times is 0"}},
      {"kernel row", [&] { nn::conv2d(1, {1, 9})(image); }, {"kernel of 9", "[4, 8, 8]"}},
      {"concat", [&] { nn::concat({image, row}); }, {"concat", "[4, 8, 8]", "[784]"}},
      {"concat nothing", [] { nn::concat({}); }, {"got no inputs"}},
      {"layer norm", [&] { nn::layer_norm({.epsilon = -1})(row); }, {"epsilon is -1"}},
      {"heads", [&] { nn::self_attention(3)(nn::to_sequence()(image)); }, {"heads is 3", "4"}},
      {"no heads", [&] { nn::self_attention(0)(nn::to_sequence()(image)); }, {"heads is 0"}},
      {"attention", [&] { nn::self_attention(1)(image); }, {"[4, 8, 8]", "[length, features]"}},
      {"empty input", [] { nn::input({}); }, {"input", "empty shape"}},
      {"zero input", [] { nn::input({1, 0}); }, {"dimension is 0"}},
      {"a sequence of tokens",
       [] { nn::lstm(4).named("s")(nn::input({9, 3}, DType::int64)); },
       {"lstm \"s\"", "values of int64", "floating ones", "embedding()"}},
      {"tokens by a convolution",
       [] { nn::conv1d(4, 3)(nn::slice(0, 2)(nn::input({9, 3}, DType::int64))); },
       {"conv1d", "values of int64"}},
      {"whole numbers of two kinds",
       [] { nn::add(nn::input({3}, DType::int64), nn::input({3}, DType::int32)); },
       {"add", "int64 and int32", "one dtype"}},
      {"a stride beyond all",
       [&] { nn::conv_transpose2d(2, 3, {.stride = INT64_MAX / 2})(image); },
       {"conv_transpose2d: stride is 4611686018427387903, must be at most 2147483647"}},
      {"strides that make too much",
       [&] { nn::conv_transpose2d(2, 3, {.stride = 1L << 30})(image); },
       {"gives samples of shape [2, 7516192771, 7516192771], expected at most 2147483647"}},
      {"a padding beyond all",
       [&] { nn::conv2d(1, 3, {.padding = {INT64_MAX, 1}})(image); },
       {"padding is 9223372036854775807"}},
      {"a pool's padding beyond all",
       [&] { nn::max_pool2d(2, {.padding = INT64_MAX})(image); },
       {"padding is 9223372036854775807"}},
      {"times beyond all", [&] { nn::upsample2d(1L << 62)(image); }, {"times is 46116860184273"}},
      {"units beyond all",
       [&] { nn::linear(2147483647)(nn::linear(2147483647)(row)); },
       {"linear", "\"weight\"", "elements of parameters"}},
      {"huge input", [] { nn::input({1L << 40, 1L << 40}); }, {"too many elements"}},
      {"a mask of another length",
       [&] { nn::lstm(4).named("s")(nn::input({100, 3}), nn::input({90})); },
       {"lstm \"s\"", "a mask of shape [90]", "[100, 3]", "expected [100], 1 for each", "or [1]"}},
      {"a mask of features", [&] { nn::gru(4)(nn::input({9, 3}), nn::input({9, 3})); }, {"[9, 3]"}},
      {"lstm of a row", [&] { nn::lstm(4)(row); }, {"[784]", "[length, features]"}},
      {"lstm of nothing", [&] { nn::lstm(0)(nn::input({9, 3})); }, {"units is 0"}},
      {"no layers", [&] { nn::gru(2, {.layers = 0})(nn::input({9, 3})); }, {"layers is 0"}},
      {"layers", [&] { nn::gru(2, {.layers = 9999})(nn::input({9, 3})); }, {"at most 1024"}},
      {"relu of two", [&] { nn::relu()(row, row); }, {"got 2 inputs, expected one"}},
      {"conv1d of an image", [&] { nn::conv1d(2, 3)(image); }, {"[length, features]"}},
      {"conv1d too short", [&] { nn::conv1d(2, 5)(nn::input({4, 3})); }, {"kernel of 5"}},
      {"slope", [&] { nn::leaky_relu(-1)(row); }, {"slope is -1"}},
      {"subtract", [&] { nn::subtract(image, row); }, {"subtract", "[4, 8, 8] and [784]"}},
      {"transposed padding", [&] { nn::conv_transpose2d(2, 3, {.padding = 3})(image); }, {"below"}},
      {"more than a stride",
       [&] { nn::conv_transpose2d(2, 3, {.output_padding = 1})(image); },
       {"output_padding is 1", "below the stride of 1"}},
      {"nothing left",
       [&] { nn::conv_transpose2d(2, {3, 3}, {.padding = {2, 2}})(nn::input({1, 1, 1})); },
       {"padding of 2 leaves nothing of an input of shape [1, 1, 1]"}},
      {"group norm", [&] { nn::group_norm(3)(image); }, {"groups is 3", "4 channels"}},
      {"reshape", [&] { nn::reshape({3, -1})(image); }, {"[3, -1]", "[4, 8, 8]", "256 elements"}},
      {"slice", [&] { nn::slice(3, 9)(image); }, {"3 to before 9", "[4, 8, 8]", "some of its 8"}},
      {"slice of nothing", [&] { nn::slice(3, 3)(image); }, {"3 to before 3"}},
      {"reshape twice", [&] { nn::reshape({-1, -1})(image); }, {"one side may be -1"}},
      {"permute", [&] { nn::permute({0, 1, 1})(image); }, {"[0, 1, 1]", "[0, 1, 2] once"}},
      {"bad name", [] { nn::relu().named("a..b"); }, {"\"a..b\" is no name"}},
      {"empty name", [] { nn::relu().named(""); }, {"is no name"}},
  };
  for (const auto& one : cases) {
    const std::string got = test::message_of<UsageError>(one.call);
    for (const auto& part : one.says) EXPECT_THAT(got, HasSubstr(part)) << one.name;
  }
}

TEST(Graph, NodesAreInOrderOfApplicationWithTheirInputs) {
  const auto input = nn::input({3});
  const auto unused = nn::linear(9)(input);
  const auto left = nn::linear(4)(input);
  const auto right = nn::linear(4, {.bias = false}).named("right")(input);
  const auto graph = nn::Graph(input, nn::relu()(nn::add(left, right)));

  std::vector<std::string> names;
  for (const auto& node : graph.nodes()) names.push_back(node.name);
  EXPECT_THAT(names, ElementsAre("input", "linear_1", "right", "add_1", "relu_1"));
  EXPECT_THAT(graph.nodes()[3].inputs, ElementsAre(1, 2));
  EXPECT_EQ(std::get<nn::op::Linear>(graph.nodes()[1].op).in_features, 3);
  ASSERT_EQ(graph.nodes()[2].parameters.size(), 1U);
  EXPECT_EQ(graph.nodes()[2].parameters[0].shape, (Shape{4, 3}));
  EXPECT_EQ(graph.num_parameters(), 3 * 4 + 4 + 3 * 4);
  EXPECT_EQ(graph.input_shape(), (Shape{3}));
  EXPECT_EQ(graph.output_shape(), (Shape{4}));
  EXPECT_EQ(unused.shape(), (Shape{9}));
}

TEST(Graph, ALayerAppliedTwiceIsOneLayer) {
  const auto input = nn::input({4});
  const auto dense = nn::linear(4);
  const auto graph = nn::Graph(input, dense(nn::relu()(dense(input))));
  EXPECT_EQ(graph.nodes()[1].name, graph.nodes()[3].name);
  EXPECT_EQ(graph.num_parameters(), 20);
  EXPECT_THAT(graph.summary(), HasSubstr("shared"));

  const auto other = nn::linear(3);
  const auto twice = other(other(input));
  EXPECT_THAT(test::message_of<UsageError>([&] { nn::Graph(input, twice); }),
              HasSubstr("other shapes"));
}

TEST(Graph, RefusesWhatIsNoGraph) {
  const auto a = nn::input({4});
  const auto b = nn::input({4});
  EXPECT_THAT(test::message_of<UsageError>([&] { nn::Graph(a, nn::relu()(b)); }),
              HasSubstr("not among the inputs"));
  EXPECT_THAT(test::message_of<UsageError>([&] { nn::Graph(a, nn::add(a, b)); }),
              HasSubstr("not among the inputs"));
  EXPECT_THAT(test::message_of<UsageError>([&] { nn::Graph(b, nn::add(a, b)); }),
              HasSubstr("not among the inputs"));
  const auto same = nn::linear(4).named("x")(nn::linear(4).named("x")(a));
  EXPECT_THAT(test::message_of<UsageError>([&] { nn::Graph(a, same); }), HasSubstr("named \"x\""));
  const auto nested = nn::linear(4).named("x.y")(nn::linear(4).named("x")(a));
  EXPECT_THAT(test::message_of<UsageError>([&] { nn::Graph(a, nested); }),
              HasSubstr("\"x\" is a layer"));
}

TEST(Graph, InputsAndOutputsHaveTheNamesThatTheyAreGiven) {
  const auto image = nn::input({2, 4});
  const auto tags = nn::input({3});
  const auto joined = nn::concat({nn::flatten()(image), tags});
  const auto kind = nn::linear(5).named("kind")(joined);
  const nn::Graph graph({{"tags", tags}, {"image", image}}, {{"kind", kind}, {"both", joined}});
  const auto node_of = [&](const nn::Port& port) { return graph.nodes()[size_t(port.node)].name; };
  ASSERT_EQ(graph.inputs().size(), 2U);
  EXPECT_EQ(graph.inputs()[0].name, "tags");
  EXPECT_EQ(node_of(graph.inputs()[0]), "tags");
  EXPECT_EQ(node_of(graph.inputs()[1]), "image");
  EXPECT_EQ(graph.outputs()[0].name, "kind");
  EXPECT_EQ(node_of(graph.outputs()[0]), "kind");
  EXPECT_EQ(graph.outputs()[1].name, "both");
  EXPECT_EQ(node_of(graph.outputs()[1]), "concat_1");
  EXPECT_EQ(graph.input_shape(), (Shape{3}));
  EXPECT_EQ(graph.output_shape(), (Shape{5}));

  using Ends = std::vector<nn::NamedValue>;
  const struct {
    Ends inputs;
    Ends outputs;
    const char* says;
  } cases[] = {
      {{}, {{"y", kind}}, "no inputs"},
      {{{"x", image}}, {}, "no outputs"},
      {{{"x", image}}, {{"y", kind}}, "not among the inputs"},
      {{{"x", image}, {"x", tags}}, {{"y", kind}}, "two inputs are named \"x\""},
      {{{"x", image}, {"t", image}}, {{"y", image}}, "\"x\" and \"t\" are one"},
      {{{"x", image}, {"t", tags}}, {{"", kind}}, "no name"},
      {{{"x", image}, {"t", tags}}, {{"y", tags}}, "no output comes from input \"x\""},
      {{{"x", image}, {"kind", tags}}, {{"y", kind}}, "two layers are named \"kind\""},
  };
  for (const auto& one : cases) {
    EXPECT_THAT(test::message_of<UsageError>([&] { nn::Graph(one.inputs, one.outputs); }),
                HasSubstr(one.says));
  }
}

TEST(Graph, SummaryShowsShapesAndCounts) {
  const auto input = nn::input({1, 28, 28});
  auto x = nn::batch_norm2d()(nn::conv2d(16, 3, {.padding = 1})(input));
  x = nn::linear(10)(nn::flatten()(x));
  const std::string summary = nn::Graph(input, x).summary();
  EXPECT_EQ(summary,
            "layer           output shape    parameters\n"
            "input           [1, 28, 28]              0\n"
            "conv2d_1        [16, 28, 28]           160\n"
            "batch_norm2d_1  [16, 28, 28]            32\n"
            "flatten_1       [12544]                  0\n"
            "linear_1        [10]               125,450\n"
            "125,642 parameters, 33 elements in buffers\n");
}

TEST(Graph, SomeParametersAreFrozen) {
  const auto input = nn::input({1, 28, 28});
  auto x = nn::relu()(nn::conv2d(4, 3).named("trunk.conv")(input));
  x = nn::batch_norm2d().named("trunk.norm")(x);
  const nn::Graph graph(input, nn::linear(10).named("head")(nn::flatten()(x)));
  const auto frozen = nn::with_frozen(graph, {"trunk", "*.bias"});
  EXPECT_EQ(frozen.num_parameters(), graph.num_parameters());
  EXPECT_EQ(frozen.num_frozen(), 4 * 9 + 4 + 2 * 4 + 10);
  EXPECT_EQ(graph.num_frozen(), 0) << "it stays as it is";
  const std::string summary = frozen.summary();
  for (const char* line : {"  40  frozen\n", "  8  frozen\n", "  27,050  frozen in part\n",
                           "\n27,098 parameters, 58 of them frozen, 9 elements in buffers\n"})
    EXPECT_THAT(summary, HasSubstr(line));
  EXPECT_EQ(nn::words_of(frozen.nodes()[1]),
            nn::words_of(graph.nodes()[1]) + ", frozen trunk.conv.weight, trunk.conv.bias");
  EXPECT_EQ(nn::words_of(frozen.nodes()[5]), nn::words_of(graph.nodes()[5]) + ", frozen head.bias");

  const auto refusal = [&](const std::string& pattern) {
    return test::message_of<UsageError>([&] { nn::with_frozen(graph, {"trunk", pattern}); });
  };
  EXPECT_THAT(refusal("hed"), HasSubstr("fits \"hed\"; did you mean \"head\"?"));
  EXPECT_THAT(refusal("zzz"), HasSubstr("layers that have some are trunk.conv, trunk.norm, head"));
  EXPECT_THAT(refusal("*.running_mean"), HasSubstr("no parameter to freeze fits"));
}

// Words of a node whose layer has these fields; of two that differ in one, they differ.
template <class Layer>
std::string words_of(Layer layer, std::vector<int> inputs = {0}) {
  return nn::words_of(nn::Node{.op = layer, .name = "it", .inputs = std::move(inputs)});
}

TEST(GraphWords, ShowEachFieldOfALayer) {
  namespace op = nn::op;
  EXPECT_EQ(words_of(op::Conv2d{2, 4, {3, 5}, 1, 2, 1, false}),
            "it = conv2d(2, 4, 3x5, 1, 2x2, 1, false) of [0]");
  EXPECT_EQ(words_of(op::Input{{3, 8}, DType::int64}, {}), "it = input([3, 8], int64) of []");
  EXPECT_EQ(words_of(op::Attention{24, 4, true}), "it = attention(24, 4, true) of [0]");
  EXPECT_EQ(words_of(op::Dropout{0.25}), "it = dropout(0.25) of [0]");
  EXPECT_EQ(words_of(op::BatchNorm2d{8, 1e-3, 0.5, true}),
            "it = batch_norm2d(8, 0.001, 0.5, true) of [0]");
  EXPECT_EQ(words_of(op::Linear{4, 3, true, 0.02}), "it = linear(4, 3, true, 0.02) of [0]");
  EXPECT_EQ(words_of(op::Add{}, {2, 1}), "it = add() of [2, 1]");
  EXPECT_NE(words_of(op::Gelu{true}), words_of(op::Gelu{false}));
  EXPECT_NE(words_of(op::MaxPool2d{2, 2, 0}), words_of(op::MaxPool2d{2, 2, 1}));
}

}  // namespace
}  // namespace tutti
