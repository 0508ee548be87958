#include "tutti/ps/snapshot_series.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include <nlohmann/json.hpp>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/file_descriptor.h"
#include "tutti/ps/detail/snapshot_format.h"
#include "tutti/ps/snapshot.h"
#include "tutti/ps/snapshot_manifest.h"

namespace tutti::ps {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// A worker that trains no more but does not leave never marks; a disk may hang.
constexpr Millis kMostTime{600'000};

void sync_folder(const fs::path& folder) {
  const FileDescriptor open(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (open) ::fsync(open.get());
}

// Beside a lock for checkpoints, should a job have both in one folder.
constexpr const char* kLockFile = "snapshots.lock";

std::string time_now() {
  const auto now =
      std::chrono::time_point_cast<std::chrono::seconds>(std::chrono::system_clock::now());
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}",
                     fmt::gmtime(std::chrono::system_clock::to_time_t(now)));
}

}  // namespace

SnapshotSeries::SnapshotSeries(const SnapshotOptions& options)
    : options_(options), lock_(options_.folder, "--snapshots", kLockFile) {
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
  next_number_ = std::stoll(newest_.substr(newest_.find('-') + 1)) + 1;
}

fs::path SnapshotSeries::partial() const {
  return options_.folder / (detail::name_of_cut(next_number_) + std::string(detail::kPartial));
}

bool SnapshotSeries::due(TimePoint now) const {
  return !busy() && options_.every.count() > 0 && next_ != TimePoint{} && now >= next_;
}

std::optional<Message> SnapshotSeries::begin(const View& view, TimePoint now) {
  begun_at_ = now;
  cut_.emplace(next_number_, view);
  std::string folder;
  try {
    lock_.keep();
    std::error_code failure;
    fs::create_directories(partial(), failure);
    if (failure) throw Error(fmt::format("{}: {}", partial().string(), failure.message()));
    folder = fs::absolute(partial()).string();
  } catch (const std::exception& error) {
    give_up(error.what(), now);
    return {};
  }
  told_ = {
      .kind = Message::Kind::cut, .view = view.number, .sequence = next_number_, .text = folder};
  return told_;
}

void SnapshotSeries::on_written(const Message& message, TimePoint now) {
  if (!cut_) return;
  cut_->on_written(message);
  end_if_over(now);
}

void SnapshotSeries::on_view(const View& view, TimePoint now) {
  if (!cut_) return;
  cut_->on_view(view);
  end_if_over(now);
}

void SnapshotSeries::look_after(TimePoint now) {
  if (next_ == TimePoint{}) next_ = now + options_.every;
  if (cut_ && now - begun_at_ >= kMostTime)
    give_up(fmt::format("after {} s there was nothing of partition {}", kMostTime.count() / 1000,
                        fmt::join(cut_->missing(), ", ")),
            now);
}

void SnapshotSeries::end_if_over(TimePoint now) {
  if (!cut_->failure().empty())
    give_up(cut_->failure(), now, cut_->in_order() ? LogLevel::info : LogLevel::warning);
  else if (cut_->complete())
    finish(now);
}

void SnapshotSeries::finish(TimePoint now) {
  json manifest = {{"format", detail::kSnapshotFormat},
                   {"cut", next_number_},
                   {"step", cut_->step()},
                   {"time", time_now()},
                   {"partitions", json::array()}};
  const std::string name = detail::name_of_cut(next_number_);
  int64_t bytes = 0;
  try {
    lock_.keep();
    for (const auto& [partition, text] : cut_->written()) {
      json facts = json::parse(text);
      if (partition == 0) manifest["spec"] = facts.at("spec");
      facts.erase("spec");
      for (const json& file : facts.at("files")) bytes += file.at("bytes").get<int64_t>();
      manifest["partitions"].push_back(std::move(facts));
    }
    write_file_atomically(partial() / detail::kManifest, sealed_manifest(manifest.dump()));
    fs::rename(partial(), options_.folder / name);
    sync_folder(options_.folder);
  } catch (const std::exception& error) {
    return give_up(error.what(), now);
  }
  log(LogLevel::info, "snapshot {}: step {}, {} partitions, {:.1f} MB in {:.2f} s", name,
      manifest["step"].get<int64_t>(), cut_->written().size(), static_cast<double>(bytes) / 1e6,
      std::chrono::duration<double>(now - begun_at_).count());
  newest_ = name;
  ++next_number_;
  cut_.reset();
  next_ = now + options_.every;
  remove_old();
}

void SnapshotSeries::give_up(const std::string& why, TimePoint now, LogLevel level) {
  if (!cut_) return;
  log(level, "snapshot {} was given up: {}; {}", detail::name_of_cut(next_number_), why,
      newest_.empty() ? "there is none yet" : newest_ + " stays");
  std::error_code failure;
  if (has_folder()) fs::remove_all(partial(), failure);
  ++next_number_;
  cut_.reset();
  next_ = now + options_.every;
}

// Another job may have it by now, and a cut of that number. What stays then, the next job removes.
bool SnapshotSeries::has_folder() const {
  try {
    return FolderLock::number_in(options_.folder, kLockFile) == lock_.number();
  } catch (const Error&) {
    return false;
  }
}

void SnapshotSeries::remove_old() const {
  std::vector<fs::path> there;
  try {
    there = snapshots_in(options_.folder);
  } catch (const Error& error) {
    log(LogLevel::warning, "old snapshots stay for now: {}", error.what());
  }
  std::error_code failure;
  for (int i = 0; i + options_.kept < static_cast<int>(there.size()); ++i) {
    // It is no snapshot any more once it has no manifest: a reader sees all of one or none.
    fs::remove(there[i] / detail::kManifest, failure);
    fs::remove_all(there[i], failure);
  }
}

}  // namespace tutti::ps
