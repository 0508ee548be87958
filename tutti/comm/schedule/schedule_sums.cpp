// Schedules that add. Glossary: n ranks, r this one; N elements; a *slice* is the part of a vector
// that one rank adds up, a *chunk* what is exchanged of it in one round. An all-reduce sends at
// least 2 N (n-1)/n elements a rank: halving-doubling, pairwise exchange and the ring do with that.
#include "tutti/comm/schedule/schedule_writer.h"

namespace tutti::detail::schedules {
namespace {

// Chunk j goes up from level l - 1 to a parent at level l in unit j + l - 1, and down again, after
// `height` units, in the mirrored order; a unit is two rounds, for the left and the right child.
// Levels grow towards the root, so whatever is sent was complete a unit before.
void double_tree_half(Writer& w, int tree, Range half, int64_t round) {
  const int64_t chunks = w.chunks(half);
  const TreePlace place = double_tree_place(tree, w.rank(), w.size());
  const int height = double_tree_height(w.size());
  const int64_t unit = round / 2;
  const bool left_turn = round % 2 == 0;
  const auto chunk_at = [&](int64_t number) {
    return number < 0 || number >= chunks ? Range{} : w.chunk(half, number);
  };
  if (place.parent >= 0 && place.is_left == left_turn) {
    w.send(place.parent, Space::output, chunk_at(unit - (place.parent_level - 1)));
    w.receive(place.parent, Space::output, chunk_at(unit - (2 * height - place.parent_level)));
  }
  const int child = left_turn ? place.left : place.right;
  if (child < 0) return;
  const bool last = place.parent < 0 && (!left_turn || place.right < 0);
  w.add_in_place(child, chunk_at(unit - (place.level - 1)), last);
  w.send(child, Space::output, chunk_at(unit - (2 * height - place.level)));
}

}  // namespace

void direct_all_reduce(Writer& w, Range chunk) {
  for (int i = 1; i < w.size(); ++i) {
    w.send(w.around(w.rank() + i), Space::input, chunk);
    w.keep(w.around(w.rank() - i), chunk.count());
  }
  w.reduce(Space::output, chunk.begin, chunk);
}

void doubling_all_reduce(Writer& w, Range chunk, int64_t round) {
  const int partner = w.rank() ^ 1 << round;
  w.send(partner, Space::output, chunk);
  w.keep(partner, chunk.count());
  w.combine(partner, chunk, 2 << round == w.size());
}

// Partners at distance 1, 2, 4, ...: after round k a block of 2^(k+1) ranks has been added, as the
// reduction shape adds. The bits of the rank, lowest first, say which half it goes on with.
void halving_doubling_all_reduce(Writer& w, int64_t round) {
  const int levels = doublings(w.size());
  const bool halves = round < levels;
  const int level = static_cast<int>(halves ? round : 2 * levels - 1 - round);
  int first = 0, parts = w.size();
  for (int k = 0; k < level; ++k) {
    parts /= 2;
    if (w.rank() >> k & 1) first += parts;
  }
  const int middle = first + parts / 2;
  const bool upper = w.rank() >> level & 1;
  const Range low = w.out_parts(first, middle), high = w.out_parts(middle, first + parts);
  const Range mine = upper ? high : low, other = upper ? low : high;
  const int partner = w.rank() ^ 1 << level;
  if (halves) {
    w.send(partner, Space::output, other);
    w.add_in_place(partner, mine, level + 1 == levels);
  } else {
    w.send(partner, Space::output, mine);
    w.receive(partner, Space::output, other);
  }
}

// Round c exchanges the raw chunk c of every slice, and the finished chunk c - 1.
void pairwise_all_reduce(Writer& w, int64_t round) {
  const Range own = w.in_part(w.rank());
  for (int i = 1; i < w.size(); ++i) {
    const int to = w.around(w.rank() + i), from = w.around(w.rank() - i);
    w.send(to, Space::input, w.chunk(w.in_part(to), round));
    w.keep(from, w.chunk(own, round).count());
    if (round == 0) continue;
    w.send(to, Space::output, w.chunk(own, round - 1));
    w.receive(from, Space::output, w.chunk(w.in_part(from), round - 1));
  }
  const Range chunk = w.chunk(own, round);
  w.reduce(Space::output, chunk.begin, chunk);
}

void tree_all_reduce(Writer& w, const ShapeTree& tree, Range chunk, int64_t round) {
  if (round >= tree.rounds) return binomial_broadcast(w, 0, chunk, round - tree.rounds);
  for (const auto& exchange : tree.exchanges) {
    if (exchange.round != round) continue;
    if (exchange.sends)
      w.send(exchange.peer, Space::output, chunk);
    else
      w.add_in_place(exchange.peer, chunk, exchange.last);
  }
}

void ring_all_reduce(Writer& w, int64_t round) {
  const int next = w.around(w.rank() + 1), previous = w.around(w.rank() - 1);
  const int turns = w.size() - 1;
  if (round < turns) {
    w.send(next, Space::output, w.out_part(w.around(w.rank() - round)));
    w.add_in_place(previous, w.out_part(w.around(w.rank() - round - 1)), round + 1 == turns);
  } else {
    const int64_t turn = round - turns;
    w.send(next, Space::output, w.out_part(w.around(w.rank() + 1 - turn)));
    w.receive(previous, Space::output, w.out_part(w.around(w.rank() - turn)));
  }
}

void double_tree_all_reduce(Writer& w, int64_t round) {
  const int64_t half = w.elements() / 2;
  double_tree_half(w, 0, {0, half}, round);
  double_tree_half(w, 1, {half, w.elements()}, round);
}

void direct_reduce(Writer& w, int root, Range chunk) {
  if (w.rank() != root) return w.send(root, Space::input, chunk);
  for (int i = 1; i < w.size(); ++i) w.keep(w.around(root - i), chunk.count());
  w.reduce(Space::output, chunk.begin, chunk);
}

void pairwise_reduce_scatter(Writer& w, int64_t round) {
  const Range own = w.in_part(w.rank()), chunk = w.chunk(own, round);
  for (int i = 1; i < w.size(); ++i) {
    const int to = w.around(w.rank() + i);
    w.send(to, Space::input, w.chunk(w.in_part(to), round));
    w.keep(w.around(w.rank() - i), chunk.count());
  }
  w.reduce(Space::output, chunk.begin - own.begin, chunk);
}

// As pairwise all-reduce, with finished chunks going to the root alone; elsewhere they wait in
// scratch, since the buffer stays as it is.
void pairwise_reduce(Writer& w, int root, int64_t round) {
  const Range own = w.in_part(w.rank()), chunk = w.chunk(own, round);
  const bool is_root = w.rank() == root;
  for (int i = 1; i < w.size(); ++i) {
    const int to = w.around(w.rank() + i), from = w.around(w.rank() - i);
    w.send(to, Space::input, w.chunk(w.in_part(to), round));
    w.keep(from, chunk.count());
    if (round == 0) continue;
    if (to == root) w.send(to, Space::scratch, {0, w.chunk(own, round - 1).count()});
    if (is_root) w.receive(from, Space::output, w.chunk(w.in_part(from), round - 1));
  }
  w.reduce(is_root ? Space::output : Space::scratch, is_root ? chunk.begin : 0, chunk);
}

// Partial sums lie in scratch, but for those of a root that is rank 0.
void tree_reduce(Writer& w, const ShapeTree& tree, int root, Range chunk, int64_t round) {
  const bool in_place = w.rank() == 0 && root == 0;
  const Space sums = in_place ? Space::output : Space::scratch;
  const Range there = in_place ? chunk : Range{0, chunk.count()};
  if (round == tree.rounds) {  // only where the root is another rank
    if (w.rank() == 0) w.send(root, Space::scratch, there);
    if (w.rank() == root) w.receive(0, Space::output, chunk);
    return;
  }
  bool first = true;
  for (const auto& exchange : tree.exchanges) {
    const Space operand = first ? Space::input : sums;
    const Range here = first ? chunk : there;
    first = false;
    if (exchange.round != round) continue;
    if (exchange.sends)
      w.send(exchange.peer, operand, here);
    else
      w.add(exchange.peer, sums, there, operand, here.begin, exchange.last);
  }
}

}  // namespace tutti::detail::schedules
