#include "tutti/parallel/tensor/piece.h"

#include <ATen/core/grad_mode.h>

#include <functional>
#include <numeric>
#include <span>

#include "tutti/base/random.h"

namespace tutti::parallel {
namespace {

/// Apart from the keys of tables (ps), which have one part.
constexpr uint64_t kOfParameter = 1;

int64_t product_of(std::span<const int64_t> sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

RandomBlock bits_at(uint64_t key, uint64_t counter) {
  return philox(key, {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0});
}

/// In [-1, 1).
double uniform_at(uint64_t key, uint64_t element) {
  return bits_at(key, element / 4)[element % 4] * 0x1p-31 - 1;
}

// Twelve integers of 21 bits, six of a block; their sum has variance 2^42 (to 12 digits) and is
// taken to be symmetric about 0. Exact in a double.
double normal_at(uint64_t key, uint64_t element) {
  constexpr int kBits = 21;
  constexpr int64_t kCentre = 12 * ((int64_t{1} << kBits) - 1);
  int64_t sum = 0;
  for (const uint64_t counter : {2 * element, 2 * element + 1}) {
    const RandomBlock block = bits_at(key, counter);
    for (const size_t half : {0, 2}) {
      const uint64_t word = block[half] | uint64_t{block[half + 1]} << 32;
      for (int shift = 0; shift < 3 * kBits; shift += kBits)
        sum += static_cast<int64_t>(word >> shift & ((1 << kBits) - 1));
    }
  }
  return static_cast<double>(2 * sum - kCentre) * 0x1p-22;
}

/// Fills `values`, the elements of the piece in order, by their place in the whole.
template <class ValueAt>
void fill(std::span<double> values, const Piece& piece, const ValueAt& value_at) {
  const std::span<const int64_t> whole(piece.whole);
  const auto axis = static_cast<size_t>(piece.axis);
  const int64_t inner = product_of(whole.subspan(axis + 1));
  const int64_t part = whole[axis] / piece.stacked * inner;
  const int64_t parts = product_of(whole.first(axis)) * piece.stacked;
  auto value = values.begin();
  for (int64_t i = 0; i < parts; ++i) {
    const int64_t first = i * part + piece.begin * inner;
    for (int64_t element = first; element < first + piece.size * inner; ++element)
      *value++ = value_at(static_cast<uint64_t>(element));
  }
}

}  // namespace

uint64_t parameter_key(uint64_t seed, std::string_view name) {
  uint64_t key = random_key(seed, RandomPurpose::init, {kOfParameter, name.size()});
  for (size_t begin = 0; begin < name.size(); begin += 8) {
    uint64_t letters = 0;
    for (const char letter : name.substr(begin, 8))
      letters = letters << 8 | static_cast<unsigned char>(letter);
    key = random_key(key, RandomPurpose::init, {kOfParameter, letters});
  }
  return key;
}

void fill_initial(const at::Tensor& parameter, const Piece& piece, uint64_t key,
                  const Distribution& distribution) {
  const at::NoGradGuard no_grad;
  if (distribution.kind == Distribution::Kind::zeros) {
    parameter.zero_();
    return;
  }
  const at::Tensor values = at::empty(piece.shape(), at::kDouble);
  const std::span elements(values.mutable_data_ptr<double>(), static_cast<size_t>(values.numel()));
  if (distribution.kind == Distribution::Kind::uniform)
    fill(elements, piece, [key](uint64_t element) { return uniform_at(key, element); });
  else
    fill(elements, piece, [key](uint64_t element) { return normal_at(key, element); });
  parameter.copy_(values.mul_(distribution.scale));
}

}  // namespace tutti::parallel
