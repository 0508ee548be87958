#include "tests/ranks/train/slow_disk.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>

namespace tutti::test {
namespace {

struct Disk {
  std::mutex mutex;
  std::condition_variable changed;
  bool held = false;
  int error = 0;
  std::atomic<int> before_signal = 0;  // fsync() that are still to come
  std::atomic<int> signal = 0;
  std::atomic<bool> reads_late = false;
  std::string late_name;
  std::chrono::milliseconds late_time{0};
};

// Never destroyed: threads may be held at the end of the process.
Disk& disk() {
  static Disk* const one = std::make_unique<Disk>().release();
  return *one;
}

void set(bool held, int error) {
  const std::lock_guard lock(disk().mutex);
  disk().held = held;
  disk().error = error;
  disk().changed.notify_all();
}

bool is_named(int fd, std::string_view name) {
  std::array<char, 4096> path{};
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t size = ::readlink(link.c_str(), path.data(), path.size());
  return size > 0 && std::string_view(path.data(), static_cast<size_t>(size)).ends_with(name);
}

void read_late(int fd) {
  std::unique_lock lock(disk().mutex);
  if (!is_named(fd, disk().late_name) || !disk().reads_late.exchange(false)) return;
  const auto time = disk().late_time;
  lock.unlock();
  std::this_thread::sleep_for(time);
}

}  // namespace

void hold_disk() { set(true, 0); }
void release_disk() { set(false, 0); }
void fail_disk(int number) { set(false, number); }

void signal_in_fsync(int nth, int signal) {
  disk().signal = signal;
  disk().before_signal = nth;
}

void slow_read(const std::string& name, std::chrono::milliseconds time) {
  const std::lock_guard lock(disk().mutex);
  disk().late_name = name;
  disk().late_time = time;
  disk().reads_late = true;
}

}  // namespace tutti::test

// In place of the C library's.
extern "C" ssize_t read(int fd, void* to, size_t bytes) {
  if (tutti::test::disk().reads_late) tutti::test::read_late(fd);
  return syscall(SYS_read, fd, to, bytes);
}

extern "C" int fsync(int fd) {
  auto& disk = tutti::test::disk();
  if (disk.signal != 0 && --disk.before_signal == 0) std::raise(disk.signal.exchange(0));
  std::unique_lock lock(disk.mutex);
  disk.changed.wait(lock, [&] { return !disk.held; });
  errno = disk.error;
  return errno != 0 ? -1 : static_cast<int>(syscall(SYS_fsync, fd));
}
