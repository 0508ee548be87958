#include "tutti/nn/precision.h"

#include <ATen/autocast_mode.h>

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/suggest.h"
#include "tutti/nn/detail/slow_bfloat16.h"

namespace tutti {

const std::vector<std::string>& precision_names() {
  static const std::vector<std::string> names = {"float32", "bfloat16", "float16"};
  return names;
}

std::string_view name_of(Precision precision) {
  return precision_names().at(static_cast<size_t>(precision));
}

Precision precision_by_name(std::string_view name) {
  const auto& names = precision_names();
  const auto found = std::ranges::find(names, name);
  if (found == names.end()) throw UsageError(unknown_message("precision", name, names));
  return static_cast<Precision>(found - names.begin());
}

void require_precision(Precision precision, std::string_view device_type) {
  if (precision != Precision::float16 || device_type == "cuda") return;
  throw UsageError(
      fmt::format("precision float16 on {}: expected a CUDA device, which computes in it; use "
                  "bfloat16, which has the range of float32 and needs no scaling of losses",
                  device_type));
}

Autocast::Autocast(Precision precision, std::string_view device_type) {
  require_precision(precision, device_type);
  const bool on_cuda = device_type == "cuda";
  if (precision == Precision::bfloat16 && !on_cuda) detail::warn_where_bfloat16_is_slow();
  const at::DeviceType device = on_cuda ? at::kCUDA : at::kCPU;
  before_ = {.on_cuda = on_cuda,
             .enabled = at::autocast::is_autocast_enabled(device),
             .keeps_copies = at::autocast::is_autocast_cache_enabled(),
             .dtype = static_cast<int>(at::autocast::get_autocast_dtype(device))};
  at::autocast::set_autocast_enabled(device, precision != Precision::float32);
  at::autocast::set_autocast_cache_enabled(false);
  if (precision != Precision::float32)
    at::autocast::set_autocast_dtype(device,
                                     precision == Precision::bfloat16 ? at::kBFloat16 : at::kHalf);
}

Autocast::~Autocast() {
  const at::DeviceType device = before_.on_cuda ? at::kCUDA : at::kCPU;
  at::autocast::set_autocast_enabled(device, before_.enabled);
  at::autocast::set_autocast_cache_enabled(before_.keeps_copies);
  at::autocast::set_autocast_dtype(device, static_cast<at::ScalarType>(before_.dtype));
}

}  // namespace tutti
