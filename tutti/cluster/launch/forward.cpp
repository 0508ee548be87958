#include "tutti/cluster/launch/detail/forward.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "tutti/base/error.h"

namespace tutti::detail {
namespace {

bool are_same_file(int one, int other) {
  struct stat first{};
  struct stat second{};
  return fstat(one, &first) == 0 && fstat(other, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

}  // namespace

Forwarder::Forwarder(int num_workers, bool prefix)
    : prefix_(prefix),
      one_outlet_(are_same_file(STDOUT_FILENO, STDERR_FILENO)),
      outlets_{Outlet(STDOUT_FILENO), Outlet(STDERR_FILENO)},
      workers_(static_cast<size_t>(num_workers)),
      bytes_(64 << 10, '\0') {
  for (FileDescriptor& set : readable_) {
    set.reset(epoll_create1(EPOLL_CLOEXEC));
    if (!set) throw Error("launch: epoll: " + errno_words(errno));
  }
}

std::array<FileDescriptor, 2> Forwarder::open_streams(int worker) {
  std::array<FileDescriptor, 2> their_ends;
  for (size_t i = 0; i < 2; ++i) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw Error("launch: pipe: " + errno_words(errno));
    workers_[static_cast<size_t>(worker)].streams[i].pipe.reset(ends[0]);
    their_ends[i].reset(ends[1]);
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u32 = static_cast<uint32_t>(worker);
    if (epoll_ctl(readable_[i].get(), EPOLL_CTL_ADD, ends[0], &event) != 0) {
      throw Error("launch: epoll_ctl: " + errno_words(errno));
    }
  }
  return their_ends;
}

void Forwarder::announce(const std::string& line) {
  outlet_of(0).add(line + "\n");
  outlet_of(0).write_some();
}

Forwarder::Interests Forwarder::interests() const noexcept {
  Interests all;
  for (size_t i = 0; i < 2; ++i) {
    const bool held_up = outlet_of(i).full() && !drops_;
    all[i] = {held_up ? -1 : readable_[i].get(), POLLIN, 0};
    all[2 + i] = {outlets_[i].blocked_on(), POLLOUT, 0};
  }
  return all;
}

void Forwarder::serve(const Interests& ready) {
  for (size_t i = 0; i < 2; ++i) {
    if (ready[2 + i].revents != 0) outlets_[i].write_some();
    if (ready[i].revents == 0) continue;
    std::array<epoll_event, 64> events;
    const int found =
        epoll_wait(readable_[i].get(), events.data(), static_cast<int>(events.size()), 0);
    for (int e = 0; e < found; ++e) {
      read_once(static_cast<int>(events[static_cast<size_t>(e)].data.u32), i);
    }
  }
}

/// One read; true when it brought something.
bool Forwarder::read_once(int worker, size_t stream) {
  Stream& from = workers_[static_cast<size_t>(worker)].streams[stream];
  if (!from.pipe) return false;
  const ssize_t got = read(from.pipe.get(), bytes_.data(), bytes_.size());
  if (got > 0) {
    from.lines.append({bytes_.data(), static_cast<size_t>(got)},
                      [&](std::string_view line) { print(worker, stream, line); });
    outlet_of(stream).write_some();
    return true;
  }
  if (got == 0 || (errno != EINTR && errno != EAGAIN)) {
    from.pipe.reset();  // epoll forgets it
    finish_line(worker, stream);
  }
  return false;
}

void Forwarder::flush(int worker) {
  for (size_t i = 0; i < 2; ++i) {
    // No more than is there now: what a worker has started may print for ever.
    int left = 0;
    const FileDescriptor& pipe = workers_[static_cast<size_t>(worker)].streams[i].pipe;
    if (pipe && ioctl(pipe.get(), FIONREAD, &left) != 0) left = 0;
    for (; left > 0 && read_once(worker, i); left -= static_cast<int>(bytes_.size())) {
    }
    finish_line(worker, i);
  }
}

void Forwarder::finish_line(int worker, size_t stream) {
  workers_[static_cast<size_t>(worker)].streams[stream].lines.finish(
      [&](std::string_view line) { print(worker, stream, line); });
  outlet_of(stream).write_some();
}

void Forwarder::print(int worker, size_t stream, std::string_view line) {
  workers_[static_cast<size_t>(worker)].last_lines.add(line);
  Outlet& outlet = outlet_of(stream);
  if (drops_ && outlet.full()) outlet.write_some();
  if (drops_ && outlet.full()) return;
  outlet.add(prefix_ ? fmt::format("[{}] {}\n", worker, line) : fmt::format("{}\n", line));
}

std::vector<std::string> Forwarder::last_lines(int worker) const {
  return workers_[static_cast<size_t>(worker)].last_lines.lines();
}

}  // namespace tutti::detail
