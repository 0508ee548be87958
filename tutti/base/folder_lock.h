/// FolderLock: the right to write into a folder, which one job at a time has.
///
/// Take one before work starts, and keep it as long as the job may write. It is a lock (flock) on a
/// small file in the folder, so it goes with its process, however that dies, and holds between
/// hosts that share the folder. Thread rule: one thread at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "tutti/base/deadline.h"
#include "tutti/base/file_descriptor.h"

namespace tutti {
namespace detail {

/// What is seen of the process that has a lock of this host. One that is not seen may be gone, and
/// its lock about to go; or it runs in another PID namespace.
enum class LockHolder { works, is_ending, is_not_seen };
LockHolder lock_holder(int64_t pid);

/// How long such a one is waited for.
Millis patience_with(LockHolder holder);

/// Counts that anew whenever something else is seen: what is ending is not seen next.
class Patience {
 public:
  static Patience none() { return Patience(false); }
  static Patience usual() { return Patience(true); }
  bool lasts_with(const LockHolder& holder);

 private:
  explicit Patience(bool any) : any_(any) {}
  bool any_;
  std::optional<LockHolder> seen_;
  Deadline deadline_{Millis{0}};
};

}  // namespace detail

class FolderLock {
 public:
  static constexpr const char* kFile = "lock";

  /// Makes the folder and takes it. Whose holder on this host was killed, and is not gone yet, is
  /// waited for: a minute at most, and 2 s where no such process is seen, which may then be one of
  /// another container.
  ///
  /// what  begins what is said, before the folder: "--snapshots"
  /// file  name of the small file; for rights to one folder that have nothing to do with each other
  ///
  /// Throws UsageError that names the folder, and who has it: process and host; or what the file is
  /// (a link, somebody else's file), which is left as it was; or why it cannot be made.
  FolderLock(std::filesystem::path folder, std::string what, const std::string& file = kFile);

  const std::filesystem::path& folder() const noexcept { return folder_; }

  /// Above 0, and another for each lock that is taken; it stays when the folder is made again.
  int64_t number() const noexcept { return number_; }
  /// The number of the lock in `folder`, whoever had it last; 0 when there is none. By this other
  /// processes of the job see that they have the same folder, and that it is still the job's.
  /// Throws IoError when it cannot be looked at just now.
  static int64_t number_in(const std::filesystem::path& folder, const std::string& file = kFile);

  /// Before each writing. Somebody may have removed the folder meanwhile: it is then made again,
  /// with this lock, and a warning says so. Returns whether that was needed. Throws UsageError when
  /// another job has taken it since, Error when it cannot be looked at. Waits for nobody.
  bool keep();

 private:
  FileDescriptor take(detail::Patience patience) const;
  FileDescriptor open_file() const;

  std::filesystem::path folder_;
  std::string what_;
  std::filesystem::path path_;  // of the file
  int64_t number_ = 0;
  FileDescriptor held_;
};

}  // namespace tutti
