// Times of collectives: formulas against the simulation, and that against one element by element.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/reduction_shape.h"
#include "tutti/comm/schedule/schedule_choice.h"
#include "tutti/plan/collective_time.h"

#include "tests/support/message_of.h"

namespace tutti::plan {
namespace {

using test::message_of;
using ::testing::HasSubstr;

constexpr int kRanks = 9;

/// One tick carries one element.
Link link_of_ticks(int latency) { return {.bytes_per_second = 4, .latency = latency * 1.0}; }

/// Every schedule but barriers, which move no element.
template <class Use>
void for_each_schedule(Use&& use) {
  using enum Collective;
  for (int ranks = 2; ranks <= kRanks; ++ranks)
    for (const Collective collective :
         {all_reduce, reduce_scatter, all_gather, broadcast, reduce, scatter, gather, all_to_all})
      for (const Algorithm algorithm : candidates({.collective = collective,
                                                   .num_bytes = 1 << 20,
                                                   .ranks = ranks,
                                                   .order = Order::any}))
        use(CollectiveWork{.collective = collective, .algorithm = algorithm, .ranks = ranks});
}

std::string words_of(const CollectiveWork& work) {
  return fmt::format("{} by {}, {} ranks, {} elements by {}", name_of(work.collective),
                     name_of(work.algorithm), work.ranks, work.num_elements, work.chunk_elements);
}

/// Ports that move one element a tick, and nothing but that: no event knows of the next. Ranks of a
/// host share two ports to other hosts, and each has two to its neighbours.
class TickByTick {
 public:
  TickByTick(const CollectiveWork& work, int latency, int neighbours = 1)
      : latency_(latency), neighbours_(neighbours) {
    const auto shape = ReductionShape::hosts(std::vector<int>(work.ranks / neighbours, neighbours));
    for (int rank = 0; rank < work.ranks; ++rank) trees_.emplace_back(shape, rank);
    for (int rank = 0; rank < work.ranks; ++rank)
      hosts_.push_back({Schedule({.collective = work.collective,
                                  .algorithm = work.algorithm,
                                  .rank = rank,
                                  .size = work.ranks,
                                  .num_elements = work.num_elements,
                                  .chunk_elements = work.chunk_elements,
                                  .shape_tree = &trees_[static_cast<size_t>(rank)]})});
    ports_.resize(2 * hosts_.size());
    for (int rank = 0; rank < work.ranks; ++rank) enter(rank, 0);
  }

  int64_t run() {
    settle();
    int64_t tick = 0;
    for (; !is_done(); ++tick) {
      for (Port& port : ports_) send_one(port, tick);
      for (Port& port : ports_) take_one(port, tick);
      settle();
    }
    return tick;
  }

 private:
  struct Packet {
    int from, to;
    int64_t round, count;
    std::vector<int64_t> there;  ///< ticks in which elements are at the port
    int64_t taken = 0;
  };
  struct Host {
    Schedule schedule;
    int64_t round = 0;
    int64_t to_send = 0;                               ///< messages that have not left
    std::map<int64_t, int64_t> awaited{}, complete{};  ///< by round
  };
  struct Port {
    std::deque<std::shared_ptr<Packet>> to_send{};
    std::vector<std::shared_ptr<Packet>> incoming{};  ///< in the order of their first elements
  };
  /// Of `rank`, for what goes to or comes from `other`.
  Port& port_between(int rank, int other) {
    const bool near = rank / neighbours_ == other / neighbours_;
    return ports_[near ? hosts_.size() + static_cast<size_t>(rank)
                       : static_cast<size_t>(rank / neighbours_)];
  }

  bool is_done() const {
    return std::ranges::all_of(
        hosts_, [](const Host& host) { return host.round == host.schedule.num_rounds(); });
  }
  /// Whoever has all goes on; a round of nothing takes no time.
  void settle() {
    for (bool moved = true; moved;) {
      moved = false;
      for (int rank = 0; rank < std::ssize(hosts_); ++rank) moved |= go_on(rank);
    }
  }
  void enter(int rank, int64_t round) {
    Host& host = hosts_[static_cast<size_t>(rank)];
    host.round = round;
    if (round == host.schedule.num_rounds()) return;
    std::vector<Step> steps;
    host.schedule.round(round, steps);
    for (const Step& step : steps)
      if (step.action == Step::Action::send) {
        ++host.to_send;
        port_between(rank, step.peer)
            .to_send.push_back(
                std::make_shared<Packet>(Packet{rank, step.peer, round, step.count, {}}));
      } else if (step.action != Step::Action::combine && step.action != Step::Action::reduce &&
                 step.action != Step::Action::copy) {
        ++host.awaited[round];
      }
  }
  bool go_on(int rank) {
    Host& host = hosts_[static_cast<size_t>(rank)];
    if (host.round == host.schedule.num_rounds() || host.to_send > 0 ||
        host.complete[host.round] < host.awaited[host.round])
      return false;
    enter(rank, host.round + 1);
    return true;
  }
  void send_one(Port& port, int64_t tick) {
    if (port.to_send.empty()) return;
    const auto packet = port.to_send.front();
    if (packet->there.empty()) port_between(packet->to, packet->from).incoming.push_back(packet);
    packet->there.push_back(tick + latency_);
    if (std::ssize(packet->there) < packet->count) return;
    port.to_send.pop_front();
    --hosts_[static_cast<size_t>(packet->from)].to_send;
  }
  void take_one(Port& port, int64_t tick) {
    if (port.incoming.empty()) return;
    const auto packet = port.incoming.front();
    if (packet->taken == std::ssize(packet->there) ||
        packet->there[static_cast<size_t>(packet->taken)] > tick)
      return;
    if (++packet->taken < packet->count) return;
    ++hosts_[static_cast<size_t>(packet->to)].complete[packet->round];
    port.incoming.erase(port.incoming.begin());
  }

  int64_t latency_;
  int neighbours_;
  std::vector<ShapeTree> trees_;
  std::vector<Host> hosts_;
  std::vector<Port> ports_;  ///< of hosts, then of ranks to their neighbours
};

TEST(CollectiveTime, OfTheSimulationIsThatOfEachElement) {
  int compared = 0;
  for_each_schedule([&](CollectiveWork work) {
    for (const auto& [elements, chunk] :
         std::vector<std::pair<int64_t, int64_t>>{{60, 1000}, {61, 7}, {9, 3}, {1, 1}})
      for (const int latency : {0, 3, 40}) {
        work.num_elements = elements;
        // What one sends the other awaits: all parts are as long.
        if (work.collective == Collective::all_to_all) work.num_elements *= work.ranks;
        work.chunk_elements = chunk;
        EXPECT_DOUBLE_EQ(simulated_seconds(work, link_of_ticks(latency)),
                         static_cast<double>(TickByTick(work, latency).run()))
            << words_of(work) << ", latency " << latency;
        ++compared;
      }
  });
  EXPECT_GT(compared, 1000);
}

/// All-reduces of hosts of several ranks, by what the tcp engine may take.
template <class Use>
void for_each_of_hosts(Use&& use) {
  for (const auto& [hosts, here] :
       std::vector<std::pair<int, int>>{{2, 2}, {2, 3}, {3, 2}, {2, 4}, {4, 2}, {3, 3}, {1, 4}})
    for (const Algorithm algorithm : {Algorithm::direct, Algorithm::tree, Algorithm::pairwise,
                                      Algorithm::doubling, Algorithm::halving_doubling}) {
      const bool power = (hosts & (hosts - 1)) == 0 && (here & (here - 1)) == 0;
      if (power || algorithm == Algorithm::direct || algorithm == Algorithm::tree ||
          algorithm == Algorithm::pairwise)
        use(CollectiveWork{.algorithm = algorithm, .ranks = hosts * here}, here);
    }
}

TEST(CollectiveTime, OfRanksThatShareAHostIsThatOfEachElement) {
  int compared = 0;
  for_each_of_hosts([&](CollectiveWork work, int here) {
    for (const int64_t elements : {60, 61, 720})
      for (const int latency : {0, 3, 40}) {
        work.num_elements = elements;
        work.chunk_elements = 16;
        const Link link = link_of_ticks(latency);
        EXPECT_DOUBLE_EQ(simulated_seconds(work, link, {here, link}),
                         static_cast<double>(TickByTick(work, latency, here).run()))
            << words_of(work) << ", " << here << " a host, latency " << latency;
        ++compared;
      }
  });
  EXPECT_GT(compared, 150);
}

// What waits for its turn at the host's port spends a part of its latency there.
TEST(CollectiveTime, OfFormulasOfHostsIsThatOfTheSimulation) {
  const Link link{.bytes_per_second = 1e9, .latency = 3e-5}, inside{4e9, 1e-5};
  for_each_of_hosts([&](CollectiveWork work, int here) {
    if (work.algorithm == Algorithm::direct || work.algorithm == Algorithm::tree) return;
    work.num_elements = int64_t{work.ranks} * 40320;
    work.chunk_elements = work.algorithm == Algorithm::doubling ? work.num_elements : 20160;
    const double by_formula = formula_seconds(work, link, {here, inside});
    const double simulated = simulated_seconds(work, link, {here, inside});
    EXPECT_NEAR(by_formula, simulated, 0.05 * simulated)
        << words_of(work) << ", " << here << " a host";
  });
  EXPECT_THAT(message_of<UsageError>([&] {
                formula_seconds({.algorithm = Algorithm::direct, .ranks = 4}, link, {2, inside});
              }),
              HasSubstr("no formula for all_reduce by direct with 2 ranks a host"));
  EXPECT_THAT(message_of<UsageError>([&] { simulated_seconds({.ranks = 4}, link, {3, inside}); }),
              HasSubstr("4 ranks, 3 a host"));
}

TEST(CollectiveTime, OfFormulasIsThatOfTheSimulation) {
  int compared = 0, without = 0;
  for_each_schedule([&](CollectiveWork work) {
    for (const int64_t chunks : {1, 4}) {
      work.num_elements = int64_t{work.ranks} * 40320;
      const bool slices = work.algorithm == Algorithm::pairwise;
      work.chunk_elements = (slices ? work.num_elements / work.ranks : work.num_elements) / chunks;
      const Link link{.bytes_per_second = 1e9, .latency = 3e-5};
      double by_formula = 0;
      try {
        by_formula = formula_seconds(work, link);
      } catch (const UsageError&) {
        ++without;
        continue;
      }
      EXPECT_NEAR(by_formula, simulated_seconds(work, link), 1e-12) << words_of(work);
      if (work.collective == Collective::all_reduce) {
        EXPECT_GE(by_formula * (1 + 1e-12),
                  least_seconds(work.ranks, static_cast<double>(4 * work.num_elements), link) -
                      link.latency);
      }
      ++compared;
    }
  });
  EXPECT_GT(compared, 150);
  EXPECT_LT(without, compared);
}

TEST(CollectiveTime, OfOneRankIsNone) {
  EXPECT_EQ(formula_seconds({.ranks = 1, .num_elements = 9}, {}), 0);
  EXPECT_EQ(simulated_seconds({.ranks = 1, .num_elements = 9}, {}), 0);
  EXPECT_EQ(least_seconds(1, 9, {}), 0);
}

TEST(CollectiveTime, RefusesWhatHasNone) {
  const auto refusal = [](const CollectiveWork& work) {
    return message_of<UsageError>([&] { formula_seconds(work, {}); });
  };
  EXPECT_THAT(refusal({.algorithm = Algorithm::tree}),
              HasSubstr("no formula for all_reduce by tree"));
  EXPECT_THAT(refusal({.algorithm = Algorithm::halving_doubling, .ranks = 6}),
              HasSubstr("powers of two"));
  EXPECT_THAT(refusal({.ranks = 0}), HasSubstr("0 ranks"));
  EXPECT_THAT(refusal({.chunk_elements = 0}), HasSubstr("chunks of 0 elements"));
  EXPECT_THAT(message_of<UsageError>([] { simulated_seconds({.ranks = 0}, {}); }),
              HasSubstr("0 ranks"));
}

}  // namespace
}  // namespace tutti::plan
