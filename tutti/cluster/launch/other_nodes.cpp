#include "tutti/cluster/launch/detail/other_nodes.h"

#include <sys/eventfd.h>

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/host.h"
#include "tutti/net/tls.h"

namespace tutti::detail {
namespace {

// That a launcher has read how the job has ended on all nodes.
constexpr std::string_view kRead = "read";

/// "node 1 (ranks 2 to 3, host b, pid 77)"
std::string words_of_node(const NodePlace& place, int num_workers) {
  const int each = num_workers / place.num_nodes;
  const int first = place.node * each;
  const std::string ranks = each == 1 ? fmt::format("rank {}", first)
                                      : fmt::format("ranks {} to {}", first, first + each - 1);
  return fmt::format("node {} ({}, {})", place.node, ranks, process_words());
}

}  // namespace

Token token_of_nodes(const NodePlace& place) {
  const HostPort rendezvous = parse_host_port(place.rendezvous, "--rendezvous");
  return require_token(
      "several nodes", rendezvous.is_loopback(),
      place.job.empty() ? fmt::format("nodes that meet at {}", rendezvous.port) : place.job);
}

OtherNodes::OtherNodes(const NodePlace& place, int num_workers)
    : name_(words_of_node(place, num_workers)),
      num_nodes_(place.num_nodes),
      token_(token_of_nodes(place)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!wake_) throw Error("launch: eventfd: " + errno_words(errno));
  const Deadline deadline(place.limit);
  job_ = place.job.empty() ? job_of_token(token_) : place.job;
  links_ = std::make_unique<JobLinks>(
      JobPlace{
          .num_workers = num_workers,
          .rendezvous = parse_host_port(place.rendezvous, "--rendezvous"),
          .hosts_rendezvous = place.node == 0,
          .rendezvous_name = "the launcher of node 0, beside rank 0",
          .name = name_,
          .interface = interface_from_environment(),
          .silence = place.silence,
          .events = {.lost = [this](int worker,
                                    const std::string& words) { hear({worker, words, false}); },
                     .failed = [this](int worker,
                                      const std::string& words) { hear({worker, words, true}); },
                     .ended = [this](const std::string& name,
                                     const std::string& said) { hear_end(name, said); }}},
      Credentials{.token = token_, .job = job_, .tls = tls_from_environment()}, deadline);
  meet(place, deadline);
}

void OtherNodes::meet(const NodePlace& place, const Deadline& deadline) {
  const auto swap = [&](const char* key, const std::string& mine) {
    return links_->rendezvous().exchange(key, place.node, place.num_nodes, mine, deadline);
  };
  std::vector<std::string> same;
  try {
    same = swap("nodes", place.same);
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("{}\n  give every node the same --nodes", error.what()));
  }
  for (size_t node = 1; node < same.size(); ++node)
    if (same[node] != same[0])
      throw UsageError(
          fmt::format("node 0 was started with \"{}\", node {} with \"{}\": give every node the "
                      "same flags",
                      same[0], node, same[node]));
  word_ = swap("word", place.word).at(0);
}

void OtherNodes::hear(FailureElsewhere failure) {
  {
    const std::scoped_lock lock(mutex_);
    heard_.push_back(std::move(failure));
  }
  eventfd_write(wake_.get(), 1);
}

std::optional<FailureElsewhere> OtherNodes::first_failure(int first, int end) {
  eventfd_t ignored = 0;
  eventfd_read(wake_.get(), &ignored);
  const std::scoped_lock lock(mutex_);
  const auto found = std::find_if(heard_.begin(), heard_.end(), [&](const auto& failure) {
    return failure.worker < first || failure.worker >= end;
  });
  if (found == heard_.end()) return std::nullopt;
  const auto best = std::find_if(found, heard_.end(), [&](const auto& failure) {
    return failure.worker == found->worker && failure.told_by_launcher;
  });
  return best == heard_.end() ? *found : *best;
}

void OtherNodes::hear_end(const std::string& name, const std::string& said) {
  {
    const std::scoped_lock lock(mutex_);
    ended_.insert(name);
    if (said == kRead)
      read_.insert(name);
    else if (!said.empty())
      endings_[name] = said;
  }
  eventfd_write(wake_.get(), 1);
}

void OtherNodes::tell_ending(const std::string& mine) { links_->rendezvous().report_end(mine); }

std::optional<std::vector<std::string>> OtherNodes::endings() {
  const std::scoped_lock lock(mutex_);
  if (std::ssize(endings_) == num_nodes_) {
    std::vector<std::string> all;
    for (const auto& [name, said] : endings_) all.push_back(said);
    return all;
  }
  const auto gone = std::ranges::find_if(
      heard_, [](const auto& failure) { return failure.worker < 0 && !failure.told_by_launcher; });
  if (gone != heard_.end()) throw PeerLost(gone->words);
  if (ended_.contains(""))
    throw PeerLost("the launcher of node 0 has ended, and did not say how the job has");
  return std::nullopt;
}

void OtherNodes::tell_read() { links_->rendezvous().report_end(kRead); }

bool OtherNodes::all_have_read() {
  const std::scoped_lock lock(mutex_);
  return std::ssize(read_) == num_nodes_ || ended_.contains("") ||
         std::ranges::any_of(heard_, [](const auto& failure) { return failure.worker < 0; });
}

void OtherNodes::tell_end() { links_->rendezvous().report_end(); }

bool OtherNodes::others_ended() {
  const std::scoped_lock lock(mutex_);
  const auto own = static_cast<int64_t>(ended_.count(name_));
  return ended_.contains("") || std::ssize(ended_) - own >= num_nodes_ - 1;
}

bool OtherNodes::all_ended() {
  const std::scoped_lock lock(mutex_);
  if (ended_.contains("")) return true;
  const auto lost_before_its_end = [&](const FailureElsewhere& failure) {
    return failure.worker < 0 &&
           std::ranges::none_of(
               ended_, [&](const std::string& name) { return failure.words.starts_with(name); });
  };
  return std::ssize(ended_) + std::ranges::count_if(heard_, lost_before_its_end) >= num_nodes_;
}

void OtherNodes::tell_failure(int worker, const std::string& words) {
  links_->rendezvous().report_failure(words, worker);
}

}  // namespace tutti::detail
