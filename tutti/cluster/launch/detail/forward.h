/// Brings what the workers print to the launcher's own stdout and stderr, line by line.
///
/// Nothing waits here. Who reads a full outlet slowly slows the workers that write to it, and
/// nobody else; drop_what_is_late() lifts that when the workers have to end. Thread rule: one
/// thread.
#pragma once

#include <poll.h>

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/file_descriptor.h"
#include "tutti/cluster/launch/detail/output.h"

namespace tutti::detail {

class Forwarder {
 public:
  /// With `prefix`, each line stands behind "[worker] ".
  Forwarder(int num_workers, bool prefix);

  /// The ends that become a worker's stdout and stderr; ours is watched from now on.
  std::array<FileDescriptor, 2> open_streams(int worker);
  /// A line of the launcher's own, to stdout.
  void announce(const std::string& line);

  using Interests = std::array<pollfd, 4>;
  /// What to wait for with poll(), and what to do then: one read from each stream that has
  /// something, so that a worker which never stops printing cannot hold up the caller.
  Interests interests() const noexcept;
  void serve(const Interests& ready);

  /// What stands in the worker's pipes now, and a last line without an end.
  void flush(int worker);
  /// From now on lines that find their outlet full are dropped, and hold up no worker.
  void drop_what_is_late() noexcept { drops_ = true; }
  /// Some output has not been taken by its reader yet.
  bool waiting() const noexcept { return !outlets_[0].empty() || !outlets_[1].empty(); }

  std::vector<std::string> last_lines(int worker) const;

 private:
  struct Stream {
    FileDescriptor pipe;  // our end
    LineSplitter lines;
  };
  struct Worker {
    std::array<Stream, 2> streams{};
    LastLines last_lines;
  };

  bool read_once(int worker, size_t stream);
  void finish_line(int worker, size_t stream);
  void print(int worker, size_t stream, std::string_view line);
  Outlet& outlet_of(size_t stream) noexcept { return outlets_[one_outlet_ ? 0 : stream]; }
  const Outlet& outlet_of(size_t stream) const noexcept {
    return outlets_[one_outlet_ ? 0 : stream];
  }

  const bool prefix_;
  bool drops_ = false;
  const bool one_outlet_;  // stdout and stderr are the same file: lines must not mix there
  std::array<Outlet, 2> outlets_;
  std::array<FileDescriptor, 2> readable_;  // epoll sets of the stdouts and of the stderrs
  std::vector<Worker> workers_;
  std::string bytes_;  // room for one read
};

}  // namespace tutti::detail
