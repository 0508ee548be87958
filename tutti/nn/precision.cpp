#include "tutti/nn/precision.h"

#include <ATen/autocast_mode.h>

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/suggest.h"

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

Autocast::Autocast(Precision precision)
    : before_{at::autocast::is_autocast_enabled(at::kCPU),
              at::autocast::is_autocast_cache_enabled(),
              static_cast<int>(at::autocast::get_autocast_dtype(at::kCPU))} {
  require_precision(precision, "cpu");
  at::autocast::set_autocast_enabled(at::kCPU, precision != Precision::float32);
  at::autocast::set_autocast_cache_enabled(false);
  if (precision == Precision::bfloat16) at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
}

Autocast::~Autocast() {
  at::autocast::set_autocast_enabled(at::kCPU, before_.enabled);
  at::autocast::set_autocast_cache_enabled(before_.keeps_copies);
  at::autocast::set_autocast_dtype(at::kCPU, static_cast<at::ScalarType>(before_.dtype));
}

}  // namespace tutti
