#include "tutti/cluster/output.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>

namespace tutti::detail {

void LineSplitter::append(std::string_view bytes,
                          const std::function<void(std::string_view)>& take) {
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    partial_ += bytes.substr(0, end);
    if (end == std::string_view::npos) {
      if (partial_.size() >= kMaxLineBytes) finish(take);
      return;
    }
    take(partial_);
    partial_.clear();
    bytes.remove_prefix(end + 1);
  }
}

void LineSplitter::finish(const std::function<void(std::string_view)>& take) {
  if (partial_.empty()) return;
  take(partial_);
  partial_.clear();
}

void LastLines::add(std::string_view line) {
  lines_.emplace_back(line);
  if (lines_.size() > kKept) lines_.pop_front();
}

void write_whole(int descriptor, std::string_view text) noexcept {
  while (!text.empty()) {
    const ssize_t written = write(descriptor, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<size_t>(written));
    } else if (errno == EAGAIN) {  // somebody made our stdout nonblocking
      pollfd entry{descriptor, POLLOUT, 0};
      if (poll(&entry, 1, 1'000) <= 0) return;
    } else if (errno != EINTR) {
      return;
    }
  }
}

}  // namespace tutti::detail
