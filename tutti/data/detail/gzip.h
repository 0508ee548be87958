/// Unpacks a gzip file, or a zlib stream, piece by piece.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace tutti::data::detail {

/// Packed files are unpacked to so many bytes, or 64 times their own, whichever is more: a few
/// bytes can claim to be, or become, more than any memory. What is packed closer is unpacked by its
/// user.
inline constexpr int64_t kUnpackedAlways = int64_t{256} << 20;
inline constexpr int64_t kUnpackedTimes = 64;

/// Throws DataError when `bytes`, which a file of `packed` says it becomes or has become, is more.
void require_unpackable(int64_t bytes, int64_t packed, const std::string& where);

/// What the first bytes of a file say that it is packed by: "gzip", "zlib" or "". Of zlib these are
/// two, which other files may begin with, too ("x^" of a text): who asks looks at what comes out.
std::string_view packing_of(std::string_view first_bytes) noexcept;

/// What the first bytes of a packed file, which may end in the middle of it, unpack to: at most
/// `most_bytes`. Throws DataError where that is nothing.
std::string unpacked_front(std::string_view packed, size_t most_bytes, const std::string& where);

/// Reads the members of a gzip file, or zlib streams, one after another, as one stream of bytes.
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
