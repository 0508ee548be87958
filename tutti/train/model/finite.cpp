#include "tutti/train/model/detail/finite.h"

#include <fmt/format.h>

#include <cmath>

#include "tutti/train/model/weights.h"

namespace tutti {

// A finite sum, which takes no memory, says that all are; another one may have overflowed.
bool detail::all_finite(const at::Tensor& tensor) {
  return !tensor.defined() || !at::isFloatingType(tensor.scalar_type()) ||
         std::isfinite(tensor.sum().item<double>()) || tensor.isfinite().all().item<bool>();
}

std::string detail::bad_element(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.reshape({-1});
  const auto place = flat.isfinite().logical_not().nonzero()[0][0].item<int64_t>();
  const auto value = flat[place].item<double>();
  return fmt::format("{} at element {}", std::isnan(value) ? std::abs(value) : value, place);
}

std::string what_is_not_finite(const ModelState& state) {
  const auto first_of = [](const char* kind, const NamedTensors& tensors) -> std::string {
    for (const auto& [name, tensor] : tensors)
      if (!detail::all_finite(tensor))
        return fmt::format("{} \"{}\" has {}", kind, name, detail::bad_element(tensor.detach()));
    return "";
  };
  const std::string parameter = first_of("parameter", state.parameters);
  return parameter.empty() ? first_of("buffer", state.buffers) : parameter;
}

}  // namespace tutti
