#include "tutti/parallel/tensor/detail/tree_sum.h"

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "tutti/parallel/tensor/detail/block_tree.h"
#include "tutti/sync/tensors.h"

namespace tutti::parallel::detail {
namespace {

at::ScalarType accumulator_of(at::ScalarType type) {
  return type == at::kBFloat16 || type == at::kHalf ? at::kFloat : type;
}

/// What has been added so far, by the first block of it.
class Partials {
 public:
  explicit Partials(int blocks)
      : tensors_(static_cast<size_t>(blocks)), owned_(static_cast<size_t>(blocks)) {}

  /// `owned`: it may be written into.
  void put(int block, const at::Tensor& x, bool owned) {
    tensors_[static_cast<size_t>(block)] = x;
    owned_[static_cast<size_t>(block)] = owned;
  }
  void add(const std::vector<BlockTree::Step>& steps) {
    for (const auto& step : steps) {
      const auto into = static_cast<size_t>(step.into), from = static_cast<size_t>(step.from);
      if (owned_[into])
        tensors_[into].add_(tensors_[from]);
      else
        tensors_[into] = at::add(tensors_[into], tensors_[from]);
      owned_[into] = true;
      tensors_[from] = at::Tensor();
    }
  }
  const at::Tensor& operator[](int block) const { return tensors_[static_cast<size_t>(block)]; }
  /// Contiguous, and written into by nobody else.
  at::Tensor take(int block) const {
    const at::Tensor& x = (*this)[block];
    return owned_[static_cast<size_t>(block)] && x.is_contiguous()
               ? x
               : x.clone(at::MemoryFormat::Contiguous);
  }

 private:
  Blocks tensors_;
  std::vector<bool> owned_;
};

/// This rank's blocks in the type that they are added in, as far as it adds them by itself.
Partials own_sums(const TensorGroup& group, const Blocks& blocks) {
  Partials partials(group.blocks());
  const at::ScalarType type = accumulator_of(blocks[0].scalar_type());
  int block = group.first_block();
  for (const at::Tensor& x : blocks)
    partials.put(block++, x.detach().to(type), type != x.scalar_type());
  partials.add(group.tree().own);
  return partials;
}

/// Elements that each rank has, when it has `rows` of them with `row` elements each.
std::vector<int64_t> counts_of(std::vector<int64_t> rows, int64_t row) {
  for (int64_t& count : rows) count *= row;
  return rows;
}

/// Every rank gets all subtrees, and adds them up.
at::Tensor sum_of_gathered(const TensorGroup& group, Partials& partials) {
  const BlockTree& tree = group.tree();
  Blocks own;
  for (const int node : tree.nodes[static_cast<size_t>(group.rank())])
    own.push_back(partials[node]);
  const at::Tensor sent = at::stack(own);
  std::vector<int64_t> rows;
  for (const auto& nodes : tree.nodes) rows.push_back(static_cast<int64_t>(nodes.size()));
  auto shape = sent.sizes().vec();
  shape[0] = std::accumulate(rows.begin(), rows.end(), int64_t{0});
  const at::Tensor all = at::empty(shape, sent.options());
  group.group()
      .all_gather(span_of(sent), span_of(all), counts_of(rows, own[0].numel()), group.time_limit())
      .wait(group.time_limit());
  int64_t next = 0;
  for (const auto& nodes : tree.nodes)
    for (const int node : nodes) partials.put(node, all[next++], true);
  partials.add(tree.rest);
  return partials.take(0);
}

/// With the axis first, so that parts lie one behind the other.
at::Tensor parts_first(const at::Tensor& x, int64_t axis) {
  return x.movedim(axis, 0).contiguous();
}

std::vector<int64_t> rows_of_ranks(const TensorGroup& group, int64_t length) {
  std::vector<int64_t> rows;
  for (int rank = 0; rank < group.size(); ++rank) {
    const auto sizes = group.sizes_of(rank, length);
    rows.push_back(std::accumulate(sizes.begin(), sizes.end(), int64_t{0}));
  }
  return rows;
}

at::Tensor with_rows(const at::Tensor& x, int64_t rows) {
  auto shape = x.sizes().vec();
  shape[0] = rows;
  return at::empty(shape, x.options());
}

}  // namespace

at::Tensor tree_sum(const TensorGroup& group, const Blocks& blocks) {
  Partials partials = own_sums(group, blocks);
  const at::ScalarType type = blocks[0].scalar_type();
  if (group.size() > 1 && !group.tree().by_group) return sum_of_gathered(group, partials).to(type);
  const at::Tensor sum = partials.take(group.first_block());
  if (group.size() > 1)
    group.group()
        .all_reduce(span_of(sum), ReduceOp::sum, group.time_limit())
        .wait(group.time_limit());
  return sum.to(type);
}

Blocks tree_sum_parts(const TensorGroup& group, const Blocks& blocks, int64_t axis) {
  const int64_t length = blocks[0].size(axis);
  const auto sizes = group.sizes_of(group.rank(), length);
  if (group.size() == 1 || !group.tree().by_group) {
    const auto [begin, size] = group.range(length);
    return aligned_parts(tree_sum(group, blocks).narrow(axis, begin, size), sizes, axis);
  }
  const Partials partials = own_sums(group, blocks);
  const at::Tensor all = parts_first(partials[group.first_block()], axis);
  const auto rows = rows_of_ranks(group, length);
  const at::Tensor own = with_rows(all, rows[static_cast<size_t>(group.rank())]);
  const int64_t row = c10::multiply_integers(all.sizes().slice(1));
  group.group()
      .reduce_scatter(span_of(all), span_of(own), ReduceOp::sum, counts_of(rows, row),
                      group.time_limit())
      .wait(group.time_limit());
  return aligned_parts(own.movedim(0, axis).to(blocks[0].scalar_type()), sizes, axis);
}

at::Tensor joined(const TensorGroup& group, const Blocks& parts, int64_t axis, int64_t length) {
  if (group.size() == 1) return at::cat(parts, axis);
  const at::Tensor own = parts_first(at::cat(parts, axis), axis);
  const at::Tensor all = with_rows(own, length);
  const int64_t row = c10::multiply_integers(own.sizes().slice(1));
  group.group()
      .all_gather(span_of(own), span_of(all), counts_of(rows_of_ranks(group, length), row),
                  group.time_limit())
      .wait(group.time_limit());
  return all.movedim(0, axis).contiguous();
}

Blocks aligned_parts(const at::Tensor& x, const std::vector<int64_t>& sizes, int64_t axis) {
  constexpr uintptr_t kLine = 64;
  Blocks parts = sizes.size() == 1 ? Blocks{x} : x.split_with_sizes(sizes, axis);
  for (at::Tensor& part : parts)
    if (!part.is_contiguous() || reinterpret_cast<uintptr_t>(part.const_data_ptr()) % kLine != 0)
      part = part.clone(at::MemoryFormat::Contiguous);
  return parts;
}

}  // namespace tutti::parallel::detail
