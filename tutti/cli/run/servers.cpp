#include "tutti/cli/run/servers.h"

#include <fmt/ranges.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <thread>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/host.h"
#include "tutti/base/log.h"
#include "tutti/base/standard_streams.h"
#include "tutti/cluster/launch/detail/guard.h"
#include "tutti/cluster/launch/detail/other_nodes.h"
#include "tutti/cluster/launch/detail/spawn.h"
#include "tutti/cluster/rendezvous/job_links.h"
#include "tutti/cluster/spec/detail/environment.h"
#include "tutti/net/connect.h"
#include "tutti/net/tls.h"
#include "tutti/ps/snapshot/snapshot.h"
#include "tutti/ps/snapshot/snapshot_manifest.h"
#include "tutti/ps/spec/placement.h"
#include "tutti/ps/spec/update_order.h"
#include "tutti/store/disk_thread.h"

namespace tutti::cli {
namespace {

constexpr Millis kFarewell{2'000};
constexpr Millis kFarewellToRecorders{30'000};
constexpr Millis kLook{200};
// Longer than what a worker computes between two looks at rows of a table.
constexpr std::chrono::microseconds kPoll{2'000};

Token token_of_job(const FleetOptions& options, const NodePlace& nodes) {
  if (options.elsewhere > 0) return require_token("parameter servers elsewhere");
  if (nodes.num_nodes > 1) return detail::token_of_nodes(nodes);
  const auto given = token_from_environment();
  return given ? *given : Token::random();
}

// On node 0. Where only this host is meant nobody else is to reach it.
Address address_of_service(const FleetOptions& options, const NodePlace& nodes) {
  const Deadline deadline(nodes.limit);
  if (!options.view_service.empty())
    return resolve(parse_host_port(options.view_service, "--view-service", 0), deadline).front();
  if (nodes.num_nodes > 1)
    return resolve(parse_host_port(nodes.rendezvous, "--rendezvous"), deadline)
        .front()
        .with_port(0);
  if (options.elsewhere > 0)
    throw UsageError(fmt::format(
        "--servers-elsewhere {} without --view-service ADDRESS[:PORT]: at which address "
        "of this host do they find it?",
        options.elsewhere));
  return *Address::from_number("127.0.0.1", 0);
}

std::string words_of(const FleetOptions& options, const std::filesystem::path& restore,
                     const std::string& order) {
  std::vector<std::string> words;
  if (options.num_servers > 0) words.push_back(fmt::format("--servers {}", options.num_servers));
  if (options.elsewhere > 0)
    words.push_back(fmt::format("--servers-elsewhere {}", options.elsewhere));
  if (!options.backups) words.emplace_back("--no-backups");
  if (!restore.empty()) words.push_back(fmt::format("--restore {}", restore.filename().string()));
  if (!order.empty()) words.push_back(order);
  return fmt::format("{}", fmt::join(words, " "));
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

bool has_ended(int pidfd, const Deadline& deadline) {
  pollfd entry{pidfd, POLLIN, 0};
  int ready = -1;
  do ready = ::poll(&entry, 1, static_cast<int>(deadline.left().count()));
  while (ready == 0 ? !deadline.passed() : ready < 0 && errno == EINTR);
  return ready == 1;
}

}  // namespace

struct ServerFleet::Process {
  int number = 0;
  detail::Spawned started;
};

ServerFleet::ServerFleet(const FleetOptions& options, LaunchOptions& launch)
    : options_(options), nodes_(launch.nodes), token_(token_of_job(options, launch.nodes)) {
  if (!options.snapshots.goes_on_from.empty()) {
    const auto found = std::make_shared<std::filesystem::path>();
    store::wait_for_disk(
        "--restore " + options.snapshots.goes_on_from.string(),
        [found, from = options.snapshots.goes_on_from] {
          *found = ps::find_snapshot(from, "--restore");
          ps::manifest_in(*found);  // what it says is checked before anything starts
        },
        options.snapshots.disk_limit);
    restore_ = *found;
    say("going on from {}\n", restore_.string());
  }
  prepare_order();
  if (nodes_.node == 0) {
    serve_view();
    launch.nodes.word = service_->address().text();
  }
  launch.nodes.same += words_of(options, restore_, order_words_);
  launch.end_together = true;
  launch.stopped_limit = options.silence;
  launch.prepare = [this](const std::string& view_service) { return start(view_service); };
  launch.lost = [this](int worker, const std::string& ending) {
    if (service_) service_->lose_worker(worker, ending);
  };
}

// What the file says is checked before anything starts.
void ServerFleet::prepare_order() {
  if (const auto& path = options_.order.replay; !path.empty()) {
    const ps::UpdateOrder order = ps::read_order(path);
    const auto differs = [&](const char* what, int64_t got, int64_t expected) {
      if (got != expected)
        throw UsageError(
            fmt::format("--replay-order {}: the order is of a job with {} {}, and this one has {}",
                        path.string(), expected, what, got));
    };
    differs("servers", num_all(), std::ssize(order.partitions));
    differs("workers", int64_t{nodes_.num_nodes} * options_.num_workers, order.num_workers());
    order_words_ = ps::words_of_replay(order);
  }
  if (options_.order.record.empty()) return;
  order_words_ = ps::kRecordsOrder;
  parts_ = options_.order.record.string() + ".parts";
  if (nodes_.node == 0) take_parts();
}

// Another job that records to the same file would mix its parts with these.
void ServerFleet::take_parts() {
  require_writable(options_.order.record, "--record-order");
  if (std::filesystem::is_directory(parts_)) ps::clear_parts(parts_, FolderLock::kFile, false);
  parts_lock_.emplace(parts_, "--record-order");
  ps::clear_parts(parts_, FolderLock::kFile);
}

std::string ServerFleet::order_flags() const {
  if (!parts_.empty())
    return fmt::format(" --record-order {}", std::filesystem::absolute(parts_).string());
  if (!options_.order.replay.empty())
    return fmt::format(" --replay-order {}",
                       std::filesystem::absolute(options_.order.replay).string());
  return "";
}

void ServerFleet::serve_view() {
  ps::SnapshotOptions snapshots = options_.snapshots;
  snapshots.goes_on_from = restore_;
  service_ = std::make_unique<ps::ViewService>(
      ps::ViewServiceOptions{.num_servers = num_all(),
                             .num_workers = nodes_.num_nodes * options_.num_workers,
                             .reserved = num_started(),
                             .backups = options_.backups,
                             .silence = options_.silence,
                             .snapshots = snapshots,
                             .one_training = !options_.order.record.empty()   ? "--record-order"
                                             : !options_.order.replay.empty() ? "--replay-order"
                                                                              : "",
                             .order = order_words_},
      address_of_service(options_, nodes_),
      Credentials{token_, job_of_token(token_), tls_from_environment()});
  if (options_.announce) say("view service at {}\n", service_->address().text());
  if (options_.elsewhere > 0) wait_for_elsewhere();
}

void ServerFleet::wait_for_elsewhere() const {
  const std::string what =
      fmt::format("tutti ps --view-service {}{}", service_->address().text(), order_flags());
  say("waiting for {} from elsewhere; on their hosts, with this job's {}{}:\n  {}\n",
      options_.elsewhere == 1 ? "a server" : fmt::format("{} servers", options_.elsewhere),
      kTokenVariable, tls_from_environment() ? " and TUTTI_TLS" : "", what);
  int there = 0;
  const bool all = service_->wait_until(
      [&](const ps::View& view) {
        there =
            static_cast<int>(std::count_if(view.servers.begin() + num_started(), view.servers.end(),
                                           [](const auto& server) { return server.alive; }));
        return there >= options_.elsewhere;
      },
      Deadline(nodes_.limit));
  if (all) return;
  const std::string failure = service_->view().failure;
  if (!failure.empty()) throw Error(failure);
  throw Timeout(fmt::format(
      "{} of {} servers from elsewhere came to {} in {} ms\n  start them, with "
      "the job's token: {}",
      there, options_.elsewhere, service_->address().text(), nodes_.limit.count(), what));
}

std::chrono::microseconds ServerFleet::poll() const {
  const bool a_core_each = options_.num_servers + options_.num_workers <= host_facts().usable_cores;
  return a_core_each ? kPoll : std::chrono::microseconds{0};
}

std::vector<std::string> ServerFleet::start(const std::string& view_service) {
  for (int i = 0; i < options_.num_servers; ++i)
    start_one(nodes_.node * options_.num_servers + i, view_service);
  return {fmt::format("{}={}", detail::kViewServiceVariable, view_service),
          fmt::format("{}={}", detail::kNumServersVariable, num_all()),
          fmt::format("{}={}", detail::kServerWeightsVariable,
                      fmt::join(ps::weights_of_servers(nodes_.num_nodes, options_.num_servers,
                                                       options_.elsewhere),
                                ",")),
          fmt::format("{}={}", detail::kPollVariable, poll().count()),
          fmt::format("{}={}", detail::kPieceBytesVariable,
                      on_one_host() ? ps::kPieceBytes : ps::kPieceBytesOverHosts),
          fmt::format("{}={}", detail::kRestoreVariable, restore_.string()),
          fmt::format("{}={}", detail::kSnapshotsVariable, options_.snapshots.folder.string()),
          fmt::format("{}={}", detail::kRecordOrderVariable, options_.order.record.string()),
          fmt::format("{}={}", detail::kReplayOrderVariable, options_.order.replay.string()),
          fmt::format("{}={}", kTokenVariable, token_.secret_hex())};
}

void ServerFleet::start_one(int number, const std::string& view_service) {
  const int threads = options_.threads > 0
                          ? options_.threads
                          : std::max(1, host_facts().usable_cores / options_.num_servers);
  const std::string program =
      (options_.program.empty() ? std::filesystem::read_symlink("/proc/self/exe")
                                : options_.program)
          .string();
  detail::SpawnPlan plan{
      .path = program,
      .arguments = {program, "ps", "--number", std::to_string(number), "--threads",
                    std::to_string(threads), "--poll", std::to_string(poll().count()),
                    "--view-service", view_service},
      .environment = environment_with({fmt::format("{}={}", kTokenVariable, token_.secret_hex())}),
      .output = STDOUT_FILENO,
      .errors = STDERR_FILENO};
  if (options_.memory_limit_gb > 0)
    plan.arguments.insert(plan.arguments.end(),
                          {"--memory-limit", fmt::format("{}", options_.memory_limit_gb)});
  if (!options_.share_memory) plan.arguments.emplace_back("--no-shared-memory");
  const auto add = [&](const char* flag, const std::filesystem::path& path) {
    if (!path.empty())
      plan.arguments.insert(plan.arguments.end(), {flag, std::filesystem::absolute(path).string()});
  };
  add("--record-order", parts_);
  add("--replay-order", options_.order.replay);
  processes_.push_back(std::make_unique<Process>(Process{number, detail::spawn(plan)}));
  if (!options_.announce) return;
  say("server {} pid {}\n", number, processes_.back()->started.pid);
}

ServerFleet::~ServerFleet() {
  try {
    end(true);
  } catch (const std::exception& error) {
    log(LogLevel::error, "{}", error.what());
  }
}

void ServerFleet::end(bool job_failed) {
  if (std::exchange(ended_, true)) return;
  service_.reset();
  const Deadline farewell(parts_.empty() ? kFarewell : kFarewellToRecorders);
  for (const auto& process : processes_)
    if (!has_ended(process->started.pidfd.get(), farewell)) kill(process->started.pid, SIGKILL);
  const Deadline reaping(detail::kReaping);
  for (const auto& process : processes_) {
    const pid_t pid = process->started.pid;
    if (!detail::reap_until(pid, reaping))
      log(LogLevel::warning, "launch: server {} (pid {}) was killed and has not gone in {} ms",
          process->number, pid, detail::kReaping.count());
  }
  if (!parts_lock_) return;
  try {
    write_order(job_failed);
  } catch (const std::exception& error) {
    if (!job_failed) throw;
    log(LogLevel::error, "{}", error.what());
  }
}

// Servers of other hosts end when they have heard of the end, and their files may be seen later.
ps::UpdateOrder ServerFleet::wait_for_order(bool job_failed) const {
  const Deadline deadline(on_one_host() ? Millis{0}
                                        : (job_failed ? kFarewell : kFarewellToRecorders));
  for (;; std::this_thread::sleep_for(kLook)) {
    open_folder_anew(parts_);
    const bool last = deadline.passed();
    try {
      return ps::merged_order(parts_, num_all(), last && job_failed);
    } catch (const DataError&) {
      if (last) throw;
    }
  }
}

void ServerFleet::write_order(bool job_failed) {
  const ps::UpdateOrder order = wait_for_order(job_failed);
  if (order.spec.empty())
    return log(LogLevel::error,
               "--record-order {}: no server has taken a gradient, so there is no order of them",
               options_.order.record.string());
  ps::write_order(options_.order.record, order);
  ps::clear_parts(parts_, FolderLock::kFile);
  std::filesystem::remove(parts_ / FolderLock::kFile);
  std::error_code ignored;
  std::filesystem::remove(parts_, ignored);
  log(LogLevel::info, "{}: the order of {} updates{}", options_.order.record.string(),
      order.num_updates(),
      order.interrupted ? ", of a job that failed: what servers could not write is not in it" : "");
}

}  // namespace tutti::cli
