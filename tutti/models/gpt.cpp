#include "tutti/models/gpt.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <vector>

#include "tutti/base/error.h"

namespace tutti::models {
namespace {

constexpr double kDeviation = 0.02;

void check_gpt(const GptOptions& options) {
  const auto at_least_one = [](const char* what, int64_t value) {
    if (value < 1) throw UsageError(fmt::format("gpt: {} is {}, must be 1 or more", what, value));
  };
  at_least_one("vocabulary", options.vocabulary);
  at_least_one("context", options.context);
  at_least_one("layers", options.layers);
  at_least_one("heads", options.heads);
  at_least_one("features", options.features);
  if (options.mlp < 0)
    throw UsageError(fmt::format("gpt: mlp is {}, must be 0 or more", options.mlp));
  if (options.features % options.heads == 0) return;
  std::vector<int64_t> possible;
  for (int64_t heads = 1; heads <= options.features; ++heads)
    if (options.features % heads == 0) possible.push_back(heads);
  throw UsageError(fmt::format("gpt: {} heads do not divide {} features; possible: {}",
                               options.heads, options.features, fmt::join(possible, ", ")));
}

/// The layers of one model, under transformers' names.
class Layers {
 public:
  explicit Layers(const GptOptions& options) : options_(options) {}

  nn::Value norm(const std::string& name, const nn::Value& x) const {
    return nn::layer_norm({.epsilon = options_.epsilon}).named(name)(x);
  }
  nn::Value drop(const nn::Value& x) const {
    return options_.dropout > 0 ? nn::dropout(options_.dropout)(x) : x;
  }

  nn::Value block(const nn::Value& x, const std::string& name) const {
    const int64_t features = options_.features;
    // Each block adds twice to what passes it: the sum's deviation does not grow with the layers.
    const double added = kDeviation / std::sqrt(2.0 * static_cast<double>(options_.layers));
    auto y = dense(3 * features, kDeviation, name + ".attn.c_attn", norm(name + ".ln_1", x));
    y = nn::attention(options_.heads, {.causal = true}).named(name + ".attn.attention")(y);
    y = dense(features, added, name + ".attn.c_proj", y);
    const auto attended = nn::add(x, drop(y));
    const int64_t units = options_.mlp > 0 ? options_.mlp : 4 * features;
    y = dense(units, kDeviation, name + ".mlp.c_fc", norm(name + ".ln_2", attended));
    y = nn::gelu({.by_tanh = options_.gelu_by_tanh}).named(name + ".mlp.act")(y);
    y = dense(features, added, name + ".mlp.c_proj", y);
    return nn::add(attended, drop(y));
  }

 private:
  static nn::Value dense(int64_t units, double deviation, const std::string& name,
                         const nn::Value& x) {
    return nn::linear(units, {.initial_deviation = deviation}).named(name)(x);
  }

  const GptOptions& options_;
};

}  // namespace

nn::Graph gpt(GptOptions options) {
  check_gpt(options);
  const Layers layers(options);
  const auto tokens = nn::input({options.context}, DType::int64);
  const auto embedding =
      nn::embedding(options.vocabulary, options.features, {.initial_deviation = kDeviation})
          .named("transformer.wte");
  auto x = nn::add_position().named("transformer.wpe.weight")(embedding(tokens));
  x = layers.drop(x);
  for (int64_t layer = 0; layer < options.layers; ++layer)
    x = layers.block(x, fmt::format("transformer.h.{}", layer));
  x = layers.norm("transformer.ln_f", x);
  const nn::LinearOptions own{.bias = false, .initial_deviation = kDeviation};
  const auto head = options.tied ? nn::tied_linear(embedding)
                                 : nn::linear(options.vocabulary, own).named("lm_head");
  return nn::Graph({{"tokens", tokens}}, {{"logits", head(x)}});
}

}  // namespace tutti::models
