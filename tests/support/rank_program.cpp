// The inside of a rank: finds the named program, runs it, reports how it ended.
#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <sstream>
#include <string>

#include "tutti/base/error.h"

#include "tests/support/run_ranks.h"

namespace tutti::test {
namespace {

std::map<std::string, RankProgram>& programs() {
  static std::map<std::string, RankProgram> all;
  return all;
}

int number(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

std::vector<std::string> lines(const char* name) {
  std::vector<std::string> all;
  std::istringstream text(std::getenv(name) == nullptr ? "" : std::getenv(name));
  for (std::string line; std::getline(text, line);) all.push_back(line);
  return all;
}

std::string class_of(const std::exception& error) {
  if (dynamic_cast<const UsageError*>(&error) != nullptr) return "UsageError";
  if (dynamic_cast<const PeerLost*>(&error) != nullptr) return "PeerLost";
  if (dynamic_cast<const Timeout*>(&error) != nullptr) return "Timeout";
  if (dynamic_cast<const Mismatch*>(&error) != nullptr) return "Mismatch";
  if (dynamic_cast<const DataError*>(&error) != nullptr) return "DataError";
  if (dynamic_cast<const Interrupted*>(&error) != nullptr) return "Interrupted";
  if (dynamic_cast<const Error*>(&error) != nullptr) return "Error";
  return "std::exception";
}

void report(const std::exception& error, int out) {
  std::fprintf(stderr, "error: %s\n", error.what());
  std::fflush(stderr);
  const std::string text = class_of(error) + "\n" + error.what();
  if (out >= 0 && write(out, text.data(), text.size()) < 0) std::perror("report");
}

/// Where to report to; not for processes that this one starts.
int take_report_descriptor() {
  const int out = number("TUTTI_TEST_REPORT", -1);
  if (out >= 0) fcntl(out, F_SETFD, FD_CLOEXEC);
  unsetenv("TUTTI_TEST_REPORT");
  return out;
}

}  // namespace

void Rank::mark(const std::string& line) const {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

RegisterRankProgram::RegisterRankProgram(const char* name, RankProgram program) {
  programs().emplace(name, std::move(program));
}

int run_named_rank_program() {
  const char* name = std::getenv("TUTTI_TEST_PROGRAM");
  if (name == nullptr) return -1;
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // a test that is itself killed leaves no rank
  // Under the launcher a rank program is a worker, and its numbers come from there.
  Rank rank{.rank = number("TUTTI_WORKER", number("TUTTI_TEST_RANK", 0)),
            .size = number("TUTTI_NUM_WORKERS", number("TUTTI_TEST_SIZE", 1)),
            .descriptors = {},
            .arguments = lines("TUTTI_TEST_ARGUMENTS")};
  for (const std::string& fd : lines("TUTTI_TEST_DESCRIPTORS")) {
    rank.descriptors.push_back(std::stoi(fd));
  }
  const auto found = programs().find(name);
  if (found == programs().end()) {
    std::fprintf(stderr, "error: no rank program \"%s\"\n", name);
    return 2;
  }
  const int report_to = take_report_descriptor();
  try {
    found->second(rank);
    return 0;
  } catch (const Interrupted& end) {
    report(end, report_to);
    return 128 + end.signal();
  } catch (const std::exception& error) {
    report(error, report_to);
    return 1;
  }
}

}  // namespace tutti::test
