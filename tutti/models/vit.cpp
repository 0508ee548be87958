#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/models/models.h"

namespace tutti::models {
namespace {

/// Attention, then two dense layers, each with a way round it.
nn::Value encoder_block(const nn::Value& x, const std::string& name, const VitOptions& options) {
  const auto drop = [&](const nn::Value& value) {
    return options.dropout > 0 ? nn::dropout(options.dropout)(value) : value;
  };
  const auto norm = [&](const char* layer, const nn::Value& value) {
    return nn::layer_norm({.epsilon = 1e-6}).named(name + layer)(value);
  };
  auto y = nn::self_attention(options.heads).named(name + ".self_attention")(norm(".ln_1", x));
  const auto attended = nn::add(drop(y), x);
  y = nn::gelu()(nn::linear(options.mlp).named(name + ".mlp.0")(norm(".ln_2", attended)));
  y = nn::linear(options.hidden).named(name + ".mlp.3")(drop(y));
  return nn::add(attended, drop(y));
}

void check_vit(const VitOptions& options) {
  const auto at_least_one = [](const char* what, int64_t value) {
    if (value < 1) throw UsageError(fmt::format("vit: {} is {}, must be 1 or more", what, value));
  };
  at_least_one("patch", options.patch);
  at_least_one("layers", options.layers);
  const auto& in = options.input;
  if (in.size() != 3 || in[1] % options.patch != 0 || in[2] % options.patch != 0) {
    throw UsageError(
        fmt::format("vit: samples have shape {}, expected [channels, height, width] with multiples "
                    "of the patch, {}",
                    nn::to_string(in), options.patch));
  }
}

}  // namespace

nn::Graph vit(VitOptions options) {
  check_vit(options);
  const auto input = nn::input(options.input);
  const auto patches =
      nn::conv2d(options.hidden, options.patch, {.stride = options.patch}).named("conv_proj");
  auto x = nn::prepend_token().named("class_token")(nn::to_sequence()(patches(input)));
  x = nn::add_position().named("encoder.pos_embedding")(x);
  if (options.dropout > 0) x = nn::dropout(options.dropout)(x);
  for (int64_t layer = 0; layer < options.layers; ++layer) {
    x = encoder_block(x, fmt::format("encoder.layers.encoder_layer_{}", layer), options);
  }
  x = nn::first_of_sequence()(nn::layer_norm({.epsilon = 1e-6}).named("encoder.ln")(x));
  return nn::Graph(input, nn::linear(options.classes).named("heads.head")(x));
}

}  // namespace tutti::models
