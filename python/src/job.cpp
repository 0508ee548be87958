#include "job.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <numeric>

#include "tutti/base/error.h"
#include "tutti/base/host.h"
#include "tutti/base/log.h"
#include "tutti/comm/flight_record.h"
#include "tutti/net/connect.h"
#include "tutti/net/tls.h"

namespace tutti::python {
namespace {

constexpr Millis kSilence{30'000};

struct World {
  std::mutex mutex;
  std::weak_ptr<Job> job;
};

// Never destroyed: a program may end with groups open.
World& world() {
  static World* const one = std::make_unique<World>().release();
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
  return Token::parse(place.exchange(key, mine, deadline).front(),
                      "rank 0's text in the store");
}

Millis silence_limit(Millis timeout) {
  const char* text = std::getenv("TUTTI_SILENCE_LIMIT");
  if (text == nullptr || *text == '\0') return std::clamp(timeout, Millis{1}, kSilence);
  const std::string_view given(text);
  int seconds = 0;
  const auto [end, failure] =
      std::from_chars(given.data(), given.data() + given.size(), seconds);
  if (failure != std::errc() || end != given.data() + given.size() || seconds < 1)
    throw UsageError(fmt::format(
        "TUTTI_SILENCE_LIMIT is \"{}\"; expected whole seconds from 1 on, for example 30", given));
  return std::chrono::seconds(seconds);
}

// Rank 0's process listens first; the others learn from the store where.
Job::Job(MeetingPlace& place, const Reach& reach, Millis silence, const Deadline& deadline) {
  const Token token = agree_on_token(place, "job", deadline);
  const Credentials credentials{
      .token = token, .job = job_of_token(token), .tls = tls_from_environment()};
  JobPlace mine{.worker = place.rank(),
                .num_workers = place.size(),
                .hosts_rendezvous = place.rank() == 0,
                .name = fmt::format("rank {} ({})", place.rank(), process_words()),
                .interface = reach.interface,
                .silence = silence};
  if (place.rank() == 0) {
    mine.rendezvous = {address_to_listen_at(reach, deadline).number(), 0};
    links_ = std::make_unique<JobLinks>(mine, credentials, deadline);
  }
  const std::string here = links_ == nullptr ? "" : links_->listener()->address().text();
  const std::string there = place.exchange("liveness", here, deadline).front();
  if (place.rank() != 0) {
    mine.rendezvous = parse_host_port(there, "rank 0's address in the store");
    links_ = std::make_unique<JobLinks>(mine, credentials, deadline);
  }
  set_log_worker(place.rank(), place.size());
  set_flight_identity(credentials.job, place.rank(), place.size());
}

void Job::follow(const std::shared_ptr<Engine>& engine, const std::vector<int>& members) {
  const std::lock_guard lock(mutex_);
  if (links_ != nullptr) links_->follow(engine, members);
}

void Job::leave() {
  std::unique_ptr<JobLinks> links;
  {
    const std::lock_guard lock(mutex_);
    links.swap(links_);
  }
}

Membership membership(MeetingPlace& place, const std::vector<int>& world_ranks, const Reach& reach,
                      Millis silence, const Deadline& deadline) {
  World& all = world();
  if (!world_ranks.empty()) {
    const std::lock_guard lock(all.mutex);
    if (auto job = all.job.lock()) return {std::move(job), world_ranks};
  }
  std::vector<int> everybody(static_cast<size_t>(place.size()));
  std::iota(everybody.begin(), everybody.end(), 0);
  auto job = std::make_shared<Job>(place, reach, silence, deadline);
  if (world_ranks.empty()) {
    const std::lock_guard lock(all.mutex);
    all.job = job;
  }
  return {std::move(job), std::move(everybody)};
}

void leave_job() {
  std::shared_ptr<Job> job;
  {
    World& all = world();
    const std::lock_guard lock(all.mutex);
    job = all.job.lock();
  }
  if (job != nullptr) job->leave();
}

}  // namespace tutti::python
