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

/// Ports that move one element a tick, and nothing but that: no event knows of the next.
class TickByTick {
 public:
  TickByTick(const CollectiveWork& work, int latency) : latency_(latency) {
    for (int rank = 0; rank < work.ranks; ++rank)
      trees_.emplace_back(ReductionShape::flat(work.ranks), rank);
    for (int rank = 0; rank < work.ranks; ++rank)
      hosts_.push_back({Schedule({.collective = work.collective,
                                  .algorithm = work.algorithm,
                                  .rank = rank,
                                  .size = work.ranks,
                                  .num_elements = work.num_elements,
                                  .chunk_elements = work.chunk_elements,
                                  .shape_tree = &trees_[static_cast<size_t>(rank)]})});
    for (Host& host : hosts_) enter(host, 0);
  }

  int64_t run() {
    settle();
    int64_t tick = 0;
    for (; !is_done(); ++tick) {
      for (Host& host : hosts_) send_one(host, tick);
      for (Host& host : hosts_) take_one(host, tick);
      settle();
    }
    return tick;
  }

 private:
  struct Packet {
    int64_t round, count;
    std::vector<int64_t> there;  ///< ticks in which elements are at the port
    int64_t taken = 0;
  };
  struct Host {
    Schedule schedule;
    int64_t round = 0;
    std::deque<std::pair<int, std::shared_ptr<Packet>>> to_send{};
    std::vector<std::shared_ptr<Packet>> incoming{};   ///< in the order of their first elements
    std::map<int64_t, int64_t> awaited{}, complete{};  ///< by round
  };

  bool is_done() const {
    return std::ranges::all_of(
        hosts_, [](const Host& host) { return host.round == host.schedule.num_rounds(); });
  }
  /// Whoever has all goes on; a round of nothing takes no time.
  void settle() {
    for (bool moved = true; moved;) {
      moved = false;
      for (Host& host : hosts_) moved |= go_on(host);
    }
  }
  void enter(Host& host, int64_t round) {
    host.round = round;
    if (round == host.schedule.num_rounds()) return;
    std::vector<Step> steps;
    host.schedule.round(round, steps);
    for (const Step& step : steps)
      if (step.action == Step::Action::send)
        host.to_send.emplace_back(step.peer,
                                  std::make_shared<Packet>(Packet{round, step.count, {}}));
      else if (step.action != Step::Action::combine && step.action != Step::Action::reduce &&
               step.action != Step::Action::copy)
        ++host.awaited[round];
  }
  bool go_on(Host& host) {
    if (host.round == host.schedule.num_rounds() || !host.to_send.empty() ||
        host.complete[host.round] < host.awaited[host.round])
      return false;
    enter(host, host.round + 1);
    return true;
  }
  void send_one(Host& host, int64_t tick) {
    if (host.to_send.empty()) return;
    const auto [peer, packet] = host.to_send.front();
    if (packet->there.empty()) hosts_[static_cast<size_t>(peer)].incoming.push_back(packet);
    packet->there.push_back(tick + latency_);
    if (std::ssize(packet->there) == packet->count) host.to_send.pop_front();
  }
  void take_one(Host& host, int64_t tick) {
    if (host.incoming.empty()) return;
    const auto packet = host.incoming.front();
    if (packet->taken == std::ssize(packet->there) ||
        packet->there[static_cast<size_t>(packet->taken)] > tick)
      return;
    if (++packet->taken < packet->count) return;
    ++host.complete[packet->round];
    host.incoming.erase(host.incoming.begin());
  }

  int64_t latency_;
  std::vector<ShapeTree> trees_;
  std::vector<Host> hosts_;
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
