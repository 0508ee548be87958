#include "tutti/checkpoint/parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <system_error>
#include <thread>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/json.h"
#include "tutti/base/sha256.h"
#include "tutti/checkpoint/detail/names.h"
#include "tutti/checkpoint/folder.h"
#include "tutti/store/sealed_json.h"

namespace tutti {

namespace fs = std::filesystem;

namespace {

constexpr Millis kLookAgain{1}, kLookSeldom{100};  // for the parts of others, ever more seldom
constexpr Millis kFolderLimit{30'000};             // for worker 0 to make the folder again

fs::path facts_file(const fs::path& partial, int worker) {
  return partial / fmt::format("part-{}.json", worker);
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
  const store::NumberedFolder checkpoints = checkpoint_folder(part.folder);
  if (part.worker == 0) checkpoints.remove_unfinished(part.step);
  const fs::path partial = checkpoints.begin(part.step);
  const std::string name = detail::part_file(part.worker, part.workers);
  Sha256 sha;
  const std::array pieces{part.image->bytes()};
  write_file_atomically(partial / name, pieces, &sha, turn);
  auto facts = store::json_of<Json>({name, std::ssize(pieces[0]), sha.hex()});
  facts["tensors"] = part.tensors;
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
  const Json facts = parse_json(read_file(path));
  manifest.files.push_back({facts.at("name"), facts.at("bytes"), facts.at("sha256")});
  for (const auto& tensor : facts.at("tensors")) manifest.places[tensor] = facts.at("name");
  fs::remove(path, failure);
}

}  // namespace

int64_t complete_checkpoint(const CheckpointPart& own, CheckpointManifest manifest,
                            const Deadline& deadline, const PartNews& news) {
  const store::NumberedFolder checkpoints = checkpoint_folder(own.folder);
  for (int worker = 0; worker < own.workers; ++worker)
    take_part(checkpoints.partial(own.step), worker, manifest, deadline, news);
  checkpoints.finish(own.step, manifest.to_json(), [&] {
    if (FolderLock::number_in(own.folder) != own.lock_number)
      throw Error(fmt::format("{} was removed, or is another job's, since this one began to write",
                              own.folder.string()));
  });
  int64_t bytes = 0;
  for (const CheckpointFile& file : manifest.files) bytes += file.bytes;
  return bytes;
}

}  // namespace tutti
