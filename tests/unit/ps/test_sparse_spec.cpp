// What tables are, what their rows begin as, and which server has which key.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>

#include "tutti/base/error.h"
#include "tutti/ps/spec/sparse_spec.h"

#include "tests/unit/ps/sparse_oracle.h"

namespace tutti::ps::sparse {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(SparseTable, InitialRowsArePureAndAsDrawn) {
  const auto row = [](SparseTableSpec spec, uint64_t key) {
    spec.width = 64;
    return pulled<float>(SparseTable(spec, optim::sgd()), {key});
  };
  const auto first = row({.name = "user", .seed = 1}, 42);
  EXPECT_TRUE(same(row({.name = "user", .seed = 1, .most_rows = 5}, 42), first));
  EXPECT_FALSE(same(row({.name = "user", .seed = 2}, 42), first));
  EXPECT_FALSE(same(row({.name = "users", .seed = 1}, 42), first));
  EXPECT_FALSE(same(row({.name = "user", .seed = 1}, 42 + (uint64_t{1} << 32)), first));
  // What a seed means never changes.
  EXPECT_THAT(std::vector<float>(first.begin(), first.begin() + 3),
              ::testing::ElementsAre(0x1.2e893ap-5F, -0x1.d7098p-7F, -0x1.48d426p-5F));
  const auto normal = row({.name = "user", .initializer = NormalRows{}, .seed = 1}, 42);
  EXPECT_THAT(std::vector<float>(normal.begin(), normal.begin() + 3),
              ::testing::ElementsAre(0x1.b8561ap-6F, -0x1.85e4d4p-4F, -0x1.06fdccp-4F));
  // The upper end is not reached where float32 has two values only.
  const auto narrow = row({.name = "t", .initializer = UniformRows{1.0, 1.0 + 0x1p-23}}, 0);
  EXPECT_THAT(narrow, ::testing::Each(1.0F));
}

TEST(SparseTable, InitialRowsHaveTheirMoments) {
  const auto drawn = [](SparseTableSpec::Initializer initializer) {
    const SparseTable table(
        {.name = "t", .width = 100, .dtype = DType::float64, .initializer = initializer},
        optim::sgd());
    std::vector<uint64_t> keys(2000);
    for (size_t i = 0; i < keys.size(); ++i) keys[i] = i;
    return pulled<double>(table, keys);
  };
  // Of 200000 samples: the mean is off by 0.0022 std, the variance by 0.3 %, once in three tables.
  const auto expect_moments = [](const std::vector<double>& samples, double mean, double std) {
    double sum = 0, squares = 0, fourth = 0;
    for (double x : samples) {
      const double z = (x - mean) / std;
      sum += z, squares += z * z, fourth += z * z * z * z;
    }
    const auto count = static_cast<double>(samples.size());
    EXPECT_NEAR(sum / count, 0, 0.01);
    EXPECT_NEAR(squares / count, 1, 0.015);
    return fourth / count;
  };
  const auto normal = drawn(NormalRows{.mean = 3, .std = 2});
  EXPECT_NEAR(expect_moments(normal, 3, 2), 2.9, 0.1) << "3 - 6/60 of twelve uniform numbers";
  const auto uniform = drawn(UniformRows{-1, 2});
  EXPECT_NEAR(expect_moments(uniform, 0.5, std::sqrt(0.75)), 1.8, 0.05);
  const auto [least, most] = std::ranges::minmax(uniform);
  EXPECT_GE(least, -1);
  EXPECT_LT(most, 2);
}

TEST(SparseTableSpec, RefusesWhatIsOutOfRange) {
  const SparseTableSpec good{.name = "user", .width = 8};
  EXPECT_NO_THROW(good.validate());
  const struct {
    std::string words;
    std::function<void(SparseTableSpec&)> spoil;
  } cases[] = {
      {"name is \"\"; expected a name", [](auto& s) { s.name = ""; }},
      {"\"user\": width is 0; expected 1 to 1048576", [](auto& s) { s.width = 0; }},
      {"width is 1048577", [](auto& s) { s.width = (1 << 20) + 1; }},
      {"dtype is int64; expected float32 or float64", [](auto& s) { s.dtype = DType::int64; }},
      {"uniform low is nan", [](auto& s) { s.initializer = UniformRows{NAN, 1}; }},
      {"uniform high is 1e+39", [](auto& s) { s.initializer = UniformRows{0, 1e39}; }},
      {"high - low", [](auto& s) { s.initializer = UniformRows{-3e38, 3e38}; }},
      {"uniform high is 1; expected more than low, 1",
       [](auto& s) { s.initializer = UniformRows{1, 1}; }},
      {"as float32", [](auto& s) { s.initializer = UniformRows{1, 1 + 1e-12}; }},
      {"normal mean is inf", [](auto& s) { s.initializer = NormalRows{INFINITY, 1}; }},
      {"normal std is -1", [](auto& s) { s.initializer = NormalRows{0, -1}; }},
      {"normal std is nan", [](auto& s) { s.initializer = NormalRows{0, NAN}; }},
      {"6 std", [](auto& s) { s.initializer = NormalRows{0, 1e38}; }},
      {"most_rows is -1", [](auto& s) { s.most_rows = -1; }},
      {"most_rows is 2147483649", [](auto& s) { s.most_rows = (int64_t{1} << 31) + 1; }},
      {"idle_pushes is -1", [](auto& s) { s.idle_pushes = -1; }},
  };
  for (const auto& c : cases) {
    SparseTableSpec spec = good;
    c.spoil(spec);
    EXPECT_THAT([&] { SparseTable(spec, optim::sgd()); },
                ThrowsMessage<UsageError>(HasSubstr(c.words)));
    EXPECT_TRUE(spec != good || c.words.ends_with("nan")) << c.words;
  }
  SparseTableSpec fine = good;
  fine.dtype = DType::float64;
  fine.initializer = UniformRows{1, 1 + 1e-12};
  EXPECT_NO_THROW(fine.validate()) << "float64 tells them apart";
}

TEST(SparseTableSpec, WordsTellAll) {
  EXPECT_EQ(
      (SparseTableSpec{.name = "user", .width = 64, .seed = 7, .most_rows = 10, .idle_pushes = 50}
           .words()),
      "embedding table \"user\": 64 float32 a row, uniform in [-0.05, 0.05), seed 7, at most "
      "10 rows, evicted after 50 idle pushes");
  EXPECT_EQ((SparseTableSpec{.name = "u", .width = 1, .initializer = NormalRows{0, 2}}.words()),
            "embedding table \"u\": 1 float32 a row, normal with mean 0 and std 2, seed 0");
}

TEST(ServerOfKey, SpreadsEvenlyAlsoWhatFollowsAPattern) {
  for (int shift : {0, 1, 12, 32, 44})
    for (int parts : {1, 2, 3, 7}) {
      std::vector<int> keys(static_cast<size_t>(parts));
      for (uint64_t i = 0; i < 10'000; ++i)
        ++keys.at(static_cast<size_t>(server_of_key(i << shift, parts)));
      // A binomial count is further than five deviations off once in a million.
      const double share = 10'000.0 / parts;
      for (int count : keys) EXPECT_NEAR(count, share, 5 * std::sqrt(share)) << shift << parts;
    }
  std::vector<int> some;
  for (uint64_t key : {uint64_t{0}, uint64_t{1}, uint64_t{2}, ~uint64_t{0}})
    some.push_back(server_of_key(key, 1000));
  EXPECT_THAT(some, ::testing::ElementsAre(883, 566, 591, 893)) << "a checkpoint depends on them";
  EXPECT_THAT([] { server_of_key(1, 0); }, ThrowsMessage<UsageError>(HasSubstr("num_parts is 0")));
}

}  // namespace
}  // namespace tutti::ps::sparse
