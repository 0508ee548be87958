#include <gtest/gtest.h>
#include <torch/types.h>

#include <thread>

#include "tutti/cli/bench/tensor_memory.h"

namespace tutti::cli {
namespace {

at::Tensor of_bytes(int64_t bytes) { return at::empty({bytes}, at::kByte); }

TEST(TensorMemory, IsTheMostAtOneTimeAboveWhatWasThere) {
  const at::Tensor before = of_bytes(1 << 20);
  TensorMemory memory;
  const at::Tensor kept = of_bytes(7'000);
  memory.begin();
  EXPECT_EQ(memory.peak(), 0);
  {
    const at::Tensor one = of_bytes(1'000), other = of_bytes(2'000);
  }
  EXPECT_EQ(memory.peak(), 3'000);
  const at::Tensor smaller = of_bytes(2'500);
  EXPECT_EQ(memory.peak(), 3'000) << "the others are gone";
  const at::Tensor view = smaller.view({50, 50});
  const at::Tensor more = of_bytes(1'500);
  EXPECT_EQ(memory.peak(), 4'000) << "a view takes nothing";
  memory.begin();
  EXPECT_EQ(memory.peak(), 0);
}

TEST(TensorMemory, WhatWasThereHidesNothingWhenItGoes) {
  TensorMemory memory;
  at::Tensor before = of_bytes(6'000);
  memory.begin();
  at::Tensor of_first = of_bytes(7'000);
  memory.begin();
  before.reset();
  of_first.reset();
  EXPECT_EQ(memory.peak(), 0);
  const at::Tensor made = of_bytes(5'000);
  EXPECT_EQ(memory.end(), 5'000);
  const at::Tensor after = of_bytes(9'000);
  EXPECT_EQ(memory.peak(), 5'000) << "the work had ended";
}

TEST(TensorMemory, CountsTensorsOfAllThreadsWhoeverLetsGo) {
  TensorMemory memory;
  memory.begin();
  at::Tensor made;
  std::thread([&] { made = of_bytes(4'000); }).join();
  made.reset();
  const at::Tensor other = of_bytes(1'000);
  EXPECT_EQ(memory.peak(), 4'000);
}

TEST(TensorMemory, WhatOutlivesItGoesQuietly) {
  at::Tensor kept;
  {
    TensorMemory memory;
    kept = of_bytes(1'000);
  }
  kept.reset();
  TensorMemory again;
  again.begin();
  const at::Tensor tensor = of_bytes(500);
  EXPECT_EQ(again.peak(), 500);
}

}  // namespace
}  // namespace tutti::cli
