#include "tutti/checkpoint/parts.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <system_error>
#include <thread>

#include <nlohmann/json.hpp>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/file_descriptor.h"
#include "tutti/base/json.h"
#include "tutti/base/sha256.h"
#include "tutti/checkpoint/detail/names.h"
#include "tutti/checkpoint/folder.h"

namespace tutti {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

using detail::partial_folder;

constexpr Millis kLookAgain{1}, kLookSeldom{100};  // for the parts of others, ever more seldom
constexpr Millis kFolderLimit{30'000};             // for worker 0 to make the folder again

fs::path facts_file(const fs::path& partial, int worker) {
  return partial / fmt::format("part-{}.json", worker);
}

void sync_path(const fs::path& path) {
  const FileDescriptor open(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (open) ::fsync(open.get());
}

// Somebody may have removed the folder, and another job may have it since.
void hold_folder(const CheckpointPart& part) {
  if (const auto lock = part.lock.lock()) {
    lock->keep();
    return;
  }
  for (const Deadline deadline(kFolderLimit);
       FolderLock::number_in(part.folder) != part.lock_number;) {
    if (deadline.passed())
      throw Timeout(
          fmt::format("{} has not been this job's for {} ms: somebody has removed it, and worker 0 "
                      "has not made "
                      "it again; its log says why",
                      part.folder.string(), deadline.limit().count()));
    std::this_thread::sleep_for(kLookAgain);
  }
}

}  // namespace

void write_part(const CheckpointPart& part, const std::function<void()>& turn) {
  hold_folder(part);
  if (part.worker == 0) remove_unfinished_checkpoints(part.folder, part.step);
  const fs::path partial = partial_folder(part.folder, part.step);
  std::error_code failure;
  fs::create_directories(partial, failure);
  if (failure) throw Error(fmt::format("{}: {}", partial.string(), failure.message()));
  const std::string name = detail::part_file(part.worker, part.workers);
  Sha256 sha;
  const std::array pieces{part.image->bytes()};
  write_file_atomically(partial / name, pieces, &sha, turn);
  const json facts = {{"name", name},
                      {"bytes", pieces[0].size()},
                      {"sha256", sha.hex()},
                      {"tensors", part.tensors}};
  write_file_atomically(facts_file(partial, part.worker), facts.dump());
}

namespace {

// Waits for one worker's part, and takes it into the manifest.
void take_part(const fs::path& partial, int worker, CheckpointManifest& manifest,
               const Deadline& deadline, const PartNews& news) {
  const fs::path path = facts_file(partial, worker);
  std::error_code failure;
  for (Millis again = kLookAgain;; again = std::min(2 * again, kLookSeldom)) {
    const bool comes = !news.all_written;  // asked before it is looked for
    open_folder_anew(partial);
    if (fs::exists(path, failure)) break;
    if (const int without = news.without; without >= 0)
      throw Error(fmt::format("worker {} could not write its part; its own log says why", without));
    if (!comes)
      throw Error(fmt::format(
          "the part of worker {} is not there any more: somebody has removed it", worker));
    if (deadline.passed())
      throw Timeout(
          fmt::format("the part of worker {} was not there after {} ms; its own log may "
                      "say why",
                      worker, deadline.limit().count()));
    if (Clock::now() >= news.until.load())
      throw Error(
          fmt::format("the training has ended, and the part of worker {} had not come", worker));
    std::this_thread::sleep_for(again);
  }
  const json facts = parse_json(read_file(path));
  manifest.files.push_back({facts.at("name"), facts.at("bytes"), facts.at("sha256")});
  for (const auto& tensor : facts.at("tensors")) manifest.places[tensor] = facts.at("name");
  fs::remove(path, failure);
}

}  // namespace

int64_t complete_checkpoint(const CheckpointPart& own, CheckpointManifest manifest,
                            const Deadline& deadline, const PartNews& news) {
  const fs::path partial = partial_folder(own.folder, own.step);
  for (int worker = 0; worker < own.workers; ++worker)
    take_part(partial, worker, manifest, deadline, news);
  write_file_atomically(partial / detail::kManifest, manifest.to_json());
  sync_path(partial);
  if (FolderLock::number_in(own.folder) != own.lock_number)
    throw Error(fmt::format("{} was removed, or is another job's, since this one began to write",
                            own.folder.string()));
  const fs::path complete = own.folder / name_of_checkpoint(own.step);
  std::error_code failure;
  fs::remove_all(complete, failure);  // one of the same step, which a resumed training left behind
  fs::rename(partial, complete, failure);
  if (failure)
    throw Error(fmt::format("{} cannot become {}: {}", partial.string(), complete.string(),
                            failure.message()));
  sync_path(own.folder);
  int64_t bytes = 0;
  for (const CheckpointFile& file : manifest.files) bytes += file.bytes;
  return bytes;
}

void give_up_checkpoint(const CheckpointPart& part) noexcept {
  try {
    if (FolderLock::number_in(part.folder) != part.lock_number) return;
  } catch (const std::exception&) {  // it stays; the next one, or the next job, removes it
    return;
  }
  std::error_code ignored;
  fs::remove_all(partial_folder(part.folder, part.step), ignored);
}

}  // namespace tutti
