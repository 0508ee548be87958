// Loader processes, from the loader's side.
//
// One question, one answer, as JSON in one message each; samples lie in memory that both have
// mapped. A process that is killed shows as the end of its channel, at once.

#include "tutti/data/loader/detail/remote_reader.h"

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tutti/base/detail/check.h"
#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/json.h"
#include "tutti/base/log.h"
#include "tutti/base/threads.h"
#include "tutti/data/detail/cache.h"
#include "tutti/data/loader/detail/loader_process.h"

extern char** environ;

namespace tutti::data::detail {
namespace {

// One that dies of a sample dies of it again; of a kill by hand it does not.
constexpr int kMostDeaths = 3;
constexpr Millis kLook{50};
constexpr Millis kStart{30'000};

std::vector<std::string> own_words() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  return words;
}

std::vector<char*> pointers_to(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

[[noreturn]] void raise(const Json& answer) {
  const auto what = answer.at("what").get<std::string>();
  const auto kind = answer.at("error").get<std::string>();
  if (kind == "usage") throw UsageError(what);
  if (kind == "io") throw IoError(what);
  if (kind == "data") throw DataError(what);
  throw Error(what);
}

}  // namespace

RemoteReader::~RemoteReader() {
  if (process_ == 0) return;
  channel_.close();
  ::kill(process_, SIGKILL);
  ::waitpid(process_, nullptr, 0);
}

void RemoteReader::start(const Content& content) {
  auto [here, there] =
      DescriptorChannel::make_pair(fmt::format("loader process {}", number_), "the loader");
  std::vector<std::string> words = own_words();
  std::vector<std::string> environment;
  for (char** one = environ; *one != nullptr; ++one)
    if (!std::string_view(*one).starts_with(kLoaderVariable)) environment.emplace_back(*one);
  environment.push_back(fmt::format("{}={}", kLoaderVariable, there.descriptor()));

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, there.descriptor(), there.descriptor());
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  pid_t process = 0;
  const int error = ::posix_spawn(&process, program.c_str(), &actions, nullptr,
                                  pointers_to(words).data(), pointers_to(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0)
    throw Error(fmt::format("loader process {}: {} cannot be started: {}", number_, program,
                            why_no_start(error)));
  process_ = process;
  channel_ = std::move(here);
  for (int i = 0; i < 2; ++i) {
    files_[i] = SharedFile::create("tutti loader");
    memory_[i] = {};
  }
  const int descriptors[] = {files_[0].descriptor(), files_[1].descriptor()};
  const Json hello{{"name", origin_.name}, {"arguments", origin_.arguments}};
  channel_.send(dump_json(hello), descriptors, Deadline(kStart));
  for (const SharedCache* cache : caches_of(content)) {
    const int memory[] = {cache->file().descriptor()};
    channel_.send("cache", memory, Deadline(kStart));
  }
  log(LogLevel::info, "loader process {} is pid {}", number_, process);
}

std::string RemoteReader::how_it_ended() {
  int status = 0;
  const pid_t process = process_.exchange(0);
  channel_.close();
  ::kill(process, SIGKILL);  // it may have closed its channel alone
  if (::waitpid(process, &status, 0) != process) return "is gone";
  if (WIFSIGNALED(status)) return fmt::format("was killed by signal {}", WTERMSIG(status));
  return fmt::format("ended with exit code {}", WEXITSTATUS(status));
}

// Waits without a limit of its own: who takes the batch has one, and names this process.
std::string RemoteReader::ask(const Content& content, const std::string& question) {
  if (process_ == 0) start(content);
  channel_.send(question, {}, Deadline(kStart));
  for (;;) {
    try {
      return channel_.receive(Deadline(kLook)).text;
    } catch (const Timeout&) {
      if (stopping_) throw Error("the loader stops");
    }
  }
}

Sample RemoteReader::read(const Content& content, Ref ref, Reading& reading) {
  // What was read last lies in the other memory, and may still be needed if this read fails.
  const int turn = 1 - turn_;
  const Json question{{"id", ref.id}, {"epoch", ref.epoch}, {"seed", reading.seed}, {"turn", turn}};
  for (int deaths = 1;; ++deaths) {
    const pid_t before = process_;
    try {
      const Json answer = parse_json(ask(content, dump_json(question)));
      if (answer.contains("error")) raise(answer);
      for (const auto& stage : answer.at("stages"))
        if (reading.times != nullptr)
          reading.times->add(*stages_.insert(stage.at(0).text()).first,
                             std::chrono::nanoseconds(stage.at(1)), stage.at(2));
      Mapping& memory = memory_[turn];
      const int64_t bytes = answer.at("bytes");
      if (memory.num_bytes() < bytes) memory = Mapping(files_[turn], 0, files_[turn].size_bytes());
      turn_ = turn;
      TUTTI_CHECK(bytes >= 0 && bytes <= memory.num_bytes(), "a sample of {} bytes", bytes);
      auto sample =
          unpacked(content.columns(), {memory.data(), static_cast<size_t>(bytes)}, memory.owner());
      TUTTI_CHECK(sample, "loader process {}: no sample in {} bytes", number_, bytes);
      return std::move(*sample);
    } catch (const PeerLost&) {
      const pid_t process = process_ == 0 ? before : pid_t{process_};
      const std::string how = how_it_ended();
      if (deaths == kMostDeaths)
        throw Error(fmt::format("loader process {} (pid {}) {}, as {} before it did of this sample",
                                number_, process, how, kMostDeaths - 1));
      log(LogLevel::warning, "loader process {} (pid {}) {}, with {}; another does its work",
          number_, process, how, content.where(ref.id));
    }
  }
}

}  // namespace tutti::data::detail
