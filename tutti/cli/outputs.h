/// Outputs: what a command is to leave behind at its end. That one of them cannot be written, since
/// its disk is full, loses no other.
/// Thread rule: one thread.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <exception>
#include <filesystem>
#include <string>
#include <vector>

#include "tutti/base/detail/failed_elsewhere.h"
#include "tutti/base/error.h"

namespace tutti::cli {

class Outputs {
 public:
  /// Calls `write`; what it throws is kept for require_all(), but for the wish to end
  /// (Interrupted), and what another worker could not write: who failed says so, and may still be
  /// writing when the others have ended. Returns whether it was done; `file` is then among saved(),
  /// unless it is "".
  template <class Write>
  bool attempt(const std::filesystem::path& file, Write write) {
    try {
      write();
    } catch (const Interrupted&) {
      throw;
    } catch (const detail::FailedElsewhere&) {
      return false;
    } catch (const std::exception& error) {
      failures_.emplace_back(error.what());
      if (!first_) first_ = std::current_exception();
      return false;
    }
    if (!file.empty()) saved_.push_back(file.string());
    return true;
  }

  const std::vector<std::string>& saved() const noexcept { return saved_; }

  /// Throws what went wrong, all of it.
  void require_all() const {
    if (failures_.size() == 1) std::rethrow_exception(first_);
    if (!failures_.empty())
      throw Error(fmt::format("{} outputs are not there\n{}", failures_.size(),
                              fmt::join(failures_, "\n")));
  }

 private:
  std::vector<std::string> saved_, failures_;
  std::exception_ptr first_;  // in its own class, by which the launcher finds who failed first
};

}  // namespace tutti::cli
