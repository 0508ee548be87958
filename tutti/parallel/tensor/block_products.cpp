#include "tutti/parallel/tensor/detail/block_products.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "tutti/nn/detail/layers.h"
#include "tutti/parallel/tensor/detail/tree_sum.h"

namespace tutti::parallel::detail {
namespace {

using torch::autograd::AutogradContext;

struct DenseBlocks : torch::CustomClassHolder {
  DenseBlocks(BlockCut cut_in, nn::Activation activation_in)
      : cut(std::move(cut_in)), activation(activation_in) {}
  BlockCut cut;
  nn::Activation activation;
};

/// By operations that autograd sees through.
Blocks parts_in_graph(const at::Tensor& whole, const BlockCut& cut) {
  if (!whole.defined()) return Blocks(cut.sizes.size());
  if (cut.stacked == 1) return aligned_parts(whole, cut.sizes, cut.axis);
  if (cut.sizes.size() == 1) return aligned_parts(whole, {whole.size(0)}, 0);
  Blocks parts = whole.unflatten(0, {cut.stacked, -1}).split_with_sizes(cut.sizes, 1);
  for (at::Tensor& part : parts) part = part.clone(at::MemoryFormat::Contiguous).flatten(0, 1);
  return parts;
}

Blocks one_by_one(const Blocks& xs, const at::Tensor& weight, const at::Tensor& bias,
                  const DenseBlocks& dense) {
  const Blocks weights = parts_in_graph(weight, dense.cut);
  const Blocks biases = parts_in_graph(bias, dense.cut);
  Blocks ys;
  for (size_t block = 0; block < xs.size(); ++block)
    ys.push_back(nn::dense(xs[block], weights[block], biases[block], dense.activation));
  return ys;
}

/// Gradients that have gradients themselves. Aliases of the inputs, since one may be made of
/// another.
torch::autograd::variable_list in_graph(const Blocks& inputs, const Blocks& above,
                                        const DenseBlocks& dense) {
  Blocks aliases(inputs.size()), asked;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined()) continue;
    aliases[i] = inputs[i].view_as(inputs[i]);
    if (aliases[i].requires_grad()) asked.push_back(aliases[i]);
  }
  const auto xs_end = aliases.begin() + static_cast<ptrdiff_t>(above.size());
  const Blocks ys = one_by_one({aliases.begin(), xs_end}, xs_end[0], xs_end[1], dense);
  Blocks given = torch::autograd::grad(ys, asked, above, /*retain_graph=*/true,
                                       /*create_graph=*/true, /*allow_unused=*/true);
  auto next = given.begin();
  for (at::Tensor& alias : aliases)
    alias = alias.defined() && alias.requires_grad() ? *next++ : at::Tensor();
  return aliases;
}

/// Inputs: x of each block, weight, bias. Saved: these, W_b of each block, and y_b where there is
/// an activation. W_b are kept, since a second pass over the weight would be dearer than the
/// memory.
struct BlockProducts : torch::autograd::Function<BlockProducts> {
  static Blocks forward(AutogradContext* context, at::TensorList xs, const at::Tensor& weight,
                        const std::optional<at::Tensor>& given_bias,
                        const c10::intrusive_ptr<DenseBlocks>& dense) {
    const at::Tensor bias = given_bias.value_or(at::Tensor());
    const Blocks weights = taken_apart(weight, dense->cut);
    const Blocks biases = bias.defined() ? taken_apart(bias, dense->cut) : Blocks(xs.size());
    Blocks ys, saved = xs.vec();
    for (size_t block = 0; block < xs.size(); ++block)
      ys.push_back(
          nn::detail::dense_forward(xs[block], weights[block], biases[block], dense->activation));
    saved.insert(saved.end(), {weight, bias});
    saved.insert(saved.end(), weights.begin(), weights.end());
    if (dense->activation != nn::Activation::none) saved.insert(saved.end(), ys.begin(), ys.end());
    context->save_for_backward(saved);
    context->saved_data["dense"] = c10::IValue::make_capsule(dense);
    return ys;
  }

  static torch::autograd::variable_list backward(AutogradContext* context, const Blocks& above) {
    const auto capsule = context->saved_data["dense"].toCapsule();
    const auto dense = c10::static_intrusive_pointer_cast<DenseBlocks>(capsule);
    const Blocks saved = context->get_saved_variables();
    const size_t blocks = above.size();
    const Blocks inputs(saved.begin(), saved.begin() + static_cast<ptrdiff_t>(blocks) + 2);
    auto gradients = at::GradMode::is_enabled() ? in_graph(inputs, above, *dense)
                                                : computed(context, saved, above, *dense);
    gradients.emplace_back();  // of what is no tensor
    return gradients;
  }

 private:
  static torch::autograd::variable_list computed(AutogradContext* context, const Blocks& saved,
                                                 const Blocks& above, const DenseBlocks& dense) {
    const size_t blocks = above.size();
    const at::Tensor &weight = saved[blocks], &bias = saved[blocks + 1];
    const auto asked = [&](size_t input) { return context->needs_input_grad(input); };
    Blocks gradients(blocks + 2);
    if (asked(blocks)) gradients[blocks] = at::empty_like(weight);
    if (bias.defined() && asked(blocks + 1)) gradients[blocks + 1] = at::empty_like(bias);
    for (size_t block = 0; block < blocks; ++block) {
      const at::Tensor& part = saved[blocks + 2 + block];
      const at::Tensor y =
          dense.activation == nn::Activation::none ? at::Tensor() : saved[2 * blocks + 2 + block];
      const auto of = nn::detail::dense_backward(above[block].contiguous(), saved[block], part, y,
                                                 dense.activation,
                                                 {.x = asked(block),
                                                  .weight = gradients[blocks].defined(),
                                                  .bias = gradients[blocks + 1].defined()});
      gradients[block] = of.x;
      if (of.weight.defined()) put_part(gradients[blocks], dense.cut, block, of.weight);
      if (of.bias.defined()) put_part(gradients[blocks + 1], dense.cut, block, of.bias);
    }
    return gradients;
  }
};

/// Whether nn::dense() computes all blocks by kernels: else it is torch that does.
bool takes(const Blocks& xs, const at::Tensor& weight, const at::Tensor& bias,
           const BlockCut& cut) {
  if (!weight.is_contiguous() || (bias.defined() && !bias.is_contiguous())) return false;
  for (size_t block = 0; block < xs.size(); ++block) {
    auto shape = weight.sizes().vec();
    shape[static_cast<size_t>(cut.axis)] = cut.stacked * cut.sizes[block];
    const at::Tensor like_part = weight.detach().as_strided(shape, {shape[1], 1});
    if (!nn::detail::dense_takes(xs[block], like_part, bias)) return false;
  }
  return true;
}

}  // namespace

Blocks block_products(const Blocks& xs, const at::Tensor& weight, const at::Tensor& bias,
                      const BlockCut& cut, nn::Activation activation) {
  auto dense = c10::make_intrusive<DenseBlocks>(cut, activation);
  if (xs.size() == 1 || !takes(xs, weight, bias, cut)) return one_by_one(xs, weight, bias, *dense);
  Blocks rows;
  for (const at::Tensor& x : xs) rows.push_back(x.reshape({-1, x.size(-1)}).contiguous());
  Blocks ys =
      BlockProducts::apply(at::TensorList(rows), weight,
                           bias.defined() ? std::optional(bias) : std::nullopt, std::move(dense));
  for (size_t block = 0; block < xs.size(); ++block) {
    if (xs[block].dim() == 2) continue;
    auto shape = xs[block].sizes().vec();
    shape.back() = ys[block].size(1);
    ys[block] = ys[block].view(shape);
  }
  return ys;
}

}  // namespace tutti::parallel::detail
