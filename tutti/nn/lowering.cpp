#include "tutti/nn/detail/lowering.h"

#include <array>
#include <cmath>
#include <numbers>
#include <optional>
#include <vector>

#include "tutti/nn/detail/layouts.h"

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

/// Images cut into kernel x kernel tiles.
struct Tiles {
  hlo::Shape end;               ///< of what the tiles cover
  hlo::Shape stride;            ///< from an element to the next tile's
  hlo::Shape apart;             ///< with dimensions of tiles and, after each, of elements in a tile
  std::vector<int64_t> outer;   ///< where there the image's four dimensions are
  int64_t row = 0, column = 0;  ///< and those in a tile
  size_t height, width;         ///< of the image
};

Tiles tiles_of(const hlo::Shape& image, int64_t kernel, hlo::ImageOrder order) {
  const hlo::ImageAxes axes = hlo::axes_of(order);
  Tiles tiles{.end = image,
              .stride = hlo::Shape(image.size(), 1),
              .apart = {},
              .outer = {},
              .height = static_cast<size_t>(axes.height),
              .width = static_cast<size_t>(axes.width)};
  for (int64_t d = 0; d < std::ssize(image); ++d) {
    const auto i = static_cast<size_t>(d);
    tiles.outer.push_back(std::ssize(tiles.apart));
    tiles.apart.push_back(image[i]);
    if (d != axes.height && d != axes.width) continue;
    tiles.apart.back() /= kernel;
    tiles.end[i] = tiles.apart.back() * kernel;
    tiles.stride[i] = kernel;
    (d == axes.height ? tiles.row : tiles.column) = std::ssize(tiles.apart);
    tiles.apart.push_back(kernel);
  }
  return tiles;
}

/// Numbers of the largest elements in their tiles, row by row: the first of several, the last NaN.
hlo::Value places_of_largest(hlo::Value whole, const Tiles& tiles, int64_t kernel) {
  std::optional<hlo::Value> largest, place;
  for (int64_t number = 0; number < kernel * kernel; ++number) {
    hlo::Shape begin(tiles.end.size(), 0);
    begin[tiles.height] = number / kernel;
    begin[tiles.width] = number % kernel;
    const hlo::Value next = hlo::slice(whole, begin, tiles.end, tiles.stride);
    const hlo::Value own =
        hlo::constant(whole.program(), {DType::int32, next.shape()}, double(number));
    if (!largest) {
      largest = next;
      place = own;
      continue;
    }
    const hlo::Value larger = hlo::bit_or(hlo::compare(*largest, hlo::Comparison::lt, next),
                                          hlo::compare(next, hlo::Comparison::ne, next));
    largest = hlo::select(larger, next, *largest);
    place = hlo::select(larger, own, *place);
  }
  return *place;
}

}  // namespace

// Which element of a tile is its largest is found by slices, through which no gradient goes: that
// of the choice is a choice again, where that of slices would be padded images and their sum.
hlo::Value max_of_tiles(hlo::Value x, int64_t kernel, hlo::ImageOrder order) {
  const Tiles tiles = tiles_of(x.shape(), kernel, order);
  const hlo::Value whole = hlo::slice(x, {0, 0, 0, 0}, tiles.end);
  const hlo::Value place = places_of_largest(hlo::stop_gradient(whole), tiles, kernel);
  const hlo::Type places{DType::int32, tiles.apart};
  const hlo::Value own = hlo::iota(x.program(), places, tiles.row) * double(kernel) +
                         hlo::iota(x.program(), places, tiles.column);
  const hlo::Value chosen =
      hlo::compare(hlo::broadcast(place, tiles.apart, tiles.outer), hlo::Comparison::eq, own);
  const hlo::Value elements = hlo::reshape(whole, tiles.apart);
  const hlo::Value nothing = hlo::constant(x.program(), elements.type(), 0);
  return hlo::reduce_sum(hlo::select(chosen, elements, nothing), {tiles.row, tiles.column});
}

hlo::Value mean_of_cells(hlo::Value x, const Size2d& size, hlo::ImageOrder order) {
  const hlo::ImageAxes axes = hlo::axes_of(order);
  const auto side = [&](int64_t axis) { return x.shape()[static_cast<size_t>(axis)]; };
  const int64_t height = side(axes.height), width = side(axes.width);
  if (size.height == 1 && size.width == 1) {
    hlo::Shape shape = x.shape();
    shape[static_cast<size_t>(axes.height)] = shape[static_cast<size_t>(axes.width)] = 1;
    return hlo::reshape(hlo::reduce_sum(x, {axes.height, axes.width}) / double(height * width),
                        shape);
  }
  // [B, C, H, W] by [cells, H] is [B, C, W, cells], and that by [cells, W] [B, C, cells, cells];
  // [B, H, W, C] becomes [B, W, C, cells], and [B, C, cells, cells] too.
  const hlo::DotDimensions over_height{
      .batch_a = {}, .batch_b = {}, .contract_a = {axes.height}, .contract_b = {1}};
  const hlo::Value rows = hlo::dot(x, cells(x.program(), height, size.height), over_height);
  const hlo::Value means = hlo::dot(rows, cells(x.program(), width, size.width), over_height);
  return in_order({means, hlo::ImageOrder::channels_first}, order);
}

// With stride - 1 zeros between elements it is a convolution with the kernel turned round.
hlo::Value conv_transpose2d(hlo::Value x, hlo::Value w, const ConvTransposeOptions& options) {
  const hlo::ImageAxes axes = hlo::axes_of(options.order);
  hlo::Shape before(4, 0), after(4, 0), between(4, 0);
  const auto widen = [&](int64_t axis, int64_t kernel, int64_t stride, int64_t padding,
                         int64_t more) {
    const auto d = static_cast<size_t>(axis);
    before[d] = kernel - 1 - padding;
    after[d] = kernel - 1 - padding + more;
    between[d] = stride - 1;
  };
  widen(axes.height, w.shape()[2], options.stride.height, options.padding.height,
        options.output_padding.height);
  widen(axes.width, w.shape()[3], options.stride.width, options.padding.width,
        options.output_padding.width);
  return hlo::conv2d(hlo::pad(x, before, after, between),
                     hlo::transpose(hlo::reverse(w, {2, 3}), {1, 0, 2, 3}),
                     {.order = options.order});
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

hlo::Value softplus(hlo::Value x) {
  const hlo::Value size = hlo::abs(x);
  return (x + size) * 0.5 + hlo::log(hlo::exp(-size) + 1);
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
