#include "tutti/parallel/tensor/mlp.h"

#include <utility>

namespace tutti::parallel {

MlpImpl::MlpImpl(const TensorGroup& group, MlpOptions options, const Initial& initial)
    : activation_(std::move(options.activation)) {
  const auto linear = [&](int64_t from, int64_t to) {
    return torch::nn::LinearOptions(from, to).bias(options.bias);
  };
  up = register_module(
      "up", ColumnLinear(group, linear(options.features, options.hidden), initial.of("up")));
  down = register_module(
      "down", RowLinear(group, linear(options.hidden, options.features), initial.of("down")));
}

Blocks MlpImpl::activated(Blocks blocks) const {
  for (at::Tensor& block : blocks) block = activation_ ? activation_(block) : at::gelu(block);
  return blocks;
}

Blocks MlpImpl::forward_sequence(const Blocks& parts, int64_t axis) {
  const Blocks all = sequence_all_gather(up->group(), parts, axis);
  return down->forward_sequence(activated(up->of_copies(all)), axis);
}

}  // namespace tutti::parallel
