#include "tutti/data/detail/gzip.h"

#include <zlib.h>

#include <algorithm>
#include <utility>

#include "tutti/base/error.h"

namespace tutti::data::detail {

void require_unpackable(int64_t bytes, int64_t packed, const std::string& where) {
  if (bytes <= std::max(kUnpackedAlways, packed * kUnpackedTimes)) return;
  throw DataError(
      fmt::format("{}: unpacks to {} bytes or more of {}; expected at most {}, or {} times the "
                  "packed ones\n  if this is meant, unpack the file once (gunzip, unzstd)",
                  where, bytes, packed, kUnpackedAlways, kUnpackedTimes));
}

std::string_view packing_of(std::string_view first_bytes) noexcept {
  if (first_bytes.size() < 2) return "";
  const auto first = static_cast<unsigned char>(first_bytes[0]);
  const auto second = static_cast<unsigned char>(first_bytes[1]);
  if (first == 0x1f && second == 0x8b) return "gzip";
  // RFC 1950: deflate, with a window of up to 32 KiB, and a check of both bytes.
  const bool zlib = (first & 0x0f) == 8 && first >> 4 <= 7 && (first << 8 | second) % 31 == 0;
  return zlib ? "zlib" : "";
}

// Invariant: a member is open (inflate wants more) or the stream stands right behind one.
struct GzipReader::State {
  z_stream stream{};
  std::span<const std::byte> rest;  // not yet handed to zlib, whose counters have 32 bits
  std::string where;
  size_t file_bytes = 0;
  bool in_member = false;

  size_t unread() const { return rest.size() + stream.avail_in; }

  void feed() {
    if (stream.avail_in != 0 || rest.empty()) return;
    const size_t count = std::min(rest.size(), size_t{1} << 30);
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(rest.data()));
    stream.avail_in = static_cast<uInt>(count);
    rest = rest.subspan(count);
  }

  [[noreturn]] void fail(const std::string& why) const {
    throw DataError(fmt::format("{}: {} (at byte {} of {})\n  fetch the file again", where, why,
                                file_bytes - unread(), file_bytes));
  }
};

GzipReader::GzipReader(std::span<const std::byte> compressed, std::string where)
    : state_(std::make_unique<State>()) {
  state_->rest = compressed;
  state_->where = std::move(where);
  state_->file_bytes = compressed.size();
  // 15: the largest window; 32 more: gzip or zlib, whichever it is, no raw deflate.
  if (inflateInit2(&state_->stream, 15 + 32) != Z_OK) throw Error("zlib could not be initialised");
  state_->in_member = true;
}

GzipReader::~GzipReader() { inflateEnd(&state_->stream); }

void GzipReader::start_member() {
  State& state = *state_;
  inflateReset(&state.stream);
  state.in_member = true;
}

std::string unpacked_front(std::string_view packed, size_t most_bytes, const std::string& where) {
  std::string text(most_bytes, '\0');
  GzipReader reader(std::as_bytes(std::span(packed)), where);
  size_t got = 0;
  try {  // byte by byte: the front of a longer file ends in the middle of a member
    for (; got < most_bytes && reader.read(std::as_writable_bytes(std::span(&text[got], 1))) == 1;
         ++got) {
    }
  } catch (const DataError&) {
    if (got == 0) throw;
  }
  text.resize(got);
  return text;
}

size_t GzipReader::read(std::span<std::byte> out) {
  State& state = *state_;
  size_t written = 0;
  while (written < out.size()) {
    state.feed();
    if (!state.in_member) {
      if (state.unread() == 0) break;
      start_member();
    }
    const size_t room = std::min(out.size() - written, size_t{1} << 30);
    state.stream.next_out = reinterpret_cast<Bytef*>(out.data() + written);
    state.stream.avail_out = static_cast<uInt>(room);
    const int result = inflate(&state.stream, Z_NO_FLUSH);
    written += room - state.stream.avail_out;
    if (result == Z_STREAM_END) {
      state.in_member = false;
    } else if (result == Z_MEM_ERROR) {
      throw Error("no memory for unpacking " + state.where);
    } else if (result != Z_OK && result != Z_BUF_ERROR) {
      state.fail(fmt::format("damaged or no gzip file: {}",
                             state.stream.msg != nullptr ? state.stream.msg : "unexpected data"));
    } else if (state.unread() == 0 && state.stream.avail_out != 0) {
      state.fail(
          fmt::format("truncated gzip file: got {} bytes, expected more: they end in the "
                      "middle of a member",
                      state.file_bytes));
    }
  }
  return written;
}

}  // namespace tutti::data::detail
