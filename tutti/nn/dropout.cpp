#include "tutti/nn/dropout.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/random.h"
#include "tutti/nn/sample_context.h"
#include "tutti/sync/on_devices/detail/captured_steps.h"

namespace tutti::nn {

void dropout_mask(uint64_t key, double probability, int64_t first_row, int64_t rows,
                  int64_t row_elements, float* mask) {
  const auto threshold = static_cast<float>(probability);
  const auto scale = static_cast<float>(1.0 / (1.0 - probability));
  for (int64_t row = 0; row < rows; ++row) {
    const auto global = static_cast<uint64_t>(first_row + row);
    for (int64_t begin = 0; begin < row_elements; begin += 4) {
      const auto block = static_cast<uint64_t>(begin / 4);
      const RandomBlock bits =
          philox(key, {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                       static_cast<uint32_t>(global), static_cast<uint32_t>(global >> 32)});
      const int64_t count = std::min<int64_t>(4, row_elements - begin);
      for (int64_t i = 0; i < count; ++i) {
        const bool kept = uniform_float(bits[static_cast<size_t>(i)]) >= threshold;
        *mask++ = kept ? scale : 0.0F;
      }
    }
  }
}

DropoutImpl::DropoutImpl(DropoutOptions options) : options_(options) {
  if (!(options.probability >= 0 && options.probability < 1)) {
    throw UsageError(fmt::format("nn::Dropout: probability is {}, must be from 0 to below 1",
                                 options.probability));
  }
}

at::Tensor DropoutImpl::forward(const at::Tensor& x) {
  const at::Tensor mask = mask_of(x);
  return mask.defined() ? x * mask : x;
}

at::Tensor DropoutImpl::mask_of(const at::Tensor& x) const {
  if (!is_training() || options_.probability == 0) return {};
  SampleContext* context = SampleContext::current();
  if (context == nullptr) {
    throw UsageError(
        "nn::Dropout: training without a sample context; in a loop of your own, make a "
        "tutti::nn::SampleContext of seed, step and first row before the forward pass");
  }
  if (tutti::detail::captures_step())
    throw UsageError(
        "nn::Dropout in a step graph: the host makes its mask, which would be the same in every "
        "step");
  if (x.dim() < 1) throw UsageError("nn::Dropout: got a scalar, expected [batch, ...]");
  const auto& place = context->place();
  const int64_t layer = options_.layer >= 0 ? options_.layer : context->next_call();
  // Numbered calls and numbered layers are two kinds of places: the last part keeps them apart.
  const uint64_t key = random_key(place.seed, RandomPurpose::dropout,
                                  {static_cast<uint64_t>(place.step), static_cast<uint64_t>(layer),
                                   static_cast<uint64_t>(options_.layer >= 0)});
  // The CPU's numbers wherever x is; from pinned memory they go there without a wait.
  at::Tensor mask =
      at::empty(x.sizes(), at::TensorOptions().dtype(at::kFloat).pinned_memory(!x.is_cpu()));
  const int64_t rows = x.size(0);
  dropout_mask(key, options_.probability, place.first_row, rows, rows > 0 ? x.numel() / rows : 0,
               mask.data_ptr<float>());
  return mask.to(x.options(), /*non_blocking=*/true);
}

}  // namespace tutti::nn
