#include "tutti/cli/output_folder.h"

#include <charconv>
#include <cstdlib>
#include <cstring>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/log.h"
#include "tutti/cluster/join/join.h"

namespace tutti::cli {
namespace {

constexpr const char* kFlag = "--out";
// The lock that whoever started this worker has on the folder of --out.
constexpr const char* kOutLockVariable = "TUTTI_OUT_LOCK";

int64_t number_from_environment() {
  const char* const text = std::getenv(kOutLockVariable);
  int64_t number = 0;
  if (text != nullptr) std::from_chars(text, text + std::strlen(text), number);
  return number;
}

}  // namespace

OutputFolder::OutputFolder(const std::string& folder) : folder_(folder) {
  if (folder_.empty()) return;
  const auto job = job_of_this_process();
  const int64_t number = job ? number_from_environment() : 0;
  if (number > 0 && FolderLock::number_in(folder_, kLockFile) == number) {
    number_ = number;
  } else if (!job || job->worker == 0) {
    lock_.emplace(folder_, kFlag, kLockFile);
    number_ = lock_->number();
  }
}

std::vector<std::string> OutputFolder::environment() const {
  if (number_ == 0) return {};
  return {fmt::format("{}={}", kOutLockVariable, number_)};
}

void OutputFolder::know() {
  if (!folder_.empty() && number_ == 0) number_ = FolderLock::number_in(folder_, kLockFile);
}

void OutputFolder::keep() {
  if (folder_.empty()) return;
  if (lock_) {
    lock_->keep();
    return;
  }
  try {
    if (number_ != 0 && FolderLock::number_in(folder_, kLockFile) == number_) return;
  } catch (const IoError& error) {  // another process has it: what cannot be seen is no loss of it
    log(LogLevel::warning, "{} {}: taken for this job's still: {}", kFlag, folder_, error.what());
    return;
  }
  lock_.emplace(folder_, kFlag, kLockFile);
  if (number_ != 0)
    log(LogLevel::warning,
        "{} {}: somebody has removed it, or its lock, under this job; it is made again: what was "
        "in it before is not in it now",
        kFlag, folder_);
  number_ = lock_->number();
}

}  // namespace tutti::cli
