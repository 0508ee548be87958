#include "tutti/comm/tcp/tcp.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <iterator>

#include "tutti/base/error.h"
#include "tutti/base/host.h"
#include "tutti/base/log.h"
#include "tutti/comm/engine/detail/members.h"
#include "tutti/comm/solo/solo.h"
#include "tutti/comm/tcp/tcp_engine.h"

namespace tutti {
namespace detail::tcp {
namespace {

// Attempts to read before a wait sleeps, each a system call of 0.15 to 0.3 us: about two wake-ups.
constexpr int kSpins = 400;
// With fewer cores than ranks each attempt gives the core to another rank.
constexpr int kSpinsOfMany = 5;
constexpr Millis kLeavingLimit{500};

int spins_of(const TcpOptions& options, int size) {
  const int cores = options.usable_cores > 0 ? options.usable_cores : host_facts().usable_cores;
  const int local = options.local_ranks > 0 ? options.local_ranks : size;
  return local <= cores ? kSpins : kSpinsOfMany;
}

uint32_t fingerprint_of(const TcpOptions& options, const ReductionShape& shape,
                        const TcpLinks& links) {
  const size_t streams = links.peers[links.rank == 0 ? 1 : 0].data.size();
  const std::string all = fmt::format(
      "{} {} {} {} {}x{} {}", shape.to_string(), name_of(options.order), options.chunk_bytes,
      options.min_stripe_bytes, links.lanes, streams, to_json(options.table));
  uint32_t hash = 2166136261u;  // FNV-1a
  for (const char c : all) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return hash;
}

std::vector<std::unique_ptr<Link>> links_of_lane(std::vector<std::unique_ptr<Link>>& all,
                                                 size_t number, int lanes) {
  const auto each = std::ssize(all) / lanes;
  const auto first = all.begin() + static_cast<std::ptrdiff_t>(number) * each;
  return {std::move_iterator(first), std::move_iterator(first + each)};
}

std::vector<std::unique_ptr<Link>> take_control(TcpLinks& links) {
  std::vector<std::unique_ptr<Link>> all;
  for (TcpLinks::Peer& peer : links.peers) all.push_back(std::move(peer.control));
  return all;
}

std::span<const std::string_view> names_of_algorithms() {
  static const auto names = [] {
    std::array<std::string_view, kNumAlgorithms> all;
    for (size_t i = 0; i < all.size(); ++i) all[i] = name_of(static_cast<Algorithm>(i));
    return all;
  }();
  return names;
}

}  // namespace

TcpEngine::TcpEngine(TcpLinks links, TcpOptions options)
    : rank_(links.rank),
      size_(links.size),
      options_(std::move(options)),
      shape_(options_.shape ? *options_.shape : ReductionShape::flat(size_)),
      tree_(shape_, rank_),
      flat_shape_(same_tree(shape_, ReductionShape::flat(size_))),
      fingerprint_(fingerprint_of(options_, shape_, links)),
      spins_(spins_of(options_, size_)),
      spins_a_yield_(spins_ == kSpins ? 16 : 1),
      waker_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      control_(take_control(links), *this),
      messages_(size_, control_),
      counter_("tcp", names_of_algorithms()),
      reduce_inputs_(static_cast<size_t>(size_)),
      known_(static_cast<size_t>(size_)) {
  if (!waker_) throw Error("tcp engine: eventfd: " + errno_words(errno));
  // When a wait first sleeps is chance: what it needs is there from the start.
  size_t num_polls = 1;
  for (const TcpLinks::Peer& peer : links.peers) num_polls += 1 + peer.data.size();
  polls_.reserve(num_polls);
  for (size_t number = 0; number < static_cast<size_t>(links.lanes); ++number) {
    LinkLane& lane = lanes_.emplace_back();
    for (TcpLinks::Peer& peer : links.peers)
      lane.streams.emplace_back(links_of_lane(peer.data, number, links.lanes),
                                options_.min_stripe_bytes, options_.chunk_bytes);
  }
}

TcpEngine::~TcpEngine() {
  if (!failure_.happened()) {
    if (completed_ != submitted_ || !messages_.idle()) {
      const Ticket ticket = completed_ != submitted_ ? (completed_ + 1) << 1 : waited_for_;
      control_.tell_all(
          {.kind = FrameKind::failure, .aux = static_cast<uint32_t>(FailureKind::peer_lost)},
          fmt::format("rank {} left the group in the middle of {}", rank_,
                      operation_words(ticket)));
    } else {
      for (int r = 0; r < size_; ++r)
        if (r != rank_) control_.push(r, state_header(FrameKind::leave));
    }
    control_.flush(kLeavingLimit);
  }
  control_.drain();
}

std::shared_ptr<Engine> TcpEngine::split(int color, int key, Millis limit) {
  const Deadline deadline(limit);
  const std::vector<int> members = members_of_color(*this, color, key, limit);
  const int number = splits_++;
  if (color < 0) return nullptr;
  if (members.size() == 1) return make_solo();
  if (!options_.connect)
    throw UsageError(
        fmt::format("split, rank {} of {}: this group was made of given connections and cannot "
                    "make more; give TcpOptions::connect",
                    rank_, size_));
  TcpOptions options = options_;
  options.key = fmt::format("{}/{}.{}", options_.key, number, color);
  std::vector<int> hosts;
  for (const std::vector<int> all_hosts = hosts_of(shape_); int member : members)
    hosts.push_back(all_hosts[static_cast<size_t>(member)]);
  options.shape = shape_of_hosts(hosts);
  options.local_ranks = std::min(options_.local_ranks, static_cast<int>(members.size()));
  const auto place = std::find(members.begin(), members.end(), rank_) - members.begin();
  TcpLinks links = options_.connect(options.key, members, static_cast<int>(place), deadline);
  return make_tcp(std::move(links), std::move(options));
}

SharedParts TcpEngine::allocate(int64_t /*bytes*/, Millis /*limit*/) {
  throw UsageError(
      fmt::format("allocate, rank {} of {}: members of a group of engine \"tcp\" share no memory; "
                  "use memory of "
                  "your own, or the group of one host",
                  rank_, size_));
}

}  // namespace detail::tcp

namespace {

void check_links(const TcpLinks& links, const TcpOptions& options) {
  const auto refuse = [&](const std::string& why) {
    throw UsageError(fmt::format("make_tcp, rank {} of {}: {}", links.rank, links.size, why));
  };
  if (links.size < 1 || links.rank < 0 || links.rank >= links.size)
    refuse("expected a rank from 0 to below the size");
  if (options.shape && options.shape->replicas() != links.size)
    refuse(fmt::format("reduction shape {} has {} ranks", options.shape->to_string(),
                       options.shape->replicas()));
  if (options.chunk_bytes < 4096 || options.min_stripe_bytes < 4096)
    refuse("chunk_bytes and min_stripe_bytes: expected 4096 or more");
  if (links.lanes < 1) refuse(fmt::format("{} lanes: expected 1 or more", links.lanes));
  if (links.size == 1) return;
  if (static_cast<int>(links.peers.size()) != links.size)
    refuse(fmt::format("links to {} ranks", links.peers.size()));
  const size_t streams = links.peers[links.rank == 0 ? 1 : 0].data.size();
  if (streams % static_cast<size_t>(links.lanes) != 0)
    refuse(
        fmt::format("{} data links a rank: expected a multiple of {} lanes", streams, links.lanes));
  for (int r = 0; r < links.size; ++r) {
    const TcpLinks::Peer& peer = links.peers[static_cast<size_t>(r)];
    if (r == links.rank) continue;
    if (peer.control == nullptr) refuse(fmt::format("no control link to rank {}", r));
    if (peer.data.empty() || peer.data.size() != streams)
      refuse(fmt::format("{} data links to rank {}; expected as many as to the others, {}",
                         peer.data.size(), r, streams));
  }
}

}  // namespace

int tcp_lanes(int ranks, int streams) noexcept {
  constexpr int kMost = 4, kMostLinks = 64;  // data links of a rank, where there is a choice
  constexpr int kMostRanks = 4;              // with more, sums in different rounds meet at one rank
  return ranks > kMostRanks ? 1 : std::clamp(kMostLinks / (ranks * streams), 1, kMost);
}

std::shared_ptr<Engine> make_tcp(TcpLinks links, TcpOptions options) {
  check_links(links, options);
  if (links.size == 1) return make_solo();
  const int lanes = links.lanes;
  const size_t streams =
      links.peers[links.rank == 0 ? 1 : 0].data.size() / static_cast<size_t>(lanes);
  auto engine = std::make_shared<detail::tcp::TcpEngine>(std::move(links), std::move(options));
  log(LogLevel::info,
      "engine tcp, group \"{}\": rank {} of {}, {} data link{} a peer, {} sum{} at a time; sums {}",
      engine->key(), engine->rank(), engine->size(), streams, streams == 1 ? "" : "s", lanes,
      lanes == 1 ? "" : "s",
      engine->order() == Order::fixed
          ? fmt::format("in the order of reduction shape {}", engine->reduction_shape().to_string())
          : "in any order (order = any)");
  return engine;
}

}  // namespace tutti
