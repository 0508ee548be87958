// What a server does with the order of updates: it hands on what it carries out, and where an order
// is replayed, it lets what workers send wait until their turn has come.
#include <fmt/format.h>

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/event.h"
#include "tutti/ps/server/server_state.h"

namespace tutti::ps {
namespace {

using Kind = Message::Kind;

bool has_gone(const ProcessView& worker) { return !worker.alive && !worker.ending.empty(); }

/// Emits "ps.updated" of an order that has changed parameters: how long that took, without what the
/// order has waited for.
std::vector<Settled> apply_and_tell(int server, PartitionState& state, const Message& order) {
  if (!events_wanted() || order.kind == Kind::mark) return state.apply(order);
  const TimePoint began = Clock::now();
  std::vector<Settled> settled = state.apply(order);
  const auto push = std::ranges::find(settled, 0U, &Settled::flags);  // the others are left out
  if (push != settled.end())
    emit("ps.updated",
         {{"server", int64_t{server}},
          {"worker", int64_t{push->worker}},
          {"piece", int64_t{push->piece}},
          {"sequence", push->sequence},
          {"version", push->version},
          {"us", std::chrono::duration<double, std::micro>(Clock::now() - began).count()}});
  return settled;
}

}  // namespace

std::vector<Settled> ServerState::apply(Hosted& hosted, const Message& order) {
  if (!has_order()) return apply_and_tell(server_, hosted.state, order);
  const auto record = hosted.state.record_of(order);
  if (record && hosted.replay) hosted.replay->follow(*record);
  std::vector<Settled> settled = apply_and_tell(server_, hosted.state, order);
  if (record && ordering_.take_record)
    ordering_.take_record(order.partition, hosted.state, *record, order);
  if (hosted.replay) hosted.replay->look(hosted.state);
  return settled;
}

void ServerState::take_hello(Hosted& hosted, const Message& hello) {
  forget_rows(hosted, hello.worker);
  if (!is_lost(hosted, hello.worker)) {
    const ProcessView& worker = view_.workers[hello.worker];
    if (!hosted.replay || worker.comings <= 1 + hosted.replay->times_gone(hello.worker))
      return submit(hosted, hello);
    // What it had begun before nobody has any more.
    return fail_replay(
        hosted, hello.partition,
        fmt::format("{} has ended and come again where in the order it does neither: it is there "
                    "for the {}. time, expected {}; replay once more",
                    worker.name, worker.comings, 1 + hosted.replay->times_gone(hello.worker)));
  }
  if (hosted.replay->comes_again(hello.worker))
    hosted.early_hellos[hello.worker] = hello;
  else
    say_lost(hello.partition, hello.worker);
}

// Here it has not died.
void ServerState::say_lost(int partition, int worker) {
  send(worker_peer(worker), partition,
       {.kind = Kind::refused,
        .flags = Message::replayed,
        .text = fmt::format("--replay-order: in the order that is replayed worker {} is lost here",
                            worker)});
}

bool ServerState::is_lost(const Hosted& hosted, int worker) {
  return hosted.replay && hosted.replay->is_lost(worker);
}

bool ServerState::is_early(const Hosted& hosted, int worker, int64_t sequence) {
  const auto early = hosted.early_pushes.find(worker);
  return early != hosted.early_pushes.end() &&
         std::ranges::find(early->second, sequence, &Message::sequence) != early->second.end();
}

void ServerState::go_on_in_order() {
  if (!ordering_.replay || !over_.empty()) return;
  for (auto& [partition, hosted] : hosted_)
    if (is_primary(partition)) go_on_in_order(hosted, partition);
}

void ServerState::go_on_in_order(Hosted& hosted, int partition) {
  if (!hosted.failed.empty() || !hosted.state.registered()) return;
  while (const OrderRecord* const next = hosted.replay->next())
    if (!hand_in_next(hosted, partition, *next)) return;
  if (!hosted.unlogged.empty()) return;
  for (int worker = 0; worker < std::ssize(view_.workers); ++worker)
    if (goes_on(hosted, worker))
      return fail_replay(
          hosted, partition,
          fmt::format("the order ends here, and worker {} goes on: it is of a job that {}", worker,
                      ordering_.replay->interrupted ? "was interrupted" : "ended earlier"));
}

bool ServerState::goes_on(const Hosted& hosted, int worker) {
  const auto pushes = hosted.early_pushes.find(worker);
  return (pushes != hosted.early_pushes.end() && !pushes->second.empty()) ||
         hosted.early_leases.contains(worker);
}

bool ServerState::hand_in_next(Hosted& hosted, int partition, const OrderRecord& next) {
  std::map<int, Message>* early = nullptr;
  switch (next.kind) {
    case OrderRecord::Kind::push: return hand_in_push(hosted, partition, next);
    case OrderRecord::Kind::leave: return hand_in_leave(hosted, partition, next);
    case OrderRecord::Kind::look: return false;  // next() is none
    case OrderRecord::Kind::lease: early = &hosted.early_leases; break;
    case OrderRecord::Kind::comes: early = &hosted.early_hellos; break;
  }
  auto found = early->extract(next.worker);
  if (!found) {
    const ProcessView& worker = view_.workers[next.worker];
    if (next.kind == OrderRecord::Kind::lease && has_gone(worker))
      fail_replay(hosted, partition,
                  fmt::format("{} {}, and in the order it takes another batch", worker.name,
                              worker.ending));
    return false;
  }
  hosted.replay->hand_in();
  submit(hosted, std::move(found.mapped()));
  return true;
}

bool ServerState::hand_in_push(Hosted& hosted, int partition, const OrderRecord& next) {
  auto& early = hosted.early_pushes[next.worker];
  if (early.empty()) {
    if (const ProcessView& worker = view_.workers[next.worker]; has_gone(worker))
      fail_replay(hosted, partition,
                  fmt::format("{} {}, and the order has {} more gradients of it", worker.name,
                              worker.ending, hosted.replay->updates_left(next.worker)));
    return false;
  }
  if (early.front().piece != next.piece) {
    fail_replay(hosted, partition,
                fmt::format("worker {} pushes piece {}, and the order has piece {}", next.worker,
                            early.front().piece, next.piece));
    return false;
  }
  Message push = std::move(early.front());
  early.pop_front();
  hosted.replay->hand_in();
  if ((push.flags & Message::then_pull) != 0)
    hosted.wishes[push.piece][push.worker] = {push.step + 1, hosted.last_index + 1};
  submit(hosted, std::move(push));
  return true;
}

bool ServerState::hand_in_leave(Hosted& hosted, int partition, const OrderRecord& next) {
  const bool in_order = next.number == 1;
  if (in_order && !has_gone(view_.workers[next.worker])) {
    if (goes_on(hosted, next.worker))
      fail_replay(
          hosted, partition,
          fmt::format("worker {} goes on where in the order it has come to its end", next.worker));
    return false;
  }
  hosted.early_pushes.erase(next.worker);
  hosted.early_leases.erase(next.worker);
  for (auto& [piece, wishes] : hosted.wishes) wishes.erase(next.worker);
  hosted.replay->hand_in();
  submit(hosted, {.kind = Kind::leave,
                  .flags = in_order ? Message::in_order : 0U,
                  .partition = partition,
                  .worker = next.worker});
  if (!in_order) say_lost(partition, next.worker);
  return true;
}

void ServerState::fail_replay(Hosted& hosted, int partition, const std::string& why) {
  hosted.failed = fmt::format("--replay-order, partition {}: {}", partition, why);
  for (const Peer& peer : connected_)
    if (peer.kind == Peer::Kind::worker)
      send(peer, partition, {.kind = Kind::refused, .text = hosted.failed});
}

bool ServerState::grant_replayed(Hosted& hosted, int partition, int piece, int worker,
                                 const Wish& wish) {
  if (!hosted.state.assigned()) return false;
  const auto* const given = hosted.replay->given(worker, piece, wish.look);
  if (given == nullptr) {
    if (wish.look > 0 && hosted.failed.empty() && !is_lost(hosted, worker) &&
        !hosted.replay->may_give(worker, piece, wish.look))
      fail_replay(hosted, partition,
                  fmt::format("worker {} asks for piece {} for the {}. time, and the order has no "
                              "such question from here on: this job does not do what the recorded "
                              "one did",
                              worker, piece, wish.look));
    return false;
  }
  const Message pull{.kind = Kind::pull,
                     .partition = partition,
                     .worker = worker,
                     .piece = piece,
                     .step = wish.step};
  if (*given)
    send_values(pull, (*given)->first, (*given)->second);
  else
    send_parameters(hosted, pull);
  return true;
}

}  // namespace tutti::ps
