// DensePiece against the slow and obvious way, element by element; shares keep their values.
#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "tutti/base/error.h"

#include "tests/support/message_of.h"
#include "tests/unit/ps/small_job.h"

namespace tutti::ps::testing {
namespace {

using ::testing::HasSubstr;
using tutti::test::message_of;

// Three segments that end off the line, one longer than what is taken at once.
template <class T>
Piece odd_piece() {
  const DType dtype = sizeof(T) == 4 ? DType::float32 : DType::float64;
  const std::vector<Variable> variables = {
      {"a", {5}, dtype}, {"b", {17'001}, dtype}, {"c", {}, dtype}};
  const auto pieces = pieces_of(variables, place(variables, {}));
  return pieces.at(0);
}

template <class T>
std::vector<T> noise(const Piece& piece, int seed) {
  std::vector<T> values(piece.num_bytes / sizeof(T));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<T>(std::sin(static_cast<double>(i * 31 + seed * 7919)));
  return values;
}

template <class T>
Bytes as_bytes(const std::vector<T>& values) {
  return Bytes::copy_of(std::as_bytes(std::span(values)));
}

template <class T>
T at(const Bytes& bytes, int64_t offset_bytes, int64_t i) {
  T value;
  std::memcpy(&value, bytes.span.data() + offset_bytes + i * sizeof(T), sizeof value);
  return value;
}

constexpr int kReplicas = 3;
constexpr int kUpdates = 3;

// Part r is left out of segment s in update u.
bool is_used(int r, size_t s, int u) { return (r + static_cast<int>(s) + u) % 3 != 0 && s != 2; }

// One element on its own: parts added in the tree's order ((0 + 1) + 2), then the rule.
template <class T>
class Element {
 public:
  Element(const optim::Rule& rule, T start) : rule_(rule), value_(start) {
    for (int k = 0; k < rule.num_states(); ++k) states_[k] = static_cast<T>(rule.state_start(k));
  }
  void update(const std::vector<std::optional<T>>& parts, double scale) {
    std::optional<T> sum;
    for (const auto& part : parts)
      if (part) sum = sum ? *sum + *part : *part;
    if (!sum) return;
    if (scale != 1) *sum *= static_cast<T>(scale);
    scalars_ = rule_.next(scalars_, 0.1);
    std::array<void*, optim::kMostStates> states{&states_[0], &states_[1], &states_[2]};
    rule_.update(sizeof(T) == 4 ? DType::float32 : DType::float64, &value_, &*sum,
                 std::span<void* const>(states.data(), rule_.num_states()), 1, scalars_);
  }
  T value() const { return value_; }

 private:
  const optim::Rule& rule_;
  T value_;
  std::array<T, optim::kMostStates> states_{};
  optim::StepScalars scalars_;
};

template <class T>
void expect_as_by_hand(const optim::Rule& rule, double scale) {
  const Piece layout = odd_piece<T>();
  const auto shape = ReductionShape::flat(kReplicas);
  DensePiece piece(layout, rule, Compute::plain());
  const auto start = noise<T>(layout, 99);
  piece.assign(as_bytes(start));
  std::vector<std::vector<T>> gradients;
  for (int i = 0; i < kReplicas * kUpdates; ++i) gradients.push_back(noise<T>(layout, i));
  for (int u = 0; u < kUpdates; ++u) {
    const Bytes share = u == 1 ? piece.parameters() : Bytes{};  // in place, and copied on write
    std::vector<Part> parts;
    std::vector<const std::byte*> data;
    for (int r = 0; r < kReplicas; ++r) {
      parts.push_back({r, {is_used(r, 0, u), is_used(r, 1, u), is_used(r, 2, u)}});
      data.push_back(std::as_bytes(std::span(gradients[u * kReplicas + r])).data());
    }
    const std::vector<const Part*> pointers{&parts[2], &parts[0], &parts[1]};  // in any order
    const std::vector<const std::byte*> places{data[2], data[0], data[1]};
    piece.update(
        {.parts = pointers, .data = places, .shape = &shape, .scale = scale, .learning_rate = 0.1});
  }
  EXPECT_EQ(piece.version(), kUpdates);
  for (size_t s = 0; s < layout.segments.size(); ++s)
    for (int64_t i = 0; i < layout.segments[s].count(); ++i) {
      const int64_t where = layout.segments[s].offset_bytes / static_cast<int64_t>(sizeof(T)) + i;
      Element<T> element(rule, start[where]);
      for (int u = 0; u < kUpdates; ++u) {
        std::vector<std::optional<T>> parts(kReplicas);
        for (int r = 0; r < kReplicas; ++r)
          if (is_used(r, s, u)) parts[r] = gradients[u * kReplicas + r][where];
        element.update(parts, scale);
      }
      const T got = at<T>(piece.parameters(), layout.segments[s].offset_bytes, i);
      const T expected = element.value();
      ASSERT_EQ(std::memcmp(&got, &expected, sizeof got), 0)
          << rule.name() << " segment " << s << " element " << i << ": " << got << ", not "
          << expected;
    }
}

TEST(DensePiece, UpdatesAsByHandBitForBit) {
  for (const optim::Rule& rule :
       {optim::sgd({.momentum = 0.9, .nesterov = true}), optim::adam(), optim::adamw(),
        optim::adagrad(), optim::ftrl({.l1 = 0.01}), optim::adam({.beta2 = 0.5, .amsgrad = true})})
    for (const double scale : {1.0, 1.5}) {
      expect_as_by_hand<float>(rule, scale);
      expect_as_by_hand<double>(rule, scale);
    }
}

void update_with(DensePiece& piece, const std::vector<float>& gradient, std::vector<uint8_t> used,
                 const std::byte* computed_on = nullptr, double compensation = 0) {
  const auto shape = ReductionShape::flat(1);
  const Part part{0, std::move(used)};
  const Part* const pointer = &part;
  std::vector<float> padded = gradient;
  padded.resize(piece.num_bytes() / sizeof(float));
  const std::byte* const data = std::as_bytes(std::span(padded)).data();
  piece.update({.parts = {&pointer, 1},
                .data = {&data, 1},
                .shape = &shape,
                .learning_rate = 1,
                .computed_on = computed_on,
                .compensation = compensation});
}

TEST(DensePiece, SharesKeepTheirValues) {
  const Spec spec = small_spec(1, Staleness(0), optim::sgd({.momentum = 0.5}));
  DensePiece piece(spec.pieces[0], spec.rule, Compute::plain());
  std::vector<Bytes> shares;
  std::vector<std::vector<Bytes>> all;
  for (int i = 0; i < 4; ++i) {
    shares.push_back(piece.parameters());
    if (i == 2) all.push_back(piece.memory());
    update_with(piece, {1, 1, 1, 1}, {1});
  }
  EXPECT_EQ(first_of(shares[0]), 0);
  EXPECT_EQ(first_of(shares[1]), -1);
  EXPECT_EQ(first_of(shares[2]), -2.5);
  EXPECT_EQ(first_of(all[0][0]), -2.5);
  EXPECT_EQ(first_of(all[0][1]), 1.5);  // the momentum then
  EXPECT_EQ(first_of(shares[3]), -4.25);
}

TEST(DensePiece, ReusesItsMemoryWhenNobodyElseReadsIt) {
  const Spec spec = small_spec(1, Staleness(0));
  DensePiece piece(spec.pieces[0], spec.rule, Compute::plain());
  const auto* const before = piece.parameters().span.data();
  update_with(piece, {1}, {1});
  EXPECT_EQ(piece.parameters().span.data(), before);
}

TEST(DensePiece, WhatNobodyUsedStaysAndIsNoStep) {
  const Spec spec = small_spec(1, Staleness(0), optim::adam());
  DensePiece twice(spec.pieces[0], spec.rule, Compute::plain());
  DensePiece once(spec.pieces[0], spec.rule, Compute::plain());
  update_with(twice, {7, 7}, {0});
  EXPECT_EQ(first_of(twice.parameters()), 0);
  update_with(twice, {1, 2}, {1});
  update_with(once, {1, 2}, {1});
  EXPECT_EQ(raw(twice.parameters()), raw(once.parameters()));  // the same bias correction
  EXPECT_EQ(twice.version(), 2);
}

TEST(DensePiece, KeepsMinusZero) {
  const Spec spec = small_spec(1, Staleness(0));
  DensePiece piece(spec.pieces[0], spec.rule, Compute::plain());
  piece.assign(bytes_of(spec.pieces[0], {-0.0F}));
  update_with(piece, {0.0F}, {1});
  EXPECT_TRUE(std::signbit(first_of(piece.parameters())));  // -0 - 0
}

TEST(DensePiece, CompensatesForWhatChangedMeanwhile) {
  const Spec spec = small_spec(1, Staleness::unbounded());
  DensePiece piece(spec.pieces[0], spec.rule, Compute::plain());
  piece.assign(bytes_of(spec.pieces[0], {10}));
  const Bytes then = bytes_of(spec.pieces[0], {6});
  update_with(piece, {3}, {1}, then.span.data(), 0.5);
  EXPECT_EQ(first_of(piece.parameters()), 10 - (3 + 0.5F * 3 * 3 * (10 - 6)));
}

TEST(DensePiece, NamesWhatIsNotFinite) {
  const DensePiece piece(odd_piece<float>(), optim::sgd(), Compute::plain());
  EXPECT_EQ(piece.not_finite({0, {1, 1, 1}}), std::nullopt);
  EXPECT_EQ(piece.not_finite({0, {1, Part::not_finite, 1}}), 1);
  EXPECT_EQ(piece.not_finite({0, {0, 0, Part::not_finite}}), 2);
}

TEST(DensePiece, RestoresWhatItKnewAndNothingElse) {
  const Spec spec = small_spec(1, Staleness(0), optim::adam());
  DensePiece piece(spec.pieces[0], spec.rule, Compute::plain());
  update_with(piece, {1, 2, 3}, {1});
  DensePiece other(spec.pieces[0], spec.rule, Compute::plain());
  other.restore(piece.facts(), piece.memory());
  for (DensePiece* each : {&piece, &other}) update_with(*each, {0.3F, -2}, {1});
  EXPECT_EQ(raw(other.parameters()), raw(piece.parameters()));
  EXPECT_EQ(other.facts(), piece.facts());
  const auto fails = [&](std::string_view facts, const std::vector<Bytes>& memory) {
    return message_of<Error>([&] { other.restore(facts, memory); });
  };
  EXPECT_THAT(fails("{", piece.memory()), HasSubstr("cannot be read"));
  EXPECT_THAT(fails(R"({"version":1,"scalars":[]})", piece.memory()), HasSubstr("other segments"));
  EXPECT_THAT(fails(piece.facts(), {piece.parameters()}), HasSubstr("1 blocks"));
  auto short_memory = piece.memory();
  short_memory[2].span = short_memory[2].span.first(8);
  EXPECT_THAT(fails(piece.facts(), short_memory), HasSubstr("a block of 8 bytes"));
  EXPECT_THAT(message_of<Error>([&] { other.assign(short_memory[2]); }), HasSubstr("8 bytes"));
}

}  // namespace
}  // namespace tutti::ps::testing
