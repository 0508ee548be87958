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

/// In units of time in which a link carries one element; latency in the same.
class Simulation {
 public:
  Simulation(const std::vector<Schedule>& schedules, double latency)
      : latency_(latency), ranks_(schedules.size()) {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) ranks_[rank].schedule = schedules[rank];
  }

  double run() {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) begin_round(static_cast<int>(rank), 0, 0);
    while (!arrivals_.empty()) {
      const Message message = arrivals_.top();
      arrivals_.pop();
      arrive(message);
    }
    double end = 0;
    for (const Rank& rank : ranks_) end = std::max(end, rank.ended);
    return end;
  }

 private:
  struct Message {
    double begins = 0;  ///< at the port in of `to`
    int from = 0, to = 0;
    int64_t place = 0;  ///< among all: ties come in the order in which they were sent
    int64_t round = 0, count = 0;
    bool operator>(const Message& other) const {
      return std::tie(begins, from, place) > std::tie(other.begins, other.from, other.place);
    }
  };
  struct Arrived {
    int64_t messages = 0;
    double last = 0;
  };
  struct Rank {
    Schedule schedule{};
    int64_t round = 0;
    int64_t awaited = 0;             ///< messages of this round
    double sent = 0;                 ///< when the round's messages have left
    double free = 0;                 ///< the port in
    double ended = 0;                ///< the last round
    std::vector<Arrived> arrived{};  ///< by round
  };

  static bool is_received(Step::Action action) {
    return action == Step::Action::receive || action == Step::Action::add ||
           action == Step::Action::keep;
  }

  void begin_round(int number, int64_t round, double time) {
    Rank& rank = ranks_[static_cast<size_t>(number)];
    rank.arrived.resize(static_cast<size_t>(rank.schedule.num_rounds()));
    for (; round < rank.schedule.num_rounds(); ++round) {
      rank.round = round;
      rank.awaited = 0;
      rank.sent = time;
      rank.schedule.round(round, steps_);
      for (const Step& step : steps_) {
        if (is_received(step.action)) ++rank.awaited;
        if (step.action != Step::Action::send) continue;
        arrivals_.push({rank.sent + latency_, number, step.peer, sent_++, round, step.count});
        rank.sent += static_cast<double>(step.count);
      }
      const Arrived& arrived = rank.arrived[static_cast<size_t>(round)];
      if (arrived.messages < rank.awaited) return;
      time = std::max(rank.sent, arrived.last);
    }
    rank.round = round;
    rank.ended = time;
  }

  void arrive(const Message& message) {
    Rank& rank = ranks_[static_cast<size_t>(message.to)];
    rank.free = std::max(rank.free, message.begins) + static_cast<double>(message.count);
    Arrived& arrived = rank.arrived[static_cast<size_t>(message.round)];
    arrived.last = rank.free;
    if (++arrived.messages == rank.awaited && message.round == rank.round)
      begin_round(message.to, rank.round + 1, std::max(rank.sent, arrived.last));
  }

  double latency_;
  std::vector<Rank> ranks_;
  std::priority_queue<Message, std::vector<Message>, std::greater<>> arrivals_;
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

}  // namespace

double formula_seconds(const CollectiveWork& work, const Link& link) {
  require_ranks(work);
  if (work.ranks == 1) return 0;
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

double simulated_seconds(const CollectiveWork& work, const Link& link) {
  if (work.ranks < 1) throw UsageError(fmt::format("{} ranks, expected 1 or more", work.ranks));
  if (work.ranks == 1) return 0;
  std::vector<ShapeTree> trees;
  trees.reserve(static_cast<size_t>(work.ranks));
  std::vector<Schedule> schedules;
  for (int rank = 0; rank < work.ranks; ++rank) {
    trees.emplace_back(ReductionShape::flat(work.ranks), rank);
    schedules.emplace_back(Problem{.collective = work.collective,
                                   .algorithm = work.algorithm,
                                   .rank = rank,
                                   .size = work.ranks,
                                   .num_elements = work.num_elements,
                                   .chunk_elements = work.chunk_elements,
                                   .shape_tree = &trees.back()});
  }
  const double element = element_seconds(work, link);
  return Simulation(schedules, link.latency / element).run() * element;
}

double least_seconds(int ranks, double bytes, const Link& link) {
  if (ranks == 1) return 0;
  return 2 * link.latency + 2 * (ranks - 1.0) / ranks * bytes / link.bytes_per_second;
}

}  // namespace tutti::plan
