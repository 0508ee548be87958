#include "tutti/ps/values/compute.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <new>
#include <type_traits>

namespace tutti::ps {
namespace {

constexpr std::align_val_t kLine{64};
constexpr int64_t kCheckedAtOnce = 16 << 10;  // what one thread looks at
// A loop of known length, which the compiler makes one of vectors.
constexpr int64_t kBlockElements = 64;

// x - x is 0, or NaN for what is not finite.
template <class T>
bool finite_as(const std::byte* data, int64_t count) {
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  const T* values = reinterpret_cast<const T*>(data);
  Bits bad = 0;
  // NOLINTBEGIN(misc-redundant-expression)
  for (; count >= kBlockElements; count -= kBlockElements, values += kBlockElements)
    for (int64_t i = 0; i < kBlockElements; ++i) bad |= std::bit_cast<Bits>(values[i] - values[i]);
  for (int64_t i = 0; i < count; ++i) bad |= std::bit_cast<Bits>(values[i] - values[i]);
  // NOLINTEND(misc-redundant-expression)
  return bad == 0;
}

}  // namespace

Compute Compute::plain() {
  return {.allocate =
              [](int64_t bytes) {
                void* const memory = ::operator new(static_cast<size_t>(bytes), kLine);
                return std::shared_ptr<std::byte>(
                    static_cast<std::byte*>(memory),
                    [](std::byte* p) { ::operator delete(p, kLine); });
              },
          .charge = [](int64_t) {},
          .for_each =
              [](int64_t count, const std::function<void(int64_t)>& fn) {
                for (int64_t i = 0; i < count; ++i) fn(i);
              }};
}

bool all_finite(DType dtype, const std::byte* data, int64_t count) {
  return dtype == DType::float32 ? finite_as<float>(data, count) : finite_as<double>(data, count);
}

bool all_finite(DType dtype, const std::byte* data, int64_t count, const Compute& compute) {
  std::atomic<bool> all = true;
  compute.for_each((count + kCheckedAtOnce - 1) / kCheckedAtOnce, [&](int64_t chunk) {
    const int64_t begin = chunk * kCheckedAtOnce;
    if (!all_finite(dtype, data + begin * size_of(dtype), std::min(kCheckedAtOnce, count - begin)))
      all = false;
  });
  return all;
}

}  // namespace tutti::ps
