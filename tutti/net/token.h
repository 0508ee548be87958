/// Token: the secret of a job. Who holds it may join, read and stop the job; nobody else can.
///
/// It comes from a file or the environment, never from a command line, and is never printed: there
/// is no way to format a Token.
/// Thread rule: const functions may be called from any thread.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace tutti {

inline constexpr const char* kTokenVariable = "TUTTI_TOKEN";
inline constexpr const char* kTokenFileVariable = "TUTTI_TOKEN_FILE";

class Token {
 public:
  static constexpr size_t kBytes = 32;

  /// 32 bytes from the system's random source.
  static Token random();
  /// Of 64 hex digits, blanks and a line break around them allowed. Throws UsageError that says
  /// what is wrong, never what was got; `what` names the file or variable.
  static Token parse(std::string_view hex, std::string_view what);

  Token(const Token&) = default;
  Token& operator=(const Token&) = default;
  ~Token();  ///< wipes the bytes

  /// 64 lower-case hex digits: for a file or for the environment of a worker, nothing else.
  std::string secret_hex() const;
  std::span<const uint8_t> secret() const noexcept { return bytes_; }

  /// In constant time.
  friend bool operator==(const Token& a, const Token& b) noexcept;

 private:
  Token() = default;
  std::array<uint8_t, kBytes> bytes_{};
};

/// The token in a file. Refuses one that others may read (cure: chmod 600), or that belongs to
/// another user who is not root; warns when its group may read it. Throws UsageError with the path
/// and the cure.
Token read_token_file(const std::filesystem::path& path);

/// Makes a file that only its owner may read; UsageError when there is one already.
void write_token_file(const std::filesystem::path& path, const Token& token);

/// The token of TUTTI_TOKEN_FILE or TUTTI_TOKEN; none when neither is set. Throws UsageError when
/// both are set and differ, and as the functions above.
std::optional<Token> token_from_environment();

/// From now on TUTTI_TOKEN is not in the environment, where all that this process starts would have
/// it, and token_from_environment() still knows it. Throws as that does.
void take_token_out_of_environment();

}  // namespace tutti
