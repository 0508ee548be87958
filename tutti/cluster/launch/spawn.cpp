#include "tutti/cluster/launch/detail/spawn.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "tutti/base/error.h"
#include "tutti/base/suggest.h"
#include "tutti/base/threads.h"

namespace tutti::detail {
namespace {

bool is_file(const std::string& path) {
  struct stat entry{};
  return stat(path.c_str(), &entry) == 0 && S_ISREG(entry.st_mode);
}

/// ", did you mean ...?" from the names in the program's folder.
std::string near_program(const std::string& path) {
  const std::filesystem::path wanted(path);
  std::vector<std::string> names;
  std::error_code failure;
  const auto folder = wanted.has_parent_path() ? wanted.parent_path() : std::filesystem::path(".");
  for (const auto& entry : std::filesystem::directory_iterator(folder, failure)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  const std::string near = nearest(wanted.filename().string(), names);
  if (near.empty()) return "";
  return fmt::format("; did you mean \"{}\"?", (folder / near).string());
}

void require_executable(const std::string& path) {
  struct stat entry{};
  if (stat(path.c_str(), &entry) != 0) {
    throw UsageError(fmt::format("program \"{}\" cannot be started: {}{}", path, errno_words(errno),
                                 near_program(path)));
  }
  if (!S_ISREG(entry.st_mode)) {
    throw UsageError(fmt::format("program \"{}\" cannot be started: it is {}", path,
                                 S_ISDIR(entry.st_mode) ? "a folder" : "not a regular file"));
  }
  if (access(path.c_str(), X_OK) != 0) {
    throw UsageError(fmt::format(
        "program \"{}\" cannot be started: it is not executable (chmod +x makes it so)", path));
  }
}

// exec says "No such file" of a script whose interpreter is not there, env of what it should start.
void require_interpreter(const std::string& path) {
  std::string line(256, '\0');  // as much as the kernel reads
  std::ifstream file(path);
  file.read(line.data(), std::ssize(line));
  line.resize(std::min(static_cast<size_t>(file.gcount()), line.find('\n')));
  const size_t begin = line.find_first_not_of(" \t", 2);
  if (!line.starts_with("#!") || begin == std::string::npos) return;
  const std::string interpreter = line.substr(begin, line.find_first_of(" \t", begin) - begin);
  if (line.ends_with('\r') && (interpreter.ends_with('\r') || interpreter.ends_with("/env")))
    throw UsageError(fmt::format(
        "program \"{0}\" cannot be started: its first line ends in CR LF, as editors on "
        "Windows write it; sed -i 's/\\r$//' {0} mends it",
        path));
  std::error_code failure;
  if (!std::filesystem::exists(interpreter, failure) && !failure)
    throw UsageError(fmt::format(
        "program \"{}\" cannot be started: {}, its interpreter (its first line), is not there",
        path, interpreter));
}

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> all;
  for (const std::string& text : texts) all.push_back(const_cast<char*>(text.c_str()));
  all.push_back(nullptr);
  return all;
}

/// What the child needs, prepared before the fork: afterwards nothing may be allocated.
struct ChildPlan {
  const char* path;
  char* const* arguments;
  char* const* environment;
  int input, output, errors, failure_pipe;
  const int* inherited;
  size_t num_inherited;
  pid_t launcher;
};

// Runs between fork and exec: system calls only.
[[noreturn]] void become_worker(const ChildPlan& plan) noexcept {
  setpgid(0, 0);
  // The signal comes when the launching thread dies; a launcher that died before this line is seen
  // by the changed parent.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != plan.launcher) _exit(127);
  bool ready = dup2(plan.input, STDIN_FILENO) >= 0 && dup2(plan.output, STDOUT_FILENO) >= 0 &&
               dup2(plan.errors, STDERR_FILENO) >= 0;
  for (size_t i = 0; i < plan.num_inherited && ready; ++i) {
    ready = fcntl(plan.inherited[i], F_SETFD, 0) == 0;
  }
  if (ready) {
    struct sigaction plain{};
    plain.sa_handler = SIG_DFL;
    for (int signal = 1; signal < NSIG; ++signal) sigaction(signal, &plain, nullptr);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    execve(plan.path, plan.arguments, plan.environment);
  }
  const int failure = errno;
  [[maybe_unused]] const ssize_t written = write(plan.failure_pipe, &failure, sizeof failure);
  _exit(127);
}

FileDescriptor opened(int number, const char* what) {
  if (number < 0) throw Error(fmt::format("launch: {}: {}", what, errno_words(errno)));
  return FileDescriptor(number);
}

}  // namespace

std::string random_id() {
  uint64_t bits = 0;
  if (getrandom(&bits, sizeof bits, 0) != sizeof bits)
    throw Error("launch: getrandom: " + errno_words(errno));
  return fmt::format("{:016x}", bits);
}

std::string find_program(const std::string& name) {
  if (name.empty()) throw UsageError("the name of the program is empty");
  if (name.find('/') != std::string::npos) {
    require_executable(name);
    require_interpreter(name);
    return name;
  }
  const char* path = std::getenv("PATH");
  std::string rest = path == nullptr ? "/usr/local/bin:/usr/bin:/bin" : path;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(':'), rest.size());
    const std::string candidate = (end == 0 ? "." : rest.substr(0, end)) + "/" + name;
    if (is_file(candidate) && access(candidate.c_str(), X_OK) == 0) {
      require_interpreter(candidate);
      return candidate;
    }
    rest.erase(0, end + 1);
  }
  if (is_file(name)) {
    throw UsageError(
        fmt::format("program \"{0}\" is not in PATH; type ./{0} for the one in this folder", name));
  }
  throw UsageError(fmt::format("program \"{}\" is not in PATH{}", name, near_program(name)));
}

Spawned spawn(const SpawnPlan& plan) {
  FileDescriptor null = opened(open("/dev/null", O_RDONLY | O_CLOEXEC), "/dev/null");
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw Error("launch: pipe: " + errno_words(errno));
  FileDescriptor read_end(ends[0]);
  FileDescriptor write_end(ends[1]);
  const auto arguments = pointers(plan.arguments);
  const auto environment = pointers(plan.environment);
  const ChildPlan child{plan.path.c_str(), arguments.data(),      environment.data(),
                        null.get(),        plan.output,           plan.errors,
                        write_end.get(),   plan.inherited.data(), plan.inherited.size(),
                        getpid()};
  // Signals wait meanwhile: a handler of this process must not run in the child.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  const pid_t pid = fork();
  if (pid == 0) become_worker(child);
  const int fork_failure = errno;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (pid < 0) throw Error("launch: fork: " + why_no_start(fork_failure));
  setpgid(pid, pid);  // also here: whoever comes first

  write_end.reset();
  int failure = 0;
  ssize_t got = -1;
  do {
    got = read(read_end.get(), &failure, sizeof failure);
  } while (got < 0 && errno == EINTR);
  if (got == sizeof failure) {
    waitpid(pid, nullptr, 0);
    throw UsageError(
        fmt::format("program \"{}\" cannot be started: {}", plan.path, errno_words(failure)));
  }
  Spawned started{.pid = pid, .pidfd = {}};
  started.pidfd = opened(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)), "pidfd_open");
  return started;
}

}  // namespace tutti::detail
