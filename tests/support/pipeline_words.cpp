#include "tests/support/pipeline_words.h"

#include <functional>
#include <numeric>
#include <optional>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/random.h"

namespace tutti::test {

using data::Column;
using data::Draw;
using data::kAnySize;
using data::Sample;

namespace {

template <class Do>
auto with_type(DType dtype, Do work) {
  switch (dtype) {
    case DType::uint8: return work(uint8_t{});
    case DType::int64: return work(int64_t{});
    case DType::float32: return work(float{});
    default: throw Error(fmt::format("no pipeline of a test has {}", name_of(dtype)));
  }
}

Cell cell_of(const Array& array) {
  Cell cell{.dtype = array.dtype(), .shape = array.shape(), .values = {}};
  with_type(array.dtype(), [&](auto type) {
    for (auto value : array.as<decltype(type)>())
      cell.values.push_back(static_cast<int64_t>(value));
  });
  return cell;
}

Array array_of(const Cell& cell) {
  const Array array = data::make_array(cell.dtype, cell.shape);
  with_type(cell.dtype, [&](auto type) {
    auto to = Array(array).as<decltype(type)>();
    for (size_t i = 0; i < to.size(); ++i) to[i] = static_cast<decltype(type)>(cell.values[i]);
  });
  return array;
}

// Elements that say where they stand: salt, 7 more a row, 3 more an element.
Cell counted(DType dtype, std::vector<int64_t> shape, int64_t row, int64_t salt) {
  Cell cell{.dtype = dtype, .shape = std::move(shape), .values = {}};
  const int64_t elements =
      std::accumulate(cell.shape.begin(), cell.shape.end(), int64_t{1}, std::multiplies<>());
  for (int64_t j = 0; j < elements; ++j) cell.values.push_back((salt + 7 * row + 3 * j) % kValues);
  return cell;
}

using RowOf = Cells (*)(int64_t, int64_t);

class Rows final : public data::SampleSource {
 public:
  Rows(std::string name, RowOf row_of, std::vector<Column> columns, int64_t n, int64_t salt)
      : name_(std::move(name)), row_of_(row_of), columns_(std::move(columns)), n_(n), salt_(salt) {}
  int64_t num_rows() const override { return n_; }
  const std::vector<Column>& columns() const override { return columns_; }
  Sample read_row(int64_t row) const override { return sample_of(row_of_(row, salt_)); }
  std::string fingerprint() const override { return fmt::format("{}({}, {})", name_, n_, salt_); }

 private:
  const std::string name_;
  const RowOf row_of_;
  const std::vector<Column> columns_;
  const int64_t n_;
  const int64_t salt_;
};

class Times final : public data::Transform {
 public:
  explicit Times(int64_t factor) : factor_(factor) {}
  std::string name() const override { return fmt::format("times({})", factor_); }
  std::vector<Column> columns(const std::vector<Column>& in) const override { return in; }
  bool draws() const override { return false; }
  Sample apply(Sample in, Draw&) const override {
    for (Array& value : in.columns) {
      Cells cells{cell_of(value)};
      multiply(cells, factor_);
      if (!data::owned(value)) {
        value = array_of(cells[0]);
        continue;
      }
      with_type(value.dtype(), [&](auto type) {
        auto to = value.as<decltype(type)>();
        for (size_t i = 0; i < to.size(); ++i)
          to[i] = static_cast<decltype(type)>(cells[0].values[i]);
      });
    }
    return in;
  }

 private:
  const int64_t factor_;
};

class Jitter final : public data::Transform {
 public:
  explicit Jitter(int64_t most) : most_(most) {}
  std::string name() const override { return fmt::format("jitter({})", most_); }
  std::vector<Column> columns(const std::vector<Column>& in) const override { return in; }
  bool draws() const override { return true; }
  Sample apply(Sample in, Draw& draw) const override {
    return jitter_by_lambda(most_)(std::move(in), draw);
  }

 private:
  const int64_t most_;
};

class Blend final : public data::BatchTransform {
 public:
  std::string name() const override { return "blend()"; }
  std::vector<Column> columns(const std::vector<Column>& in) const override { return in; }
  Sample apply(const Sample& own, const Sample& partner, bool alone, Draw& draw) const override {
    return sample_of(blended(cells_of(own), cells_of(partner), alone, draw));
  }
};

int64_t sum_of(const Cells& cells) {
  int64_t sum = 0;
  for (const Cell& cell : cells) sum = std::accumulate(cell.values.begin(), cell.values.end(), sum);
  return sum;
}

const std::vector<Column> kNumber{{"x", DType::float32, {2}}, {"y", DType::int64, {}}};
const std::vector<Column> kText{{"x", DType::uint8, {kAnySize}}, {"y", DType::int64, {}}};
const std::vector<Column> kGroup{{"x", DType::uint8, {kAnySize, 2}},
                                 {"y", DType::int64, {kAnySize}}};
const std::vector<Column> kTick{{"x", DType::int64, {}}, {"y", DType::float32, {2}}};

}  // namespace

Cells cells_of(const Sample& sample) {
  Cells cells;
  for (const Array& value : sample.columns) cells.push_back(cell_of(value));
  return cells;
}

Sample sample_of(const Cells& cells) {
  Sample sample;
  for (const Cell& cell : cells) sample.columns.push_back(array_of(cell));
  return sample;
}

void append(std::string& bytes, const Cell& cell) {
  bytes += fmt::format("{} {};", name_of(cell.dtype), data::shape_words(cell.shape));
  bytes += data::text_of(array_of(cell));
}

Cells number(int64_t i, int64_t salt) {
  return {counted(DType::float32, {2}, i, salt), counted(DType::int64, {}, i, salt)};
}

Cells text(int64_t i, int64_t salt) {
  return {counted(DType::uint8, {(i * 5 + salt) % 7}, i, salt), counted(DType::int64, {}, i, salt)};
}

Cells group(int64_t i, int64_t salt) {
  const int64_t size = (i * 3 + salt) % 4;
  return {counted(DType::uint8, {size, 2}, i, salt), counted(DType::int64, {size}, i, salt)};
}

Cells tick(int64_t i, int64_t salt, const data::GeneratorContext& context) {
  const auto from = static_cast<int64_t>(
      random_key(context.seed, RandomPurpose::test, {static_cast<uint64_t>(context.epoch)}) %
      kValues);
  return {counted(DType::int64, {}, i, salt + from), counted(DType::float32, {2}, i, salt)};
}

data::Dataset numbers(int64_t n, int64_t salt) {
  std::vector<float> x;
  std::vector<int64_t> y;
  for (int64_t i = 0; i < n; ++i) {
    const Cells row = number(i, salt);
    for (int64_t value : row[0].values) x.push_back(static_cast<float>(value));
    y.push_back(row[1].values[0]);
  }
  return data::from_arrays(
      {data::array_of(std::move(x), {n, 2}), data::array_of(std::move(y), {n})});
}

data::Dataset records(int64_t n, int64_t salt) {
  return data::Dataset(std::make_shared<Rows>("records", number, kNumber, n, salt));
}

data::Dataset texts(int64_t n, int64_t salt) {
  return data::Dataset(std::make_shared<Rows>("texts", text, kText, n, salt));
}

data::Dataset groups(int64_t n, int64_t salt) {
  return data::Dataset(std::make_shared<Rows>("groups", group, kGroup, n, salt));
}

data::Dataset ticks(int64_t n, int64_t salt) {
  return data::from_generator(
      [salt](const data::GeneratorContext& context) -> data::Generator {
        return [salt, context, i = int64_t{0}]() mutable -> std::optional<Sample> {
          return sample_of(tick(i++, salt, context));
        };
      },
      {.columns = kTick, .num_samples = n});
}

void multiply(Cells& cells, int64_t factor) {
  for (Cell& cell : cells)
    for (int64_t& value : cell.values) value = (value * factor + 1) % kValues;
}

void shake(Cells& cells, int64_t most, Draw& draw) {
  for (Cell& cell : cells)
    for (int64_t& value : cell.values) value = (value + draw.below(most)) % kValues;
}

bool keeps(const Cells& cells, int64_t rest) { return sum_of(cells) % 3 != rest; }

std::vector<Cells> copies_of(const Cells& cells, int64_t salt) {
  std::vector<Cells> copies(static_cast<size_t>((sum_of(cells) + salt) % 3), cells);
  for (size_t i = 0; i < copies.size(); ++i) multiply(copies[i], static_cast<int64_t>(i) + 2);
  return copies;
}

Cells blended(const Cells& own, const Cells& partner, bool alone, Draw& draw) {
  Cells out = own;
  const int64_t more = draw.below(50) + (alone ? 100 : 0);
  for (size_t c = 0; c < out.size(); ++c)
    for (size_t i = 0; i < out[c].values.size(); ++i)
      out[c].values[i] = (2 * own[c].values[i] + partner[c].values[i] + more) % kValues;
  return out;
}

data::TransformHandle times(int64_t factor) { return std::make_shared<Times>(factor); }

data::TransformHandle jitter(int64_t most) { return std::make_shared<Jitter>(most); }

std::function<Sample(Sample)> times_by_lambda(int64_t factor) {
  return [factor](const Sample& sample) {
    Cells cells = cells_of(sample);
    multiply(cells, factor);
    return sample_of(cells);
  };
}

std::function<Sample(Sample, Draw&)> jitter_by_lambda(int64_t most) {
  return [most](const Sample& sample, Draw& draw) {
    Cells cells = cells_of(sample);
    shake(cells, most, draw);
    return sample_of(cells);
  };
}

std::function<bool(const Sample&)> keep(int64_t rest) {
  return [rest](const Sample& sample) { return keeps(cells_of(sample), rest); };
}

std::function<std::vector<Sample>(Sample)> copies(int64_t salt) {
  return [salt](const Sample& sample) {
    std::vector<Sample> samples;
    for (const Cells& cells : copies_of(cells_of(sample), salt))
      samples.push_back(sample_of(cells));
    return samples;
  };
}

data::BatchTransformHandle blend() { return std::make_shared<Blend>(); }

}  // namespace tutti::test
