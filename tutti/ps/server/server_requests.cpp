// What workers ask of a server and may have to wait for: parameters, rows, batches.
#include <fmt/ranges.h>

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/ps/server/server_state.h"

namespace tutti::ps {
namespace {

using Kind = Message::Kind;

constexpr int64_t kMostRowsWishes = 1'000;  // of a worker, at once

std::string words_of(const ProcessView& process, int worker) {
  if (process.name.empty()) return fmt::format("worker {}, which has not come", worker);
  if (process.alive) return process.name;
  return fmt::format("{}, which is lost: it {}", process.name, process.ending);
}

}  // namespace

void ServerState::take_wish(Hosted& hosted, const Message& request) {
  auto& wishes = hosted.wishes[request.piece];
  const auto [wish, fresh] = wishes.try_emplace(request.worker);
  const bool known =
      !fresh && wish->second.step == request.step && wish->second.look == request.sequence;
  if (!known)
    wish->second = {request.step, hosted.last_index, (request.flags & Message::exactly) != 0,
                    request.sequence};
  grant_wishes(hosted, request.partition);
  // Asked again: whom does it wait for?
  const int64_t step = hosted.state.step_of_job(request.worker, request.step);
  if (known && !hosted.state.may_pull(request.piece, step))
    say_who(request, hosted.state.waits_for(request.piece, step));
}

void ServerState::take_rows_wish(Hosted& hosted, const Message& request) {
  auto& wishes = hosted.rows_wishes;
  const auto waiting = std::distance(wishes.lower_bound({request.worker, 0}),
                                     wishes.lower_bound({request.worker + 1, 0}));
  if (waiting >= kMostRowsWishes)
    throw Mismatch(fmt::format("worker {} asks for rows while {} such requests of it wait",
                               request.worker, waiting));
  const auto [wish, fresh] = wishes.try_emplace({request.worker, request.sequence});
  if (fresh)
    wish->second = {
        request.piece, {request.step, hosted.last_index}, hosted.state.tables().keys_of(request)};
  grant_wishes(hosted, request.partition);
  const int64_t step = hosted.state.step_of_job(request.worker, request.step);
  if (!fresh && !hosted.state.may_pull_rows(request.piece, step))
    say_who(request, hosted.state.waits_for_rows(request.piece, step));
}

void ServerState::say_who(const Message& request, const std::vector<int>& workers) {
  std::vector<std::string> names;
  for (const int worker : workers) names.push_back(words_of(view_.workers[worker], worker));
  const bool rows = request.kind == Kind::sparse_pull;
  const bool meets = request.kind == Kind::bring;
  if (!rows && !host(request.partition).state.assigned()) names = {"the first values, of worker 0"};
  send(worker_peer(request.worker), request.partition,
       {.kind = Kind::waiting,
        .worker = request.worker,
        .piece = meets ? Message::kMeeting : request.piece,
        .sequence = rows ? request.sequence : 0,
        .step = request.step,
        .text = fmt::format("{}", fmt::join(names, "; "))});
}

// What a worker asked for on a connection that is gone; it will ask again.
void ServerState::forget_rows(Hosted& hosted, int worker) {
  std::erase_if(hosted.rows_wishes, [&](const auto& entry) { return entry.first.first == worker; });
}

bool ServerState::in_log(const Hosted& hosted, const Message& request) {
  return std::ranges::any_of(hosted.unlogged, [&](const Message& order) {
    return order.kind == request.kind && order.worker == request.worker &&
           order.sequence == request.sequence && order.step == request.step;
  });
}

// Once it is over everybody who asks is told what was brought, also who was not there.
void ServerState::take_bring(Hosted& hosted, const Message& request) {
  if (auto answer = hosted.state.answer_to_bring(request))
    send(worker_peer(request.worker), request.partition, std::move(*answer));
  else if (hosted.state.has_brought(request))
    say_who(request, hosted.state.waits_for_meeting(request));
  else if (!in_log(hosted, request))
    submit(hosted, request);
}

void ServerState::take_lease(Hosted& hosted, const Message& request) {
  const int64_t last = hosted.state.last_lease(request.worker);
  if (request.sequence > last && !in_log(hosted, request)) {
    if (hosted.replay && !is_lost(hosted, request.worker))
      hosted.early_leases[request.worker] = request;
    else if (!hosted.replay)
      submit(hosted, request);
    return;
  }
  // It was here before, and its answer was lost.
  const Message* const answer = hosted.state.last_answer(request.worker);
  if (answer != nullptr && answer->sequence == request.sequence)
    send(worker_peer(request.worker), request.partition, *answer);
}

void ServerState::grant_wishes(Hosted& hosted, int partition) {
  const bool logs_pulls = hosted.state.registered() && hosted.state.spec().delay_compensation > 0;
  const bool logs_looks = ordering_.take_record && !hosted.replay && hosted.state.registered() &&
                          !hosted.state.spec().staleness.synchronous();
  std::vector<Message> granted;
  for (auto& [piece, wishes] : hosted.wishes)
    std::erase_if(wishes, [&](const auto& entry) {
      const auto& [worker, wish] = entry;
      const int64_t step = hosted.state.step_of_job(worker, wish.step);
      if (wish.index > hosted.state.num_orders()) return false;
      if (hosted.replay) return grant_replayed(hosted, partition, piece, worker, wish);
      if (!hosted.state.may_pull(piece, step)) return false;
      granted.push_back({.kind = Kind::pull,
                         .flags = wish.exactly ? Message::exactly : 0U,
                         .partition = partition,
                         .worker = worker,
                         .piece = piece,
                         .sequence = wish.look,
                         .step = wish.step});
      return true;
    });
  for (Message& pull : granted)
    if (logs_pulls || (logs_looks && pull.sequence > 0))
      submit(hosted, std::move(pull));
    else
      send_parameters(hosted, pull);
  grant_rows(hosted, partition);
}

void ServerState::grant_rows(Hosted& hosted, int partition) {
  std::erase_if(hosted.rows_wishes, [&](const auto& entry) {
    const auto& [asked, wish] = entry;
    const PartitionState& state = hosted.state;
    const int64_t step = state.step_of_job(asked.first, wish.when.step);
    if (wish.when.index > state.num_orders() || !state.may_pull_rows(wish.table, step))
      return false;
    send(worker_peer(asked.first), partition,
         {.kind = Kind::rows,
          .worker = asked.first,
          .piece = wish.table,
          .sequence = asked.second,
          .step = wish.when.step,
          .version = state.tables().version(wish.table),
          .payload = state.tables().rows(wish.table, wish.keys)});
    return true;
  });
}

void ServerState::send_parameters(const Hosted& hosted, const Message& pull) {
  auto [values, version] = hosted.state.values_for(pull.worker, pull.piece);
  if ((pull.flags & Message::exactly) != 0) {
    // There were orders since it was asked.
    if (std::string why = hosted.state.objection(pull); !why.empty())
      return send(worker_peer(pull.worker), pull.partition,
                  {.kind = Kind::refused, .text = std::move(why)});
    version = pull.step;
    values = hosted.state.values_of_version(pull.piece, version);
  }
  send_values(pull, std::move(values), version);
}

void ServerState::send_values(const Message& pull, Bytes values, int64_t version) {
  send(worker_peer(pull.worker), pull.partition,
       {.kind = Kind::parameters,
        .worker = pull.worker,
        .piece = pull.piece,
        .step = pull.step,
        .version = version,
        .payload = std::move(values)});
}

}  // namespace tutti::ps
