#include "tutti/nn/detail/layouts.h"

#include <algorithm>

#include "tutti/nn/detail/operator_facts.h"

namespace tutti::nn::detail {

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
  return wanted && facts_of(op).takes_channels_last ? hlo::ImageOrder::channels_last
                                                    : hlo::ImageOrder::channels_first;
}

}  // namespace tutti::nn::detail
