// What steps take beside numbers: tensors arrive as they were, batches come without end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <set>

#include "tutti/base/error.h"
#include "tutti/strategy/input/remote_data.h"

#include "tests/support/message_of.h"

namespace tutti {
namespace {

using coordinator::Codec;
using test::message_of;
using ::testing::HasSubstr;

static_assert(coordinator::Sendable<at::Tensor> && coordinator::Sendable<std::vector<at::Tensor>>);

at::Tensor sent(const at::Tensor& value) {
  coordinator::ValueWriter writer;
  Codec<at::Tensor>::write(writer, value);
  const std::string bytes = writer.take();
  coordinator::ValueReader reader(std::as_bytes(std::span(bytes)));
  return Codec<at::Tensor>::read(reader);
}

TEST(RemoteData, TensorsArriveAsTheyWere) {
  const at::Tensor numbers = torch::arange(12).reshape({3, 4});
  for (const at::ScalarType type :
       {at::kBool, at::kByte, at::kLong, at::kHalf, at::kBFloat16, at::kFloat, at::kDouble}) {
    const at::Tensor value = numbers.to(type);
    for (const at::Tensor& each : {value, value.t(), value.select(1, 2),
                                   value.select(0, 0).select(0, 3), value.slice(0, 2, 2)}) {
      const at::Tensor got = sent(each);
      EXPECT_EQ(got.scalar_type(), type);
      EXPECT_TRUE(at::equal(got, each)) << each;
    }
  }
  const at::Tensor trained = torch::ones({2}, at::TensorOptions().requires_grad(true));
  EXPECT_FALSE(sent(2 * trained).requires_grad());
}

TEST(RemoteData, OtherTensorsAreRefused) {
  EXPECT_THAT(message_of<UsageError>([] { sent(at::Tensor()); }), HasSubstr("undefined tensor"));
  EXPECT_THAT(message_of<UsageError>([] { sent(torch::ones({2, 2}).to_sparse()); }),
              HasSubstr("to_dense()"));
  EXPECT_THROW(sent(torch::ones({2}, at::kComplexFloat)), UsageError);
}

TEST(RemoteData, BatchesOfEachEpochAreTheWholeDataset) {
  const auto dataset = data::from_arrays({data::array_of(std::vector<int64_t>{0, 1, 2, 3, 4}, {5})})
                           .shuffle()
                           .batch(2);
  BatchIterator batches(dataset, 3);
  std::set<std::vector<int64_t>> orders;
  for (int64_t epoch = 0; epoch < 8; ++epoch) {
    std::vector<int64_t> order;
    while (batches.epoch() == epoch) {
      const at::Tensor column = batches.next().at(0);
      order.insert(order.end(), column.data_ptr<int64_t>(),
                   column.data_ptr<int64_t>() + column.numel());
    }
    EXPECT_THAT(order, testing::UnorderedElementsAre(0, 1, 2, 3, 4));
    orders.insert(order);
  }
  EXPECT_GT(orders.size(), 1U) << "each epoch has its own order";
  BatchIterator again(dataset, 3);
  BatchIterator other(dataset, 3);
  EXPECT_TRUE(at::equal(again.next()[0], other.next()[0]));
  const auto none = data::from_arrays({data::array_of(std::vector<int64_t>{}, {0})}).batch(2);
  EXPECT_THAT(message_of<UsageError>([&] { BatchIterator(none, 0); }), HasSubstr("no samples"));
}

}  // namespace
}  // namespace tutti
