// How MPI ends. MPI_Finalize waits for every rank, without limit, so nobody may enter it before all
// have come to their end: that is agreed in a nonblocking barrier first. After a failure a rank
// never comes; then this process ends without MPI_Finalize, and the MPI launcher, which sees that,
// ends what is left of the job.
#include "tutti/comm/mpi/process.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <thread>

#include "tutti/base/error.h"
#include "tutti/base/host.h"
#include "tutti/base/log.h"

namespace tutti::detail::mpi {
namespace {

// A rank that ends early waits here for the others, which may still write a checkpoint.
constexpr Millis kEndLimit = std::chrono::minutes(10);
// After a failure: long enough for the others to be told, and to say so, before the launcher ends
// them.
constexpr Millis kFarewell{500};
constexpr int kSpins = 500;
constexpr int kSpinsWhenCrowded = 10;

bool finalized() {
  int ended = 0;
  MPI_Finalized(&ended);
  return ended != 0;
}

int host_leader(MPI_Comm world) {
  MPI_Comm shared = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(world, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &shared),
            "MPI_Comm_split_type");
  MPI_Group here = MPI_GROUP_NULL;
  MPI_Group all = MPI_GROUP_NULL;
  check_mpi(MPI_Comm_group(shared, &here), "MPI_Comm_group");
  check_mpi(MPI_Comm_group(world, &all), "MPI_Comm_group");
  const int first = 0;
  int leader = 0;
  check_mpi(MPI_Group_translate_ranks(here, 1, &first, all, &leader), "MPI_Group_translate_ranks");
  MPI_Group_free(&here);
  MPI_Group_free(&all);
  MPI_Comm_free(&shared);
  return leader;
}

}  // namespace

MpiProcess& MpiProcess::start(Millis limit) {
  static MpiProcess process(limit);
  return process;
}

MpiProcess::MpiProcess(Millis limit) {
  (void)log_level();  // the log's own static outlives this object
  initialise();
  const Deadline deadline(limit);
  duplicate_world(deadline);
  exchange_facts(deadline);
}

void MpiProcess::initialise() {
  int initialised = 0;
  MPI_Initialized(&initialised);
  if (finalized()) throw UsageError("engine \"mpi\": the program has called MPI_Finalize before");
  int level = MPI_THREAD_SINGLE;
  if (initialised == 0) {
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level), "MPI_Init_thread");
    ours_ = true;
    check_mpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN),
              "MPI_Comm_set_errhandler");
  } else {
    check_mpi(MPI_Query_thread(&level), "MPI_Query_thread");
  }
  if (level < MPI_THREAD_SERIALIZED)
    throw UsageError(fmt::format(
        "engine \"mpi\": MPI was initialised for calls from one thread only (level {}); "
        "expected MPI_THREAD_SERIALIZED or MPI_THREAD_MULTIPLE: ask MPI_Init_thread "
        "for it, or let tutti initialise MPI",
        level));
  serialized_ = level < MPI_THREAD_MULTIPLE;
  set_mpi_serialized(serialized_);
}

void MpiProcess::duplicate_world(const Deadline& deadline) {
  int size = 0;
  check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &rank_), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
  members_.resize(static_cast<size_t>(size));
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Comm_idup(MPI_COMM_WORLD, &world_, &request), "MPI_Comm_idup");
  Backoff backoff(kSpins);
  for (int done = 0;;) {
    check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    if (done != 0) break;
    if (deadline.passed()) {
      note_failure();
      throw Timeout(
          fmt::format("joining through MPI, rank {} of {}: not all ranks came within {} ms\n"
                      "  every rank of the MPI launcher has to use engine \"mpi\"",
                      rank_, size, deadline.limit().count()));
    }
    backoff.pause();
  }
  check_mpi(MPI_Comm_set_errhandler(world_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
}

std::string MpiProcess::facts_of_this_rank() const {
  char name[MPI_MAX_PROCESSOR_NAME] = "";
  int length = 0;
  check_mpi(MPI_Get_processor_name(name, &length), "MPI_Get_processor_name");
  return fmt::format("{} {} {} {}", host_leader(world_), getpid(), host_facts().pid_namespace,
                     name);
}

void MpiProcess::exchange_facts(const Deadline& deadline) {
  const auto texts =
      exchange_texts(*this,
                     {.comm = world_,
                      .tag = kFactsTag,
                      .what = fmt::format("joining through MPI, rank {} of {}", rank_, size()),
                      .look = {},
                      .rank_words = [](int r) { return fmt::format("rank {}", r); }},
                     facts_of_this_rank(), deadline);
  int here = 0;
  for (int r = 0; r < size(); ++r) {
    Member& member = members_[r];
    std::istringstream text(texts[r]);
    text >> member.host >> member.pid >> member.pid_namespace >> member.host_name;
  }
  for (int r = 0; r < size(); ++r) {
    if (members_[r].host == members_[rank_].host) ++here;
    if (r != rank_ && is_visible(r))
      members_[r].process.reset(static_cast<int>(syscall(SYS_pidfd_open, members_[r].pid, 0)));
  }
  spins_ = here <= host_facts().usable_cores ? kSpins : kSpinsWhenCrowded;
}

// Whether pids of that rank mean the same process here.
bool MpiProcess::is_visible(int world_rank) const {
  const Member& other = members_[world_rank];
  const Member& own = members_[rank_];
  return other.host == own.host && own.pid_namespace != 0 &&
         other.pid_namespace == own.pid_namespace;
}

std::string MpiProcess::words(int world_rank) const {
  const Member& member = members_[world_rank];
  return fmt::format("pid {} on {}", member.pid, member.host_name);
}

bool MpiProcess::is_dead(int world_rank) const {
  const FileDescriptor& process = members_[world_rank].process;
  if (!process) return false;
  pollfd ended{process.get(), POLLIN, 0};
  return ::poll(&ended, 1, 0) == 1;
}

bool MpiProcess::is_stopped(int world_rank) const {
  if (!is_visible(world_rank)) return false;
  std::ifstream file(fmt::format("/proc/{}/stat", members_[world_rank].pid));
  std::string line;
  std::getline(file, line);
  const size_t end = line.rfind(") ");
  return end != line.npos && end + 2 < line.size() && line[end + 2] == 'T';
}

void MpiProcess::keep(std::function<bool()> step) {
  const std::scoped_lock lock(mutex_);
  kept_.push_back(std::move(step));
}

void MpiProcess::keep(Requests requests, std::shared_ptr<void> memory) {
  if (requests.idle()) return;
  keep([requests = std::move(requests), memory = std::move(memory)]() mutable {
    requests.test();
    return requests.idle();
  });
}

void MpiProcess::poll() noexcept {
  const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  if (!lock) return;
  try {
    kept_.remove_if([](const std::function<bool()>& step) { return step(); });
  } catch (const std::exception& error) {
    // Whoever waits meets the same error and throws it.
    log_once("mpi kept", LogLevel::warning, "a transfer that outlived its group: {}", error.what());
  }
}

bool MpiProcess::nothing_kept() {
  const std::scoped_lock lock(mutex_);
  return kept_.empty();
}

MpiProcess::~MpiProcess() {
  try {
    if (finalized()) return;
    if (failed_.load() || !ours_) {
      say_goodbye();
      return;
    }
    if (!wait_for_all_to_end()) return;
    const auto lock = enter_mpi();
    MPI_Finalize();
  } catch (const std::exception& error) {
    log(LogLevel::error, "ending MPI: {}", error.what());
  }
}

void MpiProcess::say_goodbye() noexcept {
  const Deadline deadline(kFarewell);
  while (!deadline.passed() && (failed_.load() || !nothing_kept())) {
    poll();
    std::this_thread::sleep_for(Millis{1});
  }
}

// False when a rank is gone or does not come.
bool MpiProcess::wait_for_all_to_end() {
  const Deadline deadline(kEndLimit);
  MPI_Request request = MPI_REQUEST_NULL;
  {
    const auto lock = enter_mpi();
    check_mpi(MPI_Ibarrier(world_, &request), "MPI_Ibarrier");
  }
  Backoff backoff(kSpins);
  for (int done = 0; done == 0 || !nothing_kept();) {
    poll();
    if (done == 0) {
      const auto lock = enter_mpi();
      check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    }
    for (int r = 0; done == 0 && backoff.slow() && r < size(); ++r)
      if (is_dead(r)) {
        log(LogLevel::error, "ending MPI, rank {} of {}: rank {} ({}) is gone", rank_, size(), r,
            words(r));
        return false;
      }
    if (deadline.passed()) {
      log(LogLevel::error, "ending MPI, rank {} of {}: not all ranks ended within {} ms", rank_,
          size(), kEndLimit.count());
      return false;
    }
    backoff.pause();
  }
  return true;
}

std::vector<std::string> exchange_texts(MpiProcess& process, const TextExchange& how,
                                        const std::string& mine, const Deadline& deadline) {
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(how.comm, &rank);
  MPI_Comm_size(how.comm, &size);
  // A byte goes before each: an empty text is a message too.
  struct Texts {
    std::string mine;
    std::vector<std::string> all;
  };
  const auto texts = std::make_shared<Texts>();
  texts->mine = "+" + mine;
  texts->all.resize(static_cast<size_t>(size));
  texts->all[rank] = texts->mine;
  Requests transfers;
  std::vector<int> missing;
  for (int r = 0; r < size; ++r) {
    if (r == rank) continue;
    transfers.send(how.comm, texts->mine.data(), static_cast<int64_t>(texts->mine.size()), r,
                   how.tag);
    missing.push_back(r);
  }
  Requests receives;
  const auto arrives = [&](int r) {
    const Probe found = probe(how.comm, r, how.tag);
    if (!found.here) return false;
    texts->all[r].resize(static_cast<size_t>(found.bytes));
    receives.receive(found, texts->all[r].data());
    return true;
  };
  Backoff backoff(process.spins());
  while (!missing.empty() || !receives.idle()) {
    const bool moved = std::erase_if(missing, arrives) > 0;
    if (receives.test() || transfers.test() || moved) backoff.reset();
    if (backoff.slow()) {
      process.poll();
      std::vector<int> late = missing;
      for (int r : receives.pending_peers()) late.push_back(r);
      if (how.look) how.look(late);
      if (deadline.passed()) {
        std::vector<std::string> words;
        for (int r : late) words.push_back(how.rank_words(r));
        transfers.add(std::move(receives));
        process.keep(std::move(transfers), texts);
        throw Timeout(fmt::format("{}: {} did not come within {} ms", how.what,
                                  fmt::join(words, ", "), deadline.limit().count()));
      }
    }
    if (!missing.empty() || !receives.idle()) backoff.pause();
  }
  process.keep(std::move(transfers), texts);
  std::vector<std::string> all;
  for (int r = 0; r < size; ++r) all.push_back(texts->all[r].substr(1));
  return all;
}

}  // namespace tutti::detail::mpi
