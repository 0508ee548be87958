#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <thread>
#include <utility>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/file_descriptor.h"
#include "tutti/base/json.h"
#include "tutti/pjrt/c_api/detail/api.h"

// The child is this program once more, in which try_plugin() runs in place of main(): a fork alone
// may hold a lock of the loader's for ever, which another thread had. What it is told stands in an
// environment variable. What it says are lines: "at FUNCTION" before each call, then "facts JSON",
// "loaded it", "usage WORDS" or "error WORDS".

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

constexpr const char* kTold = "TUTTI_PROBE_PLUGIN";

Json json_of(const Options& options) {
  Json all = Json::object();
  for (const auto& [name, value] : options)
    std::visit([&, &key = name](const auto& one) { all[key] = one; }, value);
  return all;
}

Options options_from(const Json& json) {
  Options options;
  for (const auto& [name, value] : json.items()) {
    if (value.is_string())
      options[name] = value.text();
    else if (value.is_boolean())
      options[name] = value.get<bool>();
    else
      options[name] = value.get<int64_t>();
  }
  return options;
}

/// options  nothing: no client is made
void answer(const std::string& path, const std::optional<Options>& options, int pipe) {
  try {
    const auto step = [&](std::string_view function) {
      write_line(pipe, fmt::format("at {}", function));
    };
    step("dlopen");
    const detail::Api api(path);
    step("PJRT_Plugin_Initialize");
    detail::initialize(api);
    if (!options) return write_line(pipe, "loaded it");
    step("PJRT_Client_Create");
    PJRT_Client* const client = detail::make_client(api, *options, nullptr);
    step("PJRT_Client_AddressableDevices");
    write_line(pipe, "facts " + json_of(detail::facts_of(api, client)).dump());
  } catch (const UsageError& error) {
    write_line(pipe, fmt::format("usage {}", error.what()));
  } catch (const std::exception& error) {
    write_line(pipe, fmt::format("error {}", error.what()));
  }
}

/// Before main(), where this process is to try a plugin.
[[gnu::constructor]] void try_plugin() {
  const char* const told = std::getenv(kTold);
  if (told == nullptr) return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const rlimit no_core{};
  ::setrlimit(RLIMIT_CORE, &no_core);
  try {
    const Json json = parse_json(told);
    ::unsetenv(kTold);
    if (::getppid() == json.at("parent").get<int>())
      answer(
          json.at("path").text(),
          json.contains("options") ? std::optional(options_from(json.at("options"))) : std::nullopt,
          json.at("pipe").get<int>());
  } catch (const std::exception& error) {
    std::fputs(error.what(), stderr);
  }
  std::fflush(stderr);
  ::_exit(0);
}

/// What it was at, and its answer, of all that it said.
struct Answer {
  std::string function = "its start";
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
  Child(const std::string& path, const Options* options) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0)
      throw Error(fmt::format("plugin {}: no pipe: {}", path, errno_words(errno)));
    pipe_.reset(ends[0]);
    const FileDescriptor write_end(ends[1]);
    words_.reset(::memfd_create("tutti-plugin", MFD_CLOEXEC));
    start(path, options, write_end.get());
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
  void start(const std::string& path, const Options* options, int write_end) {
    // Its own numbers: the pipe, and what it logs, which is told of one that crashes.
    constexpr int kPipe = 3;
    posix_spawn_file_actions_t files;
    ::posix_spawn_file_actions_init(&files);
    ::posix_spawn_file_actions_adddup2(&files, words_.get(), STDOUT_FILENO);
    ::posix_spawn_file_actions_adddup2(&files, words_.get(), STDERR_FILENO);
    ::posix_spawn_file_actions_adddup2(&files, write_end, kPipe);
    posix_spawnattr_t how;
    ::posix_spawnattr_init(&how);
    ::posix_spawnattr_setflags(
        &how, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
    sigset_t all, none;
    ::sigfillset(&all);
    ::sigemptyset(&none);
    ::posix_spawnattr_setsigdefault(&how, &all);
    ::posix_spawnattr_setsigmask(&how, &none);

    Json told{{"path", path}, {"pipe", kPipe}, {"parent", int64_t{::getpid()}}};
    if (options != nullptr) told["options"] = json_of(*options);
    std::vector<std::string> words{fmt::format("{}={}", kTold, told.dump())};
    for (char** word = environ; *word != nullptr; ++word) words.emplace_back(*word);
    std::vector<char*> environment;
    for (std::string& word : words) environment.push_back(word.data());
    environment.push_back(nullptr);
    std::string name = "tutti-plugin";
    char* const arguments[] = {name.data(), nullptr};
    const int error =
        ::posix_spawn(&process_, "/proc/self/exe", &files, &how, arguments, environment.data());
    ::posix_spawn_file_actions_destroy(&files);
    ::posix_spawnattr_destroy(&how);
    if (error == 0) return;
    process_ = -1;
    throw Error(fmt::format("plugin {}: no process to try it in: {}", path, errno_words(error)));
  }

  FileDescriptor pipe_, words_;
  pid_t process_ = -1;
};

/// The words of its answer; options as in answer().
std::string probed(const std::string& path, const Options* options, Millis limit) {
  const Deadline deadline(limit);
  Child child(path, options);
  std::string said;
  const bool in_time = child.read(deadline, said);
  const Answer answer = answer_in(said);
  if (answer.kind == "usage") throw UsageError(answer.words);
  if (answer.kind == "error") throw Error(answer.words);
  if (answer.kind == "facts" || answer.kind == "loaded") return answer.words;
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

}  // namespace

PluginFacts probe_plugin(const std::string& path, const Options& options, Millis limit) {
  return facts_from(path, parse_json(probed(path, &options, limit)));
}

void detail::probe_loading(const std::string& path, Millis limit) { probed(path, nullptr, limit); }

}  // namespace tutti::pjrt
