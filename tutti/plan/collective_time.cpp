#include "tutti/plan/collective_time.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <queue>
#include <tuple>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/reduction_shape.h"

namespace tutti::plan {
namespace {

/// Between two ranks: an element takes so long, and the first comes a latency later.
struct Wire {
  double element = 1, latency = 0;
};

/// In units of time of the wires. Ranks with the same number / neighbours are on one host, and
/// share its ports.
class Simulation {
 public:
  Simulation(const std::vector<Schedule>& schedules, const Wire& between, const Wire& inside,
             int neighbours)
      : wires_{between, inside},
        neighbours_(neighbours),
        ranks_(schedules.size()),
        out_(2 * schedules.size(), 0),
        in_(2 * schedules.size(), 0) {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) ranks_[rank].schedule = schedules[rank];
  }

  double run() {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      Rank& one = ranks_[rank];
      one.arrived.resize(static_cast<size_t>(one.schedule.num_rounds()));
      events_.push({.to = static_cast<int>(rank)});
    }
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      event.count == 0 ? begin_round(event) : arrive(event);
    }
    double end = 0;
    for (const Rank& rank : ranks_) end = std::max(end, rank.ended);
    return end;
  }

 private:
  /// A message at the port in of `to`, or, without elements, the begin of a round.
  struct Event {
    double time = 0;
    int from = -1, to = 0;
    int64_t place = 0;  ///< among all: ties come in the order in which they were sent
    int64_t round = 0, count = 0;
    bool operator>(const Event& other) const {
      return std::tie(time, from, place, to) >
             std::tie(other.time, other.from, other.place, other.to);
    }
  };
  struct Arrived {
    int64_t messages = 0;
    double last = 0;
  };
  struct Rank {
    Schedule schedule{};
    int64_t round = -1;
    int64_t awaited = 0;             ///< messages of this round
    double left = 0;                 ///< when the round's messages have
    double ended = 0;                ///< the last round
    std::vector<Arrived> arrived{};  ///< by round
  };

  /// What carries a message, and a rank's port to it.
  struct Way {
    const Wire& wire;
    size_t port;
  };
  Way way_between(int one, int other) const {
    const int host = one / neighbours_;
    if (host == other / neighbours_) return {wires_[1], ranks_.size() + static_cast<size_t>(one)};
    return {wires_[0], static_cast<size_t>(host)};
  }

  static bool is_received(Step::Action action) {
    return action == Step::Action::receive || action == Step::Action::add ||
           action == Step::Action::keep;
  }

  void begin_round(const Event& event) {
    Rank& rank = ranks_[static_cast<size_t>(event.to)];
    rank.round = event.round;
    rank.ended = rank.left = event.time;
    if (rank.round == rank.schedule.num_rounds()) return;
    rank.awaited = 0;
    rank.schedule.round(rank.round, steps_);
    for (const Step& step : steps_) {
      if (is_received(step.action)) ++rank.awaited;
      if (step.action != Step::Action::send) continue;
      const Way way = way_between(event.to, step.peer);
      double& free = out_[way.port];
      free = std::max(free, event.time);
      events_.push({free + way.wire.latency, event.to, step.peer, sent_++, rank.round, step.count});
      free += static_cast<double>(step.count) * way.wire.element;
      rank.left = std::max(rank.left, free);
    }
    end_round(event.to);
  }

  void arrive(const Event& message) {
    Rank& rank = ranks_[static_cast<size_t>(message.to)];
    const Way way = way_between(message.to, message.from);
    double& free = in_[way.port];
    free = std::max(free, message.time) + static_cast<double>(message.count) * way.wire.element;
    Arrived& arrived = rank.arrived[static_cast<size_t>(message.round)];
    arrived.last = std::max(arrived.last, free);
    ++arrived.messages;
    if (message.round == rank.round) end_round(message.to);
  }

  /// Where all is there that the round of this rank awaits.
  void end_round(int number) {
    const Rank& rank = ranks_[static_cast<size_t>(number)];
    const Arrived& arrived = rank.arrived[static_cast<size_t>(rank.round)];
    if (arrived.messages < rank.awaited) return;
    events_.push(
        {.time = std::max(rank.left, arrived.last), .to = number, .round = rank.round + 1});
  }

  Wire wires_[2];  ///< between hosts, inside one
  int neighbours_;
  std::vector<Rank> ranks_;
  std::vector<double> out_, in_;  ///< when ports are free: of hosts, then of ranks to neighbours
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::vector<Step> steps_;
  int64_t sent_ = 0;
};

double element_seconds(const CollectiveWork& work, const Link& link) {
  return static_cast<double>(work.bytes_per_element) / link.bytes_per_second;
}

void require_ranks(const CollectiveWork& work) {
  const bool halves =
      work.algorithm == Algorithm::halving_doubling || work.algorithm == Algorithm::doubling;
  if (work.ranks < 1) throw UsageError(fmt::format("{} ranks, expected 1 or more", work.ranks));
  if (work.chunk_elements < 1)
    throw UsageError(fmt::format("chunks of {} elements, expected 1 or more", work.chunk_elements));
  if (halves && !std::has_single_bit(static_cast<unsigned>(work.ranks)))
    throw UsageError(
        fmt::format("{} ranks: {} takes powers of two", work.ranks, name_of(work.algorithm)));
}

void require_neighbours(const CollectiveWork& work, const Neighbours& neighbours) {
  if (neighbours.ranks < 1 || work.ranks % neighbours.ranks != 0)
    throw UsageError(fmt::format("{} ranks, {} a host; expected 1 or more that divide all",
                                 work.ranks, neighbours.ranks));
}

/// What formulas are made of; seconds where not said.
struct Terms {
  Terms(const CollectiveWork& work, const Link& link)
      : n(work.ranks),
        alpha(link.latency),
        whole(static_cast<double>(work.num_elements) * element_seconds(work, link)),
        others((n - 1) / n * whole),
        levels(std::bit_width(static_cast<unsigned>(work.ranks)) - 1),
        chunks(chunks_of(work.num_elements, work.chunk_elements)),
        chunks_of_slice(chunks_of(work.num_elements / work.ranks, work.chunk_elements)) {}

  static double chunks_of(int64_t elements, int64_t chunk) {
    const int64_t count = (elements + chunk - 1) / chunk;
    return static_cast<double>(count);
  }

  double n, alpha;
  double whole, others;            ///< of all elements through a port; of all parts but one
  double levels;                   ///< of halving, a number
  double chunks, chunks_of_slice;  ///< numbers
};

/// Rank r gets all after as many messages of its forebears as its width has bits, and one latency
/// for each of them that is itself on the way.
double binomial_seconds(int ranks, double alpha, double whole) {
  double last = 0;
  for (unsigned r = 1; r < static_cast<unsigned>(ranks); ++r)
    last = std::max(last, std::bit_width(r) * whole + std::popcount(r) * alpha);
  return last;
}

/// Those that `all` has left are of one host's ranks, or of one rank a host.
CollectiveWork part_of(CollectiveWork all, int ranks, int64_t num_elements) {
  all.ranks = ranks;
  all.num_elements = num_elements;
  return all;
}

/// Partners at distance 1, 2, 4, ... are neighbours first, then beyond the link. Pieces go both
/// ways at once.
double seconds_of_hosts(const CollectiveWork& work, const Link& link,
                        const Neighbours& neighbours) {
  const int here = neighbours.ranks, hosts = work.ranks / here;
  const Link of_each{link.bytes_per_second / here, link.latency};
  if (work.collective == Collective::all_reduce) {
    if (work.algorithm == Algorithm::doubling)
      return formula_seconds(part_of(work, here, work.num_elements), neighbours.inside) +
             formula_seconds(part_of(work, hosts, work.num_elements), of_each);
    if (work.algorithm == Algorithm::halving_doubling)
      return formula_seconds(part_of(work, here, work.num_elements), neighbours.inside) +
             formula_seconds(part_of(work, hosts, work.num_elements / here), of_each);
    if (work.algorithm == Algorithm::pairwise) {
      const Terms between(work, of_each), inside(work, neighbours.inside);
      const double rounds = between.chunks_of_slice + 1;
      return std::max(rounds * between.alpha + 2 * (between.n - here) / between.n * between.whole,
                      rounds * inside.alpha + 2 * (here - 1) / inside.n * inside.whole);
    }
  }
  throw UsageError(fmt::format("no formula for {} by {} with {} ranks a host",
                               name_of(work.collective), name_of(work.algorithm), here));
}

}  // namespace

double formula_seconds(const CollectiveWork& work, const Link& link, const Neighbours& neighbours) {
  require_ranks(work);
  require_neighbours(work, neighbours);
  if (work.ranks == 1) return 0;
  if (neighbours.ranks > 1) return seconds_of_hosts(work, link, neighbours);
  const Terms t(work, link);
  using enum Collective;
  using enum Algorithm;
  switch (work.collective) {
    case all_reduce:
      switch (work.algorithm) {
        case ring: return 2 * (t.n - 1) * (t.alpha + t.whole / t.n);
        case halving_doubling: return 2 * t.levels * t.alpha + 2 * t.others;
        case doubling: return t.levels * (t.chunks * t.alpha + t.whole);
        case direct: return t.chunks * t.alpha + (t.n - 1) * t.whole;
        case pairwise: return (t.chunks_of_slice + 1) * t.alpha + 2 * t.others;
        default: break;
      }
      break;
    case reduce_scatter:
      if (work.algorithm == pairwise) return t.chunks_of_slice * t.alpha + t.others;
      break;
    case all_gather:
      if (work.algorithm == ring) return (t.n - 1) * (t.alpha + t.whole / t.n);
      if (work.algorithm == doubling) return t.levels * t.alpha + t.others;
      return t.alpha + t.others;
    case broadcast:
      if (work.algorithm == binomial) return binomial_seconds(work.ranks, t.alpha, t.whole);
      // To each its piece; the root's own then goes round.
      return t.others + (t.n - 1) * (t.alpha + t.whole / t.n);
    case scatter:
    case gather:
      if (work.algorithm == direct) return t.alpha + t.others;
      break;
    case all_to_all:
      return work.algorithm == direct ? t.alpha + t.others : (t.n - 1) * (t.alpha + t.whole / t.n);
    default: break;
  }
  throw UsageError(
      fmt::format("no formula for {} by {}", name_of(work.collective), name_of(work.algorithm)));
}

double simulated_seconds(const CollectiveWork& work, const Link& link,
                         const Neighbours& neighbours) {
  if (work.ranks < 1) throw UsageError(fmt::format("{} ranks, expected 1 or more", work.ranks));
  require_neighbours(work, neighbours);
  if (work.ranks == 1) return 0;
  const ReductionShape shape = ReductionShape::hosts(
      std::vector<int>(static_cast<size_t>(work.ranks / neighbours.ranks), neighbours.ranks));
  std::vector<ShapeTree> trees;
  trees.reserve(static_cast<size_t>(work.ranks));
  std::vector<Schedule> schedules;
  for (int rank = 0; rank < work.ranks; ++rank) {
    trees.emplace_back(shape, rank);
    schedules.emplace_back(Problem{.collective = work.collective,
                                   .algorithm = work.algorithm,
                                   .rank = rank,
                                   .size = work.ranks,
                                   .num_elements = work.num_elements,
                                   .chunk_elements = work.chunk_elements,
                                   .shape_tree = &trees.back()});
  }
  const double element = element_seconds(work, link);
  // In elements of the link: whole numbers, where latencies are.
  const Wire between{1, link.latency / element};
  const Wire inside{element_seconds(work, neighbours.inside) / element,
                    neighbours.inside.latency / element};
  return Simulation(schedules, between, inside, neighbours.ranks).run() * element;
}

double least_seconds(int ranks, double bytes, const Link& link) {
  if (ranks == 1) return 0;
  return 2 * link.latency + 2 * (ranks - 1.0) / ranks * bytes / link.bytes_per_second;
}

}  // namespace tutti::plan
