#include "tutti/ps/server/server_state.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "tutti/base/detail/check.h"

namespace tutti::ps {
namespace {

using Kind = Message::Kind;

constexpr size_t kMostEarly = 10'000;

Message message_of(Settled push) {
  return {.kind = Kind::settled,
          .flags = push.flags,
          .worker = push.worker,
          .piece = push.piece,
          .sequence = push.sequence,
          .version = push.version,
          .text = std::move(push.text)};
}

// Whose copy of the log counts, or will; -1: nobody's.
int follower_of(const PartitionView& partition) {
  return partition.backup >= 0 ? partition.backup : partition.joining;
}

}  // namespace

ServerState::ServerState(int server, Compute compute, Send send, TakeCut take_cut,
                         Ordering ordering)
    : server_(server),
      compute_(std::move(compute)),
      send_(std::move(send)),
      take_cut_(std::move(take_cut)),
      ordering_(std::move(ordering)) {}

bool ServerState::is_primary(int partition) const {
  return partition >= 0 && partition < static_cast<int>(view_.partitions.size()) &&
         view_.partitions[partition].primary == server_;
}

// Where the primary sends the log; -1: nowhere.
int ServerState::follower(const Hosted& hosted, int partition) const {
  return hosted.cut_off ? -1 : follower_of(view_.partitions[partition]);
}

ServerState::Hosted& ServerState::host(int partition) {
  const auto [place, fresh] = hosted_.try_emplace(partition, PartitionState(partition, compute_));
  if (fresh && ordering_.replay) place->second.replay.emplace(ordering_.replay, partition);
  return place->second;
}

std::vector<int> ServerState::partitions() const {
  std::vector<int> numbers;
  for (const auto& [number, hosted] : hosted_) numbers.push_back(number);
  return numbers;
}

std::vector<int> ServerState::followers() const {
  std::set<int> servers;
  for (const auto& [partition, hosted] : hosted_)
    if (is_primary(partition) && follower(hosted, partition) >= 0)
      servers.insert(follower(hosted, partition));
  return {servers.begin(), servers.end()};
}

void ServerState::send(Peer to, int partition, Message message) {
  message.partition = partition;
  message.view = view_.partitions.at(partition).epoch;
  send_(to, std::move(message));
}

// ---- views ----

void ServerState::on_view(const View& view) {
  if (view.number <= view_.number) return;
  const View before = std::exchange(view_, view);
  if (!view_.failure.empty()) over_ = view_.failure;
  const bool known = server_ < static_cast<int>(view_.servers.size());
  if (!known || !view_.servers[server_].alive)
    over_ = fmt::format("server {} was replaced: it {}", server_,
                        known ? view_.servers[server_].ending : "is not known any more");
  if (!over_.empty()) {
    hosted_.clear();
    return;
  }
  for (int i = 0; i < static_cast<int>(view_.partitions.size()); ++i)
    take_role(
        i, i < static_cast<int>(before.partitions.size()) ? before.partitions[i] : PartitionView{});
  if (!same_primaries(before, view_)) {
    primaries_since_ = view_.number;
    for (auto& [partition, hosted] : hosted_)
      if (hosted.cut_view < view_.number) hosted.cut.reset();
  }
  for (auto& [partition, hosted] : hosted_) {
    if (is_primary(partition)) log_leavers(hosted, partition, before);
  }
  take_early();
  go_on_in_order();
}

// Who breaks the rules is told so: the view itself is right.
void ServerState::take_early() {
  for (auto& [from, message] : std::exchange(early_, {})) {
    const int partition = message.partition;
    try {
      on_message(from, std::move(message));
    } catch (const Mismatch& error) {
      send_(from, {.kind = Kind::refused,
                   .partition = partition,
                   .view = view_.number,
                   .text = error.what()});
    }
  }
}

void ServerState::take_role(int partition, const PartitionView& before) {
  const PartitionView& now = view_.partitions[partition];
  if (now.primary == server_) {
    lead(host(partition), partition, before);
  } else if (now.backup == server_) {
    host(partition);
  } else if (now.joining != server_ || before.joining != server_) {
    hosted_.erase(partition);
  }
}

void ServerState::lead(Hosted& hosted, int partition, const PartitionView& before) {
  const PartitionView& now = view_.partitions[partition];
  if (before.primary != server_) {
    hosted.last_index = hosted.state.num_orders();
    if (hosted.replay) hosted.replay->take_over();
  }
  const int follower = follower_of(now);
  const bool same = before.primary == server_ && follower == follower_of(before);
  if (!same) {
    hosted.copied_at = hosted.synced_at = -1;
    hosted.follows = hosted.cut_off = false;
    forget_copy(hosted);
  }
  if (!waits_for_log(hosted, partition)) carry_out_up_to(hosted, hosted.last_index);
  if (!same && follower >= 0 && connected_.contains(server_peer(follower)))
    send_log(hosted, partition);
}

// One that is waited for has not left. In a replay they leave when its order says so.
void ServerState::log_leavers(Hosted& hosted, int partition, const View& before) {
  const bool waits =
      hosted.state.registered() && hosted.state.spec().on_lost_worker == OnLostWorker::wait;
  for (int worker = 0; worker < static_cast<int>(view_.workers.size()); ++worker) {
    const ProcessView& process = view_.workers[worker];
    const bool gone = !process.alive && !process.ending.empty();
    const bool leaves = gone || was_lost_between(before, view_, worker);
    if (leaves && (process.finished || !waits) && hosted.state.is_here(worker) && !hosted.replay)
      submit(hosted, {.kind = Kind::leave,
                      .flags = gone && process.finished ? Message::in_order : 0U,
                      .partition = partition,
                      .worker = worker});
  }
}

void ServerState::on_connected(Peer peer) {
  connected_.insert(peer);
  if (peer.kind != Peer::Kind::server) return;
  for (auto& [partition, hosted] : hosted_) {
    if (is_primary(partition) && follower(hosted, partition) == peer.number)
      send_log(hosted, partition);
  }
}

void ServerState::on_closed(Peer peer, const std::string& how) {
  connected_.erase(peer);
  if (peer.kind != Peer::Kind::server) return;
  for (auto& [partition, hosted] : hosted_) {
    if (!is_primary(partition) || follower(hosted, partition) != peer.number) continue;
    hosted.cut_off = true;
    forget_copy(hosted);
    send(Peer{}, partition, {.kind = Kind::suspect, .sequence = peer.number, .text = how});
  }
}

// To a backup what it may have missed, to a joining server everything.
void ServerState::send_log(Hosted& hosted, int partition) {
  const PartitionView& now = view_.partitions[partition];
  const Peer to = server_peer(follower_of(now));
  if (now.backup < 0) {
    hosted.copied_at = hosted.state.num_orders();
    send(to, partition, {.kind = Kind::copying, .index = hosted.copied_at});
    hosted.copy = hosted.state.copy();
    hosted.behind_copy = hosted.unlogged;
    return;
  }
  for (const Message& order : hosted.unlogged) send(to, partition, order);
}

void ServerState::forget_copy(Hosted& hosted) {
  hosted.copy.reset();
  hosted.behind_copy.clear();
}

std::set<int> ServerState::copies_to() const {
  std::set<int> servers;
  for (const auto& [partition, hosted] : hosted_)
    if (hosted.copy) servers.insert(follower(hosted, partition));
  return servers;
}

void ServerState::continue_copies(int server) {
  const Peer to = server_peer(server);
  for (auto& [partition, hosted] : hosted_) {
    if (!hosted.copy || follower(hosted, partition) != server) continue;
    if (auto chunk = hosted.copy->next()) {
      send(to, partition, std::move(*chunk));
      continue;
    }
    send(to, partition, {.kind = Kind::copied, .index = hosted.copied_at});
    for (Message& order : hosted.behind_copy) send(to, partition, std::move(order));
    forget_copy(hosted);
  }
}

// ---- messages ----

void ServerState::on_message(Peer from, Message message) {
  if (!over_.empty()) return;
  if (message.kind == Kind::view) {
    if (from.kind == Peer::Kind::worker) throw Mismatch("a view of a worker");
    return on_view(view_from(message.text));
  }
  if (message.view > view_.number || view_.number == 0) {
    if (early_.size() == kMostEarly)
      throw Mismatch("too many messages of a view that has not come");
    early_.emplace_back(from, std::move(message));
    return;
  }
  if (message.partition < 0 || message.partition >= static_cast<int>(view_.partitions.size()))
    throw Mismatch(fmt::format("a {} for partition {} of {}", name_of(message.kind),
                               message.partition, view_.partitions.size()));
  switch (from.kind) {
    case Peer::Kind::worker: from_worker(message, from); break;
    case Peer::Kind::primary: from_primary(std::move(message), from); break;
    case Peer::Kind::server: from_follower(message, from.number); break;
    case Peer::Kind::view_service: break;
  }
  go_on_in_order();
}

void ServerState::from_worker(const Message& message, Peer from) {
  if (!is_primary(message.partition)) {
    send(from, message.partition, {.kind = Kind::view, .text = to_text(view_)});
    return;
  }
  if (message.worker != from.number || from.number < 0 ||
      from.number >= static_cast<int>(view_.workers.size()))
    throw Mismatch(fmt::format("worker {} speaks for worker {}", from.number, message.worker));
  Hosted& hosted = host(message.partition);
  const ProcessView& worker = view_.workers[from.number];
  std::string why = objection(hosted, message);
  if (!worker.alive && !worker.ending.empty())
    why = fmt::format("{} counts as lost: it {}", worker.name, worker.ending);
  if (why.empty()) why = hosted.failed;
  if (!why.empty()) {
    send(from, message.partition, {.kind = Kind::refused, .text = why});
    return;
  }
  switch (message.kind) {
    case Kind::hello: take_hello(hosted, message); break;
    case Kind::assign:
    case Kind::begins: submit(hosted, message); break;
    case Kind::push:
    case Kind::sparse_push:
    case Kind::mark: take_push(hosted, message); break;
    case Kind::sparse_pull: take_rows_wish(hosted, message); break;
    case Kind::pull: take_wish(hosted, message); break;
    case Kind::lease: take_lease(hosted, message); break;
    case Kind::bring: take_bring(hosted, message); break;
    case Kind::counts:
      send(from, message.partition, {.kind = Kind::counts, .text = to_text(hosted.state.counts())});
      break;
    default: throw Mismatch(fmt::format("a {} of a worker", name_of(message.kind)));
  }
}

std::string ServerState::objection(const Hosted& hosted, const Message& message) const {
  std::string why = hosted.state.objection(message, [this](int worker) {
    const bool known = worker >= 0 && worker < static_cast<int>(view_.workers.size());
    return known && !view_.workers[worker].name.empty() ? view_.workers[worker].name
                                                        : fmt::format("worker {}", worker);
  });
  if (!why.empty() || message.kind != Kind::push || !hosted.state.spec().staleness.synchronous())
    return why;
  for (const Message& order : hosted.unlogged)
    if (order.kind == Kind::push && order.worker != message.worker &&
        order.piece == message.piece && order.step == message.step && ranks_clash(order, message))
      return fmt::format("worker {} pushes a part of piece {} of a rank that worker {} has pushed",
                         message.worker, message.piece, order.worker);
  return "";
}

const Message* ServerState::unlogged_push(const Hosted& hosted, int worker, int64_t sequence) {
  for (const Message& order : hosted.unlogged)
    if ((order.kind == Kind::push || order.kind == Kind::sparse_push || order.kind == Kind::mark) &&
        order.worker == worker && order.sequence == sequence)
      return &order;
  return nullptr;
}

void ServerState::take_push(Hosted& hosted, Message push) {
  if (is_lost(hosted, push.worker)) return;
  const auto here = [&](int64_t sequence) {
    return sequence <= hosted.state.last_sequence(push.worker) ||
           unlogged_push(hosted, push.worker, sequence) != nullptr ||
           is_early(hosted, push.worker, sequence);
  };
  if (!here(push.sequence - 1))
    throw Mismatch(fmt::format("worker {} sent push {} before push {}", push.worker, push.sequence,
                               push.sequence - 1));
  const bool again = here(push.sequence);
  if (is_early(hosted, push.worker, push.sequence)) return;
  if (hosted.replay && !again) {
    hosted.early_pushes[push.worker].push_back(std::move(push));
    return;
  }
  const Message* const before = unlogged_push(hosted, push.worker, push.sequence);
  if (push.kind == Kind::push && (push.flags & Message::then_pull) != 0)
    hosted.wishes[push.piece][push.worker] = {push.step + 1, !again ? hosted.last_index + 1
                                                             : before != nullptr ? before->index
                                                                                 : 0};
  if (!again) {
    submit(hosted, std::move(push));
    return;
  }
  // Its answer was lost, with the connection.
  if (hosted.state.has(push.worker, push.sequence) && !hosted.state.in_round(push))
    send(worker_peer(push.worker), push.partition, message_of(hosted.state.settled_again(push)));
  end_those_in_vain(hosted, push);
  grant_wishes(hosted, push.partition);
}

void ServerState::from_primary(Message message, Peer from) {
  const PartitionView& now = view_.partitions[message.partition];
  if (from.number != now.primary || (now.backup != server_ && now.joining != server_)) {
    // It was replaced and does not know yet, or this server was.
    send(from, message.partition, {.kind = Kind::view, .text = to_text(view_)});
    return;
  }
  if (message.kind == Kind::copying) hosted_.erase(message.partition);
  Hosted& hosted = host(message.partition);
  if (message.kind == Kind::copying) return;
  if (message.kind == Kind::chunk) {
    hosted.state.take(message);
    return;
  }
  if (message.kind == Kind::copied && message.index != hosted.state.num_orders())
    throw Mismatch(fmt::format("a copy of partition {} at order {} has orders up to {}",
                               message.partition, message.index, hosted.state.num_orders()));
  if (message.kind == Kind::copied && hosted.replay)
    hosted.replay->skip(hosted.state.num_records());
  const bool next = message.index == hosted.state.num_orders() + 1;
  if (!next && message.index > hosted.state.num_orders())
    throw Mismatch(fmt::format("order {} of partition {} after order {}", message.index,
                               message.partition, hosted.state.num_orders()));
  send(from, message.partition, {.kind = Kind::logged, .index = message.index});
  if (next && message.kind != Kind::copied) {
    apply(hosted, message);
    hosted.state.take_answers();  // the primary sends them
  }
}

void ServerState::from_follower(const Message& message, int from) {
  const PartitionView& now = view_.partitions[message.partition];
  if (message.kind != Kind::logged)
    throw Mismatch(fmt::format("server {} answers with a {}", from, name_of(message.kind)));
  if (!is_primary(message.partition) || from != follower_of(now)) return;
  Hosted& hosted = host(message.partition);
  if (from == now.joining && hosted.copied_at >= 0 && message.index >= hosted.copied_at) {
    if (!hosted.follows) hosted.synced_at = hosted.last_index;
    hosted.follows = true;
    if (message.index >= hosted.synced_at)
      send(Peer{}, message.partition, {.kind = Kind::synced, .sequence = from});
  }
  carry_out_up_to(hosted, message.index);
}

// ---- the log ----

bool ServerState::waits_for_log(const Hosted& hosted, int partition) const {
  return view_.partitions[partition].backup >= 0 || hosted.follows;
}

void ServerState::submit(Hosted& hosted, Message order) {
  const int partition = order.partition;
  const int to = follower(hosted, partition);
  order.index = ++hosted.last_index;
  if (hosted.copy)
    hosted.behind_copy.push_back(order);
  else if (to >= 0 && (view_.partitions[partition].backup >= 0 || hosted.copied_at >= 0))
    send(server_peer(to), partition, order);
  hosted.unlogged.push_back(std::move(order));
  if (!waits_for_log(hosted, partition)) carry_out_up_to(hosted, hosted.last_index);
}

void ServerState::carry_out_up_to(Hosted& hosted, int64_t index) {
  while (!hosted.unlogged.empty() && hosted.unlogged.front().index <= index) {
    const Message order = std::move(hosted.unlogged.front());
    hosted.unlogged.pop_front();
    carry_out(hosted, order);
  }
}

void ServerState::carry_out(Hosted& hosted, const Message& order) {
  const int partition = order.partition;
  for (Settled& push : apply(hosted, order)) {
    const Peer to = worker_peer(push.worker);
    send(to, partition, message_of(std::move(push)));
  }
  follow_cut(hosted, order);
  if (order.kind == Kind::hello) answer_hello(hosted, order);
  if (order.kind == Kind::pull) send_parameters(hosted, order);
  if (order.kind == Kind::leave) {
    for (auto& [piece, wishes] : hosted.wishes) wishes.erase(order.worker);
    forget_rows(hosted, order.worker);
  }
  for (Message& answer : hosted.state.take_answers()) {
    const Peer to = worker_peer(answer.worker);
    send(to, partition, std::move(answer));
  }
  end_those_in_vain(hosted, order);
  grant_wishes(hosted, partition);
}

// Since it came it may have left for good, or another one registered first: by orders that were not
// carried out then.
void ServerState::answer_hello(Hosted& hosted, const Message& hello) {
  const std::string why = objection(hosted, hello);
  if (!why.empty())
    send(worker_peer(hello.worker), hello.partition, {.kind = Kind::refused, .text = why});
  else
    send(worker_peer(hello.worker), hello.partition,
         {.kind = Kind::welcome,
          .worker = hello.worker,
          .index = hosted.replay ? hosted.replay->times_left(hello.worker) : 0,
          .sequence = hosted.state.last_sequence(hello.worker),
          .step = hosted.state.last_lease(hello.worker),
          .version = hosted.state.assigned() ? 1 : 0});
  log_leavers(hosted, hello.partition, view_);
}

// Who waits for a step that never ends is told so, and by whom.
void ServerState::end_those_in_vain(const Hosted& hosted, const Message& order) {
  const bool push = order.kind == Kind::push || order.kind == Kind::sparse_push;
  if (!push && order.kind != Kind::leave) return;
  for (const auto& [worker, without, step] : hosted.state.pushed_in_vain()) {
    if (push && worker != order.worker) continue;
    const ProcessView& gone = view_.workers[without];
    send(worker_peer(worker), order.partition,
         {.kind = Kind::refused,
          .text = fmt::format(
              "step {} needs the gradients of all workers, and {} {} before it had pushed its own",
              step, gone.name, gone.ending.empty() ? "was lost" : gone.ending)});
  }
}

// ---- cuts ----

void ServerState::follow_cut(Hosted& hosted, const Message& order) {
  if (!take_cut_) return;
  // A mark that is sent again to a new primary is of a cut that was given up.
  const bool newer = order.kind == Kind::mark && order.version > hosted.last_cut &&
                     order.piece >= primaries_since_;
  if (newer) {
    hosted.last_cut = order.version;
    hosted.cut_view = order.piece;
    hosted.cut = std::make_shared<PartitionCut>(hosted.state, order);
  } else if (hosted.cut) {
    hosted.cut->follow(hosted.state, order);
  }
  if (hosted.cut && hosted.cut->complete(hosted.state))
    take_cut_(order.partition, std::exchange(hosted.cut, nullptr));
}

void ServerState::cut_all(int64_t number, const std::string& folder) {
  for (auto& [partition, hosted] : hosted_) {
    hosted.cut.reset();
    if (!is_primary(partition)) continue;
    if (hosted.state.registered()) {
      take_cut_(partition, std::make_shared<PartitionCut>(hosted.state, number, folder));
      continue;
    }
    send(Peer{}, partition,
         {.kind = Kind::written,
          .flags = Message::not_written,
          .sequence = number,
          .text = "no worker has registered"});
  }
}

}  // namespace tutti::ps
