#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "tutti/ps/server/parallel.h"
#include "tutti/ps/values/compute.h"

namespace tutti::ps {
namespace {

// One bad element at every place of lengths around the blocks and chunks, in one thread and in
// some.
template <class T>
void finds_each(const Compute& compute) {
  using Limits = std::numeric_limits<T>;
  for (const int64_t count : {1, 63, 64, 65, 200, (16 << 10) + 1}) {
    std::vector<T> values(static_cast<size_t>(count), -Limits::max());
    const auto finite = [&] {
      return all_finite(dtype_of<T>(), std::as_bytes(std::span(values)).data(), count, compute);
    };
    EXPECT_TRUE(finite()) << count;
    const size_t stride = values.size() > 1000 ? 333 : 1;
    for (size_t at = 0; at < values.size(); at += stride)
      for (const T bad : {Limits::quiet_NaN(), Limits::infinity(), -Limits::infinity()}) {
        values[at] = bad;
        EXPECT_FALSE(finite()) << bad << " at " << at << " of " << count;
        values[at] = Limits::denorm_min();
      }
    values.back() = Limits::quiet_NaN();
    EXPECT_FALSE(finite()) << count;
  }
}

TEST(PsCompute, FindsWhatIsNotFinite) {
  ParallelFor threads(3);
  Compute several = Compute::plain();
  several.for_each = std::ref(threads);
  for (const Compute& compute : {Compute::plain(), several}) {
    finds_each<float>(compute);
    finds_each<double>(compute);
    EXPECT_TRUE(all_finite(DType::float32, nullptr, 0, compute));
  }
}

}  // namespace
}  // namespace tutti::ps
