#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <limits>
#include <thread>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/file_descriptor.h"
#include "tutti/base/json.h"
#include "tutti/pjrt/c_api/detail/api.h"

// The child is forked, for nobody knows which program to start: this one is the user's. It calls
// nothing of LibTorch, and a lock that another thread held at that moment costs it no more than the
// limit. What it says are lines: "at FUNCTION" before each call, then "facts JSON", "usage WORDS"
// or "error WORDS".

namespace tutti::pjrt {
namespace {

Json json_of(const PluginFacts& facts) {
  Json devices = Json::array();
  for (const DeviceFacts& device : facts.devices)
    devices.push_back(Json::array({device.id, device.process, device.kind, device.words}));
  return {{"major", facts.api_major},
          {"minor", facts.api_minor},
          {"platform", facts.platform},
          {"version", facts.platform_version},
          {"devices", devices}};
}

PluginFacts facts_from(const std::string& path, const Json& json) {
  PluginFacts facts;
  facts.path = path;
  facts.api_major = json.at("major").get<int>();
  facts.api_minor = json.at("minor").get<int>();
  facts.platform = json.at("platform").text();
  facts.platform_version = json.at("version").text();
  for (const Json& device : json.at("devices").elements())
    facts.devices.push_back({.id = device.at(0).get<int>(),
                             .process = device.at(1).get<int>(),
                             .kind = device.at(2).text(),
                             .words = device.at(3).text()});
  return facts;
}

void write_line(int pipe, std::string line) {
  for (char& c : line)
    if (c == '\n') c = ' ';
  line += '\n';
  std::string_view left = line;
  while (!left.empty()) {
    const ssize_t written = ::write(pipe, left.data(), left.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // the parent has gone
    left.remove_prefix(static_cast<size_t>(written));
  }
}

/// Nothing of the parent's is left that would keep it from ending, or tell of its end elsewhere.
void stand_alone(pid_t parent) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(0);
  for (const int signal :
       {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT})
    ::signal(signal, SIG_DFL);
  sigset_t none;
  ::sigemptyset(&none);
  ::pthread_sigmask(SIG_SETMASK, &none, nullptr);
  const rlimit no_core{};
  ::setrlimit(RLIMIT_CORE, &no_core);
}

[[noreturn]] void try_in_child(const std::string& path, const Options& options, int pipe, int words,
                               pid_t parent) {
  stand_alone(parent);
  ::dup2(words, STDOUT_FILENO);  // what it logs is told of one that crashes, and is said again by
  ::dup2(words, STDERR_FILENO);  // the plugin that is loaded in earnest
  try {
    const auto step = [&](std::string_view function) {
      write_line(pipe, fmt::format("at {}", function));
    };
    step("dlopen");
    const detail::Api api(path);
    step("PJRT_Plugin_Initialize");
    detail::initialize(api);
    step("PJRT_Client_Create");
    PJRT_Client* const client = detail::make_client(api, options);
    step("PJRT_Client_AddressableDevices");
    write_line(pipe, "facts " + json_of(detail::facts_of(api, client)).dump());
  } catch (const UsageError& error) {
    write_line(pipe, fmt::format("usage {}", error.what()));
  } catch (const std::exception& error) {
    write_line(pipe, fmt::format("error {}", error.what()));
  }
  ::_exit(0);
}

/// What it was at, and its answer, of all that it said.
struct Answer {
  std::string function = "fork";
  std::string kind, words;
};

Answer answer_in(const std::string& said) {
  Answer answer;
  size_t begin = 0;
  for (size_t end = said.find('\n'); end != std::string::npos; end = said.find('\n', begin)) {
    const std::string line = said.substr(begin, end - begin);
    begin = end + 1;
    const size_t space = line.find(' ');
    const std::string kind = line.substr(0, space);
    if (kind == "at") {
      answer.function = line.substr(space + 1);
    } else {
      answer.kind = kind;
      answer.words = line.substr(space + 1);
    }
  }
  return answer;
}

/// The process that tries, ended and waited for with this.
class Child {
 public:
  Child(const std::string& path, const Options& options) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0)
      throw Error(fmt::format("plugin {}: no pipe: {}", path, errno_words(errno)));
    pipe_.reset(ends[0]);
    const FileDescriptor write_end(ends[1]);
    words_.reset(::memfd_create("tutti-plugin", MFD_CLOEXEC));
    const pid_t parent = ::getpid();
    process_ = ::fork();
    if (process_ == 0) try_in_child(path, options, write_end.get(), words_.get(), parent);
    if (process_ < 0)
      throw Error(fmt::format("plugin {}: no process to try it in: {}", path, errno_words(errno)));
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    if (process_ > 0) ended();
  }

  /// What it says, until its answer or its end; false where the deadline has passed before. What a
  /// plugin has started may hold the pipe longer.
  bool read(const Deadline& deadline, std::string& said) const {
    while (true) {
      pollfd wanted{.fd = pipe_.get(), .events = POLLIN, .revents = 0};
      const auto left = std::min<int64_t>(deadline.left().count(), std::numeric_limits<int>::max());
      const int ready = ::poll(&wanted, 1, static_cast<int>(left));
      if (ready < 0 && errno != EINTR) return false;
      if (ready == 0 && deadline.passed()) return false;
      if (ready <= 0) continue;
      char part[4096];
      const ssize_t count = ::read(pipe_.get(), part, sizeof part);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return true;
      said.append(part, static_cast<size_t>(count));
      if (!answer_in(said).kind.empty()) return true;
    }
  }

  /// Ends it, with what it has started; how it ended, in words. One that a driver holds does not
  /// end even so, and is left after a while.
  std::string ended() {
    const pid_t process = std::exchange(process_, -1);
    const Deadline patience(Millis{3'000});
    int status = 0;
    for (bool first = true; !patience.passed(); first = false) {
      const pid_t got = ::waitpid(process, &status, WNOHANG);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return "ended; how is not known, for this process ignores SIGCHLD,";
      if (got == process) ::kill(-process, SIGKILL);  // what it has started
      if (got == process && WIFSIGNALED(status))
        return fmt::format("was ended by SIG{}", sigabbrev_np(WTERMSIG(status)));
      if (got == process) return fmt::format("ended with code {}", WEXITSTATUS(status));
      // One that is about to end by itself has closed its pipe, and keeps its own status.
      if (!first) ::kill(-process, SIGKILL), ::kill(process, SIGKILL);
      std::this_thread::sleep_for(Millis{5});
    }
    return "does not end";
  }

  /// The last line that the plugin logged.
  std::string last_words() const {
    char part[512];
    const off_t end = ::lseek(words_.get(), 0, SEEK_END);
    const off_t begin = end > off_t{sizeof part} ? end - off_t{sizeof part} : 0;
    const ssize_t count = end > 0 ? ::pread(words_.get(), part, sizeof part, begin) : 0;
    std::string text(part, count > 0 ? static_cast<size_t>(count) : 0);
    while (text.ends_with('\n')) text.pop_back();
    const size_t line = text.rfind('\n');
    return line == std::string::npos ? text : text.substr(line + 1);
  }

 private:
  FileDescriptor pipe_, words_;
  pid_t process_ = -1;
};

}  // namespace

PluginFacts probe_plugin(const std::string& path, const Options& options, Millis limit) {
  const Deadline deadline(limit);
  Child child(path, options);
  std::string said;
  const bool in_time = child.read(deadline, said);
  const Answer answer = answer_in(said);
  if (answer.kind == "usage") throw UsageError(answer.words);
  if (answer.kind == "error") throw Error(answer.words);
  if (answer.kind == "facts") return facts_from(path, parse_json(answer.words));
  if (!in_time)
    throw Timeout(fmt::format(
        "plugin {}: no answer within {} s, at {}: it waits for something (a TPU's looks for its "
        "metadata server unless TPU_SKIP_MDS_QUERY=1)",
        path, std::chrono::duration<double>(limit).count(), answer.function));
  const std::string how = child.ended();
  throw Error(fmt::format("plugin {}: the process that tried it {} in {}{}", path, how,
                          answer.function,
                          child.last_words().empty() ? "" : "; it said: " + child.last_words()));
}

}  // namespace tutti::pjrt
