#include "tutti/cli/servers.h"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <filesystem>

#include "tutti/base/error.h"
#include "tutti/base/host.h"
#include "tutti/cluster/environment.h"
#include "tutti/cluster/job_links.h"
#include "tutti/cluster/spawn.h"
#include "tutti/net/tls.h"

namespace tutti::cli {
namespace {

constexpr Millis kFarewell{2'000};

Token token_of_job() {
  const auto given = token_from_environment();
  return given ? *given : Token::random();
}

std::vector<std::string> environment_with(const std::vector<std::string>& more) {
  std::vector<std::string> all = more;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string name = std::string(*entry).substr(0, std::string(*entry).find('=') + 1);
    bool there = false;
    for (const std::string& other : more) there |= other.starts_with(name);
    if (!there) all.emplace_back(*entry);
  }
  return all;
}

}  // namespace

struct ServerFleet::Process {
  int number = 0;
  detail::Spawned started;
};

ServerFleet::ServerFleet(const FleetOptions& options) : token_(token_of_job()) {
  service_ = std::make_unique<ps::ViewService>(
      ps::ViewServiceOptions{.num_servers = options.num_servers,
                             .num_workers = options.num_workers,
                             .backups = options.backups,
                             .silence = options.silence},
      *Address::from_number("127.0.0.1", 0),
      Credentials{token_, job_of_token(token_), tls_from_environment()});
  if (options.announce) fmt::print("view service at {}\n", service_->address().text());
  for (int i = 0; i < options.num_servers; ++i) start(i, options);
}

void ServerFleet::start(int number, const FleetOptions& options) {
  const int threads = options.threads > 0
                          ? options.threads
                          : std::max(1, host_facts().usable_cores / options.num_servers);
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  detail::SpawnPlan plan{
      .path = program,
      .arguments = {program, "ps", "--number", std::to_string(number), "--threads",
                    std::to_string(threads), "--view-service", service_->address().text()},
      .environment = environment_with({fmt::format("{}={}", kTokenVariable, token_.secret_hex())}),
      .output = STDOUT_FILENO,
      .errors = STDERR_FILENO};
  if (options.memory_limit_gb > 0)
    plan.arguments.insert(plan.arguments.end(),
                          {"--memory-limit", fmt::format("{}", options.memory_limit_gb)});
  if (!options.share_memory) plan.arguments.emplace_back("--no-shared-memory");
  processes_.push_back(std::make_unique<Process>(Process{number, detail::spawn(plan)}));
  if (!options.announce) return;
  fmt::print("server {} pid {}\n", number, processes_.back()->started.pid);
  std::fflush(stdout);
}

ServerFleet::~ServerFleet() {
  service_.reset();
  const Deadline deadline(kFarewell);
  for (const auto& process : processes_) {
    pollfd entry{process->started.pidfd.get(), POLLIN, 0};
    if (poll(&entry, 1, static_cast<int>(deadline.left().count())) != 1)
      kill(process->started.pid, SIGKILL);
    waitpid(process->started.pid, nullptr, 0);
  }
}

std::vector<std::string> ServerFleet::worker_environment() const {
  return {fmt::format("{}={}", detail::kViewServiceVariable, service_->address().text()),
          fmt::format("{}={}", detail::kNumServersVariable, processes_.size()),
          fmt::format("{}={}", kTokenVariable, token_.secret_hex())};
}

}  // namespace tutti::cli
