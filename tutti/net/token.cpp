#include "tutti/net/token.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/rand.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <mutex>

#include "tutti/base/error.h"
#include "tutti/base/file_descriptor.h"
#include "tutti/net/detail/secret_file.h"

namespace tutti {
namespace {

// OpenSSL would take itself down in exit(), under the threads that still listen and log there. Set
// before main(), since whatever uses OpenSSL first decides.
[[maybe_unused]] const int openssl_outlives_exit =
    OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr);

constexpr std::string_view kBlanks = " \t\r\n";
constexpr size_t kHexDigits = 2 * Token::kBytes;

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

/// -1 for anything but a hex digit.
int digit_value(char digit) {
  if (digit >= '0' && digit <= '9') return digit - '0';
  if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
  if (digit >= 'A' && digit <= 'F') return digit - 'A' + 10;
  return -1;
}

UsageError bad_file(const std::filesystem::path& path, const std::string& why) {
  return UsageError(fmt::format("token file {}: {}", path.string(), why));
}

/// A buffer for a secret that is wiped when it goes.
struct SecretText {
  std::array<char, 256> bytes{};
  ~SecretText() { OPENSSL_cleanse(bytes.data(), bytes.size()); }
};

void check_readers(int file, const std::filesystem::path& path) {
  struct stat facts{};
  if (fstat(file, &facts) != 0) throw bad_file(path, errno_words(errno));
  if (!S_ISREG(facts.st_mode)) throw bad_file(path, "this is no regular file");
  detail::require_private(facts, geteuid(), path, "token file");
}

// TUTTI_TOKEN of this process, once it is not in its environment any more.
std::mutex taken_mutex;
std::optional<Token> taken;

std::optional<Token> taken_token() {
  const std::scoped_lock lock(taken_mutex);
  return taken;
}

Token file_of_variable(const char* path) {
  try {
    return read_token_file(path);
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("{}: {}", kTokenFileVariable, error.what()));
  }
}

}  // namespace

Token Token::random() {
  Token token;
  if (RAND_bytes(token.bytes_.data(), static_cast<int>(kBytes)) != 1) {
    throw Error("no random bytes for a token: the system's random source failed");
  }
  return token;
}

Token Token::parse(std::string_view hex, std::string_view what) {
  const std::string_view digits = trimmed(hex);
  const auto refuse = [&](std::string_view why) {
    return UsageError(
        fmt::format("{} holds no token: {}, expected {} hex digits\n  `openssl rand -hex 32` makes "
                    "one; every process of a job needs the same",
                    what, why, kHexDigits));
  };
  if (digits.size() != kHexDigits) throw refuse(fmt::format("{} characters", digits.size()));
  Token token;
  int all = 0;
  for (size_t i = 0; i < kBytes; ++i) {
    const int high = digit_value(digits[2 * i]), low = digit_value(digits[2 * i + 1]);
    all |= high | low;  // negative once any is
    token.bytes_[i] = static_cast<uint8_t>((high & 15) << 4 | (low & 15));
  }
  if (all < 0) throw refuse("a character that is no hex digit");
  return token;
}

Token::~Token() { OPENSSL_cleanse(bytes_.data(), bytes_.size()); }

std::string Token::secret_hex() const {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  text.reserve(kHexDigits);
  for (const uint8_t byte : bytes_) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

bool operator==(const Token& a, const Token& b) noexcept {
  return CRYPTO_memcmp(a.bytes_.data(), b.bytes_.data(), Token::kBytes) == 0;
}

Token read_token_file(const std::filesystem::path& path) {
  // Nonblocking, so that a pipe of that name cannot hold us up.
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) throw bad_file(path, errno_words(errno));
  check_readers(file.get(), path);
  SecretText text;
  const ssize_t got = read(file.get(), text.bytes.data(), text.bytes.size());
  if (got < 0) throw bad_file(path, errno_words(errno));
  return Token::parse({text.bytes.data(), static_cast<size_t>(got)},
                      fmt::format("token file {}", path.string()));
}

void write_token_file(const std::filesystem::path& path, const Token& token) {
  const FileDescriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file) {
    throw bad_file(path, errno == EEXIST ? "there is one already; a token is never replaced"
                                         : errno_words(errno));
  }
  std::string text = token.secret_hex() + "\n";
  const ssize_t written = write(file.get(), text.data(), text.size());
  const int error = errno;
  OPENSSL_cleanse(text.data(), text.size());
  if (written == static_cast<ssize_t>(text.size())) return;
  unlink(path.c_str());
  throw bad_file(path, written < 0 ? errno_words(error) : "only a part could be written");
}

std::optional<Token> token_from_environment() {
  const char* path = std::getenv(kTokenFileVariable);
  const char* hex = std::getenv(kTokenVariable);
  const bool has_path = path != nullptr && *path != '\0';
  const bool has_hex = hex != nullptr && *hex != '\0';
  std::optional<Token> from_file, from_text;
  if (has_path) from_file = file_of_variable(path);
  from_text = has_hex ? Token::parse(hex, kTokenVariable) : taken_token();
  if (from_file && from_text && !(*from_file == *from_text)) {
    throw UsageError(fmt::format("{} ({}) and {} hold different tokens\n  unset one of them",
                                 kTokenFileVariable, path, kTokenVariable));
  }
  return from_file ? from_file : from_text;
}

void take_token_out_of_environment() {
  const char* const hex = std::getenv(kTokenVariable);
  if (hex == nullptr || *hex == '\0') return;
  const Token token = Token::parse(hex, kTokenVariable);
  const std::scoped_lock lock(taken_mutex);
  taken = token;
  unsetenv(kTokenVariable);
}

}  // namespace tutti
