#include "tutti/cluster/rendezvous/job_links.h"

#include <algorithm>
#include <cstdlib>

#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/base/sha256.h"
#include "tutti/cluster/rendezvous/rendezvous_values.h"
#include "tutti/cluster/spec/detail/environment.h"
#include "tutti/net/connect.h"
#include "tutti/net/connect_link.h"
#include "tutti/net/host_token.h"

namespace tutti {
namespace {

const std::string kPurpose = "rendezvous";
constexpr size_t kIdLetters = 16;

bool needs(const std::vector<int>& members, int worker) {
  return members.empty() || std::ranges::find(members, std::max(worker, 0)) != members.end();
}

}  // namespace

std::string interface_from_environment() {
  const char* interface = std::getenv(detail::kInterfaceVariable);
  return interface == nullptr ? "" : interface;
}

std::string job_of_token(const Token& token) {
  Sha256 hash;
  const std::string text = "job of " + token.secret_hex();
  hash.update(text.data(), text.size());
  return hash.hex().substr(0, kIdLetters);
}

Token require_token(std::string_view what) {
  if (auto token = token_from_environment()) return *token;
  throw UsageError(fmt::format(
      "{}: no token; the processes of a job prove to each other that they belong to it\n"
      "  give all of them the same one, of their own: export TUTTI_TOKEN=$(openssl rand -hex 32) "
      "on one host and what `echo $TUTTI_TOKEN` prints there on the others, or a file in "
      "TUTTI_TOKEN_FILE",
      what));
}

Token require_token(std::string_view what, bool on_one_host, std::string_view job) {
  if (on_one_host && !token_from_environment()) return token_of_host(job);
  return require_token(what);
}

JobLinks::JobLinks(JobPlace place, const Credentials& credentials, const Deadline& deadline)
    : place_(std::move(place)) {
  listen(credentials, deadline);
  if (place_.hosts_rendezvous) {
    server_ = std::make_unique<detail::RendezvousServer>(detail::RendezvousState::Options{
        .num_workers = place_.num_workers, .silence = place_.silence});
    listener_->serve(kPurpose, [this](Arrival arrival) { server_->add(std::move(arrival.link)); });
  }
  Rendezvous::Events events = place_.events;
  events.lost = [this](int worker, const std::string& words) {
    end_groups(worker, words);
    if (place_.events.lost) place_.events.lost(worker, words);
  };
  rendezvous_ = std::make_shared<Rendezvous>(
      link_to_rendezvous(credentials, deadline),
      Rendezvous::Options{
          .worker = place_.worker, .num_workers = place_.num_workers, .name = place_.name},
      std::move(events), deadline);
}

JobLinks::~JobLinks() {
  rendezvous_->end();
  listener_->serve(kPurpose, {});
}

std::shared_ptr<KeyValues> JobLinks::key_values(std::string name) const {
  return std::make_shared<RendezvousValues>(rendezvous_, std::move(name));
}

/// Whoever has the rendezvous listens there for everything; the others where the way to it begins.
void JobLinks::listen(const Credentials& credentials, const Deadline& deadline) {
  const std::vector<Address> found = resolve(place_.rendezvous, deadline);
  Address at = local_address_towards(found.front());
  if (!place_.interface.empty())
    at = choose_local_address(place_.interface, detail::kInterfaceVariable, local_interfaces());
  if (place_.hosts_rendezvous) at = found.front();
  listener_ = std::make_shared<Listener>(at, credentials);
}

std::unique_ptr<Link> JobLinks::link_to_rendezvous(const Credentials& credentials,
                                                   const Deadline& deadline) {
  const Facts facts{.purpose = kPurpose, .rank = place_.worker};
  if (!place_.hosts_rendezvous)
    return connect_link_with_retry(place_.rendezvous, credentials, facts, place_.rendezvous_name,
                                   deadline);
  auto [ours, theirs] = make_link_pair(place_.rendezvous_name, place_.name);
  server_->add(std::move(theirs));
  return std::move(ours);
}

void JobLinks::follow(const std::shared_ptr<Engine>& engine, const std::vector<int>& members) {
  {
    const std::scoped_lock lock(mutex_);
    std::erase_if(followed_, [](const Followed& known) { return known.engine.expired(); });
    followed_.push_back({engine, members});
  }
  const std::string loss = first_loss(members);
  if (!loss.empty()) engine->abort(FailureKind::peer_lost, loss);
}

std::string JobLinks::first_loss(const std::vector<int>& members) {
  const std::scoped_lock lock(mutex_);
  const auto first =
      std::ranges::find_if(losses_, [&](const auto& lost) { return needs(members, lost.first); });
  return first == losses_.end() ? "" : first->second;
}

void JobLinks::end_groups(int lost, const std::string& words) {
  std::vector<std::shared_ptr<Engine>> live;
  {
    const std::scoped_lock lock(mutex_);
    losses_.emplace_back(lost, words);
    for (const Followed& known : followed_) {
      auto engine = known.engine.lock();
      if (engine != nullptr && needs(known.members, lost)) live.push_back(std::move(engine));
    }
  }
  log(LogLevel::debug, "lost: {}", words);
  for (const auto& engine : live) engine->abort(FailureKind::peer_lost, words);
}

}  // namespace tutti
