#include "tutti/nn/detail/by_host.h"

#include <torch/csrc/autograd/custom_function.h>

#include "tutti/queues/host_copies.h"
#include "tutti/queues/upload.h"

namespace tutti::nn::detail {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

// The way back of one is the other, so that there are second derivatives too.
struct FromDevice : torch::autograd::Function<FromDevice> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, int64_t limit_ms,
                            const std::string& what) {
    context->saved_data["device"] = x.device();
    context->saved_data["limit_ms"] = limit_ms;
    context->saved_data["what"] = what;
    return on_host(x, Deadline(patience_with_device(Millis{limit_ms})), what);
  }
  static tensor_list backward(AutogradContext* context, const tensor_list& above) {
    return {to_device(above[0], context->saved_data["device"].toDevice(),
                      Millis{context->saved_data["limit_ms"].toInt()},
                      context->saved_data["what"].toStringRef()),
            {},
            {}};
  }
};

struct ToDevice : torch::autograd::Function<ToDevice> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, at::Device device,
                            int64_t limit_ms, const std::string& what) {
    context->saved_data["limit_ms"] = limit_ms;
    context->saved_data["what"] = what;
    return on_device(x, device);
  }
  static tensor_list backward(AutogradContext* context, const tensor_list& above) {
    return {from_device(above[0], Millis{context->saved_data["limit_ms"].toInt()},
                        "the gradient of " + context->saved_data["what"].toStringRef()),
            {},
            {},
            {}};
  }
};

}  // namespace

at::Tensor from_device(const at::Tensor& x, Millis limit, const std::string& what) {
  return FromDevice::apply(x, limit.count(), what);
}

at::Tensor to_device(const at::Tensor& x, at::Device device, Millis limit,
                     const std::string& what) {
  return device.is_cpu() ? x : ToDevice::apply(x, device, limit.count(), what);
}

}  // namespace tutti::nn::detail
