#include "tutti/cluster/launch/detail/output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

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

namespace {

/// O_NONBLOCK belongs to the open file, which others hold too; a second opening of the same pipe or
/// terminal has its own. Other files do not block, and a second opening would write from their
/// start.
FileDescriptor open_again(int descriptor) {
  struct stat facts{};
  if (fstat(descriptor, &facts) != 0) return {};
  if (!S_ISFIFO(facts.st_mode) && isatty(descriptor) == 0) return {};
  const std::string path = fmt::format("/proc/self/fd/{}", descriptor);
  return FileDescriptor(open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

}  // namespace

Outlet::Outlet(int descriptor) : shared_(descriptor), own_(open_again(descriptor)) {}

void Outlet::write_some() noexcept {
  size_t done = 0;
  while (done < waiting_.size()) {
    pollfd entry{target(), POLLOUT, 0};
    if (poll(&entry, 1, 0) == 0) break;
    // A pipe that is ready takes this much without waiting, even where O_NONBLOCK could not be set.
    const size_t most = std::min<size_t>(waiting_.size() - done, PIPE_BUF);
    const ssize_t written = write(target(), waiting_.data() + done, most);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EAGAIN) break;
    if (written < 0) return drop();
    done += static_cast<size_t>(written);
  }
  waiting_.erase(0, done);
}

}  // namespace tutti::detail
