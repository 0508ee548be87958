/// Who may read a file that holds a secret: a token, a private key. A pure decision.
#pragma once

#include <sys/stat.h>

#include <filesystem>
#include <string_view>

namespace tutti::detail {

/// Throws UsageError, with the cure, when everybody on this machine may use the file, or it belongs
/// to somebody who is neither `self` nor root: he knows the secret, and may put another in its
/// place. The log has a warning, once, for what clusters and containers do: its group may use it,
/// or root uses somebody's.
///
/// what  "token file", "TLS: private key"
void require_private(const struct stat& facts, uid_t self, const std::filesystem::path& path,
                     std::string_view what);

}  // namespace tutti::detail
