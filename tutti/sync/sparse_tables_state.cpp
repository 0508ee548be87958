// Embedding tables as arrays, for checkpoints.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/ps/values/sparse_table.h"
#include "tutti/sync/sparse_tables.h"

namespace tutti {
namespace {

using ps::SparseRows;
using ps::SparseTable;
using State = std::map<std::string, Array>;

constexpr int64_t kNumbersOfScalars = 5;
constexpr double kMostUpdates = 0x1p53;  // exact as a double

Array bytes_of(std::vector<std::byte> bytes, DType dtype, std::vector<int64_t> shape) {
  auto owner = std::make_shared<std::vector<std::byte>>(std::move(bytes));
  return Array::view(owner->data(), dtype, std::move(shape), owner);
}

template <class T>
Array array_of(const std::vector<T>& values) {
  Array array = Array::zeros(dtype_of<T>(), {std::ssize(values)});
  std::ranges::copy(values, array.as<T>().begin());
  return array;
}

std::string state_name(int table, const optim::Rule& rule, int state) {
  return fmt::format("{}/state/{}", table, rule.state_name(state));
}

void add_to(State& all, int number, SparseTable& table) {
  ps::SparseReader reader(table.snapshot());
  SparseRows rows = reader.next(std::numeric_limits<int64_t>::max());
  const int64_t count = std::ssize(rows.keys);
  const std::vector<int64_t> shape = {count, table.spec().width};
  Array scalars = Array::zeros(DType::float64, {count, kNumbersOfScalars});
  double* to = scalars.as<double>().data();
  for (const optim::StepScalars& one : rows.scalars)
    for (const double value : {one.learning_rate, one.beta1_power, one.beta2_power, one.decay_power,
                               static_cast<double>(one.count)})
      *to++ = value;
  all[fmt::format("{}/keys", number)] = array_of(rows.keys);
  all[fmt::format("{}/rows", number)] = bytes_of(std::move(rows.rows), table.spec().dtype, shape);
  for (size_t k = 0; k < rows.states.size(); ++k)
    all[state_name(number, table.rule(), static_cast<int>(k))] =
        bytes_of(std::move(rows.states[k]), table.spec().dtype, shape);
  all[fmt::format("{}/scalars", number)] = scalars;
  all[fmt::format("{}/ages", number)] = array_of(rows.ages);
}

// Takes the arrays of one table out of those of all.
class TableReader {
 public:
  TableReader(State& all, int number, const SparseTable& table)
      : all_(all), number_(number), table_(table) {}

  SparseRows read() {
    SparseRows rows;
    const Array keys = take("keys", DType::uint64, {});
    const int64_t count = keys.num_elements();
    rows.keys = values<uint64_t>(keys);
    const std::vector<int64_t> row_shape = {count, table_.spec().width};
    rows.rows = bytes(take("rows", table_.spec().dtype, row_shape));
    for (int k = 0; k < table_.rule().num_states(); ++k)
      rows.states.push_back(bytes(take(fmt::format("state/{}", table_.rule().state_name(k)),
                                       table_.spec().dtype, row_shape)));
    rows.scalars =
        scalars_of(take("scalars", DType::float64, {count, kNumbersOfScalars}).as<double>());
    rows.ages = values<int64_t>(take("ages", DType::int64, {count}));
    return rows;
  }

 private:
  // `shape` {}: any of one dimension.
  Array take(const std::string& what, DType dtype, const std::vector<int64_t>& shape) {
    const std::string name = fmt::format("{}/{}", number_, what);
    const auto found = all_.extract(name);
    if (!found) throw damaged(name, "none", "one");
    const Array& array = found.mapped();
    const bool fits = shape.empty() ? array.shape().size() == 1 : array.shape() == shape;
    if (array.dtype() != dtype || !fits)
      throw damaged(name, array.to_string(),
                    fmt::format("{} [{}]", name_of(dtype), fmt::join(shape, ", ")));
    return array;
  }

  DataError damaged(const std::string& name, std::string_view got, std::string_view expected) {
    return DataError(fmt::format("embedding table \"{}\": tensor \"{}\": got {}, expected {}",
                                 table_.spec().name, name, got, expected));
  }

  template <class T>
  static std::vector<T> values(const Array& array) {
    const auto span = array.as<T>();
    return {span.begin(), span.end()};
  }

  static std::vector<std::byte> bytes(const Array& array) {
    const auto* const begin = static_cast<const std::byte*>(array.data());
    return {begin, begin + array.num_bytes()};
  }

  std::vector<optim::StepScalars> scalars_of(std::span<const double> numbers) {
    std::vector<optim::StepScalars> scalars;
    for (auto row = numbers.begin(); row != numbers.end(); row += kNumbersOfScalars) {
      if (!(row[4] >= 1 && row[4] <= kMostUpdates))
        throw damaged(fmt::format("{}/scalars", number_), fmt::to_string(row[4]),
                      "a number of updates");
      scalars.push_back({row[0], row[1], row[2], row[3], static_cast<int64_t>(row[4])});
    }
    return scalars;
  }

  State& all_;
  const int number_;
  const SparseTable& table_;
};

}  // namespace

std::string SparseTables::rule_name() const { return std::string(rows_->own(0).rule().name()); }

State SparseTables::state() const {
  State all;
  for (int table = 0; table < std::ssize(specs_); ++table) add_to(all, table, rows_->own(table));
  return all;
}

void SparseTables::restore(const State& state) {
  State left = state;
  std::vector<SparseTable> fresh;
  for (int table = 0; table < std::ssize(specs_); ++table) {
    fresh.emplace_back(specs_[table], rows_->own(table).rule());
    fresh.back().load(TableReader(left, table, fresh.back()).read());
  }
  if (!left.empty())
    throw DataError(fmt::format("embedding tables: tensor \"{}\" is of none of the {} tables",
                                left.begin()->first, specs_.size()));
  for (int table = 0; table < std::ssize(specs_); ++table)
    rows_->own(table) = std::move(fresh[static_cast<size_t>(table)]);
  for (const Lane& lane : lanes_)
    for (const auto& layer : lane.layers) layer->rows_restored();
}

}  // namespace tutti
