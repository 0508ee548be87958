#include "tutti/ps/snapshot/snapshot.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/log.h"
#include "tutti/ps/partition/partition_state.h"
#include "tutti/ps/snapshot/detail/snapshot_format.h"
#include "tutti/ps/snapshot/snapshot_manifest.h"

namespace tutti::ps {
namespace {

namespace fs = std::filesystem;
using Kind = Message::Kind;

// Elements of a variable, as one file has them.
struct Range {
  int64_t end = 0;
  int64_t version = 0;
  optim::StepScalars scalars;
  std::vector<Array> blocks;  // parameters, then states
};

struct RowsFile {
  int table = 0;
  fs::path path;
};

const Array& array_in(const fs::path& path, const data::Safetensors& file, const std::string& name,
                      DType dtype, int64_t elements) {
  for (const data::NamedArray& entry : file.arrays)
    if (entry.name == name) {
      if (entry.array.dtype() == dtype && entry.array.num_elements() == elements)
        return entry.array;
      throw DataError(fmt::format("{}: array \"{}\": got {}, expected {} {}", path.string(), name,
                                  entry.array.to_string(), elements, tutti::name_of(dtype)));
    }
  throw DataError(fmt::format("{}: array \"{}\": got none, expected {} {}", path.string(), name,
                              elements, tutti::name_of(dtype)));
}

std::vector<std::byte> bytes_of(const Array& array) {
  const auto* const begin = static_cast<const std::byte*>(array.data());
  return {begin, begin + array.num_bytes()};
}

SparseRows rows_in(const fs::path& path, const data::Safetensors& file,
                   const SparseTableSpec& table, const optim::Rule& rule) {
  const Array* const found = file.find("keys");
  const int64_t count = found == nullptr ? 0 : found->num_elements();
  const auto get = [&](const std::string& name, DType dtype, int64_t width = 1) -> const Array& {
    return array_in(path, file, name, dtype, count * width);
  };
  SparseRows rows;
  std::ranges::copy(get("keys", DType::uint64).as<uint64_t>(), std::back_inserter(rows.keys));
  std::ranges::copy(get("ages", DType::int64).as<int64_t>(), std::back_inserter(rows.ages));
  rows.rows = bytes_of(get("rows", table.dtype, table.width));
  for (int k = 0; k < rule.num_states(); ++k)
    rows.states.push_back(
        bytes_of(get(fmt::format("rows.{}", rule.state_name(k)), table.dtype, table.width)));
  const auto rates = get("learning_rates", DType::float64).as<double>();
  const auto beta1 = get("beta1_powers", DType::float64).as<double>();
  const auto beta2 = get("beta2_powers", DType::float64).as<double>();
  const auto decay = get("decay_powers", DType::float64).as<double>();
  const auto counts = get("counts", DType::int64).as<int64_t>();
  for (size_t i = 0; i < rows.keys.size(); ++i)
    rows.scalars.push_back({rates[i], beta1[i], beta2[i], decay[i], counts[i]});
  return rows;
}

// Values that no table would load, before any server is given them. Keys rise, so none comes twice.
void require_rows(const fs::path& path, const data::Safetensors& file, const Spec& spec,
                  const SavedContent& content) {
  const SparseTableSpec& table = spec.tables[content.table];
  const SparseRows rows = rows_in(path, file, table, spec.rule);
  const auto fail = [&](size_t i, const std::string& what) {
    throw DataError(fmt::format("{}: row of key {}: {}", path.string(), rows.keys[i], what));
  };
  const auto is_power = [](double value) { return value >= 0 && value <= 1; };
  for (size_t i = 0; i < rows.keys.size(); ++i) {
    const optim::StepScalars& s = rows.scalars[i];
    if (i > 0 && rows.keys[i] <= rows.keys[i - 1]) fail(i, "got keys that do not rise");
    if (server_of_key(rows.keys[i], spec.num_partitions) != content.partition)
      fail(i, fmt::format("got it in partition {}, expected {}", content.partition,
                          server_of_key(rows.keys[i], spec.num_partitions)));
    if (s.count < 1 || !is_power(s.beta1_power) || !is_power(s.beta2_power))
      fail(i, fmt::format("got count {} and powers {}, {}; expected 1 or more, 0 to 1", s.count,
                          s.beta1_power, s.beta2_power));
    if (rows.ages[i] < 0 || rows.ages[i] > SparseTableSpec::kMostPushes)
      fail(i,
           fmt::format("got age {}, expected 0 to {}", rows.ages[i], SparseTableSpec::kMostPushes));
  }
}

// Those of `rows` that belong to a partition.
SparseRows rows_of(const SparseRows& rows, int partition, int num_partitions, size_t row_bytes) {
  SparseRows kept;
  kept.states.resize(rows.states.size());
  const auto append = [&](std::vector<std::byte>& to, const std::vector<std::byte>& from,
                          size_t i) {
    const auto begin = from.begin() + static_cast<int64_t>(i * row_bytes);
    to.insert(to.end(), begin, begin + static_cast<int64_t>(row_bytes));
  };
  for (size_t i = 0; i < rows.keys.size(); ++i) {
    if (server_of_key(rows.keys[i], num_partitions) != partition) continue;
    kept.keys.push_back(rows.keys[i]);
    kept.ages.push_back(rows.ages[i]);
    kept.scalars.push_back(rows.scalars[i]);
    append(kept.rows, rows.rows, i);
    for (size_t k = 0; k < rows.states.size(); ++k) append(kept.states[k], rows.states[k], i);
  }
  return kept;
}

// What cannot be read is for whoever opens the snapshot to say.
std::string objection_in(const fs::path& cut) {
  try {
    return objection_to(manifest_in(cut));
  } catch (const DataError&) {
    return "";
  }
}

}  // namespace

std::vector<fs::path> snapshots_in(const fs::path& folder) {
  return detail::cuts_in(folder).all(store::kManifest);
}

fs::path find_snapshot(const fs::path& folder, std::string_view what) {
  std::error_code failure;
  fs::path whole = fs::absolute(folder, failure).lexically_normal();
  const bool named = fs::exists(whole / store::kManifest, failure);
  const auto cuts = named ? std::vector<fs::path>{whole} : snapshots_in(whole);
  if (cuts.empty())
    throw UsageError(
        fmt::format("{} {}: got no complete snapshot, expected a folder as cut-000012 with a {}",
                    what, folder.string(), store::kManifest));
  std::string objections;
  for (auto cut = cuts.rbegin(); cut != cuts.rend(); ++cut) {
    const std::string why = objection_in(*cut);
    if (why.empty()) return *cut;
    objections += fmt::format("\n  {}: {}", cut->filename().string(), why);
    if (!named) log(LogLevel::warning, "{}: {} is passed over: {}", what, cut->string(), why);
  }
  throw UsageError(fmt::format(
      "{} {}: got no snapshot that is of one moment of its job, expected one:{}\n  name another "
      "snapshot, or begin anew",
      what, folder.string(), objections));
}

struct Snapshot::Impl {
  fs::path path;
  int64_t number = 0;
  int64_t step = 0;
  Spec spec;
  std::vector<std::map<int64_t, Range>> ranges;  // by variable and begin
  std::vector<RowsFile> rows;
  std::vector<int64_t> table_versions;  // of each table: of the partition that has most
  PartitionCounts counts;               // of the partition with most updates
  std::string cursor;

  void read(const SnapshotManifest& manifest);
  void read_file(const fs::path& file, int partition);
  void read_ranges(const fs::path& file, const std::vector<SavedRange>& saved,
                   const data::Safetensors& arrays);
  void require_whole() const;
  int variable_named(const std::string& name) const {
    const auto found = std::ranges::find(spec.variables, name, &Variable::name);
    return static_cast<int>(found - spec.variables.begin());
  }
  Message piece_of(const Spec& wanted, int number) const;
  template <class Visit>
  void visit(int variable, int64_t begin, int64_t end, Visit&& visit) const;
};

Snapshot::Snapshot(const fs::path& cut) {
  auto impl = std::make_unique<Impl>();
  impl->path = cut;
  impl->read(manifest_in(cut));
  impl->require_whole();
  impl_ = std::move(impl);
}

Snapshot::~Snapshot() = default;
Snapshot::Snapshot(Snapshot&&) noexcept = default;

const fs::path& Snapshot::path() const noexcept { return impl_->path; }
int64_t Snapshot::number() const noexcept { return impl_->number; }
int64_t Snapshot::step() const noexcept { return impl_->step; }
const Spec& Snapshot::spec() const noexcept { return impl_->spec; }

void Snapshot::Impl::read(const SnapshotManifest& manifest) {
  number = manifest.cut;
  step = manifest.step;
  spec = manifest.spec;
  cursor = manifest.partitions[0].cursor;
  if (const std::string why = objection_to(manifest); !why.empty())
    throw DataError(fmt::format("{}: it is not of one moment of its job: {}; take another snapshot",
                                (path / store::kManifest).string(), why));
  ranges.resize(spec.variables.size());
  table_versions.resize(spec.tables.size());
  for (int i = 0; i < std::ssize(manifest.partitions); ++i) {
    const SnapshotManifest::Partition& partition = manifest.partitions[i];
    if (partition.counts.updates >= counts.updates) counts = partition.counts;
    for (size_t table = 0; table < table_versions.size(); ++table)
      table_versions[table] = std::max(table_versions[table], partition.part.tables[table]);
    for (const store::FileFacts& facts : partition.files) {
      if (const std::string why = store::damage_of(facts, path); !why.empty())
        throw DataError(fmt::format("{}: damaged: {}", (path / facts.name).string(), why));
      read_file(path / facts.name, i);
    }
  }
}

void Snapshot::Impl::read_file(const fs::path& file, int partition) {
  const data::Safetensors arrays = data::read_safetensors(file);
  const auto text = arrays.metadata.find(detail::kMetadata);
  if (text == arrays.metadata.end())
    throw DataError(
        fmt::format("{}: metadata: got none, expected \"{}\"", file.string(), detail::kMetadata));
  const SavedContent content = content_from(text->second, spec, file);
  if (content.partition != partition)
    throw DataError(fmt::format("{}: metadata: partition: got {}, expected {}", file.string(),
                                content.partition, partition));
  if (content.table < 0) return read_ranges(file, content.ranges, arrays);
  require_rows(file, arrays, spec, content);
  rows.push_back({content.table, file});
}

void Snapshot::Impl::read_ranges(const fs::path& file, const std::vector<SavedRange>& saved,
                                 const data::Safetensors& arrays) {
  for (const SavedRange& range : saved) {
    const Variable& variable = spec.variables[range.variable];
    Range made{range.end, range.version, range.scalars, {}};
    for (int state = -1; state < spec.rule.num_states(); ++state)
      made.blocks.push_back(array_in(
          file, arrays,
          detail::name_of_range(variable.name, range.begin, range.end,
                                state < 0 ? std::string_view() : spec.rule.state_name(state)),
          variable.dtype, range.end - range.begin));
    ranges[range.variable].emplace(range.begin, std::move(made));
  }
}

void Snapshot::Impl::require_whole() const {
  for (size_t i = 0; i < ranges.size(); ++i) {
    int64_t end = 0;
    for (const auto& [begin, range] : ranges[i]) {
      if (begin != end) break;
      end = range.end;
    }
    if (end != spec.variables[i].num_elements() ||
        (end > 0 && ranges[i].rbegin()->second.end != end))
      throw DataError(fmt::format("{}: variable \"{}\": got {} elements, expected {}",
                                  path.string(), spec.variables[i].name, end,
                                  spec.variables[i].num_elements()));
  }
}

// The parts of what ranges have of [begin, end), in order.
template <class Visit>
void Snapshot::Impl::visit(int variable, int64_t begin, int64_t end, Visit&& visit) const {
  const auto& of_variable = ranges[variable];
  auto at = std::prev(of_variable.upper_bound(begin));
  for (; begin < end; ++at) {
    const int64_t stop = std::min(end, at->second.end);
    visit(at->second, begin - at->first, begin, stop - begin);
    begin = stop;
  }
}

std::vector<data::NamedArray> Snapshot::variables() const {
  std::vector<data::NamedArray> all;
  for (int i = 0; i < std::ssize(impl_->spec.variables); ++i) {
    const Variable& variable = impl_->spec.variables[i];
    const int64_t width = size_of(variable.dtype);
    Array whole = Array::zeros(variable.dtype, variable.shape);
    impl_->visit(i, 0, variable.num_elements(),
                 [&](const Range& range, int64_t from, int64_t to, int64_t count) {
                   std::memcpy(static_cast<std::byte*>(whole.data()) + to * width,
                               static_cast<const std::byte*>(range.blocks[0].data()) + from * width,
                               static_cast<size_t>(count * width));
                 });
    all.push_back({variable.name, std::move(whole)});
  }
  return all;
}

void Snapshot::require_same_model(const Spec& spec) const {
  if (const std::string why = model_difference(impl_->spec, spec); !why.empty())
    throw DataError(fmt::format("snapshot {} is of another model: {}", path().string(), why));
}

Message Snapshot::Impl::piece_of(const Spec& wanted, int number) const {
  const Piece& piece = wanted.pieces[number];
  const int64_t width = size_of(piece.dtype);
  const int num_blocks = 1 + wanted.rule.num_states();
  auto bytes = std::make_shared<std::vector<std::byte>>(piece.num_bytes * num_blocks);
  int64_t version = 0;
  std::vector<optim::StepScalars> scalars;
  for (const Segment& segment : piece.segments) {
    optim::StepScalars most;
    const auto copy = [&](const Range& range, int64_t from, int64_t to, int64_t count) {
      version = std::max(version, range.version);
      if (range.scalars.count >= most.count) most = range.scalars;
      for (int block = 0; block < num_blocks; ++block)
        std::memcpy(bytes->data() + block * piece.num_bytes + segment.offset_bytes +
                        (to - segment.begin) * width,
                    static_cast<const std::byte*>(range.blocks[block].data()) + from * width,
                    static_cast<size_t>(count * width));
    };
    const int variable = variable_named(wanted.variables[segment.variable].name);
    visit(variable, segment.begin, segment.end, copy);
    scalars.push_back(most);
  }
  return {.kind = Kind::assign,
          .piece = number,
          .text = DensePiece::facts_of(version, scalars),
          .payload = {*bytes, bytes}};
}

void Snapshot::assign(const Spec& spec, int partition,
                      const std::function<void(Message)>& assign) const {
  for (int piece = 0; piece < std::ssize(spec.pieces); ++piece)
    if (spec.pieces[piece].partition == partition) assign(impl_->piece_of(spec, piece));
  Restored rest{.step = step(), .counts = impl_->counts, .tables = {}, .cursor = {}};
  for (const SparseTableSpec& table : spec.tables) {
    const auto saved = std::ranges::find(impl_->spec.tables, table.name, &SparseTableSpec::name);
    rest.tables.push_back(impl_->table_versions[saved - impl_->spec.tables.begin()]);
  }
  for (const RowsFile& file : impl_->rows) {
    const SparseTableSpec& table = impl_->spec.tables[file.table];
    const auto row_bytes = static_cast<size_t>(table.width * size_of(table.dtype));
    const SparseRows rows =
        rows_of(rows_in(file.path, data::read_safetensors(file.path), table, impl_->spec.rule),
                partition, spec.num_partitions, row_bytes);
    if (rows.keys.empty()) continue;
    const auto here = std::ranges::find(spec.tables, table.name, &SparseTableSpec::name);
    auto [text, payload] =
        SparseShard::chunk_of(static_cast<int>(here - spec.tables.begin()), rows);
    assign({.kind = Kind::assign,
            .piece = Message::kRest,
            .sequence = ++rest.num_chunks,
            .text = std::move(text),
            .payload = std::move(payload)});
  }
  if (partition == 0) rest.cursor = impl_->cursor;
  assign({.kind = Kind::assign, .piece = Message::kRest, .text = to_text(rest)});
}

}  // namespace tutti::ps
