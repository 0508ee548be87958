#include "tutti/net/host_token.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "tutti/base/error.h"
#include "tutti/base/file_descriptor.h"
#include "tutti/base/log.h"
#include "tutti/base/sha256.h"

namespace tutti {
namespace {

UsageError refused(const std::filesystem::path& path, const std::string& why) {
  return UsageError(
      fmt::format("a token for the processes of this host: {}: {}\n  remove it, or give all of "
                  "them one: export TUTTI_TOKEN=$(openssl rand -hex 32)",
                  path.string(), why));
}

/// Throws unless it is of this user, root too, and of `mode` exactly.
void require_own(int descriptor, const std::filesystem::path& path, mode_t kind, mode_t mode) {
  struct stat facts{};
  if (fstat(descriptor, &facts) != 0) throw refused(path, errno_words(errno));
  if ((facts.st_mode & S_IFMT) != kind)
    throw refused(path, kind == S_IFDIR ? "this is no folder" : "this is no regular file");
  if (facts.st_uid != geteuid())
    throw refused(path, fmt::format("it belongs to user {}, and this process is user {}",
                                    facts.st_uid, geteuid()));
  if ((facts.st_mode & 0777U) != mode)
    throw refused(path,
                  fmt::format("it has mode {:o}, expected {:o}", facts.st_mode & 0777U, mode));
}

/// What stands in it is reached by the descriptor alone: whatever the path means a moment later.
FileDescriptor open_folder(const std::filesystem::path& folder) {
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)
    throw refused(folder, errno_words(errno));
  FileDescriptor opened(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!opened) throw refused(folder, errno_words(errno));
  require_own(opened.get(), folder, S_IFDIR, 0700);
  return opened;
}

/// None while there is no such file.
std::optional<Token> read_in(int folder, const std::string& name,
                             const std::filesystem::path& path) {
  const FileDescriptor file(
      openat(folder, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file && errno == ENOENT) return std::nullopt;
  if (!file) throw refused(path, errno_words(errno));
  require_own(file.get(), path, S_IFREG, 0600);
  std::array<char, 256> text{};
  const ssize_t got = read(file.get(), text.data(), text.size());
  const int error = errno;
  if (got < 0) throw refused(path, errno_words(error));
  Token token = Token::parse({text.data(), static_cast<size_t>(got)},
                             fmt::format("token file {}", path.string()));
  OPENSSL_cleanse(text.data(), text.size());
  return token;
}

/// Whole before it has its name; it is none of ours when another process was first.
void draw_in(int folder, const std::string& name, const std::filesystem::path& path) {
  const std::string made = fmt::format("{}.{}", name, Token::random().secret_hex().substr(0, 16));
  const FileDescriptor file(
      openat(folder, made.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file) throw refused(path, errno_words(errno));
  std::string text = Token::random().secret_hex() + "\n";
  const bool whole = fchmod(file.get(), 0600) == 0 &&
                     write(file.get(), text.data(), text.size()) == std::ssize(text);
  const bool named = whole && linkat(folder, made.c_str(), folder, name.c_str(), 0) == 0;
  const int error = errno;
  OPENSSL_cleanse(text.data(), text.size());
  unlinkat(folder, made.c_str(), 0);
  if (!named && (!whole || error != EEXIST)) throw refused(path, errno_words(error));
}

}  // namespace

std::filesystem::path folder_of_host_tokens() {
  return fmt::format("/tmp/tutti-tokens-{}", geteuid());
}

Token token_of_host(std::string_view job, const std::filesystem::path& folder) {
  const FileDescriptor opened = open_folder(folder);
  const std::string name = sha256_hex(job).substr(0, 32);
  const std::filesystem::path path = folder / name;
  auto token = read_in(opened.get(), name, path);
  if (!token) {
    draw_in(opened.get(), name, path);
    token = read_in(opened.get(), name, path);
  }
  if (!token) throw refused(path, "it went as soon as it was made");
  log(LogLevel::info, "no token was given: that of {} is taken, for processes of this host",
      path.string());
  return *token;
}

}  // namespace tutti
