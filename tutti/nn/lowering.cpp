#include "tutti/nn/detail/lowering.h"

#include <array>
#include <cmath>
#include <numbers>
#include <optional>
#include <vector>

namespace tutti::nn::detail {
namespace {

/// [cells, side]: row i has 1 / n for each of the n places of cell i, else 0.
hlo::Value cells(hlo::Program& program, int64_t side, int64_t count) {
  const hlo::Type places{DType::int32, {count, side}};
  const hlo::Value cell = hlo::iota(program, places, 0), place = hlo::iota(program, places, 1);
  // From floor(i side / count) to before ceil((i + 1) side / count).
  const hlo::Value begin = cell * double(side) / double(count);
  const hlo::Value end = ((cell + 1) * double(side) + double(count - 1)) / double(count);
  const hlo::Value inside =
      hlo::convert(hlo::bit_and(hlo::compare(place, hlo::Comparison::ge, begin),
                                hlo::compare(place, hlo::Comparison::lt, end)),
                   DType::float32);
  return inside / hlo::convert(end - begin, DType::float32);
}

std::vector<int64_t> all_but_last(const hlo::Shape& shape) {
  std::vector<int64_t> dimensions;
  for (size_t i = 0; i + 1 < shape.size(); ++i) dimensions.push_back(static_cast<int64_t>(i));
  return dimensions;
}

/// x less its row's largest value; the sums of the exponentials, of x's shape.
std::array<hlo::Value, 2> shifted_and_sums(hlo::Value x) {
  const auto last = static_cast<int64_t>(x.shape().size()) - 1;
  const auto back = [&](hlo::Value rows) {
    return hlo::broadcast(rows, x.shape(), all_but_last(x.shape()));
  };
  const hlo::Value shifted = x - back(hlo::stop_gradient(hlo::reduce_max(x, {last})));
  return {shifted, back(hlo::reduce_sum(hlo::exp(shifted), {last}))};
}

using Words = std::vector<hlo::Value>;

/// philox() of base/random.h on arrays: four words of 32 bits for each counter.
Words philox_of(Words counter, hlo::Value key0, hlo::Value key1) {
  constexpr std::array<double, 2> kMultipliers{0xD2511F53, 0xCD9E8D57};
  constexpr std::array<double, 2> kWeyl{0x9E3779B9, 0xBB67AE85};
  constexpr int kRounds = 10, kHalf = 32;
  for (int round = 0; round < kRounds; ++round) {
    Words high, low;
    for (const size_t i : {0, 1}) {
      const hlo::Value product = hlo::convert(counter[2 * i], DType::uint64) * kMultipliers[i];
      high.push_back(hlo::convert(hlo::shift_right(product, kHalf), DType::uint32));
      low.push_back(hlo::convert(product, DType::uint32));
    }
    counter = {hlo::bit_xor(hlo::bit_xor(high[1], counter[1]), key0), low[1],
               hlo::bit_xor(hlo::bit_xor(high[0], counter[3]), key1), low[0]};
    key0 = key0 + kWeyl[0];
    key1 = key1 + kWeyl[1];
  }
  return counter;
}

}  // namespace

// By slices: compilers for CPUs have no fast kernel for a gradient through windows.
hlo::Value max_of_tiles(hlo::Value x, int64_t kernel) {
  const hlo::Shape& s = x.shape();
  const int64_t rows = s[2] / kernel * kernel, columns = s[3] / kernel * kernel;
  std::optional<hlo::Value> largest;
  for (int64_t row = 0; row < kernel; ++row)
    for (int64_t column = 0; column < kernel; ++column) {
      const hlo::Value next =
          hlo::slice(x, {0, 0, row, column}, {s[0], s[1], rows, columns}, {1, 1, kernel, kernel});
      if (!largest) {
        largest = next;
        continue;
      }
      const hlo::Value larger =
          hlo::bit_or(hlo::compare(*largest, hlo::Comparison::lt, next),
                      hlo::compare(next, hlo::Comparison::ne, next));  // NaN stays
      largest = hlo::select(larger, next, *largest);
    }
  return *largest;
}

hlo::Value mean_of_cells(hlo::Value x, const Size2d& size) {
  const int64_t height = x.shape()[2], width = x.shape()[3];
  if (size.height == 1 && size.width == 1)
    return hlo::reshape(hlo::reduce_sum(x, {2, 3}) / double(height * width),
                        {x.shape()[0], x.shape()[1], 1, 1});
  // [B, C, H, W] by [cells, H] is [B, C, W, cells], and that by [cells, W] [B, C, cells, cells].
  const hlo::Value rows =
      hlo::dot(x, cells(x.program(), height, size.height),
               {.batch_a = {}, .batch_b = {}, .contract_a = {2}, .contract_b = {1}});
  return hlo::dot(rows, cells(x.program(), width, size.width),
                  {.batch_a = {}, .batch_b = {}, .contract_a = {2}, .contract_b = {1}});
}

hlo::Value softmax(hlo::Value x) {
  const auto [shifted, sums] = shifted_and_sums(x);
  return hlo::exp(shifted) / sums;
}

hlo::Value log_softmax(hlo::Value x) {
  const auto [shifted, sums] = shifted_and_sums(x);
  return shifted - hlo::log(sums);
}

hlo::Value gelu(hlo::Value x, bool by_tanh) {
  if (!by_tanh) return x * 0.5 * (hlo::erf(x * (1 / std::numbers::sqrt2)) + 1);
  constexpr double kCube = 0.044715;
  const double scale = std::sqrt(2 / std::numbers::pi);
  return x * 0.5 * (hlo::tanh((x + x * x * x * kCube) * scale) + 1);
}

hlo::Value uniform_rows(const hlo::Shape& shape, hlo::Value key, hlo::Value first_row) {
  hlo::Program& program = key.program();
  int64_t elements = 1;
  for (size_t i = 1; i < shape.size(); ++i) elements *= shape[i];
  const int64_t rows = shape[0], blocks = (elements + 3) / 4;
  const hlo::Type words{DType::uint32, {rows, blocks}};
  const auto spread = [&](hlo::Value one) {
    return hlo::broadcast(hlo::reshape(one, {}), words.shape, {});
  };
  // The row's number has 64 bits: a low half that wraps carries one over.
  const hlo::Value first = spread(hlo::slice(first_row, {0}, {1}));
  const hlo::Value low = first + hlo::iota(program, words, 0);
  const hlo::Value carry =
      hlo::convert(hlo::compare(low, hlo::Comparison::lt, first), DType::uint32);
  const hlo::Value high = spread(hlo::slice(first_row, {1}, {2})) + carry;
  const Words bits =
      philox_of({hlo::iota(program, words, 1), hlo::constant(program, words, 0), low, high},
                spread(hlo::slice(key, {0, 0}, {1, 1})), spread(hlo::slice(key, {0, 1}, {1, 2})));
  Words columns;
  for (const hlo::Value& word : bits) columns.push_back(hlo::reshape(word, {rows, blocks, 1}));
  const hlo::Value all = hlo::reshape(hlo::concatenate(columns, 2), {rows, blocks * 4});
  constexpr int kSpareBits = 8;
  const hlo::Value uniform =
      hlo::convert(hlo::shift_right(hlo::slice(all, {0, 0}, {rows, elements}), kSpareBits),
                   DType::float32) *
      0x1p-24;
  return hlo::reshape(uniform, shape);
}

}  // namespace tutti::nn::detail
