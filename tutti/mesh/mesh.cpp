#include "tutti/mesh/mesh.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "tutti/base/error.h"
#include "tutti/base/suggest.h"
#include "tutti/base/typed.h"

namespace tutti::mesh {
namespace {

const std::vector<std::string>& axis_names() {
  static const std::vector<std::string> names{"data", "shard", "stage", "tensor"};
  return names;
}

constexpr int kMostOfAxis = 1 << 15;  // so that no product is beyond an int64

struct Given {
  size_t axis;
  int size;
};

Given given_by(std::string_view field, std::string_view text) {
  const size_t equals = field.find('=');
  const std::string name(field.substr(0, equals));
  const auto& names = axis_names();
  const auto axis = std::ranges::find(names, name);
  if (axis == names.end())
    throw UsageError(fmt::format("--mesh {}: {}", text, unknown_message("axis", name, names)));
  const int size = equals == field.npos ? 0 : number_in<int>(field.substr(equals + 1)).value_or(0);
  if (size < 1 || size > kMostOfAxis)
    throw UsageError(
        fmt::format("--mesh {}: \"{}\"; expected {}=N, N 1 to {}", text, field, name, kMostOfAxis));
  return {static_cast<size_t>(axis - names.begin()), size};
}

int64_t product_of(const Place& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

}  // namespace

std::string_view name_of(Axis axis) noexcept { return axis_names()[static_cast<size_t>(axis)]; }

Mesh::Mesh(int replicas) { sizes_[static_cast<size_t>(Axis::data)] = replicas; }

Mesh Mesh::parse(std::string_view text, int replicas) {
  Mesh mesh(std::max(replicas, 1));
  if (text.empty()) return mesh;
  Place sizes{};
  for (std::string_view rest = text;;) {
    const size_t comma = std::min(rest.find(','), rest.size());
    const Given given = given_by(rest.substr(0, comma), text);
    if (sizes[given.axis] != 0)
      throw UsageError(fmt::format("--mesh {}: {} is there twice", text, axis_names()[given.axis]));
    sizes[given.axis] = given.size;
    if (comma == rest.size()) break;
    rest.remove_prefix(comma + 1);
  }
  const bool open = sizes[0] == 0;
  for (int& size : sizes) size = std::max(size, 1);
  const int64_t others = product_of(sizes);
  if (open && replicas > 0 && replicas % others == 0)
    sizes[0] = static_cast<int>(replicas / others);
  if (replicas != 0 && product_of(sizes) != replicas)
    throw UsageError(fmt::format("--mesh {}: needs {}{} replicas, got {}", text,
                                 open ? "a multiple of " : "", product_of(sizes), replicas));
  mesh.sizes_ = sizes;
  return mesh;
}

int Mesh::replicas() const noexcept { return static_cast<int>(product_of(sizes_)); }

Place Mesh::place_of(int rank) const noexcept {
  Place place{};
  for (size_t axis = kNumAxes; axis-- > 0; rank /= sizes_[axis]) place[axis] = rank % sizes_[axis];
  return place;
}

int Mesh::rank_at(const Place& place) const noexcept {
  int rank = 0;
  for (size_t axis = 0; axis < kNumAxes; ++axis) rank = rank * sizes_[axis] + place[axis];
  return rank;
}

std::vector<int> Mesh::members(int rank, const std::vector<Axis>& axes) const {
  const Place own = place_of(rank);
  std::vector<int> ranks;
  for (int other = 0; other < replicas(); ++other) {
    const Place place = place_of(other);
    const auto may_differ = [&](size_t axis) {
      return std::ranges::find(axes, static_cast<Axis>(axis)) != axes.end();
    };
    bool member = true;
    for (size_t axis = 0; axis < kNumAxes; ++axis)
      member = member && (may_differ(axis) || place[axis] == own[axis]);
    if (member) ranks.push_back(other);
  }
  return ranks;
}

std::string Mesh::to_string() const {
  std::vector<std::string> words;
  for (size_t axis = 0; axis < kNumAxes; ++axis)
    if (sizes_[axis] > 1) words.push_back(fmt::format("{}={}", axis_names()[axis], sizes_[axis]));
  return words.empty() ? "data=1" : fmt::format("{}", fmt::join(words, ","));
}

std::string Mesh::sentence() const {
  std::string axes = to_string();
  std::ranges::replace(axes, '=', ' ');
  std::string words = fmt::format("{} {}: ", replicas(), replicas() == 1 ? "replica" : "replicas");
  for (const char c : axes) words += c == ',' ? std::string(" x ") : std::string(1, c);
  return words;
}

}  // namespace tutti::mesh
