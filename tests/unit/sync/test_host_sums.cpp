// Sums between hosts, in pieces: the bits of one sum, whenever what becomes whole.
#include <algorithm>
#include <atomic>
#include <numeric>
#include <random>
#include <thread>

#include "tutti/comm/engine/debug_mode.h"
#include "tutti/sync/shared/detail/host_sums.h"

#include "tests/support/comm.h"
#include "tests/support/expect.h"
#include "tests/support/hier.h"

namespace tutti::detail {
namespace {

using test::make_tcp_members;
using test::run_all_members;

constexpr Millis kLimit{20'000};

// Of several pieces each, of parts of one, and of another dtype between them.
Slots layout_of_pieces() {
  std::vector<ParameterSlot> slots;
  const auto add = [&](int64_t elements, DType dtype = DType::float32) {
    slots.push_back({.name = std::to_string(slots.size()),
                     .shape = {elements},
                     .dtype = dtype,
                     .num_elements = elements});
  };
  constexpr int64_t kFloats = piece_bytes(2) / 4;
  add(2 * kFloats + 37'863);
  add(5);
  add(3);
  add(kFloats / 2 + 34'467, DType::float64);
  add(1);
  add(20'000);
  add(kFloats + 68'929);
  add(7);
  return Slots::of(std::move(slots));
}

double value_of(int step, int host, int parameter, int64_t element) {
  return (host + 1) * 0.3 + step + parameter * 0.01 + static_cast<double>(element % 1'013) * 0.37;
}

void fill(std::byte* at, DType dtype, int step, int host, const Stretch& stretch) {
  for (int64_t i = stretch.begin; i < stretch.end; ++i) {
    const double value = value_of(step, host, stretch.parameter, i);
    if (dtype == DType::float64)
      reinterpret_cast<double*>(at)[i - stretch.begin] = value;
    else
      reinterpret_cast<float*>(at)[i - stretch.begin] = static_cast<float>(value);
  }
}

// Number of elements that are not those of the flat sum.
template <class T>
int64_t wrong_elements(const std::byte* at, int step, int hosts, const Stretch& stretch) {
  int64_t wrong = 0;
  for (int64_t i = stretch.begin; i < stretch.end; ++i) {
    T sum = static_cast<T>(value_of(step, 0, stretch.parameter, i));
    for (int host = 1; host < hosts; ++host)
      sum += static_cast<T>(value_of(step, host, stretch.parameter, i));
    wrong += reinterpret_cast<const T*>(at)[i - stretch.begin] != sum;
  }
  return wrong;
}

int64_t wrong(const std::byte* at, const Slots& layout, int step, int hosts,
              const Stretch& stretch) {
  return layout.slots[stretch.parameter].dtype == DType::float64
             ? wrong_elements<double>(at, step, hosts, stretch)
             : wrong_elements<float>(at, step, hosts, stretch);
}

/// One host, of one replica, with the whole layout as its slice.
struct Host {
  Host(const Group& group, const Slots& layout, const HostSums::Options& options = {})
      : layout(layout),
        host(group.rank()),
        hosts(group.size()),
        sums({.host = host, .num_hosts = hosts, .rails = {group}}, layout,
             layout.cut(std::vector<double>{1.0}), options) {}

  void put(int step, int parameter) {
    for (const HostSums::Part& part : sums.parts_of(parameter)) {
      fill(sums.sum_of(part.stretch), layout.slots[parameter].dtype, step, host, part.stretch);
      sums.put(part);
    }
  }
  bool has_sum(int step, int parameter) const {
    const Stretch whole{parameter, 0, layout.slots[parameter].num_elements};
    return wrong(sums.sum_of(whole), layout, step, hosts, whole) == 0;
  }

  const Slots& layout;
  const int host, hosts;
  HostSums sums;
};

TEST(HostSums, AreThoseOfOneSumWhateverBecomesWholeWhen) {
  const Slots layout = layout_of_pieces();
  const auto count = static_cast<int>(layout.slots.size());
  struct Case {
    std::string engine;
    int hosts;
    bool debug;  // who compares calls finds them equal
    int64_t piece_bytes = 0;
  };
  // Engine shm cannot be lent: there this thread moves what is under way.
  for (const auto& [engine, hosts, debug, piece_bytes] :
       std::vector<Case>{{"tcp", 2, true},
                         {"shm", 2, true},
                         {"shm", 2, false},
                         {"tcp", 3, false},
                         {"tcp", 2, false, 104'857},  // a tenth of a MiB: not of whole elements
                         {"tcp", 2, false, 3 << 20}}) {
    set_debug_mode(debug);
    run_all_members(make_engines(engine, hosts), [&](const Group& group) {
      Host here(group, layout, {.piece_bytes = piece_bytes});
      std::minstd_rand random(static_cast<unsigned>(7 + group.rank()));
      std::vector<int> order(static_cast<size_t>(count));
      std::iota(order.begin(), order.end(), 0);
      for (int step = 0; step < 8; ++step) {
        std::ranges::shuffle(order, random);
        // Who hides nothing in a step sends the same.
        const bool early = (step + group.rank()) % 3 != 0;
        here.sums.begin_step(early);
        for (const int parameter : order) {
          std::this_thread::sleep_for(std::chrono::microseconds(random() % 2'000));
          here.put(step, parameter);
        }
        EXPECT_EQ(here.sums.num_sent() > 0, early && (engine == "tcp" || !debug));
        std::vector<uint8_t> used(3);
        used[1] = static_cast<uint8_t>(group.rank());
        double rate = 0.1 * (group.rank() + 1);
        here.sums.finish(used, rate, kLimit);
        for (int parameter = 0; parameter < count; ++parameter)
          ASSERT_TRUE(here.has_sum(step, parameter))
              << engine << ", " << hosts << " hosts, step " << step << ", " << parameter;
        EXPECT_THAT(used, ElementsAre(0, hosts - 1, 0));
        EXPECT_EQ(rate, 0.1);
      }
    });
  }
}

// Before finish(), as far as all before it in the order are whole: the first order is from the
// back.
TEST(HostSums, GoWhileTheRestIsMade) {
  const Slots layout = layout_of_pieces();
  run_all_members(make_tcp_members(2), [&](const Group& group) {
    Host here(group, layout);
    for (const bool early : {true, false}) {
      here.sums.begin_step(early);
      here.put(0, 6);
      EXPECT_EQ(here.sums.num_sent(), 0);  // the last piece has an end of 7, too
      here.put(0, 7);
      EXPECT_EQ(here.sums.num_sent(), early ? 1 : 0);
      for (const int parameter : {0, 1, 2, 4, 5}) here.put(0, parameter);
      EXPECT_EQ(here.sums.num_sent(), early ? 2 : 0);  // 6's other piece begins with 4 and 5
      here.put(0, 3);
      EXPECT_EQ(here.sums.num_sent(), early ? 7 : 0);
      std::vector<uint8_t> used(1);
      double rate = 1;
      here.sums.finish(used, rate, kLimit);
      for (int parameter = 0; parameter < 8; ++parameter)
        EXPECT_TRUE(here.has_sum(0, parameter)) << parameter;
    }
  });
}

TEST(HostSums, GoInTheOrderOfHost0AfterSomeSteps) {
  const Slots layout = layout_of_pieces();
  run_all_members(make_tcp_members(2), [&](const Group& group) {
    Host here(group, layout);
    for (int step = 0; step < 4; ++step) {
      here.sums.begin_step(true);
      here.put(step, 0);
      EXPECT_EQ(here.sums.num_sent(), step < 3 ? 0 : 2) << step;  // its third ends with 1 and 2
      for (int parameter = 1; parameter < 8; ++parameter) here.put(step, parameter);
      std::vector<uint8_t> used(1);
      double rate = 1;
      here.sums.finish(used, rate, kLimit);
      EXPECT_TRUE(here.has_sum(step, 0) && here.has_sum(step, 6));
    }
  });
}

// Host 1 comes late, so that a piece takes long: when host 0 waits for it, and yet later in the
// step of which the order is made.
struct LateStart {
  std::atomic<int> handed_in{0};  // steps of host 0
  std::atomic<int> waits_in{0};   // of these, the last one that it waited in

  void watch(const Group& group) {
    if (group.rank() == 0) group.engine().set_idle([this] { waits_in = handed_in.load(); });
  }
};

void begin_late(Host& here, LateStart& start, int step, int count) {
  here.sums.begin_step(true);
  for (const Deadline limit(kLimit); here.host == 1 && start.waits_in <= step && !limit.passed();)
    std::this_thread::sleep_for(Millis{1});
  if (here.host == 1 && step == 2) std::this_thread::sleep_for(Millis{500});
  for (int i = count - 1; i >= 0; --i) here.put(step, i);
  // Until its mover, which nobody sees, has begun; later than that nothing would be under way.
  if (here.host == 0) std::this_thread::sleep_for(Millis{20});
  here.sums.end_early();
  if (here.host == 0) start.handed_in = step + 1;
  std::vector<uint8_t> used(1);
  double rate = 1;
  here.sums.finish(used, rate, kLimit);
}

// Each host as it likes; what the next forward pass needs first comes first.
TEST(HostSums, MayBeBehindTheStepAfterSomeSteps) {
  const Slots layout = layout_of_pieces();
  const auto count = static_cast<int>(layout.slots.size());
  LateStart start;
  run_all_members(make_tcp_members(2), [&](Group group) {
    start.watch(group);
    Host here(group, layout, {.late = true});
    bool rests = false;
    for (int step = 0; step < 25; ++step) {
      begin_late(here, start, step, count);
      const int64_t rest = here.sums.num_rest();
      EXPECT_EQ(rest > 0, rests) << "as was told in the step before, " << step;
      EXPECT_EQ(here.has_sum(step, 0), rest == 0);
      rests = here.sums.next_rests();
      // Some steps with a rest, some without, and then as is faster: the same on both hosts.
      if (step < 20) {
        EXPECT_EQ(rests, 2 <= step && step < 11) << step;
      }
      std::vector<int64_t> both{rests};
      group.all_reduce_now(span_of(std::span(both)), ReduceOp::sum);
      EXPECT_EQ(both[0], 2 * rests) << step;
      if ((step + group.rank()) % 2 == 0) {
        here.sums.add_rest(kLimit);
        group.barrier();
      } else {
        std::vector<int> late;
        here.sums.add_rest_late([&](int piece) { late.push_back(piece); }, kLimit);
        if (step % 4 < 2) here.sums.drain(kLimit);
        group.barrier();  // who needs the engine waits for them first
        EXPECT_THAT(late, SizeIs(rest));
        if (rest > 0) {
          EXPECT_EQ(here.sums.stretches_of(late.front()).front().parameter, 0);
        }
      }
      for (int parameter = 0; parameter < count; ++parameter)
        ASSERT_TRUE(here.has_sum(step, parameter)) << "step " << step << ", " << parameter;
    }
  });
}

TEST(HostSums, AFaultBehindTheStepIsNamedToWhoWaits) {
  const Slots layout = layout_of_pieces();
  const auto count = static_cast<int>(layout.slots.size());
  for (const bool silent : {false, true}) {
    std::atomic<bool> over{false};
    LateStart start;
    const auto words = test::errors_of(make_tcp_members(2), [&](Group group) {
      start.watch(group);
      Host here(group, layout, {.late = true});
      const std::shared_ptr<void> at_end(nullptr, [&](void*) { over = over || here.host == 0; });
      for (int step = 0; step < 5; ++step) {
        begin_late(here, start, step, count);
        if (step < 4) here.sums.add_rest(kLimit);
      }
      if (here.host == 1 && !silent) return group.abort("as the test has it");
      while (here.host == 1 && !over) std::this_thread::sleep_for(Millis{1});
      if (here.host == 1) return;
      if (here.sums.num_rest() == 0) throw std::runtime_error("no rest");
      int written = 0;
      here.sums.add_rest_late([&](int) { ++written; }, silent ? Millis{100} : kLimit);
      const std::shared_ptr<void> none(nullptr, [&](void*) { EXPECT_EQ(written, 0); });
      for (const Deadline end(kLimit); !end.passed();) here.sums.rethrow_failure();
    });
    EXPECT_THAT(words[0], silent ? AllOf(HasSubstr("Timeout"), HasSubstr("silent: rank 1"))
                                 : AllOf(HasSubstr("PeerLost"), HasSubstr("as the test has it")));
  }
}

// Pieces are in flight, or none, or all.
TEST(HostSums, AFaultBehindAnyGradientIsNamedToTheOthers) {
  const Slots layout = layout_of_pieces();
  const auto count = static_cast<int>(layout.slots.size());
  for (const bool silent : {false, true})
    for (int at = 0; at <= count; ++at) {
      std::atomic<bool> over{false};
      const auto words = test::errors_of(make_tcp_members(2), [&](Group group) {
        Host here(group, layout);
        here.sums.begin_step(true);
        for (int i = 0; i < (group.rank() == 0 ? count : at); ++i) here.put(0, count - 1 - i);
        if (group.rank() == 1 && !silent) return group.abort("as the test has it");
        const std::shared_ptr<void> at_end(nullptr, [&](void*) { over = true; });
        while (group.rank() == 1 && !over) std::this_thread::sleep_for(Millis{1});
        std::vector<uint8_t> used(1);
        double rate = 1;
        if (group.rank() == 0) here.sums.finish(used, rate, silent ? Millis{100} : kLimit);
      });
      EXPECT_THAT(words[0], silent ? AllOf(HasSubstr("Timeout"), HasSubstr("silent: rank 1"))
                                   : AllOf(HasSubstr("PeerLost"), HasSubstr("as the test has it")))
          << at << " of " << count;
    }
}

// A replica of the first host carries one slice, that of the second both.
class UnequalHosts : public testing::TestWithParam<std::vector<int>> {};

TEST_P(UnequalHosts, AddTheSlicesThatEachHas) {
  const Slots layout = layout_of_pieces();
  const auto hosts = static_cast<int>(GetParam().size());
  const auto members =
      test::make_hier_threads(GetParam(), 4096, [](int ranks) { return make_tcp_members(ranks); });
  run_all_members(members, [&](const Group& group) {
    const HostView view = host_view(group);
    const std::vector<double> slices(static_cast<size_t>(view.num_slices), 1.0);
    HostSums sums(view, layout, layout.cut(slices), {});
    for (int step = 0; step < 6; ++step) {
      sums.begin_step((step + view.host) % 2 == 0);
      for (int parameter = 7; parameter >= 0; --parameter)
        for (const HostSums::Part& part : sums.parts_of(parameter)) {
          fill(sums.sum_of(part.stretch), layout.slots[parameter].dtype, step, view.host,
               part.stretch);
          // A first part that comes last leaves the first rail undone while the other goes.
          if (parameter == 0 && part.stretch.begin == 0) sums.end_early();
          sums.put(part);
        }
      std::vector<uint8_t> used{static_cast<uint8_t>(view.host)};
      double rate = view.host + 0.5;
      sums.finish(used, rate, kLimit);
      EXPECT_THAT(used, ElementsAre(hosts - 1));
      EXPECT_EQ(rate, 0.5);
      for (int parameter = 0; parameter < 8; ++parameter)
        for (const HostSums::Part& part : sums.parts_of(parameter))
          ASSERT_EQ(wrong(sums.sum_of(part.stretch), layout, step, hosts, part.stretch), 0);
      std::vector<double> numbers{view.host == 0 ? 3.0 : 0.0, view.host == 1 ? 4.0 : 0.0};
      sums.add(numbers, kLimit);
      EXPECT_THAT(numbers, ElementsAre(3, 4));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(OfReplicas, UnequalHosts,
                         testing::Values(std::vector{2, 1}, std::vector{2, 1, 1},
                                         std::vector{1, 3, 2}));

}  // namespace
}  // namespace tutti::detail
