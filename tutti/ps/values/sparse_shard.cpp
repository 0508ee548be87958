#include "tutti/ps/values/sparse_shard.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/ps/spec/detail/json_fields.h"
#include "tutti/ps/values/detail/sparse_index.h"

namespace tutti::ps {
namespace {

using Kind = Message::Kind;

constexpr int64_t kKeyBytes = sizeof(uint64_t);
constexpr int64_t kChunkBytes = 4 << 20;
// Of a row in a chunk, beside elements and states: key, age and scalars.
constexpr int64_t kFactsBytes = 2 * sizeof(int64_t) + sizeof(optim::StepScalars);
static_assert(sizeof(optim::StepScalars) == 5 * sizeof(int64_t));  // no gaps: it travels as bytes

struct Gradients {
  std::vector<uint64_t> keys;
  MemorySpan rows;
};

// Each key once; sums in the order of `pushes`.
template <class T>
std::vector<T> sum_by_key(const std::vector<Gradients>& pushes, int64_t width, double scale,
                          detail::KeyNumbers& numbers) {
  int64_t most = 0;
  for (const auto& [keys, rows] : pushes) most += rows.num_elements;
  std::vector<T> sums;
  sums.reserve(static_cast<size_t>(most));
  for (const auto& [keys, rows] : pushes) {
    const T* from = static_cast<const T*>(rows.data);
    for (const uint64_t key : keys) {
      const size_t known = numbers.keys().size();
      const auto number = static_cast<int64_t>(numbers.add(key));
      if (numbers.keys().size() > known) {
        sums.insert(sums.end(), from, from + width);
      } else {
        T* const sum = sums.data() + number * width;
        for (int64_t i = 0; i < width; ++i) sum[i] += from[i];
      }
      from += width;
    }
  }
  if (scale != 1)
    for (T& sum : sums) sum *= static_cast<T>(scale);
  return sums;
}

template <class T>
void push_sums(SparseTable& table, const std::vector<Gradients>& pushes, double scale,
               double learning_rate) {
  size_t most = 0;
  for (const Gradients& push : pushes) most += push.keys.size();
  detail::KeyNumbers numbers(most);
  std::vector<T> sums = sum_by_key<T>(pushes, table.spec().width, scale, numbers);
  table.push(numbers.keys(), {sums.data(), std::ssize(sums), table.spec().dtype}, learning_rate);
}

void append(std::vector<std::byte>& to, const void* from, size_t bytes) {
  const auto* const begin = static_cast<const std::byte*>(from);
  to.insert(to.end(), begin, begin + bytes);
}

std::vector<std::byte> bytes_of(const SparseRows& rows) {
  std::vector<std::byte> bytes;
  append(bytes, rows.keys.data(), rows.keys.size() * sizeof(uint64_t));
  append(bytes, rows.ages.data(), rows.ages.size() * sizeof(int64_t));
  append(bytes, rows.scalars.data(), rows.scalars.size() * sizeof(optim::StepScalars));
  append(bytes, rows.rows.data(), rows.rows.size());
  for (const auto& state : rows.states) append(bytes, state.data(), state.size());
  return bytes;
}

template <class T>
void take_next(std::span<const std::byte>& from, std::vector<T>& to, size_t count) {
  to.resize(count);
  if (count > 0) std::memcpy(to.data(), from.data(), count * sizeof(T));
  from = from.subspan(count * sizeof(T));
}

SparseRows rows_from(std::span<const std::byte> bytes, size_t count, size_t row_bytes,
                     int num_states) {
  SparseRows rows;
  take_next(bytes, rows.keys, count);
  take_next(bytes, rows.ages, count);
  take_next(bytes, rows.scalars, count);
  take_next(bytes, rows.rows, count * row_bytes);
  rows.states.resize(static_cast<size_t>(num_states));
  for (auto& state : rows.states) take_next(bytes, state, count * row_bytes);
  return rows;
}

}  // namespace

SparseShard::SparseShard(const Spec& spec, int partition, const Compute& compute)
    : partition_(partition),
      num_partitions_(spec.num_partitions),
      num_workers_(spec.num_workers),
      compute_(compute) {
  for (const SparseTableSpec& table : spec.tables)
    tables_.push_back({SparseTable(table, spec.rule, compute)});
}

SparseShard SparseShard::fork() {
  SparseShard other(*this, Empty{});
  for (Entry& entry : tables_) other.tables_.push_back({entry.table.fork(), entry.version});
  return other;
}

int64_t SparseShard::num_rows() const noexcept {
  int64_t rows = 0;
  for (const Entry& entry : tables_) rows += entry.table.num_rows();
  return rows;
}

int64_t SparseShard::num_bytes() const noexcept {
  int64_t bytes = 0;
  for (const Entry& entry : tables_) bytes += entry.table.num_bytes();
  return bytes;
}

// ---- what workers send ----

std::string SparseShard::objection(const Message& request) const {
  const auto fails = [&](const std::string& what) {
    return fmt::format("worker {}, {} {} in step {}: {}", request.worker, name_of(request.kind),
                       request.sequence, request.step, what);
  };
  if (request.piece < 0 || request.piece >= num_tables())
    return fails(fmt::format("embedding table {} of {}", request.piece, num_tables()));
  const Entry& entry = tables_[request.piece];
  const std::string name = fmt::format("embedding table \"{}\"", entry.table.spec().name);
  const bool pushes = request.kind == Kind::sparse_push;
  const int64_t each = kKeyBytes + (pushes ? entry.row_bytes() : 0);
  if (request.payload.size() % each != 0)
    return fails(
        fmt::format("{}: {} bytes; expected {} a key", name, request.payload.size(), each));
  const int64_t count = request.payload.size() / each;
  if (!pushes && count > kMostBytesOfRows / entry.row_bytes())
    return fails(fmt::format("{}: {} rows of {} bytes at once; at most {} bytes", name, count,
                             entry.row_bytes(), kMostBytesOfRows));
  // Rows of a step are made at once, those of the other workers too.
  if (pushes && entry.table.num_rows() + count * num_workers_ > SparseTableSpec::kMostRows)
    return fails(fmt::format("{}: {} more rows beside {}; at most {}", name, count,
                             entry.table.num_rows(), SparseTableSpec::kMostRows));
  detail::KeyNumbers numbers(pushes ? static_cast<size_t>(count) : 0);
  for (const uint64_t key : keys_of(request)) {
    if (server_of_key(key, num_partitions_) != partition_)
      return fails(fmt::format("{}: key {} is not of partition {}", name, key, partition_));
    const size_t known = numbers.keys().size();
    if (pushes && (numbers.add(key), numbers.keys().size() == known))
      return fails(fmt::format("{}: key {} comes twice", name, key));
  }
  return "";
}

std::vector<uint64_t> SparseShard::keys_of(const Message& request) const {
  const bool pushes = request.kind == Kind::sparse_push;
  const int64_t each = kKeyBytes + (pushes ? tables_.at(request.piece).row_bytes() : 0);
  std::vector<uint64_t> keys(static_cast<size_t>(request.payload.size() / each));
  if (!keys.empty()) std::memcpy(keys.data(), request.payload.span.data(), keys.size() * kKeyBytes);
  return keys;
}

MemorySpan SparseShard::gradients_of(const Message& push) const {
  const Entry& entry = tables_.at(push.piece);
  const int64_t count = push.payload.size() / (kKeyBytes + entry.row_bytes());
  if (count == 0) return {nullptr, 0, entry.table.spec().dtype};
  // A table reads gradients only.
  auto* const begin = const_cast<std::byte*>(push.payload.span.data()) + count * kKeyBytes;
  return {begin, count * entry.table.spec().width, entry.table.spec().dtype};
}

bool SparseShard::finite(const Message& push) const {
  const MemorySpan rows = gradients_of(push);
  return all_finite(rows.dtype, static_cast<const std::byte*>(rows.data), rows.num_elements,
                    compute_);
}

void SparseShard::update(int table, std::span<const Message* const> pushes, double scale,
                         double learning_rate) {
  Entry& entry = tables_.at(table);
  ++entry.version;
  std::vector<Gradients> all;
  for (const Message* const push : pushes) all.push_back({keys_of(*push), gradients_of(*push)});
  if (all.size() == 1 && scale == 1)
    entry.table.push(all[0].keys, all[0].rows, learning_rate);
  else if (entry.table.spec().dtype == DType::float32)
    push_sums<float>(entry.table, all, scale, learning_rate);
  else
    push_sums<double>(entry.table, all, scale, learning_rate);
}

Bytes SparseShard::rows(int table, std::span<const uint64_t> keys) const {
  const Entry& entry = tables_.at(table);
  const int64_t count = std::ssize(keys);
  if (count == 0) return {};
  const int64_t bytes = count * entry.row_bytes();
  const auto memory = compute_.allocate(bytes);
  entry.table.pull(keys,
                   {memory.get(), count * entry.table.spec().width, entry.table.spec().dtype});
  return {{memory.get(), static_cast<size_t>(bytes)}, memory};
}

// ---- copies ----

std::vector<int64_t> SparseShard::versions() const {
  std::vector<int64_t> versions;
  for (const Entry& entry : tables_) versions.push_back(entry.version);
  return versions;
}

void SparseShard::restore_versions(const std::vector<int64_t>& versions) {
  if (versions.size() != tables_.size())
    throw Error(fmt::format("versions of {} embedding tables; expected {}", versions.size(),
                            tables_.size()));
  for (size_t i = 0; i < tables_.size(); ++i) tables_[i].version = versions[i];
}

SparseShardCopy SparseShard::copy() const {
  SparseShardCopy copy;
  for (int i = 0; i < num_tables(); ++i) {
    Entry& entry = tables_[i];
    const int64_t each = kFactsBytes + entry.row_bytes() * (1 + entry.table.rule().num_states());
    copy.left_.push_back({i, std::max<int64_t>(1, kChunkBytes / each), entry.table.scan()});
  }
  return copy;
}

std::optional<std::pair<std::string, Bytes>> SparseShardCopy::next() {
  for (; !left_.empty(); left_.pop_front()) {
    auto& [table, rows_at_once, scan] = left_.front();
    if (const SparseRows rows = scan.next(rows_at_once); !rows.keys.empty())
      return SparseShard::chunk_of(table, rows);
  }
  return {};
}

std::pair<std::string, Bytes> SparseShard::chunk_of(int table, const SparseRows& rows) {
  const auto bytes = std::make_shared<std::vector<std::byte>>(bytes_of(rows));
  return {dump_json(Json{table, rows.keys.size()}), Bytes{*bytes, bytes}};
}

void SparseShard::take(std::string_view text, const Bytes& payload) {
  return detail::read_json(text, "rows of an embedding table", [&](const Json& list) {
    const int number = list.at(0);
    const int64_t count = list.at(1);
    if (number < 0 || number >= num_tables())
      throw Error(fmt::format("rows of embedding table {} of {}", number, num_tables()));
    Entry& entry = tables_[number];
    const int states = entry.table.rule().num_states();
    const int64_t each = kFactsBytes + entry.row_bytes() * (1 + states);
    if (count < 0 || count > SparseTableSpec::kMostRows || payload.size() != count * each)
      throw Error(fmt::format("{} rows of embedding table \"{}\" in {} bytes; expected {} a row",
                              count, entry.table.spec().name, payload.size(), each));
    entry.table.load(rows_from(payload.span, static_cast<size_t>(count),
                               static_cast<size_t>(entry.row_bytes()), states));
  });
}

}  // namespace tutti::ps
