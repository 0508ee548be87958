// Buckets of gradients: which tensors travel together, and what a bucket becomes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/error.h"
#include "tutti/sync/detail/bucket_sums.h"

#include "tests/support/comm.h"
#include "tests/support/message_of.h"

namespace tutti::detail {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ParameterSlot slot(std::vector<int64_t> shape, DType dtype = DType::float32, bool trained = true) {
  ParameterSlot slot{.name = "p", .shape = std::move(shape), .dtype = dtype, .trained = trained};
  slot.num_elements = 1;
  for (int64_t length : slot.shape) slot.num_elements *= length;
  return slot;
}

// Weights and biases of two layers, one of another type, one frozen.
Slots small_layout() {
  return Slots::of({slot({40, 50}), slot({40}), slot({30, 100}), slot({30}),
                    slot({2000}, DType::float64), slot({5000}, DType::float32, false)});
}

std::vector<std::vector<int>> planned(const ReplicatedOptions& options,
                                      std::vector<Bucket>* out = nullptr) {
  std::vector<int64_t> offsets;
  const int order[] = {5, 4, 3, 2, 1, 0};
  const auto buckets = plan_buckets(small_layout(), order, options, offsets);
  std::vector<std::vector<int>> parameters;
  for (const Bucket& bucket : buckets) {
    parameters.push_back(bucket.parameters);
    EXPECT_EQ(bucket.begin_bytes % 64, 0);
  }
  for (int64_t offset : offsets) EXPECT_EQ(offset % 64, 0);
  if (out) *out = buckets;
  return parameters;
}

TEST(Buckets, FollowTheOrderWhereNothingIsCompressed) {
  EXPECT_THAT(planned({}), ElementsAre(ElementsAre(4), ElementsAre(3, 2, 1, 0)));
  EXPECT_THAT(planned({.bucket_bytes = 8000, .first_bucket_bytes = 100}),
              ElementsAre(ElementsAre(4), ElementsAre(3, 2), ElementsAre(1, 0)));
}

TEST(Buckets, PutTheSmallRestTogetherWhereSomeAreCompressed) {
  std::vector<Bucket> buckets;
  EXPECT_THAT(planned({.compression = {.kind = Compression::Kind::one_bit}}, &buckets),
              ElementsAre(ElementsAre(2, 0), ElementsAre(4), ElementsAre(3, 1)));
  EXPECT_TRUE(buckets[0].coded);
  EXPECT_FALSE(buckets[1].coded);
  EXPECT_FALSE(buckets[2].coded);
  EXPECT_EQ(buckets[0].num_elements, 5008) << "3000 and 2000 on 64-byte lines";
}

// One replica's gradients: `value` everywhere.
struct Replica {
  Array memory;
  std::unique_ptr<BucketSums> sums;

  Replica(const ReplicatedOptions& options, const ReductionShape& shape, ReduceOp op)
      : memory(Array::zeros(DType::uint8, {small_layout().total_bytes})),
        sums(std::make_unique<BucketSums>(small_layout(), options, shape, op,
                                          static_cast<std::byte*>(memory.data()))) {}

  std::span<float> gradient(int parameter) const {
    return {reinterpret_cast<float*>(sums->gradient_of(parameter)),
            static_cast<size_t>(small_layout().slots[parameter].num_elements)};
  }
};

TEST(BucketSums, AreSumsOrMeansCompressedOrNot) {
  const auto shape = ReductionShape::flat(4);
  for (const char* compression : {"none", "bf16", "topk:1", "onebit", "powersgd:1"})
    for (ReduceOp op : {ReduceOp::sum, ReduceOp::mean}) {
      const ReplicatedOptions options{.compression = compression_from(compression)};
      std::vector<std::unique_ptr<Replica>> replicas;
      std::vector<BucketSums*> sums;
      for (int r = 0; r < 4; ++r) {
        replicas.push_back(std::make_unique<Replica>(options, shape, op));
        sums.push_back(replicas[r]->sums.get());
        for (int parameter : {0, 1, 2, 3})
          for (float& value : replicas[r]->gradient(parameter))
            value = static_cast<float>((r + 1) * (parameter + 1));
      }
      const std::vector<std::vector<int32_t>> used(4, std::vector<int32_t>(6, 1));
      sum_in_turn(sums, used, *make_reduction(options), shape);
      for (int parameter : {0, 1, 2, 3})
        for (const auto& replica : replicas) {
          const float expected = (op == ReduceOp::mean ? 2.5f : 10.0f) * (parameter + 1.0f);
          for (float value : replica->gradient(parameter))
            ASSERT_NEAR(value, expected, 1e-4) << compression << " " << parameter;
        }
      EXPECT_EQ(sums[0]->state().step, 1);
      EXPECT_EQ(sums[0]->bucket_of(5), -1) << "frozen";
    }
}

TEST(BucketSums, BeforeTheFirstStepOfCompressionSendEverything) {
  const auto shape = ReductionShape::flat(2);
  ReplicatedOptions options{.compression = compression_from("onebit")};
  options.compression.start_step = 2;
  Replica first(options, shape, ReduceOp::sum), second(options, shape, ReduceOp::sum);
  BucketSums* const sums[] = {first.sums.get(), second.sums.get()};
  const std::vector<std::vector<int32_t>> used(2, std::vector<int32_t>(6, 1));
  std::vector<int64_t> bytes;
  for (int step = 0; step < 4; ++step) {
    sum_in_turn(sums, used, *make_reduction(options), shape);
    bytes.push_back(first.sums->wire_bytes());
  }
  EXPECT_EQ(bytes[0], bytes[1]);
  EXPECT_LT(bytes[2], bytes[1]);
  EXPECT_EQ(bytes[2], bytes[3]);
}

TEST(Compression, ThatDiffersBetweenRanksIsAnErrorOnAll) {
  for (const auto& thrown : test::run_members(test::make_engines("shm", 3), [](Group group) {
         Compression compression = compression_from("powersgd:2");
         compression.seed = group.rank() == 1 ? 8 : 7;
         compare_compression(group, compression, Millis{20'000});
       }))
    EXPECT_THAT(test::words_of(thrown),
                ::testing::AllOf(HasSubstr("Mismatch"), HasSubstr("rank 0: powersgd:2"),
                                 HasSubstr("seed 7"), HasSubstr("rank 1"), HasSubstr("seed 8")));
  for (const auto& thrown : test::run_members(test::make_engines("shm", 2), [](Group group) {
         compare_compression(group, compression_from("onebit"), Millis{20'000});
       }))
    EXPECT_EQ(test::words_of(thrown), "");
}

}  // namespace
}  // namespace tutti::detail
