/// SHA-256 of bytes that come in pieces: the fingerprint of weights and files.
/// Thread rule: one thread at a time per object.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace tutti {

/// FIPS 180-4. Pieces may have any length, 0 included; only their concatenation counts.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;

  /// Appends `num_bytes` bytes; `data` may be null when there are none.
  void update(const void* data, size_t num_bytes);
  void update(std::string_view text) { update(text.data(), text.size()); }

  /// 64 lower-case hex digits of what has come in so far; more may follow.
  std::string hex() const;

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

/// The digest of one piece, in hex.
std::string sha256_hex(std::string_view bytes);

}  // namespace tutti
