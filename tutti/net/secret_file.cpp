#include "tutti/net/detail/secret_file.h"

#include <string>

#include "tutti/base/error.h"
#include "tutti/base/log.h"

namespace tutti::detail {

void require_private(const struct stat& facts, uid_t self, const std::filesystem::path& path,
                     std::string_view what) {
  const std::string file = fmt::format("{} {}", what, path.string());
  const auto mode = facts.st_mode & 0777U;
  if ((mode & 0007U) != 0)
    throw UsageError(
        fmt::format("{}: everybody on this machine may use it (mode {:o})\n"
                    "  chmod 600 {}, and make a new one if others were here",
                    file, mode, path.string()));
  const bool own = facts.st_uid == self || facts.st_uid == 0;
  if (!own && self != 0)
    throw UsageError(
        fmt::format("{}: it belongs to user {}, and this process is user {}\n"
                    "  expected a file of this user's own: copy it, and chmod 600 the copy",
                    file, facts.st_uid, self));
  if (!own)
    log_once("secret-owner:" + path.string(), LogLevel::warning,
             "{}: it belongs to user {}, who may use and replace it, too", file, facts.st_uid);
  if ((mode & 0070U) != 0)
    log_once("secret-group:" + path.string(), LogLevel::warning,
             "{}: its group may use it too (mode {:o}); chmod 600 keeps it to you", file, mode);
}

}  // namespace tutti::detail
