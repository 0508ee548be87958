/// NumberedFolder: a folder in which a job leaves one whole thing after another, each in a folder
/// of its own under a number: step-000000000400, cut-000012.
///
/// One is made under a name that says that it is not whole, and gets its own once all of it is on
/// disk: whatever dies when, it is there whole or not at all. Whose the folder is says a
/// FolderLock. Every call waits for the disk. Thread rule: const functions, from any thread; who
/// writes is one at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/base/folder_lock.h"

namespace tutti::store {

/// In each of them: what it has, and is.
inline constexpr const char* kManifest = "manifest.json";

/// What the folders are called.
struct Naming {
  std::string_view prefix;           ///< before the number: "step-"
  int digits = 0;                    ///< of the number, at least
  std::string_view unfinished = "";  ///< before all of that as long as it is not whole
  const char* lock = FolderLock::kFile;
};

class NumberedFolder {
 public:
  NumberedFolder(std::filesystem::path folder, Naming naming)
      : folder_(std::move(folder)), naming_(naming) {}

  const std::filesystem::path& path() const noexcept { return folder_; }
  std::string name(int64_t number) const;
  /// The number of what is called so; none for any other name.
  std::optional<int64_t> number_of(std::string_view name) const;
  std::filesystem::path whole(int64_t number) const { return folder_ / name(number); }
  /// Where that one is being made.
  std::filesystem::path partial(int64_t number) const;

  /// All with such a name, the lowest number first; none where there is no such folder. One that
  /// has lost its manifest is among them. `with`: those that have such a file. Throws as
  /// entries_of() does.
  std::vector<std::filesystem::path> all(const char* with = nullptr) const;

  // ---- for the job that has the folder ----

  /// Makes the folder and takes it; throws, and waits, as FolderLock does.
  FolderLock take(std::string what) const { return {folder_, std::move(what), naming_.lock}; }
  /// Whether that is the one whose lock has this number (FolderLock::number()). Another may have
  /// taken it since; where it cannot be said just now, it is not this one's.
  bool is_of(int64_t lock) const noexcept;
  /// Makes the folder in which one is made, and returns it. Throws Error with path and cause.
  std::filesystem::path begin(int64_t number) const;
  /// Makes it whole, with this manifest; one of that number from before goes. Throws Error, and
  /// what `last_look` does, which is called once all of it is on disk: then it does not appear.
  void finish(int64_t number, std::string_view manifest,
              const std::function<void()>& last_look) const;
  /// What there is of one that is not whole goes, where the folder is still that job's; what cannot
  /// be removed stays for the next to remove.
  void give_up(int64_t number, int64_t lock) const noexcept;
  /// What jobs that died were about to make goes, but for that number.
  void remove_unfinished(int64_t but_of = -1) const noexcept;
  /// Of `all` those go that are not among these; one that cannot be removed stays.
  void keep(const std::vector<std::filesystem::path>& these,
            const std::vector<std::filesystem::path>& all) const;

 private:
  std::filesystem::path unfinished(std::string_view name) const;

  std::filesystem::path folder_;
  Naming naming_;
};

/// The last `count` of `all`, or all.
std::vector<std::filesystem::path> newest_of(const std::vector<std::filesystem::path>& all,
                                             int64_t count);

}  // namespace tutti::store
