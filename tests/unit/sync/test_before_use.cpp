#include <ATen/ThreadLocalState.h>
#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <future>
#include <thread>

#include "tutti/base/error.h"
#include "tutti/sync/before_use.h"
#include "tutti/sync/tensors.h"

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

}  // namespace
}  // namespace tutti
