// tutti data index: what finds records in files without a table, made before a training needs it.
#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/standard_streams.h"
#include "tutti/base/stop.h"
#include "tutti/cli/arguments.h"
#include "tutti/cli/checks.h"
#include "tutti/cli/data/commands.h"
#include "tutti/data/sources/recognise.h"
#include "tutti/data/sources/tfrecord.h"
#include "tutti/data/sources/webdataset.h"
#include "tutti/train/report/progress.h"

namespace tutti::cli {
namespace {

using data::DataKind;
using data::IndexReport;
using data::IndexState;

struct IndexFlags {
  std::string path;
  bool check = false;
};

std::string count_words(const IndexReport& report) {
  return fmt::format("{} {}{}", with_commas(static_cast<double>(report.records)),
                     report.file.extension() == ".tar" ? "member" : "record",
                     report.records == 1 ? "" : "s");
}

// How an index was found, and what came of it.
std::string state_words(const IndexReport& report) {
  if (!report.error.empty()) return "damaged: " + report.error;
  const std::string made = report.made ? ": made, " + count_words(report) : "";
  switch (report.before) {
    case IndexState::up_to_date: return "up to date, " + count_words(report);
    case IndexState::missing: return report.made ? made.substr(2) : "no index";
    case IndexState::older: return "older: the index " + report.why + made;
    case IndexState::damaged: return "the index " + report.why + made;
    case IndexState::not_needed: return report.why;
  }
  return "";
}

bool counts(const IndexReport& report) {
  return report.made || report.before == IndexState::up_to_date ||
         report.before == IndexState::not_needed;
}

int index(const IndexFlags& flags) {
  const data::Recognised found = data::recognise(flags.path);
  if (found.kind == DataKind::unknown)
    throw UsageError(fmt::format("{}: {}", flags.path, found.sentence));
  say_line("{}: {}", flags.path, found.sentence);
  if (found.kind != DataKind::webdataset && found.kind != DataKind::tfrecord) {
    say("it needs no index file: {}\n", found.kind == DataKind::mds
                                            ? "each shard has a table of its samples"
                                            : "samples are found when it is opened");
    return 0;
  }
  data::IndexOptions options{.check = flags.check};
  options.progress = [](int64_t done, int64_t all) {
    show_progress(done, all, megabytes_of(done, all));
  };
  const auto make =
      found.kind == DataKind::tfrecord ? data::index_tfrecord : data::index_webdataset;
  int64_t made = 0, current = 0, bad = 0;
  for (const IndexReport& report : make(flags.path, options)) {
    say_line("{}: {}", report.file.string(), state_words(report));
    ++(!counts(report) ? bad : report.made ? made : current);
  }
  say("{} made, {} up to date, {} {}\n", made, current, bad,
      flags.check ? "to be made" : "damaged");
  return bad == 0 ? 0 : 1;
}

}  // namespace

void add_index_of_data(Command& data) {
  auto flags = std::make_shared<IndexFlags>();
  Command& command = data.command(
      "index", "Make the index files of tars and TFRecord, by which samples are found");
  command.place("PATH", &flags->path, some_name(), "A folder of shards, or one of them");
  command.flag("--check", &flags->check,
               "Only say what is missing, older than its file or damaged: then exit code 1");
  command.footer =
      "Examples:\n"
      "  tutti data index shards\n"
      "  tutti data index train.tfrecord --check\n\n"
      "FILE.tutti-index beside each file, several at once. Whoever opens a file without one makes "
      "it;\nmade here, no training waits for it, and the folder may be read-only then.";
  command.action = [flags] { return index(*flags); };
}

}  // namespace tutti::cli
