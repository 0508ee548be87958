#include "tutti/ps/snapshot/snapshot_manifest.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/json.h"
#include "tutti/ps/partition/cursor.h"
#include "tutti/ps/snapshot/detail/snapshot_format.h"
#include "tutti/ps/spec/detail/json_fields.h"
#include "tutti/store/sealed_json.h"

namespace tutti::ps {
namespace {

namespace fs = std::filesystem;
using detail::shown;
using detail::whole_number;

constexpr int64_t kMostFileBytes = int64_t{1} << 60;
constexpr int64_t kMostVersion = SparseTableSpec::kMostPushes;

// What `read` makes of the text; an error of it names the file.
template <class Read>
auto read_from(std::string_view text, const fs::path& file, Read&& read) {
  try {
    return read(parse_json(text));
  } catch (const JsonError& error) {
    throw DataError(fmt::format("{}: cannot be read: {}", file.string(), error.what()));
  } catch (const Error& error) {
    throw DataError(fmt::format("{}: {}", file.string(), error.what()));
  }
}

std::string place_of(const char* name, const std::string& whose) {
  return whose.empty() ? name : fmt::format("{}: {}", whose, name);
}

const Json& field_of(const Json& fields, const char* name, const std::string& whose) {
  if (!fields.is_object() || !fields.contains(name))
    throw Error(fmt::format("{}: got none, expected one", place_of(name, whose)));
  return fields.at(name);
}

// What `read` makes of a field; an error of it names the field, which is of `whose`.
template <class Read>
auto read_field(const Json& fields, const char* name, const std::string& whose, Read&& read) {
  const Json& value = field_of(fields, name, whose);
  try {
    return read(value);
  } catch (const JsonError& error) {
    throw Error(fmt::format("{}: got {}: {}", place_of(name, whose), shown(value), error.what()));
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", place_of(name, whose), error.what()));
  }
}

int64_t read_number(const Json& fields, const char* name, const std::string& whose, int64_t low,
                    int64_t high) {
  return whole_number<int64_t>(field_of(fields, name, whose), place_of(name, whose), low, high);
}

std::string read_text(const Json& fields, const char* name, const std::string& whose) {
  return read_field(fields, name, whose,
                    [](const Json& value) { return value.get<std::string>(); });
}

void require_format(const Json& manifest) {
  const std::string format = read_text(manifest, "format", "");
  if (format != detail::kSnapshotFormat)
    throw Error(fmt::format(
        "format: got \"{}\", which another version of tutti has written; this one reads \"{}\"",
        format, detail::kSnapshotFormat));
}

// Takes the digest out.
void require_own_digest(Json& manifest) {
  read_text(manifest, store::kSeal, "");
  if (const std::string why = store::take_seal(manifest); !why.empty())
    throw Error("damaged: " + why);
}

// Every element of every variable is in one piece; the file's ranges are held against the
// variables.
void require_all_pieces(const Spec& spec) {
  std::vector<std::vector<std::pair<int64_t, int64_t>>> ranges(spec.variables.size());
  for (const Piece& piece : spec.pieces)
    for (const Segment& segment : piece.segments)
      ranges[segment.variable].emplace_back(segment.begin, segment.end);
  for (size_t i = 0; i < ranges.size(); ++i) {
    std::ranges::sort(ranges[i]);
    int64_t end = 0;
    bool once = true;
    for (const auto& [begin, stop] : ranges[i]) {
      once &= begin == end;
      end = stop;
    }
    const int64_t expected = spec.variables[i].num_elements();
    if (!once || end != expected)
      throw Error(
          fmt::format("pieces: got {} of variable \"{}\", expected all {} elements, each "
                      "once",
                      ranges[i].empty() ? "none" : "others", spec.variables[i].name, expected));
  }
}

Spec read_spec(const Json& value) {
  Spec spec = spec_from(value.dump());
  require_all_pieces(spec);
  return spec;
}

// Files stand in the order in which they were written.
void require_names(const std::vector<store::FileFacts>& files, int partition, int num_tables) {
  const std::string first = detail::name_of_partition(partition);
  if (files.empty() || files[0].name != first)
    throw Error(
        fmt::format("name: got \"{}\", expected {}", files.empty() ? "" : files[0].name, first));
  int table = 0;
  int64_t chunk = 0;
  for (size_t i = 1; i < files.size(); ++i, ++chunk) {
    const auto& name = files[i].name;
    for (; table < num_tables && name != detail::name_of_rows(partition, table, chunk); ++table)
      chunk = 0;
    if (table == num_tables)
      throw Error(fmt::format("name: got \"{}\", expected the next rows of a table, as {}", name,
                              detail::name_of_rows(partition, 0, 0)));
  }
}

store::FileFacts read_file_facts(const Json& facts) {
  store::FileFacts file{.name = read_text(facts, "name", ""),
                        .bytes = read_number(facts, "bytes", "", 0, kMostFileBytes),
                        .sha256 = read_text(facts, "sha256", "")};
  if (!store::is_sha256(file.sha256))
    throw Error(fmt::format("sha256: got \"{}\", expected 64 hex digits", file.sha256));
  return file;
}

std::vector<int64_t> read_versions(const Json& list, const Spec& spec) {
  std::vector<int64_t> versions;
  for (const Json& version : list)
    versions.push_back(whole_number<int64_t>(version, "a version", 0, kMostVersion));
  if (versions.size() != spec.tables.size())
    throw Error(fmt::format("got {}, expected {}", versions.size(), spec.tables.size()));
  return versions;
}

// [worker, step] of each, in the order of the workers.
std::map<int, int64_t> read_marks(const Json& list, const Spec& spec) {
  std::map<int, int64_t> marks;
  if (!list.is_array()) throw Error(fmt::format("got {}, expected a list", shown(list)));
  for (const Json& mark : list) {
    if (!mark.is_array() || mark.size() != 2)
      throw Error(fmt::format("got {}, expected [worker, step]", shown(mark)));
    const int after = marks.empty() ? 0 : marks.rbegin()->first + 1;
    const int worker = whole_number<int>(mark[0], "a worker", after, spec.num_workers - 1);
    marks[worker] = whole_number<int64_t>(mark[1], "a step", 0, Staleness::kMost);
  }
  return marks;
}

CutPart read_part(const Json& facts, const std::string& whose, int partition,
                  const SnapshotManifest& manifest) {
  const Spec& spec = manifest.spec;
  read_number(facts, "partition", whose, partition, partition);
  CutPart part{.partition = partition};
  const bool has_pieces =
      std::ranges::find(spec.pieces, partition, &Piece::partition) != spec.pieces.end();
  const int64_t least = has_pieces || !spec.tables.empty() ? 0 : -1;
  part.step = read_number(facts, "step", whose, least, manifest.step);
  part.tables = read_field(facts, "tables", whose,
                           [&](const Json& list) { return read_versions(list, spec); });
  part.sums_of = sums_of(spec);
  if (!part.sums_of)
    part.marks =
        read_field(facts, "marks", whose, [&](const Json& list) { return read_marks(list, spec); });
  else if (const std::string got = read_text(facts, "sums_of", whose); got != *part.sums_of)
    throw Error(fmt::format("{}: sums_of: got \"{}\", expected \"{}\"", whose, got, *part.sums_of));
  return part;
}

SnapshotManifest::Partition read_partition_facts(const Json& facts, int partition,
                                                 const SnapshotManifest& manifest) {
  const std::string whose = std::to_string(partition);
  SnapshotManifest::Partition read{.part = read_part(facts, whose, partition, manifest)};
  read.counts = read_field(facts, "counts", whose,
                           [](const Json& value) { return counts_from(value.get<std::string>()); });
  if (partition == 0)
    read.cursor = read_field(facts, "cursor", whose, [](const Json& value) {
      auto text = value.get<std::string>();
      Cursor().restore(text);
      return text;
    });
  read.files = read_field(facts, "files", whose, [&](const Json& list) {
    std::vector<store::FileFacts> files;
    for (const Json& file : list) files.push_back(read_file_facts(file));
    require_names(files, partition, static_cast<int>(manifest.spec.tables.size()));
    return files;
  });
  return read;
}

void require_step_of_partitions(const SnapshotManifest& manifest) {
  int64_t step = 0;
  for (const auto& partition : manifest.partitions) step = std::max(step, partition.part.step);
  if (step != manifest.step)
    throw Error(fmt::format("step: got {}, expected {} as its partitions", manifest.step, step));
}

optim::StepScalars scalars_from(const Json& list) {
  const auto number = [&](size_t i, double low, double high) {
    const auto value = list.at(i).get<double>();
    if (!(value >= low && value <= high))
      throw Error(fmt::format("scalars: got {}, expected {} to {}", value, low, high));
    return value;
  };
  constexpr double kMost = std::numeric_limits<double>::max();
  return {number(0, -kMost, kMost), number(1, 0, 1), number(2, 0, 1), number(3, 0, 1),
          whole_number<int64_t>(list.at(4), "scalars: count", 0, kMostVersion)};
}

SavedRange range_from(const Json& segment, const Spec& spec) {
  const std::string whose;
  const auto last = static_cast<int64_t>(spec.variables.size()) - 1;
  SavedRange range{.variable = static_cast<int>(read_number(segment, "variable", whose, 0, last))};
  const int64_t elements = spec.variables[range.variable].num_elements();
  range.begin = read_number(segment, "begin", whose, 0, elements - 1);
  range.end = read_number(segment, "end", whose, range.begin + 1, elements);
  range.version = read_number(segment, "version", whose, 0, kMostVersion);
  range.scalars = read_field(segment, "scalars", whose, scalars_from);
  return range;
}

}  // namespace

std::string sealed_manifest(std::string_view fields) {
  Json manifest = read_from(fields, "a manifest that is to be written", std::identity());
  if (!manifest.is_object()) throw Error("a manifest that is to be written is no object");
  return store::sealed(std::move(manifest)).dump(1) + "\n";
}

SnapshotManifest manifest_from(std::string_view text, const fs::path& file) {
  return read_from(text, file, [](Json fields) {
    require_format(fields);
    require_own_digest(fields);
    SnapshotManifest manifest;
    manifest.cut = read_number(fields, "cut", "", 1, std::numeric_limits<int64_t>::max() - 1);
    manifest.step = read_number(fields, "step", "", 0, Staleness::kMost);
    manifest.spec = read_field(fields, "spec", "", read_spec);
    read_field(fields, "partitions", "", [&](const Json& list) {
      if (!list.is_array() || std::ssize(list) != manifest.spec.num_partitions)
        throw Error(fmt::format("got {}, expected {}", list.size(), manifest.spec.num_partitions));
      for (const Json& facts : list) {
        const auto partition = static_cast<int>(manifest.partitions.size());
        manifest.partitions.push_back(read_partition_facts(facts, partition, manifest));
      }
      return true;
    });
    require_step_of_partitions(manifest);
    return manifest;
  });
}

std::string objection_to(const SnapshotManifest& manifest) {
  std::vector<CutPart> parts;
  for (const auto& partition : manifest.partitions) parts.push_back(partition.part);
  return objection_to_cut(parts);
}

SnapshotManifest manifest_in(const fs::path& cut) {
  const fs::path path = cut / store::kManifest;
  const MappedFile file = map_file(path);
  return manifest_from({reinterpret_cast<const char*>(file.bytes.data()), file.bytes.size()}, path);
}

SavedContent content_from(std::string_view metadata, const Spec& spec, const fs::path& file) {
  return read_from(metadata, file, [&](const Json& facts) {
    SavedContent content;
    content.partition =
        static_cast<int>(read_number(facts, "partition", "", 0, spec.num_partitions - 1));
    if (facts.contains("table")) {
      const std::string name = read_text(facts, "table", "");
      const auto found = std::ranges::find(spec.tables, name, &SparseTableSpec::name);
      if (found == spec.tables.end())
        throw Error(fmt::format("table: got \"{}\", which the manifest does not have", name));
      content.table = static_cast<int>(found - spec.tables.begin());
      return content;
    }
    content.ranges = read_field(facts, "segments", "", [&](const Json& segments) {
      std::vector<SavedRange> ranges;
      for (const Json& segment : segments) ranges.push_back(range_from(segment, spec));
      return ranges;
    });
    return content;
  });
}

}  // namespace tutti::ps
