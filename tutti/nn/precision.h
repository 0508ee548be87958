/// Precision: of what networks compute. Parameters, gradients and optimizer state stay float32.
///
///   const tutti::Autocast autocast(tutti::Precision::bfloat16);  // of this thread, in this scope
///   const auto outputs = net->forward(x);
///
/// A planned graph of nn computes in bfloat16 on the CPU as docs/design/bfloat16.md says. Else
/// which operators compute in the lower precision is LibTorch's choice (convolutions and products
/// of matrices do, sums over many elements do not). Copies of parameters are never kept from one
/// use to the next: the fused step writes parameters where LibTorch would not see it, and replicas
/// that are threads share LibTorch's one cache. Thread rule: an Autocast belongs to the thread that
/// made it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tutti {

enum class Precision : uint8_t {
  float32,
  bfloat16,  ///< float32's range with 8 bits of precision
  float16,   ///< 11 bits, up to 65,504: losses are scaled (optim/loss_scale.h); CUDA devices alone
};

const std::vector<std::string>& precision_names();
std::string_view name_of(Precision precision);
/// UsageError with the nearest known name.
Precision precision_by_name(std::string_view name);

/// UsageError when devices of that type ("cpu", "cuda") do not compute in it: float16 on a CPU.
void require_precision(Precision precision, std::string_view device_type);

/// Forward passes in its scope compute in `precision` on devices of that type ("cpu", "cuda");
/// losses and backward passes come after it. Scopes may lie in one another. Throws UsageError for
/// float16 on the CPU. The first in bfloat16 on a CPU that does not multiply in it logs a warning.
class Autocast {
 public:
  explicit Autocast(Precision precision, std::string_view device_type = "cpu");
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  struct Before {
    bool on_cuda;
    bool enabled;
    bool keeps_copies;
    int dtype;
  } before_;
};

}  // namespace tutti
