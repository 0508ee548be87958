/// Unpacks a gzip file piece by piece.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace tutti::data::detail {

/// Packed files are unpacked to so many bytes, or 64 times their own, whichever is more: a few
/// bytes can claim to be, or become, more than any memory. What is packed closer is unpacked by its
/// user.
inline constexpr int64_t kUnpackedAlways = int64_t{256} << 20;
inline constexpr int64_t kUnpackedTimes = 64;

/// Throws DataError when `bytes`, which a file of `packed` says it becomes or has become, is more.
void require_unpackable(int64_t bytes, int64_t packed, const std::string& where);

/// Reads the members of a gzip file, one after another, as one stream of bytes.
class GzipReader {
 public:
  /// compressed  the whole file; must outlive the reader
  /// where       the file's name, for messages
  GzipReader(std::span<const std::byte> compressed, std::string where);
  ~GzipReader();
  GzipReader(const GzipReader&) = delete;
  GzipReader& operator=(const GzipReader&) = delete;

  /// Fills `out`; fewer bytes only at the end of the last member. Returns the bytes written.
  /// Throws DataError: no gzip file, truncated, damaged (checksum included), or followed by bytes
  /// that are no gzip member.
  size_t read(std::span<std::byte> out);

 private:
  struct State;
  void start_member();
  std::unique_ptr<State> state_;
};

}  // namespace tutti::data::detail
