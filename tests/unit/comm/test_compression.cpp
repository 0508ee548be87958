// What is compressed, and the kernels of compression against slow, obvious versions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "tutti/base/error.h"
#include "tutti/comm/compression/coders.h"
#include "tutti/comm/compression/compression.h"
#include "tutti/extras/coders/detail/orthonormalise.h"

#include "tests/support/message_of.h"
#include "tests/unit/comm/compression_support.h"

namespace tutti {
namespace {

using test::Floats;
using test::gradient_of;
using testing::ElementsAre;
using testing::HasSubstr;
using Kind = Compression::Kind;

TEST(CompressionWords, AreReadAndWrittenBack) {
  for (const char* text : {"none", "bf16", "fp16", "topk:0.01", "topk:1", "onebit", "powersgd:4"})
    EXPECT_EQ(to_string(compression_from(text)), text);
  EXPECT_EQ(to_string(compression_from("topk")), "topk:0.01");
  EXPECT_EQ(to_string(compression_from("powersgd")), "powersgd:4");
  EXPECT_EQ(compression_from("topk:0.25").ratio, 0.25);
  EXPECT_EQ(compression_from("powersgd:32").rank, 32);
  EXPECT_FALSE(compression_from("none").on());
}

TEST(CompressionWords, WrongOnesSayWhatWasExpected) {
  struct Case {
    const char* text;
    const char* says;
  };
  const Case cases[] = {{"top-k", "did you mean \"topk\"?"},
                        {"fp8", "Known: none, bf16, fp16, topk, onebit, powersgd"},
                        {"", "unknown compression"},
                        {"topk:", "is no number"},
                        {"topk:x", "\"x\" is no number"},
                        {"topk:0.1x", "\"0.1x\" is no number"},
                        {"topk:0", "ratio = 0; expected 0 < ratio <= 1"},
                        {"topk:1.5", "ratio = 1.5; expected 0 < ratio <= 1"},
                        {"topk:nan", "\"nan\" is no number"},
                        {"powersgd:0", "rank = 0; expected 1 to 256"},
                        {"powersgd:257", "rank = 257"},
                        {"powersgd:1.5", "is no number"},
                        {"onebit:2", "onebit takes no number"},
                        {"none:1", "none takes no number"}};
  for (const Case& c : cases)
    EXPECT_THAT(test::message_of<UsageError>([&] { compression_from(c.text); }), HasSubstr(c.says))
        << c.text;
  EXPECT_THAT(test::message_of<UsageError>([] { check_compression({.start_step = -1}); }),
              HasSubstr("start_step = -1"));
}

TEST(CompressedTensors, FollowTheRules) {
  struct Case {
    const char* why;
    Compression compression;
    DType dtype;
    std::vector<int64_t> shape;
    bool expected;
  };
  const Compression power{.kind = Kind::power_sgd, .rank = 4};
  const Case cases[] = {
      {"nothing is", {}, DType::float32, {1000, 1000}, false},
      {"a matrix is", {.kind = Kind::top_k}, DType::float32, {32, 32}, true},
      {"a vector is", {.kind = Kind::one_bit}, DType::float32, {1024}, true},
      {"small", {.kind = Kind::one_bit}, DType::float32, {1023}, false},
      {"small, wanted", {.kind = Kind::one_bit, .min_elements = 1}, DType::float32, {1}, true},
      {"wide type", {.kind = Kind::bfloat16}, DType::float64, {64, 64}, false},
      {"narrow type", {.kind = Kind::bfloat16}, DType::bfloat16, {64, 64}, false},
      {"a matrix", power, DType::float32, {64, 64}, true},
      {"a kernel of 16 x 576", power, DType::float32, {16, 64, 3, 3}, true},
      {"one dimension", power, DType::float32, {4096}, false},
      {"no smaller: 4 * (8 + 128) > 1024",
       {.kind = Kind::power_sgd, .rank = 8},
       DType::float32,
       {8, 128},
       false},
      {"rank above the sides",
       {.kind = Kind::power_sgd, .rank = 64},
       DType::float32,
       {2, 2048},
       false},
      {"no elements", {.kind = Kind::top_k}, DType::float32, {0, 5}, false},
      {"indices of 32 bits", {.kind = Kind::top_k}, DType::float32, {int64_t{1} << 32}, false}};
  for (const Case& c : cases)
    EXPECT_EQ(compresses(c.compression, c.dtype, c.shape), c.expected) << c.why;
}

// ---- selection ----

std::vector<uint32_t> selected(const Floats& values, size_t k) {
  std::vector<uint32_t> indices(k);
  detail::select_largest(values.data(), static_cast<int64_t>(values.size()), indices);
  return indices;
}

// Sorts all numbers by size, first ones first among equals.
std::vector<uint32_t> selected_slowly(const Floats& values, size_t k) {
  std::vector<uint32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  const auto size = [&](uint32_t i) {
    return std::isnan(values[i]) ? std::numeric_limits<double>::infinity() * 2
                                 : std::fabs(static_cast<double>(values[i]));
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return size(a) > size(b); });
  order.resize(k);
  std::sort(order.begin(), order.end());
  return order;
}

TEST(SelectLargest, EqualsSorting) {
  for (int64_t n : {1, 2, 31, 1000, 4099})
    for (int seed = 0; seed < 3; ++seed) {
      const Floats values = gradient_of(n, 3, 0, seed);
      for (int64_t k : {int64_t{1}, n / 100 + 1, n / 2 + 1, n})
        EXPECT_EQ(selected(values, std::min(k, n)), selected_slowly(values, std::min(k, n)));
    }
}

TEST(SelectLargest, TakesTheFirstOfEqualOnes) {
  EXPECT_THAT(selected({1, -1, 1, 2, -1}, 3), ElementsAre(0, 1, 3));
  EXPECT_THAT(selected(Floats(100, 0.0f), 4), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(selected({0.0f, -0.0f, 0.0f}, 2), ElementsAre(0, 1));
  Floats few = gradient_of(500, 1, 0, 0);  // many ties, of few sizes
  for (float& value : few) value = std::round(value * 100);
  for (size_t k : {1u, 10u, 250u, 499u}) EXPECT_EQ(selected(few, k), selected_slowly(few, k));
}

TEST(SelectLargest, NoNumberIsTheLargest) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_THAT(selected({1, inf, 3, nan}, 1), ElementsAre(3));
  EXPECT_THAT(selected({1, inf, 3, nan}, 2), ElementsAre(1, 3));
  EXPECT_THAT(selected({1e-45f, 0, -3e-45f}, 1), ElementsAre(2));
}

// ---- kernels of every instruction set ----

float dot_slowly(const Floats& a, const Floats& b) {
  Floats lanes(16, 0.0f);
  for (size_t i = 0; i < a.size(); ++i) {
    volatile const float product = a[i] * b[i];  // rounded by itself
    lanes[i % 16] += product;
  }
  while (lanes.size() > 1) {
    const size_t half = lanes.size() / 2;
    for (size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    lanes.resize(half);
  }
  return lanes[0];
}

class CodeKernels : public testing::TestWithParam<CpuVariant> {
 protected:
  const detail::CodeKernels& kernels() const { return detail::code_kernels_of(GetParam()); }
};

TEST_P(CodeKernels, AddAndMultiplyElementByElement) {
  for (int64_t n : {0, 1, 15, 16, 17, 100, 1023}) {
    const Floats a = gradient_of(n, 1, 0, 0), b = gradient_of(n, 2, 0, 0);
    Floats sum = a, scaled = a;
    kernels().add(sum.data(), b.data(), n);
    kernels().add_scaled(scaled.data(), b.data(), -1.7f, n);
    for (int64_t i = 0; i < n; ++i) {
      EXPECT_EQ(sum[i], a[i] + b[i]);
      volatile const float product = -1.7f * b[i];
      EXPECT_EQ(scaled[i], a[i] + product);
    }
    EXPECT_EQ(kernels().dot(a.data(), b.data(), n), dot_slowly(a, b)) << n;
  }
}

TEST_P(CodeKernels, OneBitBlocksEqualTheOracle) {
  for (int64_t n : {1, 7, 31, 32, 33, 64, 200, 255, 256}) {
    Floats x = gradient_of(n, 5, 0, 0);
    if (n > 7) x[3] = -0.0f, x[5] = 0.0f;
    std::vector<uint32_t> words(8, 0xdeadbeef);
    Floats left(n), out(n), sizes(n), ones(n, 1.0f);
    const float scale = kernels().one_bit_encode(x.data(), words.data(), left.data(), n);
    std::transform(x.begin(), x.end(), sizes.begin(), [](float v) { return std::fabs(v); });
    EXPECT_EQ(scale, dot_slowly(sizes, ones) / static_cast<float>(n));
    kernels().one_bit_decode(words.data(), scale, out.data(), n);
    for (int64_t i = 0; i < n; ++i) {
      EXPECT_EQ((words[i / 32] >> (i % 32)) & 1, std::signbit(x[i]) ? 1u : 0u);
      EXPECT_EQ(out[i], std::signbit(x[i]) ? -scale : scale);
      EXPECT_EQ(left[i], x[i] - out[i]);
    }
    if (n % 32 != 0) {
      EXPECT_EQ(words[n / 32] >> (n % 32), 0u) << "bits beyond the end";
    }
  }
}

TEST_P(CodeKernels, ABlockThatIsNotFiniteLeavesNothing) {
  Floats x(40, 1.0f), left(40, 5.0f);
  x[20] = std::numeric_limits<float>::quiet_NaN();
  std::vector<uint32_t> words(2);
  EXPECT_TRUE(std::isnan(kernels().one_bit_encode(x.data(), words.data(), left.data(), 40)));
  EXPECT_THAT(left, testing::Each(0.0f));
}

INSTANTIATE_TEST_SUITE_P(Variants, CodeKernels, testing::ValuesIn(runnable_variants()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

// ---- orthonormal rows ----

TEST(Orthonormal, RowsAreOfLengthOneAndStandUpright) {
  for (int64_t count : {1, 2, 4, 16}) {
    constexpr int64_t kLength = 300;
    Floats matrix = gradient_of(count * kLength, 8, 0, 0);
    // Almost the same row twice: one pass alone would leave them askew.
    if (count > 1)
      for (int64_t i = 0; i < kLength; ++i) matrix[kLength + i] = matrix[i] * 1.0001f;
    if (count > 1) matrix[kLength + 7] += 1e-3f;
    detail::orthonormalise(matrix.data(), count, kLength);
    for (int64_t a = 0; a < count; ++a)
      for (int64_t b = 0; b <= a; ++b) {
        double sum = 0;
        for (int64_t i = 0; i < kLength; ++i)
          sum += static_cast<double>(matrix[a * kLength + i]) * matrix[b * kLength + i];
        EXPECT_NEAR(sum, a == b ? 1 : 0, 1e-5) << a << " " << b;
      }
  }
}

TEST(Orthonormal, RowsThatAddNothingBecomeZeros) {
  Floats matrix = {3, 0, 4, 0, 6, 0, 8, 0, 0, 0, 0, 0, 0, 5, 0, 0};
  detail::orthonormalise(matrix.data(), 4, 4);
  EXPECT_THAT(matrix, ElementsAre(3 / 5.0f, 0, 4 / 5.0f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0));
}

}  // namespace
}  // namespace tutti
