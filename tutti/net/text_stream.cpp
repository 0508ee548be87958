#include "tutti/net/text_stream.h"

#include <array>
#include <cstring>

#include "tutti/base/error.h"

namespace tutti {
namespace {

using Length = uint32_t;  // little endian on every machine that this library runs on
constexpr size_t kReadBytes = size_t{16} << 10;

}  // namespace

TextStream::TextStream(std::unique_ptr<Link> link, size_t max_bytes)
    : link_(std::move(link)), max_bytes_(max_bytes) {}

void TextStream::send(std::string_view text) {
  if (text.size() > max_bytes_)
    throw UsageError(fmt::format("send to {}: a text of {} bytes; at most {} are possible",
                                 link_->peer(), text.size(), max_bytes_));
  const auto length = static_cast<Length>(text.size());
  std::string frame(sizeof length + text.size(), '\0');
  std::memcpy(frame.data(), &length, sizeof length);
  std::memcpy(frame.data() + sizeof length, text.data(), text.size());
  waiting_.push_back(std::move(frame));
  flush();
}

bool TextStream::flush() {
  while (!waiting_.empty()) {
    std::string& first = waiting_.front();
    const iovec piece{first.data() + sent_, first.size() - sent_};
    const int64_t taken = link_->write_some({&piece, 1});
    if (taken == 0) return false;
    sent_ += static_cast<size_t>(taken);
    if (sent_ < first.size()) continue;
    waiting_.pop_front();
    sent_ = 0;
  }
  return true;
}

std::optional<std::string> TextStream::receive() {
  while (true) {
    size_t wanted = sizeof(Length);
    if (received_.size() >= sizeof(Length)) {
      Length length = 0;
      std::memcpy(&length, received_.data(), sizeof length);
      if (length > max_bytes_)
        throw Error(
            fmt::format("receive from {}: a text of {} bytes is announced; at most {} are "
                        "possible, so this is another program or another build",
                        link_->peer(), length, max_bytes_));
      wanted += length;
      if (received_.size() == wanted) {
        std::string text = received_.substr(sizeof(Length));
        received_.clear();
        return text;
      }
    }
    std::array<char, kReadBytes> bytes;
    const size_t room = std::min(bytes.size(), wanted - received_.size());
    const int64_t got = link_->read_some(bytes.data(), static_cast<int64_t>(room));
    if (got == 0) return std::nullopt;
    received_.append(bytes.data(), static_cast<size_t>(got));
  }
}

short TextStream::wants() const noexcept {
  const int writes = waiting_.empty() ? 0 : link_->wants_to_write();
  return static_cast<short>(link_->wants_to_read() | writes);
}

}  // namespace tutti
