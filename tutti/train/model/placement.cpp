#include "tutti/train/model/detail/placement.h"

#include <fmt/format.h>

#include <optional>

#include "tutti/base/error.h"
#include "tutti/sync/tensors.h"

namespace tutti::detail {
namespace {

void require_on(at::Device device, const char* kind,
                const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                const std::string& owner) {
  for (const auto& [name, tensor] : tensors)
    if (tensor.device() != device)
      throw UsageError(fmt::format(
          "{} \"{}\" of the model is on {}, but {} computes on {}: leave it where the strategy has "
          "put it (--device says where), or move the whole model back",
          kind, name, tensor.device().str(), owner, device.str()));
}

// Without a list of all parameters, which a prediction of one sample would wait for.
std::optional<at::Device> first_device(const torch::nn::Module& module) {
  const auto own = module.parameters(/*recurse=*/false);
  if (!own.empty()) return own.front().device();
  for (const auto& part : module.children())
    if (const auto found = first_device(*part)) return found;
  return std::nullopt;
}

}  // namespace

at::Device device_of(const torch::nn::Module& module) {
  return first_device(module).value_or(at::Device(at::kCPU));
}

void require_one_device(const torch::nn::Module& module) {
  const auto parameters = unique_parameters(module);
  if (parameters.empty()) return;
  const auto& [name, first] = parameters.front();
  require_on(first.device(), "parameter", parameters, fmt::format("that of \"{}\"", name));
}

void require_here(const torch::nn::Module& module, const ReplicaContext& replica) {
  if (!replica.queue().on_device()) return;
  const std::string& owner = replica.queue().owner();
  require_on(replica.device(), "parameter", unique_parameters(module), owner);
  require_on(replica.device(), "buffer", unique_buffers(module), owner);
}

}  // namespace tutti::detail
