#include "tutti/train/model/detail/finite.h"

#include <fmt/format.h>

#include <cmath>

#include "tutti/queues/host_copies.h"
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

namespace {

/// Sums in double, which take no memory, and are finite where all is that they are of: floats
/// cannot make them overflow. The host waits once, for all.
std::vector<bool> may_be_bad(const NamedTensors& tensors, const Deadline& deadline) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> sums;
  for (const auto& [name, tensor] : tensors)
    sums.push_back(!tensor.is_cpu() && at::isFloatingType(tensor.scalar_type())
                       ? tensor.sum(at::kDouble)
                       : at::Tensor());
  std::vector<bool> bad;
  for (const at::Tensor& sum : on_host(sums, deadline, "sums of the model's tensors"))
    bad.push_back(!sum.defined() || !std::isfinite(sum.item<double>()));
  return bad;
}

}  // namespace

std::string what_is_not_finite(const ModelState& state) {
  const Deadline deadline(kDefaultTimeLimit);
  const auto first_of = [&](const char* kind, const NamedTensors& tensors) -> std::string {
    const std::vector<bool> may_be = may_be_bad(tensors, deadline);
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (!may_be[i]) continue;
      const auto& [name, tensor] = tensors[i];
      if (const at::Tensor values = on_host(tensor.detach(), deadline, "values of a tensor");
          !detail::all_finite(values))
        return fmt::format("{} \"{}\" has {}", kind, name, detail::bad_element(values));
    }
    return "";
  };
  const std::string parameter = first_of("parameter", state.parameters);
  return parameter.empty() ? first_of("buffer", state.buffers) : parameter;
}

}  // namespace tutti
