/// Graphs that stages are cut from.
#pragma once

#include <fmt/format.h>

#include <string>

#include "tutti/nn/layers.h"

namespace tutti::test {

/// Convolutions, norms, pools, a sum, a concatenation, dropout; dense layers with and without ReLU.
inline nn::Graph small_cnn() {
  const auto input = nn::input({3, 9, 8});
  auto x = nn::relu()(nn::batch_norm2d().named("stem.norm")(
      nn::conv2d(4, 3, {.padding = 1}).named("stem.conv")(input)));
  const auto branch = nn::conv2d(4, 3, {.padding = 1}).named("body.conv")(x);
  x = nn::relu()(nn::add(x, nn::batch_norm2d().named("body.norm")(branch)));
  const auto pooled = nn::max_pool2d(2)(nn::relu()(nn::conv2d(5, 3, {.padding = 1})(x)));
  x = nn::concat({nn::avg_pool2d(2)(x), pooled});
  x = nn::dropout(0.3)(nn::batch_norm2d().named("end.norm")(x));
  x = nn::linear(12).named("dense")(nn::flatten()(x));
  return {input, nn::linear(5).named("head")(nn::relu()(x))};
}

/// Layers whose bits depend on the order of channels in memory, before readers that give gradients
/// in either order.
inline nn::Graph cnn_of_orders() {
  const auto input = nn::input({4, 8, 6});
  auto x = nn::batch_norm2d()(nn::tanh()(input));
  x = nn::batch_norm2d()(nn::conv2d(6, 3, {.padding = 1})(x));
  const auto grown = nn::upsample2d(2)(nn::gelu()(x));
  const auto pooled = nn::batch_norm2d()(nn::adaptive_avg_pool2d({5, 4})(grown));
  const auto means = nn::global_avg_pool2d()(nn::batch_norm2d()(nn::avg_pool2d(2)(grown)));
  const auto places = nn::flatten()(nn::linear(3)(nn::to_sequence()(pooled)));
  const auto one = nn::linear(3)(nn::flatten()(nn::batch_norm2d()(nn::conv2d(1, 3)(pooled))));
  return {input, nn::linear(4)(nn::concat({means, places, one}))};
}

/// The same with transposed convolutions, group norm, permuted dimensions, and values that meet.
inline nn::Graph images_of_orders() {
  const auto input = nn::input({4, 5, 6});
  auto x = nn::batch_norm2d()(nn::silu()(nn::conv_transpose2d(6, 3, {.stride = 2})(input)));
  x = nn::multiply(x, nn::sigmoid()(x));
  x = nn::batch_norm2d()(nn::elu()(nn::group_norm(2)(nn::conv2d(4, 3)(x))));
  x = nn::maximum(x, nn::subtract(nn::leaky_relu()(x), x));
  const auto turned = nn::permute({1, 2, 0})(nn::hard_swish()(x));
  return {input, nn::linear(3)(nn::flatten()(nn::linear(2)(turned)))};
}

/// Layers that give their gradient in the order of their input, of another's or of neither, each
/// between a convolution, whose channels are innermost, and a reader that wants rows.
inline nn::Graph orders_of_gradients() {
  const auto input = nn::input({3, 6, 6});
  const auto image = [&](const nn::Value& x) {
    return nn::batch_norm2d()(nn::conv2d(4, 3, {.padding = 1})(x));
  };
  const auto a = image(input), rows = nn::group_norm(2)(nn::tanh()(a));
  const auto most = nn::maximum(a, rows), least = nn::minimum(rows, a);
  auto x = nn::add(most, least);
  x = nn::group_norm(2)(nn::leaky_relu(0.2)(image(x)));
  x = nn::batch_norm2d()(nn::reshape({4, 4, 9})(image(x)));
  x = nn::batch_norm2d()(nn::conv2d(3, 3)(x));
  x = nn::conv2d(2, 1)(nn::permute({2, 0, 1})(nn::batch_norm2d()(x)));
  return {input, nn::linear(3)(nn::flatten()(x))};
}

/// Numbers of tokens that are moved about before an embedding reads them.
inline nn::Graph moved_tokens() {
  const auto tokens = nn::input({6}, DType::int64);
  const auto parts = nn::permute({1, 0})(nn::reshape({2, 3})(tokens));
  const auto words = nn::embedding(65, 3).named("words");
  const auto first = nn::linear(2).named("first")(words(nn::slice(0, 4)(tokens)));
  const auto last = nn::linear(2).named("last")(words(nn::flatten()(parts)));
  return {tokens, nn::linear(2).named("head")(nn::flatten()(nn::concat({first, last})))};
}

/// Of a sequence and how many of its places there are, which goes by; one layer twice.
inline nn::Graph sequences() {
  const auto points = nn::input({45, 3}), count = nn::input({1}, DType::int64);
  auto x = nn::silu()(nn::conv1d(4, 3, {.padding = 1}).named("conv")(points));
  const auto cell = nn::lstm(2, {.bidirectional = true, .sequences = true}).named("cell");
  x = cell(cell(x, count), count);
  x = nn::max_pool1d(3)(nn::softplus()(x));
  x = nn::gru(3, {.layers = 2}).named("last")(nn::reshape({20, -1})(x));
  return {{{"points", points}, {"count", count}}, {{"kind", nn::linear(2).named("head")(x)}}};
}

/// Two inputs, of which one goes by, and two outputs, of which one comes early.
inline nn::Graph two_ends() {
  const auto left = nn::input({4}), right = nn::input({3});
  const auto a = nn::relu()(nn::linear(6).named("a")(left));
  const auto early = nn::linear(2).named("early")(a);
  const auto b = nn::tanh()(nn::linear(6).named("b")(a));
  const auto joined = nn::concat({nn::add(a, b), nn::linear(5).named("c")(right), right});
  return {{{"left", left}, {"right", right}},
          {{"late", nn::linear(3).named("late")(joined)}, {"early", early}}};
}

/// One dense layer applied twice, with another between.
inline nn::Graph applied_twice() {
  const auto input = nn::input({4});
  const auto twice = nn::linear(4).named("twice");
  auto x = nn::gelu()(twice(input));
  x = nn::tanh()(nn::linear(4).named("between")(x));
  return {input, twice(x)};
}

struct SmallGptOptions {
  bool tied = true;
  double dropout = 0;
  int64_t heads = 6;
  bool relu = false;  ///< in place of gelu
};

/// A transformer of 65 words with the names of models::gpt.
inline nn::Graph small_gpt(const SmallGptOptions& options = {}) {
  constexpr int64_t kVocabulary = 65, kLength = 7, kFeatures = 24, kUnits = 50, kLayers = 2;
  const auto tokens = nn::input({kLength}, DType::int64);
  const auto words = nn::embedding(kVocabulary, kFeatures).named("transformer.wte");
  auto x = nn::add_position().named("transformer.wpe.weight")(words(tokens));
  const auto drop = [&](const nn::Value& y) {
    return options.dropout > 0 ? nn::dropout(options.dropout)(y) : y;
  };
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    const std::string name = fmt::format("transformer.h.{}.", layer);
    const auto dense = [&](int64_t units, const char* part, const nn::Value& y) {
      return nn::linear(units).named(name + part)(y);
    };
    auto y = nn::layer_norm().named(name + "ln_1")(x);
    y = dense(3 * kFeatures, "attn.c_attn", y);
    y = nn::attention(options.heads, {.causal = true}).named(name + "attn.attention")(y);
    x = nn::add(x, drop(dense(kFeatures, "attn.c_proj", y)));
    y = dense(kUnits, "mlp.c_fc", nn::layer_norm().named(name + "ln_2")(x));
    y = (options.relu ? nn::relu() : nn::gelu({.by_tanh = true})).named(name + "mlp.act")(y);
    x = nn::add(x, drop(dense(kFeatures, "mlp.c_proj", y)));
  }
  x = nn::layer_norm().named("transformer.ln_f")(x);
  const auto head = options.tied ? nn::tied_linear(words)
                                 : nn::linear(kVocabulary, {.bias = false}).named("lm_head");
  return {{{"tokens", tokens}}, {{"logits", head(x)}}};
}

}  // namespace tutti::test
