/// Small graphs of every operator, for what goes through the one table of them.
#pragma once

#include <utility>
#include <vector>

#include "tutti/nn/layers.h"

namespace tutti::test {

/// One, with its name.
struct OperatorGraph {
  const char* name;
  nn::Graph graph;
};

namespace graphs {

inline nn::Graph of(nn::Shape shape, const std::vector<nn::Layer>& layers) {
  const auto input = nn::input(std::move(shape));
  auto x = input;
  for (const nn::Layer& layer : layers) x = layer(x);
  return {input, x};
}

inline nn::Graph of_tokens(const std::vector<nn::Layer>& layers) {
  const auto input = nn::input({5}, DType::int64);
  auto x = input;
  for (const nn::Layer& layer : layers) x = layer(x);
  return {input, x};
}

/// Of a sequence and how many steps of it there are.
inline nn::Graph of_counted(const nn::Layer& layer) {
  const auto x = nn::input({6, 3}), count = nn::input({1}, DType::int64);
  return {{{"x", x}, {"count", count}}, {{"y", layer(x, count)}}};
}

/// Two images by one network, compared.
inline nn::Graph siamese() {
  using namespace nn;
  const auto a = input({2, 6}), b = input({2, 6});
  const auto dense = linear(4), later = gru(3);
  const auto of = [&](const Value& x) { return later(silu()(dense(x))); };
  const auto x = of(a), y = of(b);
  const auto apart = subtract(x, y);
  return {{{"a", a}, {"b", b}},
          {{"alike", sigmoid()(linear(1)(multiply(apart, apart)))},
           {"most", maximum(x, y)},
           {"least", minimum(x, y)}}};
}

/// One reshape of what has two sizes.
inline nn::Graph rows_of_ten() {
  const auto a = nn::input({20}), b = nn::input({30});
  const auto rows = nn::reshape({-1, 10}).named("rows");
  return {{{"a", a}, {"b", b}}, {{"first", nn::linear(2)(rows(a))}, {"second", rows(b)}}};
}

inline nn::Graph tied() {
  const auto input = nn::input({5}, DType::int64);
  const auto embedding = nn::embedding(7, 6);
  return {input, nn::tied_linear(embedding)(nn::layer_norm()(embedding(input)))};
}

inline nn::Graph branches() {
  const auto input = nn::input({2, 4, 4});
  const auto shared = nn::conv2d(2, 3, {.padding = 1});
  const auto x = shared(input), y = shared(nn::tanh()(x));
  return {input, nn::concat({nn::add(x, y), nn::relu()(x), input})};
}

/// Three ways through an image, joined along its channels.
inline nn::Graph inception() {
  using namespace nn;
  const auto input = nn::input({2, 6, 5});
  const auto x = relu()(conv2d(4, 3, {.padding = 1})(input));
  const auto narrow = conv2d(2, 1)(x);
  const auto wide = relu()(conv2d(3, {1, 3}, {.padding = {0, 1}})(narrow));
  const auto pooled = max_pool2d(3, {.stride = 1, .padding = 1})(x);
  return {input, linear(3)(flatten()(concat({narrow, wide, pooled, input})))};
}

/// Two blocks, the second one with a convolution beside it.
inline nn::Graph residual() {
  using namespace nn;
  const auto input = nn::input({3, 6, 7});
  auto x = add(batch_norm2d()(conv2d(3, 3, {.padding = 1})(input)), input);
  x = add(conv2d(5, 1, {.stride = 2})(x),
          batch_norm2d()(conv2d(5, 3, {.stride = 2, .padding = 1})(relu()(x))));
  return {input, linear(4)(global_avg_pool2d()(relu()(x)))};
}

/// A convolution's image as it is, and as others read it.
inline nn::Graph image_for_all() {
  using namespace nn;
  const auto input = nn::input({2, 4, 5});
  const auto x = tanh()(conv2d(3, 3, {.padding = 1})(input));
  return {{{"x", input}},
          {{"image", x},
           {"softmax", softmax()(x)},
           {"rows", layer_norm()(linear(3)(x))},
           {"sequence", linear(2)(to_sequence()(x))}}};
}

inline nn::Graph two_ports() {
  const auto a = nn::input({4}), b = nn::input({6});
  const auto both = nn::concat({nn::linear(3)(a), nn::linear(5)(b)});
  return {{{"a", a}, {"b", b}}, {{"first", nn::linear(2)(both)}, {"second", nn::softmax()(both)}}};
}

}  // namespace graphs

inline std::vector<OperatorGraph> image_operator_graphs() {
  using namespace nn;
  using namespace graphs;
  return {
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
}

inline std::vector<OperatorGraph> sequence_operator_graphs() {
  using namespace nn;
  using namespace graphs;
  return {
      {"sigmoid", of({9}, {sigmoid()})},
      {"leaky_relu", of({9}, {leaky_relu(0.2)})},
      {"elu", of({9}, {elu(0.7)})},
      {"selu", of({9}, {selu()})},
      {"silu", of({9}, {silu()})},
      {"hard_sigmoid", of({9}, {hard_sigmoid()})},
      {"hard_swish", of({9}, {hard_swish()})},
      {"softplus", of({9}, {softplus()})},
      {"mish", of({9}, {mish()})},
      {"relu6", of({9}, {relu6()})},
      {"log_softmax", of({3, 5}, {log_softmax()})},
      {"siamese", siamese()},
      {"conv1d", of({9, 3}, {conv1d(4, 3)})},
      {"conv1d_strided", of({9, 4}, {conv1d(6, 2, {.stride = 2, .padding = 1, .groups = 2})})},
      {"conv1d_pools", of({9, 3}, {conv1d(4, 3, {.bias = false}), max_pool1d(2),
                                   avg_pool1d(2, {.stride = 1, .padding = 1})})},
      {"max_pool1d_overlaps", of({9, 3}, {max_pool1d(3, {.stride = 2, .padding = 1})})},
      {"global_avg_pool1d", of({5, 3}, {global_avg_pool1d()})},
      {"global_max_pool1d", of({5, 3}, {global_max_pool1d()})},
      {"conv_transpose1d", of({4, 3}, {conv_transpose1d(2, 3)})},
      {"conv_transpose1d_strided",
       of({4, 3}, {conv_transpose1d(2, 3, {.stride = 2, .padding = 1, .output_padding = 1})})},
      {"conv_transpose2d", of({3, 4, 3}, {conv_transpose2d(2, {3, 2}, {.bias = false})})},
      {"conv_transpose2d_strided",
       of({2, 5, 4},
          {conv2d(3, 2),
           conv_transpose2d(2, 3, {.stride = 2, .padding = {1, 0}, .output_padding = 1}), relu()})},
      {"group_norm", of({6, 3, 4}, {group_norm(3), conv2d(4, 2), group_norm(2)})},
      {"reshape_and_permute", of({2, 3, 4}, {permute({2, 0, 1}), reshape({6, -1}), linear(2)})},
      {"reshape_of_two_sizes", rows_of_ten()},
      {"slice", of({3, 5}, {slice(1, 4), linear(2)})},
      {"lstm", of({5, 3}, {lstm(4)})},
      {"lstm_layers", of({5, 3}, {lstm(4, {.layers = 2, .bidirectional = true}), linear(2)})},
      {"lstm_sequences", of({5, 3}, {lstm(4, {.sequences = true}), lstm(2)})},
      {"lstm_counted", of_counted(lstm(4, {.layers = 2, .bidirectional = true}))},
      {"lstm_counted_sequences", of_counted(lstm(4, {.sequences = true}))},
      {"gru", of({5, 3}, {gru(4)})},
      {"gru_layers", of({5, 3}, {gru(4, {.layers = 2, .bidirectional = true, .sequences = true})})},
      {"gru_counted", of_counted(gru(4, {.layers = 2, .bidirectional = true, .sequences = true}))},
  };
}

/// Every operator but a lambda in several forms, and some of them together.
inline const std::vector<OperatorGraph>& operator_graphs() {
  static const std::vector<OperatorGraph> all = [] {
    std::vector<OperatorGraph> joined = image_operator_graphs();
    for (OperatorGraph one : sequence_operator_graphs()) joined.push_back(std::move(one));
    return joined;
  }();
  return all;
}

}  // namespace tutti::test
