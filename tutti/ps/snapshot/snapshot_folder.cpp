#include "tutti/ps/snapshot/snapshot_folder.h"

#include <fmt/chrono.h>

#include <chrono>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/json.h"
#include "tutti/base/log.h"
#include "tutti/ps/snapshot/detail/snapshot_format.h"
#include "tutti/ps/snapshot/snapshot.h"
#include "tutti/ps/snapshot/snapshot_manifest.h"

namespace tutti::ps {
namespace {

namespace fs = std::filesystem;

std::string time_now() {
  const auto now =
      std::chrono::time_point_cast<std::chrono::seconds>(std::chrono::system_clock::now());
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}",
                     fmt::gmtime(std::chrono::system_clock::to_time_t(now)));
}

// Whatever becomes of the working directory.
SnapshotOptions with_absolute_folder(SnapshotOptions options) {
  std::error_code failure;
  const fs::path absolute = fs::absolute(options.folder, failure);
  if (!failure) options.folder = absolute;
  return options;
}

}  // namespace

SnapshotFolder::SnapshotFolder(const SnapshotOptions& options)
    : options_(with_absolute_folder(options)),
      cuts_(detail::cuts_in(options_.folder)),
      lock_(cuts_.take("--snapshots")) {
  require_writable(options_.folder / store::kManifest, "--snapshots");
  const auto there = snapshots_in(options_.folder);
  std::error_code failure;
  const bool own = !options_.goes_on_from.empty() &&
                   fs::equivalent(options_.goes_on_from.parent_path(), options_.folder, failure);
  if (!there.empty() && !own)
    throw UsageError(fmt::format(
        "--snapshots {0}: it has {1} of another job; go on from it with --restore {0}, or name an "
        "empty folder",
        options_.folder.string(), there.back().filename().string()));
  cuts_.remove_unfinished();
  if (!there.empty()) newest_ = there.back().filename().string();
  // Above all that is called so: what has no manifest may be somebody's, and stays.
  if (const auto taken = cuts_.all(); !taken.empty())
    first_number_ = cuts_.number_of(taken.back().filename().string()).value() + 1;
}

std::string SnapshotFolder::make(int64_t number) {
  lock_.keep();
  return cuts_.begin(number).string();
}

int64_t SnapshotFolder::show(int64_t number, int64_t step,
                             const std::map<int, std::string>& written,
                             const std::function<bool()>& wanted) {
  Json manifest = {{"format", detail::kSnapshotFormat},
                   {"cut", number},
                   {"step", step},
                   {"time", time_now()},
                   {"partitions", Json::array()}};
  int64_t bytes = 0;
  lock_.keep();
  for (const auto& [partition, text] : written) {
    Json facts = parse_json(text);
    if (partition == 0) manifest["spec"] = facts.at("spec");
    facts.erase("spec");
    for (const Json& file : facts.at("files")) bytes += file.at("bytes").get<int64_t>();
    manifest["partitions"].push_back(std::move(facts));
  }
  cuts_.finish(number, sealed_manifest(manifest.dump()), [&] {
    if (!wanted()) throw Error("it was given up meanwhile");
    if (!cuts_.is_of(lock_.number())) throw Error("its folder has become another job's");
  });
  return bytes;
}

void SnapshotFolder::remove(int64_t number) const { cuts_.give_up(number, lock_.number()); }

void SnapshotFolder::remove_old() const {
  if (!cuts_.is_of(lock_.number())) return;
  try {
    const auto all = snapshots_in(options_.folder);
    cuts_.keep(store::newest_of(all, options_.kept), all);
  } catch (const std::exception& error) {
    log(LogLevel::warning, "old snapshots stay for now: {}", error.what());
  }
}

}  // namespace tutti::ps
