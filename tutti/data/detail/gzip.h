/// Unpacks a gzip file piece by piece.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace tutti::data::detail {

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
