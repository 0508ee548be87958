#include "tutti/comm/schedule/schedule_trees.h"

#include <algorithm>
#include <bit>

namespace tutti {
namespace {

int lowest_bit(int position) { return position & -position; }

// Positions 1 to size in order; those divisible by 2^k stand at level k or above. The part of the
// tree right of a position may be cut off: its root is then the highest that is left.
int parent_of(int position, int size) {
  const int bit = lowest_bit(position);
  const int up = (position ^ bit) | bit << 1;
  return up <= size ? up : position ^ bit;
}

int right_child_of(int position, int size) {
  for (int step = lowest_bit(position) / 2; step > 0; step /= 2)
    if (position + step <= size) return position + step;
  return 0;
}

// In tree 1 ranks are mirrored (even sizes) or shifted by one (odd), so that leaves of one tree
// are inner in the other.
int position_of(int tree, int rank, int size) {
  if (tree == 0) return rank + 1;
  if (size % 2 == 0) return size - rank;
  return rank == 0 ? size : rank;
}

int rank_at(int tree, int position, int size) {
  if (position == 0) return -1;
  if (tree == 0) return position - 1;
  if (size % 2 == 0) return size - position;
  return position == size ? 0 : position;
}

int level_of(int position) { return std::countr_zero(static_cast<unsigned>(position)); }

}  // namespace

ShapeTree::ShapeTree(const ReductionShape& shape, int rank) {
  std::vector<int> ready(static_cast<size_t>(shape.replicas()));  // the round it is free in
  for (const auto& step : shape.steps()) {
    int& into = ready[static_cast<size_t>(step.into)];
    const int round = std::max(into, ready[static_cast<size_t>(step.from)]);
    into = round + 1;
    rounds = std::max(rounds, round + 1);
    if (step.into == rank) exchanges.push_back({.round = round, .peer = step.from});
    if (step.from == rank) exchanges.push_back({.round = round, .peer = step.into, .sends = true});
  }
  if (rank == 0 && !exchanges.empty()) exchanges.back().last = true;
}

bool same_tree(const ReductionShape& a, const ReductionShape& b) {
  if (a.replicas() != b.replicas()) return false;
  const auto additions = [](const ReductionShape& shape) {
    std::vector<std::vector<int>> into(static_cast<size_t>(shape.replicas()));
    for (const auto& step : shape.steps())
      into[static_cast<size_t>(step.into)].push_back(step.from);
    return into;
  };
  return additions(a) == additions(b);
}

TreePlace double_tree_place(int tree, int rank, int size) {
  const int position = position_of(tree, rank, size);
  TreePlace place;
  place.level = level_of(position);
  if (const int root = static_cast<int>(std::bit_floor(static_cast<unsigned>(size)));
      position != root) {
    const int parent = parent_of(position, size);
    place.parent = rank_at(tree, parent, size);
    place.parent_level = level_of(parent);
    place.is_left = position < parent;
  }
  if (place.level > 0) {
    place.left = rank_at(tree, position - lowest_bit(position) / 2, size);
    place.right = rank_at(tree, right_child_of(position, size), size);
  }
  return place;
}

int double_tree_height(int size) { return std::bit_width(static_cast<unsigned>(size)) - 1; }

}  // namespace tutti
