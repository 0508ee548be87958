#include "tutti/nn/detail/layouts.h"

#include <algorithm>

namespace tutti::nn::detail {
namespace {

/// Whether an operator is written for both orders; all others know LibTorch's alone.
struct TakesBoth {
  bool operator()(const op::Conv2d&) const { return true; }
  bool operator()(const op::MaxPool2d&) const { return true; }
  bool operator()(const op::AvgPool2d&) const { return true; }
  bool operator()(const op::AdaptiveAvgPool2d&) const { return true; }
  bool operator()(const op::GlobalAvgPool2d&) const { return true; }
  bool operator()(const op::Upsample2d&) const { return true; }
  bool operator()(const op::BatchNorm2d&) const { return true; }
  bool operator()(const op::Dropout&) const { return true; }
  bool operator()(const op::RepeatChannels&) const { return true; }
  bool operator()(const op::Relu&) const { return true; }
  bool operator()(const op::Gelu&) const { return true; }
  bool operator()(const op::Tanh&) const { return true; }
  bool operator()(const op::Add&) const { return true; }
  bool operator()(const op::Concat&) const { return true; }
  template <class Other>
  bool operator()(const Other&) const {
    return false;
  }
};

}  // namespace

hlo::Value in_order(const Ordered& image, hlo::ImageOrder order) {
  if (image.order == order) return image.value;
  return order == hlo::ImageOrder::channels_last ? hlo::transpose(image.value, {0, 2, 3, 1})
                                                 : hlo::transpose(image.value, {0, 3, 1, 2});
}

hlo::ImageOrder order_of(const Op& op, const std::vector<Ordered>& inputs) {
  const bool wanted = std::holds_alternative<op::Conv2d>(op) ||
                      std::ranges::any_of(inputs, [](const Ordered& input) {
                        return input.order == hlo::ImageOrder::channels_last;
                      });
  return wanted && std::visit(TakesBoth{}, op) ? hlo::ImageOrder::channels_last
                                               : hlo::ImageOrder::channels_first;
}

}  // namespace tutti::nn::detail
