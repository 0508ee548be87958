// What was wrong with the input of a forward that failed: found by doing it again, layer by layer.
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/types.h>

#include <optional>
#include <sstream>

#include "tutti/base/error.h"
#include "tutti/nn/collectives.h"
#include "tutti/sync/tensors.h"
#include "tutti/train/losses/detail/loss_parts.h"
#include "tutti/train/model/detail/model_state.h"

namespace tutti::detail {
namespace {

/// "torch::nn::Linear(in_features=4, out_features=8, bias=true)": what it expects, in its own
/// words.
std::string layer_words(const torch::nn::Module& layer) {
  std::ostringstream out;
  layer.pretty_print(out);
  return std::move(out).str();
}

/// `layer "2", torch::nn::Linear(...), got Float [3, 4]: what it said`.
std::optional<std::string> layer_that_fails(torch::nn::SequentialImpl& layers, at::Tensor x) {
  const at::NoGradGuard no_grad;
  const auto names = layers.named_children().keys();
  size_t number = 0;
  for (auto& layer : layers) {
    try {
      at::Tensor next = layer.forward<at::Tensor>(x);
      x = std::move(next);
    } catch (const c10::Error& error) {
      return fmt::format("layer \"{}\", {}, got {}: {}", names.at(number),
                         layer_words(*layer.ptr()), tensor_words(x),
                         error.what_without_backtrace());
    }
    ++number;
  }
  return std::nullopt;
}

/// The parts of a module, which know what they expect, in as many lines.
std::string parts_in_words(const torch::nn::Module& module) {
  constexpr size_t kMostShown = 12;
  const auto parts = module.named_children();
  std::string out;
  for (size_t i = 0; i < std::min(parts.size(), kMostShown); ++i)
    out += fmt::format("\n  its \"{}\" is {}", parts[i].key(), layer_words(*parts[i].value()));
  if (parts.size() > kMostShown) out += fmt::format("\n  and {} more", parts.size() - kMostShown);
  return out;
}

/// Which column's dtype it was, if any: with float32 in its place forward goes through.
std::string dtype_to_convert(const Forward& forward, at::TensorList inputs) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const at::ScalarType own = inputs[i].scalar_type();
    if (own == at::kFloat) continue;
    Tensors floats = inputs.vec();
    for (at::Tensor& input : floats)
      if (input.scalar_type() == own) input = input.to(at::kFloat);
    try {
      forward(floats);
    } catch (const std::exception&) {
      continue;
    }
    return fmt::format(
        "\n  column {} is {}: convert to float32, in the dataset or where forward begins "
        "(x.to(torch::kFloat32))",
        i, name_of(dtype_of(own)));
  }
  return {};
}

UsageError forward_error(torch::nn::Module& module, const Forward& forward, at::TensorList inputs,
                         const c10::Error& error) {
  std::vector<std::string> got;
  for (const at::Tensor& input : inputs) got.push_back(tensor_words(input));
  const std::string begin =
      fmt::format("forward of the model failed for an input {}: ", fmt::join(got, ", "));
  // Others do not come a second time to where all meet.
  const bool again = !nn::meets_in_forward(module);
  const std::string convert = again ? dtype_to_convert(forward, inputs) : "";
  auto* const layers = dynamic_cast<torch::nn::SequentialImpl*>(&module);
  if (layers != nullptr && inputs.size() == 1 && again)
    if (const auto found = layer_that_fails(*layers, inputs[0]))
      return UsageError(begin + *found + convert);
  return UsageError(begin + error.what_without_backtrace() + parts_in_words(module) + convert);
}

}  // namespace

Forward explained(const std::shared_ptr<torch::nn::Module>& module, Forward forward) {
  return [module = module.get(), forward = std::move(forward)](at::TensorList inputs) {
    try {
      return forward(inputs);
    } catch (const c10::OutOfMemoryError&) {
      throw;
    } catch (const c10::Error& error) {
      throw forward_error(*module, forward, inputs, error);
    }
  };
}

}  // namespace tutti::detail
