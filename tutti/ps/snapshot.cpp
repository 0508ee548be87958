#include "tutti/ps/snapshot.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>
#include <span>
#include <utility>

#include <nlohmann/json.hpp>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/sha256.h"
#include "tutti/ps/detail/snapshot_format.h"
#include "tutti/ps/partition_state.h"

namespace tutti::ps {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
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

std::optional<int64_t> number_of_cut(const std::string& name) {
  constexpr std::string_view begin = "cut-";
  int64_t number = 0;
  const char* const end = name.data() + name.size();
  if (!name.starts_with(begin)) return {};
  const auto [stop, failure] = std::from_chars(name.data() + begin.size(), end, number);
  if (failure != std::errc{} || stop != end) return {};
  return number;
}

template <class Read>
auto read_json(const fs::path& path, std::string_view text, Read&& read) {
  try {
    return read(json::parse(text));
  } catch (const json::exception& error) {
    throw DataError(
        fmt::format("{}: no snapshot of this version: {}", path.string(), error.what()));
  }
}

void require_digest(const fs::path& path, const json& facts) {
  const MappedFile file = map_file(path);
  const uint64_t bytes = facts.at("bytes");
  if (file.bytes.size() != bytes)
    throw DataError(fmt::format("{}: damaged: got {} bytes, expected {}", path.string(),
                                file.bytes.size(), bytes));
  Sha256 digest;
  digest.update(file.bytes.data(), file.bytes.size());
  if (const std::string expected = facts.at("sha256"); digest.hex() != expected)
    throw DataError(fmt::format("{}: damaged: got sha256 {}, expected {}", path.string(),
                                digest.hex(), expected));
}

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

}  // namespace

std::vector<fs::path> snapshots_in(const fs::path& folder) {
  std::map<int64_t, fs::path> cuts;
  std::error_code failure;
  for (const auto& entry : fs::directory_iterator(folder, failure))
    if (const auto number = number_of_cut(entry.path().filename().string());
        number && fs::exists(entry.path() / detail::kManifest, failure))
      cuts[*number] = entry.path();
  std::vector<fs::path> paths;
  for (const auto& [number, path] : cuts) paths.push_back(path);
  return paths;
}

fs::path find_snapshot(const fs::path& folder, std::string_view what) {
  std::error_code failure;
  fs::path whole = fs::absolute(folder, failure).lexically_normal();
  if (fs::exists(whole / detail::kManifest, failure)) return whole;
  const auto cuts = snapshots_in(whole);
  if (cuts.empty())
    throw UsageError(
        fmt::format("{} {}: got no complete snapshot, expected a folder as cut-000012 with a {}",
                    what, folder.string(), detail::kManifest));
  return cuts.back();
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

  void read_manifest(const json& manifest);
  void read_partition(const fs::path& file, const json& facts, const data::Safetensors& arrays);
  void read_file(const fs::path& file);
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
  const fs::path manifest = cut / detail::kManifest;
  const MappedFile file = map_file(manifest);
  const std::string_view text(reinterpret_cast<const char*>(file.bytes.data()), file.bytes.size());
  read_json(manifest, text, [&](const json& read) {
    impl->read_manifest(read);
    return true;
  });
  impl->require_whole();
  impl_ = std::move(impl);
}

Snapshot::~Snapshot() = default;
Snapshot::Snapshot(Snapshot&&) noexcept = default;

const fs::path& Snapshot::path() const noexcept { return impl_->path; }
int64_t Snapshot::number() const noexcept { return impl_->number; }
int64_t Snapshot::step() const noexcept { return impl_->step; }
const Spec& Snapshot::spec() const noexcept { return impl_->spec; }

void Snapshot::Impl::read_manifest(const json& manifest) {
  const std::string format = manifest.at("format");
  if (format != detail::kSnapshotFormat)
    throw DataError(fmt::format("{}: format: got \"{}\", expected \"{}\"",
                                (path / detail::kManifest).string(), format,
                                detail::kSnapshotFormat));
  number = manifest.at("cut");
  step = manifest.at("step");
  spec = spec_from(manifest.at("spec").dump());
  ranges.resize(spec.variables.size());
  table_versions.resize(spec.tables.size());
  for (const json& partition : manifest.at("partitions")) {
    const PartitionCounts more = counts_from(partition.at("counts").get<std::string>());
    if (more.updates >= counts.updates) counts = more;
    cursor = partition.value("cursor", cursor);
    const std::vector<int64_t> versions = partition.at("tables");
    for (size_t i = 0; i < std::min(versions.size(), table_versions.size()); ++i)
      table_versions[i] = std::max(table_versions[i], versions[i]);
    for (const json& facts : partition.at("files")) {
      const fs::path file = path / facts.at("name").get<std::string>();
      require_digest(file, facts);
      read_file(file);
    }
  }
}

void Snapshot::Impl::read_file(const fs::path& file) {
  const data::Safetensors arrays = data::read_safetensors(file);
  const auto text = arrays.metadata.find(detail::kMetadata);
  if (text == arrays.metadata.end())
    throw DataError(
        fmt::format("{}: metadata: got none, expected \"{}\"", file.string(), detail::kMetadata));
  read_json(file, text->second, [&](const json& facts) {
    if (!facts.contains("table")) {
      read_partition(file, facts, arrays);
      return true;
    }
    const auto found = std::ranges::find(spec.tables, facts.at("table").get<std::string>(),
                                         &SparseTableSpec::name);
    if (found == spec.tables.end())
      throw DataError(
          fmt::format("{}: rows of embedding table {}, which the manifest does not have",
                      file.string(), facts.at("table").dump()));
    rows.push_back({static_cast<int>(found - spec.tables.begin()), file});
    return true;
  });
}

void Snapshot::Impl::read_partition(const fs::path& file, const json& facts,
                                    const data::Safetensors& arrays) {
  for (const json& segment : facts.at("segments")) {
    const int64_t begin = segment.at("begin");
    const Variable& variable = spec.variables.at(segment.at("variable").get<size_t>());
    const json& s = segment.at("scalars");
    Range range{segment.at("end"),
                segment.at("version"),
                {s.at(0), s.at(1), s.at(2), s.at(3), s.at(4)},
                {}};
    for (int state = -1; state < spec.rule.num_states(); ++state)
      range.blocks.push_back(array_in(
          file, arrays,
          detail::name_of_range(variable.name, begin, range.end,
                                state < 0 ? std::string_view() : spec.rule.state_name(state)),
          variable.dtype, range.end - begin));
    ranges[segment.at("variable").get<size_t>()].emplace(begin, std::move(range));
  }
}

void Snapshot::Impl::require_whole() const {
  for (size_t i = 0; i < ranges.size(); ++i) {
    int64_t end = 0;
    for (const auto& [begin, range] : ranges[i]) {
      if (begin != end) break;
      end = range.end;
    }
    if (end != spec.variables[i].num_elements())
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
