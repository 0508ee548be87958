#include "tutti/strategy/optimizer/loss_scaling.h"

#include <torch/csrc/autograd/autograd.h>

#include "tutti/base/error.h"

namespace tutti {
namespace {

void require_losses(const at::Tensor& per_sample, int64_t global_batch_size) {
  if (global_batch_size < 1)
    throw UsageError(fmt::format("average_loss: the global batch is {} samples; expected 1 or more",
                                 global_batch_size));
  if (!per_sample.defined() || per_sample.dim() == 0)
    throw UsageError(fmt::format(
        "average_loss: got {}, expected one loss a sample, [batch, ...]\n  a loss that is averaged "
        "already would be divided twice: ask it for Reduction::None",
        per_sample.defined() ? "a scalar" : "an undefined tensor"));
}

}  // namespace

at::Tensor average_loss(const at::Tensor& per_sample, int64_t global_batch_size) {
  require_losses(per_sample, global_batch_size);
  return per_sample.sum() / static_cast<double>(global_batch_size);
}

at::Tensor average_loss(const at::Tensor& per_sample, const at::Tensor& sample_weights,
                        int64_t global_batch_size) {
  require_losses(per_sample, global_batch_size);
  const bool fits = sample_weights.defined() && sample_weights.is_floating_point() &&
                    sample_weights.dim() == 1 && sample_weights.size(0) == per_sample.size(0);
  if (!fits)
    throw UsageError(fmt::format(
        "average_loss: got weights {}, expected floating [{}], one a sample",
        sample_weights.defined() ? fmt::format("{} {}", c10::toString(sample_weights.scalar_type()),
                                               c10::str(sample_weights.sizes()))
                                 : "an undefined tensor",
        per_sample.size(0)));
  std::vector<int64_t> shape(static_cast<size_t>(per_sample.dim()), 1);
  shape[0] = per_sample.size(0);
  const at::Tensor weights = sample_weights.detach().to(per_sample.options()).view(shape);
  return average_loss(per_sample * weights, global_batch_size);
}

at::Tensor scale_regularization_loss(const ReplicaContext& replica, const at::Tensor& losses) {
  if (!losses.defined())
    throw UsageError("scale_regularization_loss: the tensor of losses is undefined");
  return losses.sum() / static_cast<double>(replica.num_replicas_in_sync());
}

std::vector<at::Tensor> gradients(const at::Tensor& loss, std::span<const at::Tensor> parameters) {
  if (!loss.defined() || loss.numel() != 1 || !loss.requires_grad())
    throw UsageError(
        fmt::format("gradients: expected a loss of one element that depends on parameters, got {}",
                    !loss.defined()     ? std::string("an undefined tensor")
                    : loss.numel() != 1 ? c10::str(loss.sizes())
                                        : "one without a graph"));
  torch::autograd::variable_list trained;
  for (const at::Tensor& parameter : parameters)
    if (parameter.requires_grad()) trained.push_back(parameter);
  if (trained.empty())
    throw UsageError(
        fmt::format("gradients: none of the {} parameters requires gradients", parameters.size()));
  const auto made =
      torch::autograd::grad({loss}, trained, {}, std::nullopt, false, /*allow_unused=*/true);
  std::vector<at::Tensor> all;
  for (auto next = made.begin(); const at::Tensor& parameter : parameters)
    all.push_back(parameter.requires_grad() ? *next++ : at::Tensor());
  return all;
}

}  // namespace tutti
