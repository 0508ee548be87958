/// Graphs that stages are cut from.
#pragma once

#include <fmt/format.h>

#include <string>

#include "tutti/nn/graph.h"

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
