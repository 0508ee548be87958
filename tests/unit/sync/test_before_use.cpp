#include <ATen/ThreadLocalState.h>
#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/event.h"
#include "tutti/sync/before_use.h"
#include "tutti/sync/tensors.h"
#include "tutti/sync/updater.h"

#include "tests/support/comm.h"
#include "tests/support/throttle.h"

namespace tutti {
namespace {

using detail::BeforeUse;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Matrices of 4 x 4 zeros, each a part of its own that is filled with its number plus one.
class BeforeUseTest : public testing::Test {
 protected:
  static constexpr int kParts = 3;

  BeforeUse& begin() {
    std::vector<BeforeUse::Range> ranges;
    for (int part = 0; part < kParts; ++part) {
      const auto* memory = static_cast<const std::byte*>(parts[part].data_ptr());
      ranges.push_back({memory, memory + parts[part].nbytes(), part});
    }
    late = std::make_unique<BeforeUse>(std::move(ranges), kParts, [this](int part) {
      filled.push_back(part);
      if (part == broken) throw Timeout("server 1 is silent");
      std::fill_n(parts[part].data_ptr<float>(), parts[part].numel(), part + 1.0F);
    });
    late->expect();
    late->watch();
    return *late;
  }
  float first(const at::Tensor& tensor) { return tensor.flatten().data_ptr<float>()[0]; }
  void TearDown() override { at::clearThreadLocalCallbacks(); }

  std::vector<at::Tensor> parts = {torch::zeros({4, 4}), torch::zeros({4, 4}),
                                   torch::zeros({4, 4})};
  int broken = -1;
  std::vector<int> filled;
  std::unique_ptr<BeforeUse> late;
};

TEST_F(BeforeUseTest, AnOperatorReadsWhatWasFilledAndNothingElseIs) {
  begin();
  const at::Tensor product = torch::mm(torch::eye(4), parts[1]);
  EXPECT_EQ(product.data_ptr<float>()[5], 2.0F);
  EXPECT_THAT(filled, ElementsAre(1));
  static_cast<void>(torch::ones({4}) + 1);
  EXPECT_THAT(filled, ElementsAre(1));
}

TEST_F(BeforeUseTest, WhatIsGivenUpIsFilledAgain) {
  begin();
  static_cast<void>(parts[0] + parts[1]);
  late->give_up(1);
  EXPECT_FALSE(late->ready(1));
  parts[1].data_ptr<float>()[0] = 0;
  late->watch();
  EXPECT_EQ(first(parts[1] + 0), 2.0F);
  EXPECT_THAT(filled, ElementsAre(0, 1, 1));
  late->give_up(2);  // has not come
  late->require_all();
  EXPECT_THAT(filled, ElementsAre(0, 1, 1, 2));
}

TEST_F(BeforeUseTest, FillKnowsWhatIsReadTogether) {
  std::vector<std::vector<int>> together;
  std::vector<BeforeUse::Range> ranges;
  for (int part = 0; part < kParts; ++part) {
    const auto* memory = static_cast<const std::byte*>(parts[part].data_ptr());
    ranges.push_back({memory, memory + parts[part].nbytes(), part});
  }
  late = std::make_unique<BeforeUse>(std::move(ranges), kParts,
                                     [&](int) { together.push_back(late->read_together()); });
  late->expect();
  late->watch();
  static_cast<void>(torch::mm(parts[0], torch::eye(4)));
  static_cast<void>(torch::mm(parts[0], parts[1]));
  require_ready(parts[2]);
  EXPECT_THAT(together, ElementsAre(ElementsAre(0), ElementsAre(0, 1), Contains(2)));
}

TEST_F(BeforeUseTest, ListsAndIndicesAndViewsAreInputsToo) {
  const at::Tensor view = parts[2].t();
  begin();
  EXPECT_EQ(first(torch::cat({torch::zeros({4, 4}), parts[0]}).slice(0, 4)), 1.0F);
  EXPECT_THAT(filled, ElementsAre(0));
  EXPECT_EQ(first(view + 0), 3.0F);
  EXPECT_EQ(first(parts[1].index({torch::zeros({1}, torch::kLong)})), 2.0F);
  EXPECT_THAT(filled, ElementsAre(0, 2, 1));
}

TEST_F(BeforeUseTest, OperatorsOfBackwardAreSeen) {
  const at::Tensor x = torch::ones({2, 4}).requires_grad_();
  const at::Tensor weights = torch::zeros({4, 4});
  const at::Tensor loss = torch::mm(x, weights).sum();
  parts[0] = weights;
  begin();
  loss.backward();
  EXPECT_EQ(x.grad().data_ptr<float>()[0], 4.0F);
}

TEST_F(BeforeUseTest, TheObserverIsGoneWhenAllHasCome) {
  BeforeUse& late = begin();
  EXPECT_TRUE(at::hasThreadLocalCallbacks());
  late.watch();
  EXPECT_EQ(at::get_record_function_tls_().sorted_tls_callbacks_.size(), 1u);
  late.require_all();
  EXPECT_THAT(filled, ElementsAre(0, 1, 2));
  static_cast<void>(torch::ones({4}) + 1);
  EXPECT_FALSE(at::hasThreadLocalCallbacks());
  late.expect();
  late.watch();
  EXPECT_TRUE(at::hasThreadLocalCallbacks());
}

TEST_F(BeforeUseTest, ThreadsWithThisThreadsStateAreWatchedToo) {
  begin();
  const at::ThreadLocalState state;
  std::thread([&] {
    const at::ThreadLocalStateGuard guard(state);
    EXPECT_EQ(first(parts[0] + 0), 1.0F);
  }).join();
  EXPECT_THAT(filled, ElementsAre(0));
}

// A state that is put back takes the observer with it; watch() must not believe it is there.
TEST_F(BeforeUseTest, AThreadWhoseStateWasPutBackCanBeWatchedAgain) {
  const at::ThreadLocalState before;
  BeforeUse& late = begin();
  {
    const at::ThreadLocalStateGuard guard(before);
    EXPECT_FALSE(at::hasThreadLocalCallbacks());
    late.watch();
    EXPECT_EQ(first(parts[0] + 0), 1.0F);
  }
  EXPECT_EQ(first(parts[1] + 0), 2.0F);
}

TEST_F(BeforeUseTest, SpansAndRequireReadyFillWithoutAnOperator) {
  begin();
  EXPECT_EQ(static_cast<const float*>(span_of(parts[1]).data)[0], 2.0F);
  require_ready(parts[2]);
  EXPECT_EQ(parts[2].data_ptr<float>()[0], 3.0F);
  EXPECT_THAT(filled, ElementsAre(1, 2));
  require_ready(at::Tensor());
}

TEST_F(BeforeUseTest, WhereObserversAreOffAllComesAtOnce) {
  const at::DisableRecordFunctionGuard off;
  begin();
  EXPECT_THAT(filled, ElementsAre(0, 1, 2));
}

TEST_F(BeforeUseTest, WhatGoesWrongStopsTheOperatorAndIsKept) {
  broken = 1;
  BeforeUse& late = begin();
  EXPECT_EQ(first(parts[0] + 0), 1.0F);
  for (int time = 0; time < 2; ++time) {
    EXPECT_THAT([&] { static_cast<void>(torch::mm(torch::eye(4), parts[1])); },
                ThrowsMessage<c10::Error>(HasSubstr("server 1 is silent")));
    EXPECT_THAT([&] { static_cast<void>(parts[2] + 0); },
                ThrowsMessage<c10::Error>(HasSubstr("server 1 is silent")));
  }
  EXPECT_THAT(filled, ElementsAre(0, 1));
  EXPECT_THAT([&] { late.require_all(); }, ThrowsMessage<Timeout>("server 1 is silent"));
  EXPECT_THROW(late.rethrow_failure(), Timeout);
  EXPECT_EQ(first(parts[0] + 0), 1.0F);
}

// The second thread comes while the first fills; it reads what that one has written.
TEST(BeforeUse, ThreadsThatNeedTheSameWaitForWhoFills) {
  at::Tensor memory = torch::zeros({8});
  std::promise<void> begun, go_on;
  int times = 0;
  const auto* const begin = static_cast<const std::byte*>(memory.data_ptr());
  BeforeUse late({{begin, begin + memory.nbytes(), 0}}, 1, [&](int) {
    ++times;
    begun.set_value();
    go_on.get_future().wait();
    std::fill_n(memory.data_ptr<float>(), memory.numel(), 5.0F);
  });
  late.expect();
  const auto sum = [&] {
    late.watch();
    return (memory + 0).data_ptr<float>()[7];
  };
  auto one = std::async(std::launch::async, sum);
  begun.get_future().wait();
  auto other = std::async(std::launch::async, sum);
  go_on.set_value();
  EXPECT_EQ(one.get(), 5.0F);
  EXPECT_EQ(other.get(), 5.0F);
  EXPECT_EQ(times, 1);
}

TEST(BeforeUse, OfTwoEachFillsItsOwn) {
  at::Tensor a = torch::zeros({8}), b = torch::zeros({8});
  const auto over = [](at::Tensor& memory, float value) {
    const auto* const begin = static_cast<const std::byte*>(memory.data_ptr());
    return std::make_unique<BeforeUse>(
        std::vector<BeforeUse::Range>{{begin, begin + memory.nbytes(), 0}}, 1,
        [&memory, value](int) { std::fill_n(memory.data_ptr<float>(), memory.numel(), value); });
  };
  auto first = over(a, 1), second = over(b, 2);
  first->expect();
  second->expect();
  first->watch();
  EXPECT_EQ((a + b).data_ptr<float>()[0], 3.0F);
  first->expect();
  first.reset();  // nobody fills any more
  EXPECT_EQ((a + b).data_ptr<float>()[0], 3.0F);
}

// ---- the fused step over hosts, which are threads here ----

constexpr int kHidden = 6;                    // parameters,
constexpr int64_t kHiddenElements = 300'000;  // each of more than a piece
constexpr Millis kHiddenLimit{20'000};

at::Tensor hidden_start(int parameter) {
  return torch::arange(kHiddenElements).remainder(97) * 0.013F + 0.1F * (parameter + 1);
}

at::Tensor hidden_factors(int host, int step, int parameter) {
  return torch::sin(torch::arange(kHiddenElements) * 0.01F + host + 3 * step + 7 * parameter) *
         0.1F;
}

/// What `steps` steps of both hosts make of parameters with w * factors as gradient and a learning
/// rate of 1.
std::vector<at::Tensor> hidden_oracle(int steps) {
  std::vector<at::Tensor> all;
  for (int i = 0; i < kHidden; ++i) {
    at::Tensor w = hidden_start(i);
    for (int step = 0; step < steps; ++step)
      w = w - (w * hidden_factors(0, step, i) + w * hidden_factors(1, step, i));
    all.push_back(w);
  }
  return all;
}

struct HiddenHost {
  explicit HiddenHost(const Group& group) : group(group) {
    World world{{.size = 2, .first_rank = group.rank(), .chief = group.rank() == 0}};
    world.groups.push_back(group);
    world.shape = group.reduction_shape();
    world.time_limit = kHiddenLimit;
    NamedTensors named;
    for (int i = 0; i < kHidden; ++i) {
      weights.push_back(hidden_start(i).requires_grad_());
      named.emplace_back(std::to_string(i), weights.back());
    }
    updater = make_shared_updater(world, optim::sgd({.learning_rate = 1}), {named});
  }

  /// Forward and backward pass; the sums of its pieces may go.
  void begin(int step) {
    std::vector<at::Tensor> losses;
    for (int i = 0; i < kHidden; ++i) {
      const at::Tensor& w = weights[static_cast<size_t>(i)];
      losses.push_back((w.detach() * hidden_factors(group.rank(), step, i) * w).sum());
    }
    updater->begin(0, Overlap::on);
    torch::stack(losses).sum().backward();
  }
  Verdict end(PartInStep part = kComputes) {
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& w : weights) gradients.push_back(w.grad());
    const Verdict verdict = updater->step(0, gradients, {.part = part}, Deadline(kHiddenLimit));
    for (const at::Tensor& w : weights) w.mutable_grad().reset();
    return verdict;
  }
  bool has(const std::vector<at::Tensor>& expected) const {
    for (int i = 0; i < kHidden; ++i)
      if (!torch::equal(weights[static_cast<size_t>(i)].detach(), expected[static_cast<size_t>(i)]))
        return false;
    return true;
  }

  Group group;
  std::vector<at::Tensor> weights;
  std::shared_ptr<Updater> updater;
};

// One host has handed in, and waits; the other one, whose sums have gone, too, looks at what is
// there, and leaves the step out.
TEST(HiddenUpdates, WriteNothingBeforeAllHaveAgreed) {
  const auto before = hidden_oracle(0), after = hidden_oracle(1);
  for (const int leaving : {0, 1}) {
    std::atomic<const HiddenHost*> waiting{nullptr};
    std::atomic<bool> waits{false};
    test::run_all_members(test::make_tcp_members(2), [&](Group group) {
      if (group.rank() != leaving)
        group.engine().set_idle([&] { waits = waiting.load() != nullptr; });
      HiddenHost here(group);
      here.begin(0);
      if (group.rank() != leaving) {
        waiting = &here;
      } else {
        for (const Deadline limit(kHiddenLimit); !waits && !limit.passed();)
          std::this_thread::yield();
        EXPECT_TRUE(waits) << "the other host waits for nobody";
        std::this_thread::sleep_for(Millis{20});  // a sum that has come may be written by then
        EXPECT_TRUE(waiting.load()->has(before)) << "host " << leaving << " has not agreed yet";
      }
      EXPECT_TRUE(here.end(group.rank() == leaving ? kLeavesOut : kComputes).left_out);
      EXPECT_TRUE(here.has(before)) << "host " << leaving << " has left the step out";
      EXPECT_EQ(here.updater->version(), 0);
      here.begin(0);
      EXPECT_FALSE(here.end().left_out);
      EXPECT_TRUE(here.has(after));
      EXPECT_EQ(here.updater->version(), 1);
    });
  }
}

struct FirstUses final : Sink {
  void on_event(const Event& event) noexcept override { count += event.name == "sync.first_use"; }
  std::atomic<int> count{0};
};

// From the fourth step on the last sums of a step are on their way in the next one's forward pass.
void expect_bits_over_slow_wires() {
  constexpr int kSteps = 6;
  test::Throttle wires(100'000, 100'000);  // a piece takes 10 ms and more, a pass less
  std::vector<std::shared_ptr<Engine>> members;
  for (TcpLinks& links :
       test::tcp_links(2, 1, [&](int a, int b) { return wires.link_between(a, b); }))
    members.push_back(make_tcp(std::move(links), {}));
  wires.start();
  const auto expected = hidden_oracle(kSteps);
  test::run_all_members(members, [&](const Group& group) {
    HiddenHost here(group);
    for (int step = 0; step < kSteps; ++step) {
      here.begin(step);
      here.end();
    }
    ASSERT_NE(here.updater->parts().late, nullptr);
    here.updater->parts().late->complete();
    EXPECT_TRUE(here.has(expected));
  });
}

// Where the backward pass of the third step is held up, all is sent before the next forward pass:
// then once more.
TEST(HiddenUpdates, OperatorsWaitForWhatIsOnItsWay) {
  const auto uses = std::make_shared<FirstUses>();
  add_sink(uses);
  for (int attempt = 0; attempt < 10 && uses->count == 0; ++attempt) expect_bits_over_slow_wires();
  remove_sink(uses);
  EXPECT_GT(uses->count, 0) << "nothing was on its way";
}

}  // namespace
}  // namespace tutti
