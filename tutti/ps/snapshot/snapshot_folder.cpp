#include "tutti/ps/snapshot/snapshot_folder.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <unistd.h>

#include <chrono>
#include <vector>

#include <nlohmann/json.hpp>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/file_descriptor.h"
#include "tutti/base/json.h"
#include "tutti/base/log.h"
#include "tutti/ps/snapshot/detail/snapshot_format.h"
#include "tutti/ps/snapshot/snapshot.h"
#include "tutti/ps/snapshot/snapshot_manifest.h"

namespace tutti::ps {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Beside a lock for checkpoints, should a job have both in one folder.
constexpr const char* kLockFile = "snapshots.lock";

void sync_folder(const fs::path& folder) {
  const FileDescriptor open(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (open) ::fsync(open.get());
}

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
    : options_(with_absolute_folder(options)), lock_(options_.folder, "--snapshots", kLockFile) {
  const auto fail = [&](const std::string& why) {
    throw UsageError(fmt::format("--snapshots {}: {}", options_.folder.string(), why));
  };
  std::error_code failure;
  require_writable(options_.folder / detail::kManifest, "--snapshots");
  const auto there = snapshots_in(options_.folder);
  const bool own = !options_.goes_on_from.empty() &&
                   fs::equivalent(options_.goes_on_from.parent_path(), options_.folder, failure);
  if (!there.empty() && !own)
    fail(
        fmt::format("it has {} of another job; go on from it with --restore {}, or name an empty "
                    "folder",
                    there.back().filename().string(), options_.folder.string()));
  std::error_code ignored;
  for (fs::directory_iterator at(options_.folder, failure), end; !failure && at != end;
       at.increment(failure))
    if (at->path().extension() == detail::kPartial) fs::remove_all(at->path(), ignored);
  if (failure) fail("it cannot be listed: " + failure.message());
  if (there.empty()) return;
  newest_ = there.back().filename().string();
  first_number_ = std::stoll(newest_.substr(newest_.find('-') + 1)) + 1;
}

fs::path SnapshotFolder::partial(int64_t number) const {
  return options_.folder / (detail::name_of_cut(number) + std::string(detail::kPartial));
}

std::string SnapshotFolder::make(int64_t number) {
  lock_.keep();
  std::error_code failure;
  fs::create_directories(partial(number), failure);
  if (failure) throw Error(fmt::format("{}: {}", partial(number).string(), failure.message()));
  return partial(number).string();
}

int64_t SnapshotFolder::show(int64_t number, int64_t step,
                             const std::map<int, std::string>& written,
                             const std::function<bool()>& wanted) {
  json manifest = {{"format", detail::kSnapshotFormat},
                   {"cut", number},
                   {"step", step},
                   {"time", time_now()},
                   {"partitions", json::array()}};
  int64_t bytes = 0;
  lock_.keep();
  for (const auto& [partition, text] : written) {
    json facts = parse_json(text);
    if (partition == 0) manifest["spec"] = facts.at("spec");
    facts.erase("spec");
    for (const json& file : facts.at("files")) bytes += file.at("bytes").get<int64_t>();
    manifest["partitions"].push_back(std::move(facts));
  }
  write_file_atomically(partial(number) / detail::kManifest, sealed_manifest(manifest.dump()));
  if (!wanted()) throw Error("it was given up meanwhile");
  if (!is_own()) throw Error("its folder has become another job's");
  fs::rename(partial(number), options_.folder / detail::name_of_cut(number));
  sync_folder(options_.folder);
  return bytes;
}

void SnapshotFolder::remove(int64_t number) const {
  std::error_code failure;
  if (is_own()) fs::remove_all(partial(number), failure);
}

// Another job may have it by now, and a cut of that number. What stays then, the next job removes.
bool SnapshotFolder::is_own() const {
  try {
    return FolderLock::number_in(options_.folder, kLockFile) == lock_.number();
  } catch (const std::exception&) {  // of the file system, too
    return false;
  }
}

void SnapshotFolder::remove_old() const {
  if (!is_own()) return;
  try {
    const auto there = snapshots_in(options_.folder);
    for (int i = 0; i + options_.kept < static_cast<int>(there.size()); ++i) {
      // It is no snapshot any more once it has no manifest: a reader sees all of one or none.
      std::error_code failure;
      fs::remove(there[i] / detail::kManifest, failure);
      fs::remove_all(there[i], failure);
    }
  } catch (const std::exception& error) {
    log(LogLevel::warning, "old snapshots stay for now: {}", error.what());
  }
}

}  // namespace tutti::ps
