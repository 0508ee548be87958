#include "tutti/parallel/tensor/tensor_functions.h"

#include <torch/csrc/autograd/custom_function.h>

#include <functional>
#include <utility>

#include "tutti/parallel/tensor/detail/agreement.h"
#include "tutti/parallel/tensor/detail/tree_sum.h"

namespace tutti::parallel {
namespace {

using detail::agree;
using detail::Agreed;
using detail::Function;
using detail::Given;

// ---- autograd ----

using Map = std::function<Blocks(const Blocks&)>;

struct TransposedMap : torch::CustomClassHolder {
  explicit TransposedMap(Map map_in) : map(std::move(map_in)) {}
  Map map;
};

/// Each function is a linear map between the tensors of all ranks; its gradient is the transposed
/// map, which is another of the functions.
struct BlockMap : torch::autograd::Function<BlockMap> {
  static Blocks forward(torch::autograd::AutogradContext* context, at::TensorList inputs,
                        const Map& map, const Map& transposed) {
    context->saved_data["transposed"] =
        c10::IValue::make_capsule(c10::make_intrusive<TransposedMap>(transposed));
    Blocks outputs = map(inputs.vec());
    for (at::Tensor& output : outputs)
      if (output.is_view()) output = output.detach();
    return outputs;
  }
  static Blocks backward(torch::autograd::AutogradContext* context, const Blocks& above) {
    const auto capsule = context->saved_data["transposed"].toCapsule();
    Blocks gradients = c10::static_intrusive_pointer_cast<TransposedMap>(capsule)->map(above);
    gradients.resize(gradients.size() + 2);  // the maps have none
    return gradients;
  }
};

Blocks apply(const Blocks& inputs, const Map& map, const Map& transposed) {
  return BlockMap::apply(at::TensorList(inputs), map, transposed);
}

/// Tensors that autograd tells apart from `x`, over the same memory.
Blocks copies_of(const TensorGroup& group, const at::Tensor& x) {
  Blocks copies;
  for (int block = 0; block < group.local_blocks(); ++block) copies.push_back(x.detach());
  return copies;
}

// ---- the pairs, each the other's gradient; what all ranks do alike is known ----

at::Tensor summed(const TensorGroup& group, const Blocks& blocks);

Blocks copied(const TensorGroup& group, const at::Tensor& x) {
  return apply(
      Blocks{x}, [&](const Blocks& in) { return copies_of(group, in[0]); },
      [group](const Blocks& above) { return Blocks{summed(group, above)}; });
}

at::Tensor summed(const TensorGroup& group, const Blocks& blocks) {
  return apply(
      blocks, [&](const Blocks& in) { return Blocks{detail::tree_sum(group, in)}; },
      [group](const Blocks& above) { return copied(group, above[0]); })[0];
}

at::Tensor joined(const TensorGroup& group, const Blocks& parts, const Agreed& along);

Blocks cut(const TensorGroup& group, const at::Tensor& x, const Agreed& along) {
  const auto map = [&](const Blocks& in) {
    const auto [begin, size] = group.range(along.length);
    return detail::aligned_parts(in[0].detach().narrow(along.axis, begin, size),
                                 group.sizes_of(group.rank(), along.length), along.axis);
  };
  return apply(Blocks{x}, map,
               [group, along](const Blocks& above) { return Blocks{joined(group, above, along)}; });
}

at::Tensor joined(const TensorGroup& group, const Blocks& parts, const Agreed& along) {
  const auto map = [&](const Blocks& in) {
    return Blocks{detail::joined(group, in, along.axis, along.length)};
  };
  return apply(parts, map,
               [group, along](const Blocks& above) { return cut(group, above[0], along); })[0];
}

Blocks scattered(const TensorGroup& group, const Blocks& blocks, const Agreed& along);

Blocks gathered(const TensorGroup& group, const Blocks& parts, const Agreed& along) {
  const auto map = [&](const Blocks& in) {
    return copies_of(group, detail::joined(group, in, along.axis, along.length));
  };
  return apply(parts, map,
               [group, along](const Blocks& above) { return scattered(group, above, along); });
}

Blocks scattered(const TensorGroup& group, const Blocks& blocks, const Agreed& along) {
  const auto map = [&](const Blocks& in) { return detail::tree_sum_parts(group, in, along.axis); };
  return apply(blocks, map,
               [group, along](const Blocks& above) { return gathered(group, above, along); });
}

}  // namespace

Blocks copy_to(const TensorGroup& group, const at::Tensor& x) {
  agree(group, Function::copy_to, Given::whole, {x});
  return copied(group, x);
}

at::Tensor sum_of(const TensorGroup& group, const Blocks& blocks) {
  agree(group, Function::sum_of, Given::copies, blocks);
  return summed(group, blocks);
}

Blocks part_of(const TensorGroup& group, const at::Tensor& x, int64_t axis) {
  return cut(group, x, agree(group, Function::part_of, Given::whole, {x}, axis));
}

at::Tensor whole_of(const TensorGroup& group, const Blocks& blocks, int64_t axis) {
  return joined(group, blocks, agree(group, Function::whole_of, Given::parts, blocks, axis));
}

Blocks sequence_all_gather(const TensorGroup& group, const Blocks& parts, int64_t axis) {
  return gathered(group, parts,
                  agree(group, Function::sequence_all_gather, Given::parts, parts, axis));
}

Blocks sequence_reduce_scatter(const TensorGroup& group, const Blocks& blocks, int64_t axis) {
  return scattered(group, blocks,
                   agree(group, Function::sequence_reduce_scatter, Given::copies, blocks, axis));
}

}  // namespace tutti::parallel
