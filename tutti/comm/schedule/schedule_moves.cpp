// Schedules that only move data.
#include "tutti/comm/schedule/schedule_writer.h"

namespace tutti::detail::schedules {
namespace {

void copy_own_part(Writer& w) {
  const Range own = w.out_part(w.rank());
  w.copy(Space::output, own.begin, Space::input, {0, own.count()});
}

void exchange_parts(Writer& w, int distance) {
  const int to = w.around(w.rank() + distance), from = w.around(w.rank() - distance);
  w.send(to, Space::input, w.in_part(to));
  w.receive(from, Space::output, w.out_part(from));
}

// Parts in the order of ranks counted from the root, as they lie in an inner rank's scratch.
class FromRoot {
 public:
  FromRoot(const Writer& w, int root) : w_(w), root_(root) {}

  /// The elements of the first `relative` parts behind rank `relative_to`.
  Range parts(int first, int end, int relative_to) const {
    const int64_t base = offset(relative_to);
    return {offset(first) - base, offset(end) - base};
  }
  /// The same parts in a buffer in rank order: one range, or two where the ranks wrap.
  Range in_rank_order(int first, int end) const {
    const int64_t begin = w_.out_offset(w_.around(root_ + first));
    return {begin, begin + offset(end) - offset(first)};
  }
  /// Where [first, end) has to be cut so that neither piece wraps.
  int cut(int first, int end) const { return std::clamp(w_.size() - root_, first, end); }

 private:
  int64_t offset(int relative) const {
    const int rank = root_ + relative;
    const int64_t start = w_.out_offset(root_);
    return rank <= w_.size() ? w_.out_offset(rank) - start
                             : w_.out_offset(w_.size()) - start + w_.out_offset(rank - w_.size());
  }

  const Writer& w_;
  int root_;
};

// Moves parts [first, end), counted from the root, between this rank and `peer`, in the pieces
// into which the root has to cut them.
void move_parts(Writer& w, bool sends, int root, int peer, int first, int end) {
  const FromRoot order(w, root);
  const int relative = w.around(w.rank() - root);
  const int cut = order.cut(first, end);
  for (const auto& [a, b] : {std::pair{first, cut}, std::pair{cut, end}}) {
    if (a == b) continue;
    // Gather reads a leaf's input; scatter writes a leaf's output; both are one whole part.
    const bool leaf = relative == first && end == first + 1;
    const Space ends = sends ? Space::input : Space::output;
    const Range range = leaf            ? Range{0, order.parts(a, b, a).count()}
                        : relative == 0 ? order.in_rank_order(a, b)
                                        : order.parts(a, b, relative);
    const Space space = leaf || relative == 0 ? ends : Space::scratch;
    if (sends)
      w.send(peer, space, range);
    else
      w.receive(peer, space, range);
  }
}

}  // namespace

void binomial_broadcast(Writer& w, int root, Range range, int64_t round) {
  const int relative = w.around(w.rank() - root);
  const int distance = 1 << round;
  if (relative < distance && relative + distance < w.size())
    w.send(w.around(w.rank() + distance), Space::output, range);
  else if (relative >= distance && relative < 2 * distance)
    w.receive(w.around(w.rank() - distance), Space::output, range);
}

void direct_all_gather(Writer& w) {
  const Range own{0, w.out_part(w.rank()).count()};
  for (int i = 1; i < w.size(); ++i) {
    const int from = w.around(w.rank() - i);
    w.send(w.around(w.rank() + i), Space::input, own);
    w.receive(from, Space::output, w.out_part(from));
  }
  copy_own_part(w);
}

void ring_all_gather(Writer& w, int64_t round) {
  const int next = w.around(w.rank() + 1), previous = w.around(w.rank() - 1);
  const int passed_on = w.around(w.rank() - round);
  if (round == 0)
    w.send(next, Space::input, {0, w.out_part(w.rank()).count()});
  else
    w.send(next, Space::output, w.out_part(passed_on));
  w.receive(previous, Space::output, w.out_part(w.around(w.rank() - round - 1)));
  if (round == 0) copy_own_part(w);
}

void doubling_all_gather(Writer& w, int64_t round) {
  const int width = 1 << round;
  const int partner = w.rank() ^ width;
  const int mine = w.rank() & -width, other = partner & -width;
  if (round == 0)
    w.send(partner, Space::input, {0, w.out_part(w.rank()).count()});
  else
    w.send(partner, Space::output, w.out_parts(mine, mine + width));
  w.receive(partner, Space::output, w.out_parts(other, other + width));
  if (round == 0) copy_own_part(w);
}

void scatter_ring_broadcast(Writer& w, int root, int64_t round) {
  if (round == 0) {
    for (int i = 1; i < w.size(); ++i) {
      const int to = w.around(w.rank() + i);
      if (w.rank() == root) w.send(to, Space::output, w.out_part(to));
    }
    if (w.rank() != root) w.receive(root, Space::output, w.out_part(w.rank()));
    return;
  }
  // The root has everything: what would come round to it is not sent.
  const int next = w.around(w.rank() + 1), previous = w.around(w.rank() - 1);
  if (next != root) w.send(next, Space::output, w.out_part(w.around(w.rank() - round + 1)));
  if (w.rank() != root) w.receive(previous, Space::output, w.out_part(w.around(w.rank() - round)));
}

void direct_scatter(Writer& w, int root) {
  const Range own = w.in_part(w.rank()), there{0, own.count()};
  if (w.rank() != root) return w.receive(root, Space::output, there);
  for (int i = 1; i < w.size(); ++i) {
    const int to = w.around(root + i);
    w.send(to, Space::input, w.in_part(to));
  }
  w.copy(Space::output, 0, Space::input, own);
}

void direct_gather(Writer& w, int root) {
  const Range own = w.out_part(w.rank());
  if (w.rank() != root) return w.send(root, Space::input, {0, own.count()});
  for (int i = 1; i < w.size(); ++i) {
    const int from = w.around(root - i);
    w.receive(from, Space::output, w.out_part(from));
  }
  copy_own_part(w);
}

void binomial_gather(Writer& w, int root, int64_t round) {
  const int relative = w.around(w.rank() - root), width = 1 << round;
  if (round == 0 && relative == 0) copy_own_part(w);
  if (relative % width != 0) return;
  const int end = std::min(relative + width, w.size());
  if (relative & width) {
    move_parts(w, true, root, w.around(w.rank() - width), relative, end);
    return;
  }
  if (relative + width < w.size())
    move_parts(w, false, root, w.around(w.rank() + width), relative + width,
               std::min(relative + 2 * width, w.size()));
  if (round == 0 && relative != 0 && relative + 1 < w.size())
    w.copy(Space::scratch, 0, Space::input, {0, w.out_part(w.rank()).count()});
}

void binomial_scatter(Writer& w, int root, int64_t round) {
  const int relative = w.around(w.rank() - root);
  const int width = 1 << (doublings(w.size()) - 1 - round);
  const Range own{0, w.in_part(w.rank()).count()};
  if (round == 0 && relative == 0) w.copy(Space::output, 0, Space::input, w.in_part(w.rank()));
  if (relative % width != 0) return;
  if (relative & width) {
    const int end = std::min(relative + width, w.size());
    move_parts(w, false, root, w.around(w.rank() - width), relative, end);
    if (end > relative + 1) w.copy(Space::output, 0, Space::scratch, own);
  } else if (relative + width < w.size()) {
    move_parts(w, true, root, w.around(w.rank() + width), relative + width,
               std::min(relative + 2 * width, w.size()));
  }
}

void direct_all_to_all(Writer& w) {
  for (int i = 1; i < w.size(); ++i) exchange_parts(w, i);
  w.copy(Space::output, w.out_offset(w.rank()), Space::input, w.in_part(w.rank()));
}

void pairwise_all_to_all(Writer& w, int64_t round) {
  exchange_parts(w, static_cast<int>(round) + 1);
  if (round == 0) w.copy(Space::output, w.out_offset(w.rank()), Space::input, w.in_part(w.rank()));
}

void dissemination_barrier(Writer& w, int64_t round) {
  w.send_nothing(w.around(w.rank() + (int64_t{1} << round)));
  w.receive_nothing(w.around(w.rank() - (int64_t{1} << round)));
}

}  // namespace tutti::detail::schedules
