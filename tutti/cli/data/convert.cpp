// tutti data convert: photos, tables and records written as records of another format.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/folders.h"
#include "tutti/base/standard_streams.h"
#include "tutti/base/stop.h"
#include "tutti/cli/arguments.h"
#include "tutti/cli/checks.h"
#include "tutti/cli/data/commands.h"
#include "tutti/cli/data/table_flags.h"
#include "tutti/data/quickdraw.h"
#include "tutti/data/sources/csv_columns.h"
#include "tutti/data/sources/idx.h"
#include "tutti/data/sources/image_folder.h"
#include "tutti/data/sources/jsonl.h"
#include "tutti/data/sources/mds.h"
#include "tutti/data/sources/open_records.h"
#include "tutti/data/sources/recognise.h"
#include "tutti/data/sources/tfrecord.h"
#include "tutti/data/sources/webdataset.h"
#include "tutti/train/report/progress.h"

namespace tutti::cli {
namespace {

namespace fs = std::filesystem;
using data::Column;
using data::DataKind;

const std::vector<std::string> kFormats = {"tfrecord", "webdataset", "mds"};

struct ConvertFlags {
  std::string from, to;
  std::string format;  // "": by TO's ending
  std::string shard_size = "64M";
  TableFlags table;
  bool force = false;
};

// ---- what is read

struct Input {
  data::Dataset samples;
  std::vector<std::string> names;  // of columns, as they are read: "jpg;png"
  std::string image, label;        // those of photos with one label
  std::vector<std::string> classes;
};

Input records_of(const std::string& path) {
  Input input{data::open_records(path), data::record_columns(path), "", "", {}};
  const data::PhotoColumns columns = data::photo_columns(path);
  if (columns.images.size() == 1) input.image = columns.images[0];
  if (columns.labels.size() == 1) {
    input.label = columns.labels[0];
    input.classes = data::label_names(path, input.label);
  }
  return input;
}

Input named(data::Dataset samples) {
  Input input{std::move(samples), {}, "", "", {}};
  for (const Column& column : input.samples.columns()) input.names.push_back(column.name);
  input.classes = input.samples.classes();
  if (!input.classes.empty()) input.label = input.names.back();
  return input;
}

data::CsvColumnsOptions columns_options(const TableFlags& flags) {
  const data::CsvOptions table = csv_options(flags);
  return {.decimal = table.decimal, .header = table.header, .missing = table.missing};
}

Input open_input(const std::string& path, const data::Recognised& found, const TableFlags& flags) {
  switch (found.kind) {
    case DataKind::image_folder: {
      Input photos = named(data::image_folder(path, {.allow_one_class = true}));
      photos.image = photos.names[0];
      return photos;
    }
    case DataKind::quickdraw: return named(data::quickdraw(path, {.split = "all"}));
    case DataKind::idx: return named(data::idx(path));
    case DataKind::csv: return named(data::csv_columns(path, columns_options(flags)));
    case DataKind::jsonl: return named(data::jsonl(path));
    case DataKind::webdataset:
    case DataKind::tfrecord:
    case DataKind::mds: return records_of(path);
    default:
      throw UsageError(
          fmt::format("{}: {}; expected photos in folders, doodles, IDX, a table, JSON "
                      "lines or records",
                      path, found.sentence));
  }
}

// ---- how its columns are called

// "x" of "x.npy", "image" of "image.jpg;image.png": without what a tar's member says of its kind.
std::string without_kind(const std::string& words) {
  constexpr std::array<std::string_view, 10> kKinds = {".cls", ".npy",  ".bin", ".jpg",  ".jpeg",
                                                       ".jpe", ".jfif", ".png", ".webp", ".bmp"};
  std::string name = words.substr(0, words.find(';'));
  for (const std::string_view kind : kKinds)
    if (name.size() > kind.size() && name.ends_with(kind))
      return name.substr(0, name.size() - kind.size());
  return name;
}

// A name that a member of a tar may have: in lower case, and no folder.
std::string member_name_of(std::string name) {
  for (char& letter : name) {
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
    if (letter == '/' || letter == ';' || letter == ' ') letter = '_';
  }
  return name;
}

// Photos and labels are called as readers of the format expect it, others as they were.
std::string name_in(const std::string& format, const Input& input, DataKind from,
                    const std::string& name) {
  const bool tar = format == "webdataset";
  if (!input.image.empty() && name == input.image) return tar ? "jpg" : "image";
  if (!input.image.empty() && name == input.label) return tar ? "cls" : "label";
  if (tar && from == DataKind::webdataset) return name.substr(0, name.find(';'));
  const std::string plain = from == DataKind::webdataset ? without_kind(name) : name;
  return tar ? member_name_of(plain) : plain;
}

std::vector<Column> columns_for(const std::string& format, const Input& input, DataKind from) {
  std::vector<Column> columns = input.samples.columns();
  std::set<std::string> seen;
  for (size_t c = 0; c < columns.size(); ++c) {
    columns[c].name = name_in(format, input, from, input.names[c]);
    if (!seen.insert(columns[c].name).second)
      throw UsageError(fmt::format("column \"{}\": as {} it would be \"{}\", as another one is",
                                   input.names[c], format, columns[c].name));
  }
  return columns;
}

void say_columns(const Input& input, const std::vector<Column>& columns) {
  std::vector<std::string> words;
  for (size_t c = 0; c < columns.size(); ++c)
    words.push_back(input.names[c] == columns[c].name
                        ? columns[c].to_string()
                        : fmt::format("{} (of {})", columns[c].to_string(), input.names[c]));
  say_line("columns: {}", fmt::join(words, ", "));
}

// The label's column as readers of the format name it.
std::string label_column(const std::string& format, const std::string& name) {
  return format != "webdataset" || name == "cls" || name.ends_with(".cls") ? name : name + ".cls";
}

// Names of classes go into a file, a line each.
void require_lines(const std::vector<std::string>& classes) {
  for (const std::string& name : classes)
    if (name.find_first_of("\r\n") != std::string::npos)
      throw DataError(
          fmt::format("class \"{}\": has a line break in its name, and is to be a line of a file\n"
                      "  rename it",
                      name));
}

// ---- where it is written

std::string format_of(const ConvertFlags& flags) {
  if (!flags.format.empty()) return flags.format;
  const std::string ending = fs::path(flags.to).lexically_normal().extension().string();
  if (ending == ".tfrecord") return "tfrecord";
  if (ending == ".tar" || ending == ".wds") return "webdataset";
  if (ending == ".mds") return "mds";
  throw UsageError(
      fmt::format("{}: its name says no format; expected one that ends in .tfrecord, .tar or .mds, "
                  "or --format tfrecord, webdataset or mds",
                  flags.to));
}

int64_t shard_bytes(const std::string& text) {
  constexpr int64_t kMost = std::numeric_limits<uint32_t>::max();
  const std::vector<int64_t> sizes = parse_sizes("--shard-size", text);
  if (sizes.size() != 1 || sizes[0] < 1 || sizes[0] > kMost)
    throw UsageError(
        fmt::format("--shard-size: got \"{}\"; expected one size, 1 to {}, as 64M", text, kMost));
  return sizes[0];
}

// Whether a file is one that this command, or a reader of what it made, has written.
bool is_of_shards(const std::string& name) {
  constexpr std::array<std::string_view, 5> kEndings = {".tfrecord", ".tar", ".mds", ".tutti-index",
                                                        ".labels.txt"};
  return name == "index.json" ||
         std::ranges::any_of(kEndings, [&](auto ending) { return name.ends_with(ending); });
}

// Throws UsageError where something is at `to` that must stay.
void require_replaceable(const fs::path& to, bool force) {
  if (!is_there(to)) return;
  if (!force)
    throw UsageError(
        fmt::format("{}: is there already\n  name another folder, or add --force to "
                    "replace it",
                    to.string()));
  if (!is_folder(to))
    throw UsageError(
        fmt::format("--force: {} is a file; records are written into a folder of "
                    "their own",
                    to.string()));
  for (const fs::path& entry : entries_of(to))
    if (is_folder(entry) || !is_of_shards(entry.filename().string()))
      throw UsageError(
          fmt::format("--force: {} is no file of records: only folders of nothing "
                      "else are replaced",
                      entry.string()));
}

void require_apart(const fs::path& from, const fs::path& to) {
  const auto source = fs::weakly_canonical(from), target = fs::weakly_canonical(to);
  const auto [end, unused] =
      std::mismatch(source.begin(), source.end(), target.begin(), target.end());
  if (end == source.end() || source.parent_path() == target)
    throw UsageError(fmt::format("{}: is {}, or within it; expected another folder", to.string(),
                                 from.string()));
}

// A folder beside `to` that is removed unless it becomes `to`: what is there is whole.
class NewFolder {
 public:
  explicit NewFolder(fs::path to) : to_(std::move(to)) {
    const fs::path parent = to_.has_parent_path() ? to_.parent_path() : fs::path(".");
    std::error_code error;
    for (int number = 0; work_.empty() && !error; ++number) {
      const fs::path free =
          parent / fmt::format(".{}-{}-{}", to_.filename().string(), ::getpid(), number);
      if (fs::create_directory(free, error)) work_ = free;
    }
    if (error)
      throw UsageError(fmt::format("{}: cannot be made in {}: {}", to_.string(), parent.string(),
                                   error.message()));
  }
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;
  ~NewFolder() {
    std::error_code ignored;
    fs::remove_all(work_, ignored);
  }

  const fs::path& path() const noexcept { return work_; }

  // What was at `to` is removed when the new one is there.
  void keep() {
    const fs::path old = work_.string() + ".old";
    const bool replaces = is_there(to_);
    if (replaces) rename(to_, old);
    try {
      rename(work_, to_);
    } catch (const WriteError&) {
      if (replaces) rename(old, to_);
      throw;
    }
    if (replaces) fs::remove_all(old);
  }

 private:
  static void rename(const fs::path& from, const fs::path& to) {
    std::error_code error;
    fs::rename(from, to, error);
    if (error)
      throw WriteError(fmt::format("{}: cannot be renamed to {}: {}", from.string(), to.string(),
                                   error.message()));
  }

  fs::path to_, work_;
};

// ---- the work

int convert(const ConvertFlags& flags) {
  const std::string format = format_of(flags);
  data::WriteOptions options{.shard_bytes = shard_bytes(flags.shard_size)};
  const fs::path to = (fs::path(flags.to) / "").lexically_normal().parent_path();
  require_apart(flags.from, to);
  require_replaceable(to, flags.force);
  const data::Recognised found = recognise(flags.from, flags.table);
  require_table(flags.from, flags.table, found);
  const Input input = open_input(flags.from, found, flags.table);
  const std::vector<Column> columns = columns_for(format, input, found.kind);
  require_lines(input.classes);
  install_stop_handler();
  say_line("{}: {}", flags.from, found.sentence);
  say_columns(input, columns);
  NewFolder folder(to);
  SamplesInOrder samples(input.samples);
  int64_t shown = -1;
  const data::NextSample next = [&] {
    auto sample = samples.next();
    if (std::exchange(shown, samples.done()) != samples.done())
      show_progress(shown, samples.all(),
                    fmt::format("{} of {} samples", with_commas(static_cast<double>(shown)),
                                with_commas(static_cast<double>(samples.all()))));
    return sample;
  };
  const auto write = format == "tfrecord" ? data::write_tfrecord
                     : format == "mds"    ? data::write_mds
                                          : data::write_webdataset;
  const data::Written written = write(folder.path(), columns, next, options);
  if (!input.classes.empty())
    write_file_atomically(
        folder.path() / data::labels_file(
                            label_column(format, name_in(format, input, found.kind, input.label))),
        fmt::format("{}\n", fmt::join(input.classes, "\n")));
  folder.keep();
  say_line("{}: {}, {} samples in {} shard{}, {} bytes", to.string(), format,
           with_commas(static_cast<double>(written.samples)), written.files.size(),
           written.files.size() == 1 ? "" : "s", with_commas(static_cast<double>(written.bytes)));
  return 0;
}

}  // namespace

void add_convert_of_data(Command& data) {
  auto flags = std::make_shared<ConvertFlags>();
  Command& command = data.command(
      "convert", "Write photos, tables or records as records: TFRecord, WebDataset or MDS");
  command.place("FROM", &flags->from, some_name(),
                "Photos in folders, doodles, IDX, a table, JSON lines, or records");
  command.place("TO", &flags->to, some_name(),
                "A folder of shards that is made; .tfrecord, .tar or .mds at its end says the "
                "format");
  command.add("--format", "FORMAT", &flags->format, one_of("format", kFormats),
              "tfrecord, webdataset or mds");
  command.add("--shard-size", "BYTES", &flags->shard_size, some_name(),
              "The most bytes of a shard, with K, M, G; one sample may be larger alone");
  add_table_flags(command, flags->table, false);
  command.flag("--force", &flags->force,
               "Replace TO, where it holds records and nothing else, once the new are whole");
  command.footer =
      "Examples:\n"
      "  tutti data convert photos/train train.tar --shard-size 256M\n"
      "  tutti data convert housing.csv housing.tfrecord\n"
      "  tutti data convert shards c4 --format mds\n\n"
      "Names of classes go to LABEL.labels.txt beside the shards. TO appears when it is whole, or "
      "not at all.";
  command.action = [flags] { return convert(*flags); };
}

}  // namespace tutti::cli
