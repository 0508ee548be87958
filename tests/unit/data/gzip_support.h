// Packs bytes as one gzip member, or one zlib stream, by zlib.
#pragma once

#include <zlib.h>

#include <stdexcept>
#include <string>

namespace tutti::test {

inline std::string deflated(const std::string& bytes, int window_bits) {
  z_stream stream{};
  if (deflateInit2(&stream, 9, Z_DEFLATED, window_bits, 9, Z_DEFAULT_STRATEGY) != Z_OK)
    throw std::runtime_error("deflateInit2");
  std::string packed(deflateBound(&stream, bytes.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  if (deflate(&stream, Z_FINISH) != Z_STREAM_END) throw std::runtime_error("deflate");
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

inline std::string gzip(const std::string& bytes) { return deflated(bytes, 15 + 16); }
inline std::string zlib(const std::string& bytes) { return deflated(bytes, 15); }

}  // namespace tutti::test
