#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <vector>

#include "tutti/base/array.h"

#include "tests/support/expect.h"

namespace tutti {
namespace {

TEST(DType, NamesAndSizes) {
  struct Case {
    DType dtype;
    const char* name;
    int64_t bytes;
    bool floating;
  };
  const Case cases[] = {
      {DType::boolean, "bool", 1, false},     {DType::uint8, "uint8", 1, false},
      {DType::int8, "int8", 1, false},        {DType::uint16, "uint16", 2, false},
      {DType::int16, "int16", 2, false},      {DType::uint32, "uint32", 4, false},
      {DType::int32, "int32", 4, false},      {DType::uint64, "uint64", 8, false},
      {DType::int64, "int64", 8, false},      {DType::float16, "float16", 2, true},
      {DType::bfloat16, "bfloat16", 2, true}, {DType::float32, "float32", 4, true},
      {DType::float64, "float64", 8, true},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(name_of(c.dtype), c.name);
    EXPECT_EQ(size_of(c.dtype), c.bytes) << c.name;
    EXPECT_EQ(is_floating(c.dtype), c.floating) << c.name;
  }
  std::vector<double> values(3);
  const MemorySpan span = span_of(std::span(values));
  EXPECT_EQ(span.data, values.data());
  EXPECT_EQ(span.num_elements, 3);
  EXPECT_EQ(span.num_bytes(), 24);
  EXPECT_EQ(span.dtype, DType::float64);
  EXPECT_EQ(span.place, Place{});
}

TEST(BytesOfShape, IsNoneForWhatNoMemoryHas) {
  EXPECT_EQ(bytes_of_shape(DType::float32, {}), 4);
  EXPECT_EQ(bytes_of_shape(DType::int16, std::vector<int64_t>{3, 5}), 30);
  EXPECT_EQ(bytes_of_shape(DType::int16, std::vector<int64_t>{3, 0, 5}), 0);
  EXPECT_EQ(bytes_of_shape(DType::uint8, std::vector<int64_t>{INT64_MAX}), INT64_MAX);
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{
           {-1}, {-1, -1}, {INT64_MAX}, {1LL << 32, 1LL << 31}, {1LL << 62, 4, 0}}) {
    EXPECT_EQ(bytes_of_shape(DType::int16, shape), std::nullopt);
    EXPECT_THROW(Array::zeros(DType::int16, shape), Error);
    EXPECT_THROW(Array::view(nullptr, DType::int16, shape, nullptr), Error);
  }
}

TEST(Array, StartsEmpty) {
  const Array array;
  EXPECT_EQ(array.num_elements(), 0);
  EXPECT_EQ(array.num_bytes(), 0);
  EXPECT_EQ(array.data(), nullptr);
  EXPECT_EQ(array.to_string(), "uint8 [0]");
}

TEST(Array, ZerosAreZeroAlignedAndShared) {
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{}, {0}, {1}, {7}, {16}, {3, 5}, {2, 0, 4}, {17, 3, 2}}) {
    Array array = Array::zeros(DType::float32, shape);
    const int64_t count =
        std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
    EXPECT_EQ(array.num_elements(), count);
    EXPECT_EQ(array.num_bytes(), 4 * count);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(array.data()) % 64, 0u);
    for (float value : array.as<float>()) EXPECT_EQ(value, 0.0f);
    const Array copy = array;
    if (count > 0) {
      array.as<float>()[0] = 3;
      EXPECT_EQ(copy.as<float>()[0], 3);
    }
  }
  EXPECT_EQ(Array::zeros(DType::int64, {}).num_elements(), 1);  // a scalar
}

TEST(Array, RowsShareMemoryAndOwner) {
  Array array = Array::zeros(DType::int32, {4, 3});
  const auto all = array.as<int32_t>();
  std::iota(all.begin(), all.end(), 0);
  Array middle = array.rows(1, 3);
  EXPECT_EQ(middle.shape(), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(middle.as<int32_t>()[0], 3);
  EXPECT_EQ(middle.as<int32_t>()[5], 8);
  EXPECT_EQ(middle.rows(1, 2).as<int32_t>()[0], 6);
  EXPECT_EQ(array.rows(2, 2).num_elements(), 0);
  EXPECT_EQ(array.rows(4, 4).num_elements(), 0);
  array = Array();
  EXPECT_EQ(middle.as<int32_t>()[0], 3);  // kept alive by the view
  EXPECT_EQ(Array::zeros(DType::int32, {0, 3}).rows(0, 0).num_elements(), 0);
}

TEST(Array, RowsOutsideAreErrors) {
  const Array array = Array::zeros(DType::int32, {4, 3});
  EXPECT_THROW(array.rows(-1, 2), Error);
  EXPECT_THROW(array.rows(3, 2), Error);
  EXPECT_THROW(array.rows(0, 5), Error);
  EXPECT_THROW(Array::zeros(DType::int32, {}).rows(0, 1), Error);  // a scalar has no rows
  EXPECT_THROW(Array::zeros(DType::int32, {2, -1}), Error);
}

TEST(Array, ViewLetsGoOfItsOwnerWithTheLastCopy) {
  const auto owner = std::make_shared<std::vector<float>>(6, 1.5f);
  {
    const Array view = Array::view(owner->data(), DType::float32, {2, 3}, owner);
    const Array row = view.rows(0, 1);
    EXPECT_EQ(view.data(), owner->data());
    EXPECT_EQ(view.span().num_elements, 6);
    EXPECT_EQ(row.owner(), owner);
    EXPECT_EQ(owner.use_count(), 3);
  }
  EXPECT_EQ(owner.use_count(), 1);
}

TEST(Array, WrongTypeIsAUsageErrorWithBothTypes) {
  const Array array = Array::zeros(DType::uint8, {32, 28, 28});
  EXPECT_EQ(array.to_string(), "uint8 [32, 28, 28]");
  EXPECT_THAT(message_of<UsageError>([&] { array.as<float>(); }),
              AllOf(HasSubstr("uint8 [32, 28, 28]"), HasSubstr("float32")));
}

}  // namespace
}  // namespace tutti
