#include "tutti/cluster/launch/detail/guard.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <ctime>

#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/base/threads.h"

namespace tutti::detail {
namespace {

// Everything down to kill_members() runs in the guard after a bare fork: no allocation, no
// stdio, no locks.

/// A file of /proc/PID, opened; -1 when the process has gone.
int open_proc(pid_t pid, const char* file) noexcept {
  char path[64] = "/proc/";
  char digits[16];
  int length = 0;
  for (pid_t rest = pid; rest > 0; rest /= 10)
    digits[length++] = static_cast<char>('0' + rest % 10);
  char* end = path + std::strlen(path);
  while (length > 0) *end++ = digits[--length];
  *end++ = '/';
  std::strcpy(end, file);
  return open(path, O_RDONLY | O_CLOEXEC);
}

/// Whether the environment of `pid` has this very entry.
bool has_entry(pid_t pid, const char* entry) noexcept {
  const int fd = open_proc(pid, "environ");
  if (fd < 0) return false;
  const size_t wanted = std::strlen(entry) + 1;  // with the NUL that ends it
  char window[8192];
  size_t held = 0;
  bool found = false;
  while (!found) {
    const ssize_t got = read(fd, window + held, sizeof window - held);
    if (got <= 0) break;
    held += static_cast<size_t>(got);
    found = memmem(window, held, entry, wanted) != nullptr;
    const size_t keep = std::min(held, wanted - 1);
    std::memmove(window, window + held - keep, keep);
    held = keep;
  }
  close(fd);
  return found;
}

struct Stat {
  pid_t parent = -1;
  char state = '?';
};

Stat stat_of(pid_t pid) noexcept {
  Stat facts;
  const int fd = open_proc(pid, "stat");
  if (fd < 0) return facts;
  char text[512];
  const ssize_t got = read(fd, text, sizeof text - 1);
  close(fd);
  if (got <= 0) return facts;
  text[got] = '\0';
  // "PID (any name) STATE PARENT ...": the name may contain spaces and parentheses.
  const char* after_name = std::strrchr(text, ')');
  if (after_name == nullptr || std::strlen(after_name) < 5) return facts;
  facts.state = after_name[2];
  facts.parent = 0;
  for (const char* c = after_name + 4; *c >= '0' && *c <= '9'; ++c) {
    facts.parent = facts.parent * 10 + (*c - '0');
  }
  return facts;
}

/// Calls `visit(pid)` for every process in /proc.
template <class Visit>
void for_each_process(Visit visit) noexcept {
  const int folder = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return;
  alignas(dirent64) char entries[8192];
  while (true) {
    const long got = syscall(SYS_getdents64, folder, entries, sizeof entries);
    if (got <= 0) break;
    for (long at = 0; at < got;) {
      const auto* entry = reinterpret_cast<const dirent64*>(entries + at);
      at += entry->d_reclen;
      pid_t pid = 0;
      for (const char* c = entry->d_name; *c != '\0' && pid >= 0; ++c) {
        pid = *c >= '0' && *c <= '9' ? pid * 10 + (*c - '0') : -1;
      }
      if (pid > 0) visit(pid);
    }
  }
  close(folder);
}

void sleep_millis(long millis) noexcept {
  const timespec time{0, millis * 1'000'000};
  nanosleep(&time, nullptr);
}

}  // namespace

int kill_members(const char* launch_entry, bool orphans, std::span<const pid_t> spare) noexcept {
  const pid_t self = getpid();
  int found = 0;
  for_each_process([&](pid_t pid) {
    if (pid == self) return;
    if (std::find(spare.begin(), spare.end(), pid) != spare.end()) return;
    const Stat facts = stat_of(pid);
    const bool orphan = orphans && facts.parent == self;
    if (facts.state == 'Z' && orphan) {
      waitpid(pid, nullptr, WNOHANG);
    } else if (facts.state != 'Z' && (orphan || has_entry(pid, launch_entry))) {
      kill(pid, SIGKILL);
      ++found;
    }
  });
  return found;
}

std::vector<pid_t> children_of_this_process() {
  std::vector<pid_t> children;
  const pid_t self = getpid();
  for_each_process([&](pid_t pid) {
    if (stat_of(pid).parent == self) children.push_back(pid);
  });
  return children;
}

void reap_all_but(std::span<const pid_t> spare) noexcept {
  const pid_t self = getpid();
  for_each_process([&](pid_t pid) {
    const Stat facts = stat_of(pid);
    if (facts.parent == self && facts.state == 'Z' &&
        std::find(spare.begin(), spare.end(), pid) == spare.end())
      waitpid(pid, nullptr, WNOHANG);
  });
}

bool is_stopped(pid_t pid) noexcept { return stat_of(pid).state == 'T'; }

bool reap_until(pid_t child, const Deadline& deadline) noexcept {
  while (true) {
    const pid_t reaped = waitpid(child, nullptr, WNOHANG);
    if (reaped > 0 || (reaped < 0 && errno != EINTR)) return true;
    if (deadline.passed()) return false;
    sleep_millis(1);
  }
}

struct Guard::Shared {
  std::atomic<int> num_workers{0};
  pid_t workers[kMaxWorkers];
  char launch_entry[128];
};

namespace {

/// The guard's life: one read, which ends when the launcher dies.
template <class Shared>
[[noreturn]] void stand_guard(Shared& shared, int lifeline) noexcept {
  setsid();  // signals of the terminal are not for the guard
  prctl(PR_SET_NAME, "tutti-guard");
  // Nothing of the launcher's may stay open here: its pipes would seem alive after its death.
  dup2(lifeline, 0);
  if (syscall(SYS_close_range, 1U, ~0U, 0U) != 0) {
    for (int fd = 1; fd < 65536; ++fd) close(fd);
  }
  char byte = 0;
  while (read(0, &byte, 1) < 0 && errno == EINTR) {
  }

  for (int w = 0; w < shared.num_workers.load(); ++w) kill(-shared.workers[w], SIGKILL);
  // A killed process takes a moment to go, and one that was just forked is seen in the next round.
  for (int round = 0; round < 400; ++round) {
    if (kill_members(shared.launch_entry, false, {}) == 0 && round > 0) break;
    sleep_millis(5);
  }
  _exit(0);
}

}  // namespace

Guard::Guard(const std::string& launch_entry) {
  void* page =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) throw Error("launch: no memory for the guard: " + errno_words(errno));
  shared_ = new (page) Shared;
  std::strncpy(shared_->launch_entry, launch_entry.c_str(), sizeof shared_->launch_entry - 1);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    const int failure = errno;
    munmap(shared_, sizeof(Shared));
    throw Error("launch: no pipe for the guard: " + errno_words(failure));
  }
  lifeline_.reset(ends[1]);
  // All signals wait, so that no handler of this process runs in the guard.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  pid_ = fork();
  if (pid_ == 0) stand_guard(*shared_, ends[0]);
  const int failure = errno;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  close(ends[0]);
  if (pid_ < 0) {
    munmap(shared_, sizeof(Shared));
    throw Error("launch: no guard process: " + why_no_start(failure));
  }
}

void Guard::add(pid_t worker, pid_t instead_of) noexcept {
  const int count = shared_->num_workers.load();
  int index = 0;
  while (index < count && shared_->workers[index] != instead_of) ++index;
  if (index >= kMaxWorkers) return;
  shared_->workers[index] = worker;
  if (index == count) shared_->num_workers.store(count + 1);
}

void Guard::dismiss() noexcept {
  if (pid_ < 0) return;
  // It has nothing to end in order, and one that is stopped hears nothing else.
  kill(pid_, SIGKILL);
  if (!reap_until(pid_, Deadline(kDismissal)))
    log(LogLevel::warning, "launch: the guard (pid {}) was killed and has not gone in {} ms", pid_,
        kDismissal.count());
  // Only now: its end would tell a guard that lives that the launcher has died.
  lifeline_.reset();
  pid_ = -1;
  munmap(shared_, sizeof(Shared));
  shared_ = nullptr;
}

}  // namespace tutti::detail
