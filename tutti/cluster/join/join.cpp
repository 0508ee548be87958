#include "tutti/cluster/join/join.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <limits>
#include <mutex>

#include "tutti/base/detail/failed_elsewhere.h"
#include "tutti/base/error.h"
#include "tutti/base/host.h"
#include "tutti/base/log.h"
#include "tutti/base/standard_streams.h"
#include "tutti/base/threads.h"
#include "tutti/cluster/join/connect.h"
#include "tutti/cluster/join/detail/lifeline.h"
#include "tutti/cluster/join/detail/step_board.h"
#include "tutti/cluster/join/environment_check.h"
#include "tutti/cluster/join/exit_code.h"
#include "tutti/cluster/rendezvous/job_links.h"
#include "tutti/cluster/spec/detail/environment.h"
#include "tutti/comm/flight/flight_record.h"
#include "tutti/comm/mpi/mpi.h"
#include "tutti/net/host_token.h"
#include "tutti/net/tls.h"
#include "tutti/net/token.h"

namespace tutti {
namespace {

using detail::Lifeline;
using detail::Notice;

template <class Class>
bool is(const std::exception& error) {
  return dynamic_cast<const Class*>(&error) != nullptr;
}

// By which a launcher knows causes, consequences and bad input (WorkerResult).
const char* class_of(const std::exception& error) {
  if (is<UsageError>(error)) return "UsageError";
  if (is<DataError>(error)) return "DataError";
  if (is<PeerLost>(error)) return "PeerLost";
  if (is<detail::FailedElsewhere>(error)) return "FailedElsewhere";
  if (is<Timeout>(error)) return "Timeout";
  if (is<Interrupted>(error)) return "Interrupted";
  return "error";
}

/// Of a job that meets at a rendezvous; made by the first join(), gone with the process.
struct Connections {
  explicit Connections(std::unique_ptr<JobLinks> made, const Token& token)
      : links(std::move(made)),
        base{.listener = links->listener(),
             .token = token,
             .follow = [this](const std::shared_ptr<Engine>& engine) { links->follow(engine); }} {}
  std::unique_ptr<JobLinks> links;
  ConnectBase base;
};
std::unique_ptr<Connections> connections;  // written under the mutex of join()

std::string words_of_process(int worker) {
  return fmt::format("rank {} ({})", worker, process_words());
}

/// Says beside another token where this process has its own from, which nobody gave.
std::unique_ptr<JobLinks> make_links(const JobPlace& place, const Credentials& credentials,
                                     const Deadline& deadline) {
  try {
    return std::make_unique<JobLinks>(place, credentials, deadline);
  } catch (const Mismatch& error) {
    const std::string what = error.what();
    if (token_from_environment() || what.find("token") == std::string::npos) throw;
    throw Mismatch(fmt::format(
        "{}\n  none was given to this process, which has that of this host, in {}: where others "
        "were given one, or are in containers of their own, give it to all (TUTTI_TOKEN)",
        what, folder_of_host_tokens().string()));
  }
}

std::unique_ptr<Connections> connect_job(const ClusterSpec& spec, const Deadline& deadline) {
  if (!spec.rendezvous)
    throw UsageError(fmt::format(
        "join: {} says that there are {} workers, and not where they meet; set TUTTI_RENDEZVOUS to "
        "host:port of worker 0",
        spec.source, spec.num_workers));
  const Credentials credentials{
      .token = require_token("join", on_one_host(spec),
                             spec.job.empty() ? spec.rendezvous->text() : spec.job),
      .job = spec.job,
      .tls = tls_from_environment()};
  auto links = make_links(JobPlace{.worker = spec.worker,
                                   .num_workers = spec.num_workers,
                                   .rendezvous = *spec.rendezvous,
                                   // Of several nodes' launchers, the first has it.
                                   .hosts_rendezvous = spec.worker == 0 && !worker_environment(),
                                   .name = words_of_process(spec.worker),
                                   .interface = interface_from_environment(),
                                   .silence = deadline.limit()},
                          credentials, deadline);
  return std::make_unique<Connections>(std::move(links), credentials.token);
}

Group join_over_rendezvous(const ClusterSpec& spec, const Deadline& deadline) {
  connections = connect_job(spec, deadline);
  RendezvousMeeting meeting(connections->links->rendezvous(), "workers", spec.worker,
                            spec.num_workers);
  return connect(meeting, "workers", connections->base, {.mpi_ranks = spec.mpi}, deadline);
}

/// Of a job of `tutti run` on one host, whose workers meet in its memory.
std::optional<Group> joined_on_one_host;  // written under the mutex of join()
/// Theirs, where they need some; made by the first who does, and gone with the process.
std::unique_ptr<Connections> connections_on_one_host;

/// A rendezvous in worker 0, over loopback, which the group tells the others of.
std::unique_ptr<Connections> meet_on_one_host(Group workers, Millis limit) {
  struct Place {
    std::array<char, 2 * Token::kBytes> token;
    uint16_t port;
  };
  const Deadline deadline(limit);
  Place place{};
  const auto make = [&](const Token& token) {
    auto links = std::make_unique<JobLinks>(
        JobPlace{.worker = workers.rank(),
                 .num_workers = workers.size(),
                 .rendezvous = {"127.0.0.1", place.port},
                 .hosts_rendezvous = workers.rank() == 0,
                 .name = words_of_process(workers.rank()),
                 .silence = limit},
        Credentials{.token = token, .job = "workers on one host"}, deadline);
    return std::make_unique<Connections>(std::move(links), token);
  };
  std::unique_ptr<Connections> made;
  if (workers.rank() == 0) {
    const Token token = Token::random();
    made = make(token);
    std::ranges::copy(token.secret_hex(), place.token.begin());
    place.port = made->links->listener()->address().port();
  }
  const MemorySpan told{&place, sizeof place, DType::uint8};
  workers.broadcast(told, 0, deadline.left()).wait(deadline.left());
  if (made) return made;
  return make(Token::parse({place.token.data(), place.token.size()}, "worker 0's"));
}

/// Collective over the workers, the first time.
Connections& links_on_one_host(Millis limit) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (!connections_on_one_host)
    connections_on_one_host = meet_on_one_host(*joined_on_one_host, limit);
  return *connections_on_one_host;
}

Group join_workers(Millis limit) {
  install_terminate_handler();
  make_failed_writes_errors();
  check_environment();
  take_token_out_of_environment();
  const auto spec = job_of_this_process();
  if (!spec) return Group();
  const Deadline deadline(limit);
  if (spec->worker < 0)
    throw UsageError(
        fmt::format("join: this process is {} {} of the job, as {} says, and no worker",
                    name_of(spec->kind), spec->task, spec->source));
  set_log_worker(spec->worker, spec->num_workers);
  const auto environment = worker_environment();
  set_flight_identity(spec->job, spec->worker, spec->num_workers, environment.has_value());
  if (environment) {
    Lifeline::of(*environment).send({.kind = Notice::Kind::joined}, {}, deadline);
  }
  if (spec->num_workers == 1) return Group();
  if (!environment || environment->segment_fd < 0) return join_over_rendezvous(*spec, deadline);
  Lifeline& lifeline = Lifeline::of(*environment);
  lifeline.wait_until_all_joined(deadline);
  const auto segment = ShmSegment::open(environment->segment_fd);
  joined_on_one_host.emplace(make_shm(segment, environment->worker, false, deadline.left(),
                                      [&] { return lifeline.first_loss(); }),
                             "workers");
  return *joined_on_one_host;
}

/// Every worker gives the same number, or every worker throws.
void require_same(Group& workers, int64_t replicas, const Deadline& deadline) {
  std::vector<int64_t> all(static_cast<size_t>(workers.size()));
  workers.all_gather(span_of(std::span(&replicas, 1)), span_of(std::span(all)), deadline.left())
      .wait(deadline.left());
  const auto other = std::find_if(all.begin(), all.end(), [&](int64_t n) { return n != all[0]; });
  if (other == all.end()) return;
  throw Mismatch(fmt::format(
      "join_replicas, worker {} of {}: worker 0 asks for {} replicas a worker, worker {} for {}\n"
      "  give every worker the same number",
      workers.rank(), workers.size(), all[0], other - all.begin(), *other));
}

/// The segment of one group of replicas: made by worker 0, given to the others by descriptor.
ShmSegment shared_segment(Lifeline& lifeline, const Group& workers, int size, int number,
                          const ShmOptions& options, const Deadline& deadline) {
  if (workers.rank() != 0) {
    return ShmSegment::open(lifeline.wait_for_share(number, deadline).get(), options);
  }
  try {
    auto segment = ShmSegment::create(size, options);
    const int descriptor = segment.descriptor();
    lifeline.send({.kind = Notice::Kind::share, .number = number}, {&descriptor, 1}, deadline);
    return segment;
  } catch (const Error& error) {
    lifeline.send({.kind = Notice::Kind::refused, .number = number, .text = error.what()}, {},
                  deadline);
    throw;
  }
}

/// This worker's members. Each is made in a thread of its own, since each waits for all others.
std::vector<Group> make_members(int count, const std::function<Group(int)>& make) {
  std::vector<Group> members(static_cast<size_t>(count));
  at_once(count, "a replica that joins the job",
          [&](int i) { members[static_cast<size_t>(i)] = make(i); });
  return members;
}

std::vector<Group> local_members(int count, const ShmOptions& options) {
  if (count == 1) return {Group()};
  std::vector<Group> members;
  for (auto& engine : make_shm_threads(count, options)) members.emplace_back(std::move(engine));
  return members;
}

// What cannot serve is refused here too; what could has nobody to send to.
EngineChoice choice_of_one_worker(int replicas, const std::string& asked) {
  const auto job = job_of_this_process();
  choose_engine({.asked = asked,
                 .replicas_per_host = {replicas},
                 .mpi_built = mpi_available(),
                 .mpi_launcher = job && job->mpi});
  if (replicas > 1)
    return {"shm", fmt::format("all {} replicas are threads of one process", replicas)};
  std::string why = "there is one replica, which sends nothing";
  if (asked != "auto" && asked != "solo") why += fmt::format(" ({} was asked for)", asked);
  return {"solo", std::move(why)};
}

/// They meet at the rendezvous, as the `number`-th group of replicas.
std::vector<Group> members_over_links(Connections& job, const Group& workers, int count, int number,
                                      const JoinOptions& options, const Deadline& deadline) {
  const std::string name = fmt::format("replicas{}", number);
  return make_members(count, [&](int member) {
    RendezvousMeeting meeting(job.links->rendezvous(), name, workers.rank() * count + member,
                              workers.size() * count);
    return connect(meeting, name, job.base,
                   {.engine = options.engine,
                    .order = options.order,
                    .streams = options.streams,
                    .pinned = options.pinned,
                    .mpi_ranks = count == 1 && job_of_this_process()->mpi,
                    .table = options.table,
                    .chosen = member == 0 ? options.chosen : nullptr},
                   deadline);
  });
}

}  // namespace

std::optional<ClusterSpec> job_of_this_process() { return cluster_spec(environment_variables()); }

Group join(Millis limit) {
  static std::mutex mutex;
  static std::optional<Group> group;
  std::lock_guard lock(mutex);
  if (!group) group = join_workers(limit);
  return *group;
}

std::vector<Group> join_replicas(int replicas_per_worker, const JoinOptions& options) {
  if (replicas_per_worker < 1) {
    throw UsageError(fmt::format("join_replicas: {} replicas a worker; at least 1 is needed",
                                 replicas_per_worker));
  }
  const Deadline deadline(options.limit);
  const ShmOptions shm{.pinned = options.pinned};
  Group workers = join(options.limit);
  if (const auto environment = worker_environment(); environment && replicas_per_worker > 1) {
    Lifeline::of(*environment)
        .send({.kind = Notice::Kind::replicas, .number = replicas_per_worker}, {}, deadline);
  }
  if (workers.size() == 1) {
    const EngineChoice choice = choice_of_one_worker(replicas_per_worker, options.engine);
    if (options.chosen != nullptr) *options.chosen = choice;
    return local_members(replicas_per_worker, shm);
  }
  require_same(workers, replicas_per_worker, deadline);
  static std::atomic<int> groups_made{0};
  const int number = groups_made++;
  const int first_rank = workers.rank() * replicas_per_worker;
  const int size = workers.size() * replicas_per_worker;
  if (connections)
    return members_over_links(*connections, workers, replicas_per_worker, number, options,
                              deadline);
  const EngineChoice choice = choose_engine(
      {.asked = options.engine, .replicas_per_host = {size}, .mpi_built = mpi_available()});
  if (choice.engine == "tcp")
    return members_over_links(links_on_one_host(options.limit), workers, replicas_per_worker,
                              number, options, deadline);
  if (options.chosen != nullptr) *options.chosen = choice;
  Lifeline& lifeline = Lifeline::of(worker_environment().value());
  const ShmSegment segment = shared_segment(lifeline, workers, size, number, shm, deadline);
  return make_members(replicas_per_worker, [&](int member) {
    return Group(make_shm(segment, first_rank + member, false, deadline.left(),
                          [&] { return lifeline.first_loss(); }));
  });
}

std::shared_ptr<KeyValues> key_values_of_job(std::string name, Millis limit) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (connections) return connections->links->key_values(std::move(name));
  if (!joined_on_one_host)
    throw UsageError(
        fmt::format("values \"{}\" of a job: this process has no rendezvous; call join() first, in "
                    "a job of several workers (tutti run -n 2, or another launcher)",
                    name));
  return links_on_one_host(limit).links->key_values(std::move(name));
}

void ask_for_grace(Millis grace) noexcept {
  try {
    const auto environment = worker_environment();
    if (!environment) return;
    constexpr int64_t kMost = std::numeric_limits<int>::max();
    const auto number = static_cast<int>(std::clamp<int64_t>(grace.count(), 0, kMost));
    Lifeline::of(*environment)
        .send({.kind = Notice::Kind::grace, .number = number}, {}, Deadline(Millis{200}));
  } catch (const std::exception& failure) {
    log(LogLevel::warning, "the launcher was not asked for {} ms of grace: {}", grace.count(),
        failure.what());
  }
}

void report_step(int64_t step, int64_t training) noexcept {
  struct OwnRow {
    std::optional<detail::StepBoard> board;
    int worker = 0;
  };
  static const OwnRow row = []() noexcept -> OwnRow {
    try {
      const auto environment = worker_environment();
      if (!environment || environment->steps_fd < 0) return {};
      return {detail::StepBoard::open(environment->steps_fd), environment->local_worker};
    } catch (const std::exception& failure) {
      log(LogLevel::warning, "the launcher is not told of steps: {}", failure.what());
      return {};
    }
  }();
  if (row.board) row.board->note(row.worker, {.training = training, .step = step});
}

bool started_again() noexcept {
  const char* lives = std::getenv(detail::kRestartVariable);
  return lives != nullptr && *lives != '\0';
}

std::string id_of_all_lives() {
  const char* id = std::getenv(detail::kLivesVariable);
  return id == nullptr ? "" : id;
}

bool report_failure(const std::exception& error) noexcept {
  try {
    const auto text = fmt::format("{}: {}", class_of(error), plain_words(error.what()));
    if (connections) connections->links->rendezvous().report_failure(text);
    const auto environment = worker_environment();
    if (!environment) return false;
    Lifeline::of(*environment)
        .send({.kind = Notice::Kind::failed, .text = text}, {}, Deadline(Millis{200}));
    return !is<PeerLost>(error) && !is<detail::FailedElsewhere>(error);  // these it folds
  } catch (const std::exception& failure) {
    log(LogLevel::debug, "the launcher was not told: {}", failure.what());
    return false;
  }
}

}  // namespace tutti
