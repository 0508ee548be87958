#include "tutti/parallel/tensor/detail/block_tree.h"

#include <algorithm>
#include <numeric>

#include "tutti/base/detail/check.h"

namespace tutti::parallel::detail {
namespace {

// What is added to each partial, in order; steps into different ones may be carried out in any
// order. Partials are counted by their owners.
std::vector<std::vector<int>> added_to(const std::vector<ReductionShape::Step>& steps,
                                       const std::vector<int>& owners) {
  std::vector<std::vector<int>> added(owners.size());
  for (const auto& [into, from] : steps)
    added[static_cast<size_t>(owners[static_cast<size_t>(into)])].push_back(
        owners[static_cast<size_t>(from)]);
  return added;
}

}  // namespace

BlockTree block_tree(int blocks, int rank, const ReductionShape& ranks) {
  const int size = ranks.replicas();
  TUTTI_CHECK(blocks >= size, "{} blocks on {} ranks", blocks, size);
  BlockTree tree;
  std::vector<int> owners;
  for (int r = 0; r < size; ++r) {
    tree.first_blocks.push_back(static_cast<int>(owners.size()));
    const int count = blocks / size + (r < blocks % size ? 1 : 0);
    owners.insert(owners.end(), static_cast<size_t>(count), r);
  }
  tree.first_blocks.push_back(blocks);

  std::vector<bool> added(owners.size(), false);   // to another by its rank alone
  std::vector<bool> shared(owners.size(), false);  // a partial of several ranks
  const ReductionShape shape = ReductionShape::flat(blocks);
  for (const auto& step : shape.steps()) {
    const auto into = static_cast<size_t>(step.into), from = static_cast<size_t>(step.from);
    if (owners[into] != owners[from] || shared[into] || shared[from]) {
      shared[into] = true;
      tree.rest.push_back(step);
      continue;
    }
    added[from] = true;
    if (owners[into] == rank) tree.own.push_back(step);
  }
  tree.nodes.resize(static_cast<size_t>(size));
  for (size_t block = 0; block < owners.size(); ++block)
    if (!added[block])
      tree.nodes[static_cast<size_t>(owners[block])].push_back(static_cast<int>(block));
  const bool one_each =
      std::ranges::all_of(tree.nodes, [](const auto& nodes) { return nodes.size() == 1; });
  std::vector<int> themselves(owners.size());
  std::iota(themselves.begin(), themselves.end(), 0);
  tree.by_group = one_each && added_to(tree.rest, owners) == added_to(ranks.steps(), themselves);
  return tree;
}

}  // namespace tutti::parallel::detail
