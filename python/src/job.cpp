#include "job.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <numeric>

#include "tutti/base/error.h"
#include "tutti/base/host.h"
#include "tutti/base/log.h"
#include "tutti/comm/flight/flight_record.h"
#include "tutti/net/connect.h"
#include "tutti/net/host_meeting.h"
#include "tutti/net/tls.h"

namespace tutti::python {
namespace {

constexpr Millis kSilence{30'000};
constexpr Millis kShortestSilence{5'000};  // a busy machine holds a thread up for a while

struct Jobs {
  std::mutex mutex;
  std::vector<std::weak_ptr<Job>> all;
};

// Never destroyed: a program may end with groups open.
Jobs& jobs() {
  static Jobs* const one = std::make_unique<Jobs>().release();
  return *one;
}

}  // namespace

Address address_to_listen_at(const Reach& reach, const Deadline& deadline) {
  if (!reach.interface.empty())
    return choose_local_address(reach.interface, "TUTTI_INTERFACE", local_interfaces());
  if (reach.towards.empty()) return *Address::from_number("127.0.0.1", 0);
  // Any port will do: only the route counts.
  return local_address_towards(resolve({reach.towards, 1}, deadline).front()).with_port(0);
}

Token agree_on_token(MeetingPlace& place, std::string_view key, const Deadline& deadline) {
  const std::string mine = place.rank() == 0 ? Token::random().secret_hex() : "";
  return Token::parse(place.exchange(key, mine, deadline).front(), "rank 0's text in the store");
}

Millis silence_limit(Millis timeout) {
  const char* text = std::getenv("TUTTI_SILENCE_LIMIT");
  if (text == nullptr || *text == '\0') return std::clamp(timeout, kShortestSilence, kSilence);
  const std::string_view given(text);
  int seconds = 0;
  const auto [end, failure] = std::from_chars(given.data(), given.data() + given.size(), seconds);
  if (failure != std::errc() || end != given.data() + given.size() || seconds < 1)
    throw UsageError(fmt::format(
        "TUTTI_SILENCE_LIMIT is \"{}\"; expected whole seconds from 1 on, for example 30", given));
  return std::chrono::seconds(seconds);
}

namespace {

// Where 127.0.0.1 is the same: a machine, and of its networks one.
std::string loopback_of() {
  std::string network(64, '\0');
  const ssize_t size = ::readlink("/proc/self/ns/net", network.data(), network.size());
  network.resize(static_cast<size_t>(std::max<ssize_t>(size, 0)));
  return boot_id() + network;
}

// Every process is told of it, also those that would reach rank 0.
void require_reach(const HostPort& rank0, const std::vector<std::string>& loopbacks) {
  if (!rank0.is_loopback()) return;
  for (size_t rank = 1; rank < loopbacks.size(); ++rank)
    if (loopbacks[rank] != loopbacks[0])
      throw UsageError(fmt::format(
          "rank 0 listens at {}, and rank {} is on another host: set MASTER_ADDR to rank 0's "
          "address, or TUTTI_INTERFACE to the network between them (eth1, 10.0.0.0/8), on all",
          rank0.text(), rank));
}

}  // namespace

// Rank 0's process listens first; the others learn from the store where.
Job::Job(MeetingPlace& place, bool of_world, const Reach& reach, Millis silence,
         const Deadline& deadline)
    : pid_(getpid()) {
  const Token token = agree_on_token(place, "job", deadline);
  const Credentials credentials{
      .token = token, .job = job_of_token(token), .tls = tls_from_environment()};
  // Groups number their ranks anew, so that "rank 1" alone may be somebody else.
  const std::string_view kind = of_world ? "world rank" : "rank";
  JobPlace mine{.worker = place.rank(),
                .num_workers = place.size(),
                .hosts_rendezvous = place.rank() == 0,
                .rendezvous_name = fmt::format("{} 0, which hears all others,", kind),
                .name = fmt::format("{} {} ({})", kind, place.rank(), process_words()),
                .interface = reach.interface,
                .silence = silence};
  if (place.rank() == 0) {
    mine.rendezvous = {address_to_listen_at(reach, deadline).number(), 0};
    links_ = std::make_unique<JobLinks>(mine, credentials, deadline);
  }
  const std::string here = links_ == nullptr ? "" : links_->listener()->address().text();
  const std::string there = place.exchange("liveness", here, deadline).front();
  const HostPort rank0 = parse_host_port(there, "rank 0's address in the store");
  require_reach(rank0, place.exchange("loopback", loopback_of(), deadline));
  if (place.rank() != 0) {
    mine.rendezvous = rank0;
    links_ = std::make_unique<JobLinks>(mine, credentials, deadline);
  }
  if (!of_world) return;
  set_log_worker(place.rank(), place.size());
  set_flight_identity(credentials.job, place.rank(), place.size());
}

Job::~Job() { leave(); }

void Job::follow(const std::shared_ptr<Engine>& engine, const std::vector<int>& members) {
  const std::lock_guard lock(mutex_);
  if (links_ != nullptr) links_->follow(engine, members);
}

std::string Job::first_loss(const std::vector<int>& members) {
  const std::lock_guard lock(mutex_);
  return links_ == nullptr ? "" : links_->first_loss(members);
}

void Job::leave() {
  std::unique_ptr<JobLinks> links;
  {
    const std::lock_guard lock(mutex_);
    links.swap(links_);
  }
  // A forked child has the sockets and none of the threads.
  if (getpid() != pid_) (void)links.release();  // NOLINT: the parent's
}

Membership make_job(MeetingPlace& place, bool of_world, const Reach& reach, Millis silence,
                    const Deadline& deadline) {
  std::vector<int> everybody(static_cast<size_t>(place.size()));
  std::iota(everybody.begin(), everybody.end(), 0);
  auto job = std::make_shared<Job>(place, of_world, reach, silence, deadline);
  Jobs& known = jobs();
  const std::lock_guard lock(known.mutex);
  std::erase_if(known.all, [](const auto& old) { return old.expired(); });
  known.all.push_back(job);
  return {std::move(job), std::move(everybody)};
}

void leave_jobs() {
  std::vector<std::weak_ptr<Job>> all;
  {
    Jobs& known = jobs();
    const std::lock_guard lock(known.mutex);
    all = known.all;
  }
  for (const auto& one : all)
    if (const auto job = one.lock()) job->leave();
}

}  // namespace tutti::python
