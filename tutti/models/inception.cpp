// Inception v3: blocks of branches whose outputs are joined. Names and channels are torchvision's.
#include <fmt/format.h>

#include <utility>

#include "tutti/models/detail/layers.h"
#include "tutti/models/models.h"

namespace tutti::models {
namespace {

using nn::Size2d;
using nn::Value;

/// The layers of one block, or of the network itself (without a name).
class Block {
 public:
  Block(std::string name, double width) : name_(std::move(name)), width_(width) {}

  /// Convolution, batch norm, ReLU.
  Value conv(const std::string& name, int64_t channels, Size2d kernel, const Value& x,
             nn::Conv2dOptions options = {}) const {
    const std::string layer = name_.empty() ? name : name_ + "." + name;
    options.bias = false;
    const auto convolution = nn::conv2d(detail::scaled(channels, width_), kernel, options);
    return nn::relu()(
        detail::conv_norm(x, convolution, layer + ".conv", layer + ".bn", {.epsilon = 1e-3}));
  }

  /// One that leaves height and width as they are.
  Value same(const std::string& name, int64_t channels, Size2d kernel, const Value& x) const {
    return conv(name, channels, kernel, x, {.padding = {kernel.height / 2, kernel.width / 2}});
  }

  Value halved(const std::string& name, int64_t channels, const Value& x) const {
    return conv(name, channels, 3, x, {.stride = 2});
  }

  Value pooled(int64_t channels, const Value& x) const {
    return conv("branch_pool", channels, 1, nn::avg_pool2d(3, {.stride = 1, .padding = 1})(x));
  }

 private:
  std::string name_;
  double width_;
};

Value half(const Value& x) { return nn::max_pool2d(3, {.stride = 2})(x); }

Value mixed_a(const Block& block, const Value& x, int64_t pool_channels) {
  const auto one = block.conv("branch1x1", 64, 1, x);
  const auto five = block.same("branch5x5_2", 64, 5, block.conv("branch5x5_1", 48, 1, x));
  auto twice = block.same("branch3x3dbl_2", 96, 3, block.conv("branch3x3dbl_1", 64, 1, x));
  twice = block.same("branch3x3dbl_3", 96, 3, twice);
  return nn::concat({one, five, twice, block.pooled(pool_channels, x)});
}

Value mixed_b(const Block& block, const Value& x) {
  const auto three = block.halved("branch3x3", 384, x);
  auto twice = block.same("branch3x3dbl_2", 96, 3, block.conv("branch3x3dbl_1", 64, 1, x));
  twice = block.halved("branch3x3dbl_3", 96, twice);
  return nn::concat({three, twice, half(x)});
}

/// `channels` between the rows and columns of which 7x7 is made.
Value mixed_c(const Block& block, const Value& x, int64_t channels) {
  const Size2d row(1, 7);
  const Size2d column(7, 1);
  const auto one = block.conv("branch1x1", 192, 1, x);
  auto seven = block.same("branch7x7_2", channels, row, block.conv("branch7x7_1", channels, 1, x));
  seven = block.same("branch7x7_3", 192, column, seven);
  auto twice = block.conv("branch7x7dbl_1", channels, 1, x);
  twice = block.same("branch7x7dbl_2", channels, column, twice);
  twice = block.same("branch7x7dbl_3", channels, row, twice);
  twice = block.same("branch7x7dbl_4", channels, column, twice);
  twice = block.same("branch7x7dbl_5", 192, row, twice);
  return nn::concat({one, seven, twice, block.pooled(192, x)});
}

Value mixed_d(const Block& block, const Value& x) {
  const auto three = block.halved("branch3x3_2", 320, block.conv("branch3x3_1", 192, 1, x));
  auto seven = block.same("branch7x7x3_2", 192, {1, 7}, block.conv("branch7x7x3_1", 192, 1, x));
  seven = block.same("branch7x7x3_3", 192, {7, 1}, seven);
  return nn::concat({three, block.halved("branch7x7x3_4", 192, seven), half(x)});
}

Value mixed_e(const Block& block, const Value& x) {
  const auto split = [&](const std::string& name, const Value& y) {
    return nn::concat(
        {block.same(name + "a", 384, {1, 3}, y), block.same(name + "b", 384, {3, 1}, y)});
  };
  const auto one = block.conv("branch1x1", 320, 1, x);
  const auto three = split("branch3x3_2", block.conv("branch3x3_1", 384, 1, x));
  const auto twice = split("branch3x3dbl_3", block.same("branch3x3dbl_2", 384, 3,
                                                        block.conv("branch3x3dbl_1", 448, 1, x)));
  return nn::concat({one, three, twice, block.pooled(192, x)});
}

Value auxiliary_classifier(const Block& block, const Value& x, int64_t classes) {
  auto y = block.conv("conv0", 128, 1, nn::avg_pool2d(5, {.stride = 3})(x));
  y = nn::global_avg_pool2d()(block.conv("conv1", 768, 5, y));
  return nn::linear(classes).named("AuxLogits.fc")(y);
}

}  // namespace

nn::Graph inception_v3(InceptionOptions options) {
  const auto block = [&](std::string name) { return Block(std::move(name), options.width); };
  const auto input = nn::input(options.input);
  const Block stem = block("");
  auto x = stem.halved("Conv2d_1a_3x3", 32, detail::photo(input, options.auxiliary ? 299 : 75));
  x = stem.same("Conv2d_2b_3x3", 64, 3, stem.conv("Conv2d_2a_3x3", 32, 3, x));
  x = stem.conv("Conv2d_3b_1x1", 80, 1, half(x));
  x = half(stem.conv("Conv2d_4a_3x3", 192, 3, x));
  x = mixed_a(block("Mixed_5b"), x, 32);
  x = mixed_a(block("Mixed_5c"), x, 64);
  x = mixed_a(block("Mixed_5d"), x, 64);
  x = mixed_b(block("Mixed_6a"), x);
  x = mixed_c(block("Mixed_6b"), x, 128);
  x = mixed_c(block("Mixed_6c"), x, 160);
  x = mixed_c(block("Mixed_6d"), x, 160);
  const auto middle = mixed_c(block("Mixed_6e"), x, 192);
  x = mixed_d(block("Mixed_7a"), middle);
  x = mixed_e(block("Mixed_7b"), x);
  x = mixed_e(block("Mixed_7c"), x);
  x = nn::dropout(0.5)(nn::global_avg_pool2d()(x));
  const auto logits = nn::linear(options.classes).named("fc")(x);
  if (!options.auxiliary) return nn::Graph(input, logits);
  return nn::Graph(
      {{"input", input}},
      {{"output", logits},
       {"auxiliary", auxiliary_classifier(block("AuxLogits"), middle, options.classes)}});
}

}  // namespace tutti::models
