#include "tutti/parallel/detail/block_tree.h"

#include <algorithm>

#include "tutti/base/detail/check.h"

namespace tutti::parallel::detail {
namespace {

using Steps = std::vector<ReductionShape::Step>;

// Steps into different partials may be carried out in any order: what is added to one says it all.
Steps by_target(Steps steps) {
  std::ranges::stable_sort(steps, {}, &ReductionShape::Step::into);
  return steps;
}

Steps of_ranks(Steps steps, const std::vector<int>& owners) {
  for (auto& [into, from] : steps) {
    into = owners[static_cast<size_t>(into)];
    from = owners[static_cast<size_t>(from)];
  }
  return steps;
}

}  // namespace

BlockTree block_tree(int blocks, int rank, const ReductionShape& ranks) {
  const int size = ranks.replicas();
  TUTTI_CHECK(blocks >= size, "{} blocks on {} ranks", blocks, size);
  BlockTree tree;
  std::vector<int> owners;
  for (int r = 0; r < size; ++r) {
    tree.first_blocks.push_back(static_cast<int>(owners.size()));
    owners.insert(owners.end(), static_cast<size_t>(blocks / size + (r < blocks % size)), r);
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
  tree.by_group = one_each && by_target(of_ranks(tree.rest, owners)) == by_target(ranks.steps());
  return tree;
}

}  // namespace tutti::parallel::detail
