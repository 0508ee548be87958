// The logs of this process, its name in the job, and the file.
#include "tutti/comm/flight/flight_record.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <system_error>

#include "tutti/base/error.h"
#include "tutti/base/folders.h"
#include "tutti/base/log.h"
#include "tutti/comm/flight/flight_log.h"

namespace tutti {
namespace {

struct Registry {
  std::mutex mutex;
  std::vector<std::weak_ptr<FlightLog>> logs;
  std::map<std::pair<int, int>, int> made;  ///< groups without a name, by (rank, size)
  std::string job;
  int worker = -1;
  int num_workers = 0;
  bool launcher_tells = false;
};

// Never destroyed: a group may fail while the program ends.
Registry& registry() {
  static auto* const one = std::make_unique<Registry>().release();
  return *one;
}

std::vector<std::shared_ptr<FlightLog>> living_logs() {
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  std::vector<std::shared_ptr<FlightLog>> logs;
  for (const auto& log : all.logs) {
    if (auto living = log.lock()) logs.push_back(std::move(living));
  }
  return logs;
}

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

bool launcher_tells() {
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  return all.launcher_tells;
}

// A folder that others may have made before us, in a place where everybody may: only our own.
void make_own_folder(const std::filesystem::path& folder) {
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    throw Error(fmt::format("{}: {}", folder.string(), errno_words(errno)));
  }
  struct stat entry{};
  if (lstat(folder.c_str(), &entry) != 0 || !S_ISDIR(entry.st_mode) || entry.st_uid != geteuid()) {
    throw Error(
        fmt::format("{} is not a folder of this user; set TUTTI_RECORD_DIR", folder.string()));
  }
}

std::string as_file_name(std::string text) {
  std::replace_if(
      text.begin(), text.end(),
      [](char c) { return !std::isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '.'; },
      '_');
  return text;
}

// "": it is not set.
std::filesystem::path chosen_folder() {
  const char* folder = std::getenv("TUTTI_RECORD_DIR");
  return folder == nullptr ? "" : folder;
}

std::filesystem::path path_for(const std::string& job, const std::string& file) {
  const auto chosen = chosen_folder();
  return (chosen.empty() ? temporary_folder() / ("tutti-" + job) : chosen) / file;
}

/// Where the record of this process goes by itself, and its folder is made; "" nowhere.
std::filesystem::path make_default_path(const FlightRecord& record, bool one_process) {
  const bool own = chosen_folder().empty();
  if (own && one_process) return {};
  const std::string process = as_file_name(fmt::format("{}-pid{}", record.host, record.pid));
  const std::string job = record.job.empty() ? process : record.job;
  // One name a process, whichever of its ranks fails.
  auto path = record.worker >= 0
                  ? flight_path(job, record.worker)
                  : path_for(as_file_name(job), fmt::format("flight-{}.json", process));
  if (own)
    make_own_folder(path.parent_path());
  else
    std::filesystem::create_directories(path.parent_path());
  return path;
}

// Written beside and renamed, so that a reader sees a whole one. Not synced: whoever waits for this
// group to end must not wait for a disk.
void write_text(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::path part = path;
  part += fmt::format(".{}.part", getpid());
  std::ofstream file(part, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  std::error_code failure;
  if (!file.fail()) std::filesystem::rename(part, path, failure);
  if (!file.fail() && !failure) return;
  const std::string why = file.fail() ? errno_words(errno) : failure.message();
  std::filesystem::remove(part, failure);
  throw Error(fmt::format("flight record {}: cannot be written: {}", path.string(), why));
}

}  // namespace

std::filesystem::path flight_path(const std::string& job, int worker) {
  const std::string name = as_file_name(job);
  return path_for(name, fmt::format("flight-{}-worker{}.json", name, worker));
}

void remove_flight_record(const std::string& job, int worker) noexcept {
  try {
    const auto path = flight_path(job, worker);
    std::filesystem::remove(path);
    if (chosen_folder().empty()) std::filesystem::remove(path.parent_path());
  } catch (const std::exception& error) {  // another record is there, for one
    tutti::log(LogLevel::debug, "{}", error.what());
  }
}

void set_flight_identity(std::string job, int worker, int num_workers, bool launcher_tells) {
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  all.launcher_tells = launcher_tells;
  all.job = std::move(job);
  all.worker = worker;
  all.num_workers = num_workers;
}

FlightRecord flight_record() {
  FlightRecord record{.host = host_name(), .pid = getpid()};
  {
    Registry& all = registry();
    std::lock_guard lock(all.mutex);
    record.job = all.job;
    record.worker = all.worker;
    record.num_workers = all.num_workers;
  }
  for (const auto& log : living_logs()) record.groups.push_back(log->read());
  return record;
}

void write_flight_record(const std::filesystem::path& path) {
  write_text(path, to_json(flight_record()));
}

std::shared_ptr<FlightLog> make_flight_log(std::string name, const Engine& engine) {
  if (engine.size() == 1) return nullptr;
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  if (name.empty()) {
    const int number = all.made[{engine.rank(), engine.size()}]++;
    name = fmt::format("{} ranks #{}", engine.size(), number);
  }
  auto log = std::make_shared<FlightLog>(std::move(name), engine);
  std::erase_if(all.logs, [](const auto& old) { return old.expired(); });
  all.logs.push_back(log);
  return log;
}

void note_failure(FlightLog& log, const FlightLog::Mark& mark, const std::string& why,
                  bool one_process) noexcept {
  try {
    if (!log.failed(mark, why)) return;
    int others = 0;
    int failed = 0;
    for (const auto& other : living_logs()) {
      if (other.get() == &log || other->name() != log.name()) continue;
      ++others;
      if (other->has_failed()) ++failed;
    }
    // The first failure may be the last thing that this process does; the last member's adds what
    // all the others met.
    if (failed != 0 && failed != others) return;
    static std::mutex one_at_a_time;
    std::lock_guard lock(one_at_a_time);
    const FlightRecord record = flight_record();
    const auto path = make_default_path(record, one_process);
    if (path.empty()) return;
    write_text(path, to_json(record));
    log_message_once(path.string(), launcher_tells() ? LogLevel::info : LogLevel::warning,
                     fmt::format("group \"{}\" failed; what each rank did last is in {}: compare "
                                 "it with those of the others by `tutti doctor record FILES...`",
                                 log.name(), path.string()));
  } catch (const std::exception& error) {
    tutti::log(LogLevel::warning, "the flight record was not written: {}", error.what());
  }
}

}  // namespace tutti
