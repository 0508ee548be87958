#include "tutti/ps/client/client_state.h"

#include <algorithm>

#include "tutti/base/detail/check.h"

namespace tutti::ps {
namespace {

using Kind = Message::Kind;

constexpr int kLostHere = -1;  // in place of a piece: the worker's end by its loss

detail::Turns turns_of(const std::vector<OrderRecord>& records, int worker) {
  detail::Turns turns = detail::Turns::of(records, worker);
  size_t life = 0;
  for (const OrderRecord& record : records)
    if (record.kind == OrderRecord::Kind::leave && record.worker == worker) {
      if (record.number == 0) turns.pieces[life].push_back(kLostHere);
      ++life;
    }
  return turns;
}

// Whether the worker has come to its end in the order, and has more to push here.
bool is_over(const detail::Turns& turns, size_t unsent) {
  if (turns.life >= turns.pieces.size()) return false;
  const std::vector<int>& pieces = turns.pieces[turns.life];
  const bool lost = !pieces.empty() && pieces.back() == kLostHere;
  return !lost && turns.turn + unsent > pieces.size();
}

}  // namespace

ClientState::ClientState(int worker, Spec spec, Send send, Arrived arrived, Initial initial,
                         RowsArrived rows_arrived, Restore restore)
    : worker_(worker),
      spec_(std::move(spec)),
      send_(std::move(send)),
      arrived_(std::move(arrived)),
      initial_(std::move(initial)),
      rows_arrived_(std::move(rows_arrived)),
      restore_(std::move(restore)),
      partitions_(spec_.num_partitions),
      versions_(spec_.pieces.size()),
      looks_(spec_.pieces.size()) {
  check(spec_);
  const Carriers carriers(spec_);
  for (int piece = 0; piece < std::ssize(spec_.pieces); ++piece) {
    if (!carriers.carries(worker, piece)) continue;
    ++partitions_[partition_of(piece)].num_pieces;
    ++each_step_;
  }
  each_step_ += std::ssize(spec_.tables);
  for (Partition& partition : partitions_) partition.versions.resize(spec_.tables.size());
}

void ClientState::follow_order(const UpdateOrder& order) {
  for (size_t i = 0; i < partitions_.size(); ++i)
    partitions_[i].turns = turns_of(order.partitions.at(i), worker_);
}

int ClientState::primary(int partition) const {
  return partition < static_cast<int>(view_.partitions.size()) ? view_.partitions[partition].primary
                                                               : -1;
}

std::vector<int> ClientState::servers() const {
  std::set<int> servers;
  for (const PartitionView& partition : view_.partitions)
    if (partition.primary >= 0) servers.insert(partition.primary);
  return {servers.begin(), servers.end()};
}

void ClientState::send(int partition, Message message) {
  message.partition = partition;
  message.worker = worker_;
  // The whole view, not the partition's epoch: a worker that came again is to be known there.
  message.view = view_.number;
  send_(primary(partition), std::move(message));
}

// ---- servers come and go ----

void ClientState::on_view(const View& view) {
  if (view.number <= view_.number) return;
  if (view.partitions.size() != partitions_.size())
    throw Error(fmt::format("this worker trains with {} servers, the job has {}",
                            partitions_.size(), view.partitions.size()));
  if (std::ssize(view.workers) != spec_.num_workers)
    throw Error(fmt::format("this worker trains as one of {}, the job has {}", spec_.num_workers,
                            view.workers.size()));
  const bool assigned_before = assigns();
  const View before = std::exchange(view_, view);
  const bool assigns_now = assigns() && !assigned_before;
  if (!view_.failure.empty()) failure_ = view_.failure;
  for (int i = 0; i < static_cast<int>(partitions_.size()); ++i) {
    const int was = before.partitions.empty() ? -1 : before.partitions[i].primary;
    if (primary(i) == was && !(assigns_now && partitions_[i].welcome)) continue;
    partitions_[i].welcome = false;
    if (connected_.contains(primary(i))) say_hello(i);
  }
}

void ClientState::on_connected(int server) {
  connected_.insert(server);
  for (int i = 0; i < static_cast<int>(partitions_.size()); ++i)
    if (primary(i) == server) say_hello(i);
}

void ClientState::on_closed(int server) {
  connected_.erase(server);
  for (int i = 0; i < static_cast<int>(partitions_.size()); ++i)
    if (primary(i) == server) partitions_[i].welcome = false;
}

// Whether all workers before this one are gone: then the first values are its to give.
bool ClientState::assigns() const {
  return always_assigns_ ||
         std::ranges::all_of(
             view_.workers.begin(),
             view_.workers.begin() + std::min<ptrdiff_t>(worker_, std::ssize(view_.workers)),
             [](const ProcessView& worker) { return !worker.alive && !worker.ending.empty(); });
}

std::string ClientState::missed_worker() const {
  if (!spec_.staleness.synchronous() || spec_.on_lost_worker != OnLostWorker::end) return "";
  const auto is_missed = [](const ProcessView& worker) {
    return worker.comings == 0 && !worker.ending.empty();
  };
  if (std::ranges::count_if(view_.workers, is_missed) <= spec_.drop_slowest) return "";
  const auto missed = std::ranges::find_if(view_.workers, is_missed);
  return fmt::format("{} {}", missed->name, missed->ending);
}

void ClientState::say_hello(int partition) {
  send(partition, {.kind = Kind::hello, .text = to_text(spec_)});
}

// ---- what servers say ----

void ClientState::on_message(int server, const Message& message) {
  if (message.kind == Kind::view) return on_view(view_from(message.text));
  if (message.partition < 0 || message.partition >= static_cast<int>(partitions_.size()))
    throw Error(fmt::format("server {} speaks of partition {}", server, message.partition));
  // It was replaced, and what it says does not count any more.
  if (primary(message.partition) != server) return;
  Partition& partition = partitions_[message.partition];
  switch (message.kind) {
    case Kind::welcome: on_welcome(message.partition, message); break;
    case Kind::refused: on_refused(message); break;
    case Kind::settled: on_settled(partition, message); break;
    case Kind::parameters: on_parameters(message); break;
    case Kind::leased: on_leased(message); break;
    case Kind::brought: on_brought(message); break;
    case Kind::rows: on_rows(message); break;
    case Kind::waiting:
      if (message.sequence == 0)
        waiting_[message.piece] = message.text;
      else if (const auto pull = sparse_pulls_.find(message.sequence); pull != sparse_pulls_.end())
        pull->second.waiting[message.partition] = message.text;
      break;
    default: throw Error(fmt::format("server {} says {}", server, name_of(message.kind)));
  }
}

// Other partitions may have more of its gradients first.
void ClientState::on_refused(const Message& message) {
  if ((message.flags & Message::replayed) == 0) {
    failure_ = message.text;
    return;
  }
  partitions_[message.partition].turns.lost = true;
  if (std::ranges::all_of(partitions_, [](const Partition& one) { return one.turns.lost; }))
    failure_ = message.text;
}

void ClientState::on_welcome(int number, const Message& message) {
  Partition& partition = partitions_[number];
  if (partition.welcomes == 0) partition.turns.life = static_cast<size_t>(message.index);
  partition.welcome = true;
  ++partition.welcomes;
  if (partition.sequence < message.sequence) partition.sequence = message.sequence;
  const bool gives = message.version == 0 && assigns();
  if (gives && restore_)
    restore(number);
  else if (gives)
    for (int piece = 0; piece < static_cast<int>(spec_.pieces.size()); ++piece)
      if (partition_of(piece) == number)
        send(number, {.kind = Kind::assign, .piece = piece, .payload = initial_(piece)});
  if (number == 0) {
    lease_sequence_ = std::max(lease_sequence_, message.step);
    if (lease_asked_ && !lease_held_) send_lease();
    say_where_it_begins();
    if (meets()) send(0, bring_);
  }
  for (const auto& [sequence, push] : partition.unsettled) {
    ++counts_.resent;
    send(number, push);
  }
  // A question would overtake the push, which asks for what is behind it.
  const auto is_asked_by_push = [&](int piece, int64_t step) {
    return std::ranges::any_of(partition.unsettled, [&](const auto& entry) {
      const Message& push = entry.second;
      return push.kind == Kind::push && push.piece == piece && push.step + 1 == step &&
             (push.flags & Message::then_pull) != 0;
    });
  };
  for (const auto& [piece, step] : wanted_)
    if (partition_of(piece) == number &&
        (looked_.contains(piece) || !is_asked_by_push(piece, step)))
      ask(piece, step);
  ask_rows_of(number);
}

// What is read may come when another server has taken over, which is given all from the start.
void ClientState::restore(int number) {
  restore_(number, [this, number, asked = partitions_[number].welcomes](Message assign) {
    const Partition& partition = partitions_[number];
    if (partition.welcome && partition.welcomes == asked) send(number, std::move(assign));
  });
}

// Whoever asks before its own push has left may get parameters without it.
bool ClientState::may_ask(int piece) const {
  const Partition& partition = partitions_[partition_of(piece)];
  return partition.welcome && std::ranges::none_of(partition.unsent, [piece](const auto& entry) {
           return entry.second.piece == piece;
         });
}

void ClientState::ask_lease(const LeaseRequest& request) {
  TUTTI_CHECK(!lease_asked_, "batch {} of epoch {}", request.returned, request.epoch);
  lease_.reset();
  lease_asked_ = {.kind = Kind::lease, .text = to_text(request)};
  lease_held_ = marks(0);
  if (partitions_[0].welcome && !lease_held_) send_lease();
  in_batch_ = false;
  mark_if_between_steps();
}

void ClientState::send_lease() {
  if (lease_asked_->sequence == 0) lease_asked_->sequence = ++lease_sequence_;
  send(0, *lease_asked_);
}

void ClientState::on_leased(const Message& message) {
  if (!lease_asked_ || message.sequence != lease_asked_->sequence) return;
  lease_asked_.reset();
  lease_ = lease_from(message.text);
}

void ClientState::bring(int64_t step, Bytes value) {
  TUTTI_CHECK(!meets(), "meeting {} after {} steps", bring_.sequence, bring_.step);
  if (const int64_t most = most_bytes_brought(spec_.num_workers); value.size() > most)
    throw UsageError(fmt::format(
        "worker {} gives {} bytes to what workers reduce or gather after {} steps; at most {} are "
        "possible by each of {} workers: servers pass on 1 GiB at once\n  give it in parts",
        worker_, value.size(), step, most, spec_.num_workers));
  const int64_t number = bring_.step == step ? bring_.sequence + 1 : 1;
  bring_ = {.kind = Kind::bring, .sequence = number, .step = step, .payload = std::move(value)};
  brought_.reset();
  if (partitions_[0].welcome) send(0, bring_);
}

void ClientState::on_brought(const Message& message) {
  if (!meets() || message.sequence != bring_.sequence || message.step != bring_.step) return;
  brought_ = unpacked(message.text, message.payload);
  for (auto& [worker, value] : *brought_) value = Bytes::copy_of(value.span);
  waiting_.erase(Message::kMeeting);
}

void ClientState::on_settled(Partition& partition, const Message& message) {
  const auto push = partition.unsettled.extract(message.sequence);
  if (!push) return;
  if (push.mapped().kind == Kind::mark) {
    release_lease();
    return;
  }
  ++counts_.settled;
  if ((message.flags & Message::dropped) != 0) ++counts_.dropped;
  if ((message.flags & Message::not_finite) == 0) return;
  ++counts_.not_finite;
  if (!spec_.stop_if_not_finite) return;
  const Message& sent = push.mapped();
  const bool asks = sent.kind == Kind::push && whose_gradient_;
  const int worker = asks ? whose_gradient_(sent.piece) : worker_;
  failure_ = fmt::format("the gradient of \"{}\" is not finite (worker {})", message.text, worker);
}

void ClientState::on_parameters(const Message& message) {
  const auto wish = wanted_.find(message.piece);
  if (wish == wanted_.end() || message.step != wish->second) return;
  if (message.payload.size() != spec_.pieces[message.piece].num_bytes)
    throw Error(fmt::format("{} bytes of parameters for piece {}, which has {}",
                            message.payload.size(), message.piece,
                            spec_.pieces[message.piece].num_bytes));
  wanted_.erase(wish);
  waiting_.erase(message.piece);
  versions_.at(message.piece) = message.version;
  if (!begun_) least_version_ = std::min(least_version_, message.version);
  if (!begun_ && wanted_.empty()) begin();
  arrived_(message.piece, message.step, message.payload);
}

// Some pieces may have had the updates of a step that this worker is to do again.
void ClientState::begin() {
  if (spec_.staleness.synchronous()) first_step_ = least_version_;
  if (spec_.on_lost_worker == OnLostWorker::wait)
    for (int piece = 0; piece < std::ssize(versions_); ++piece)
      if (versions_[piece] > first_step_) wanted_[piece] = first_step_;
  knows_first_ = true;
  for (const auto& [piece, step] : wanted_) ask(piece, step);
  if (!wanted_.empty()) return;
  begun_ = true;
  say_where_it_begins();
}

void ClientState::say_where_it_begins() {
  const bool again = begun_ && first_step_ > 0 && spec_.on_lost_worker != OnLostWorker::end;
  if (again && partitions_[0].welcome) send(0, {.kind = Kind::begins, .step = first_step_});
}

void ClientState::on_rows(const Message& message) {
  const auto pull = sparse_pulls_.find(message.sequence);
  if (pull == sparse_pulls_.end()) return;
  const auto keys = pull->second.keys.find(message.partition);
  if (keys == pull->second.keys.end()) return;
  const int table = pull->second.table;
  const SparseTableSpec& spec = spec_.tables[table];
  const int64_t bytes = keys->second.size() / static_cast<int64_t>(sizeof(uint64_t)) * spec.width *
                        size_of(spec.dtype);
  if (message.payload.size() != bytes)
    throw Error(fmt::format("{} bytes of rows of embedding table \"{}\"; expected {}",
                            message.payload.size(), spec.name, bytes));
  partitions_[message.partition].versions[table] = message.version;
  pull->second.keys.erase(keys);
  pull->second.waiting.erase(message.partition);
  if (pull->second.keys.empty()) sparse_pulls_.erase(pull);
  rows_arrived_(message.sequence, message.partition, message.payload);
}

// ---- what the worker does ----

void ClientState::push(PushOrder order) {
  ++counts_.pushes;
  hand_in(order.step);
  if (order.then_pull) wanted_[order.piece] = order.step + 1;
  if (order.then_pull) looked_.erase(order.piece);
  const auto& turns = partitions_.at(partition_of(order.piece)).turns;
  auto& unsent = partitions_.at(partition_of(order.piece)).unsent;
  const std::pair place(order.step, order.piece);
  const bool fresh = unsent.emplace(place, std::move(order)).second;
  if (is_over(turns, unsent.size()) && failure_.empty())
    failure_ = fmt::format(
        "--replay-order: worker {} goes on where in the order that is replayed it has come to its "
        "end",
        worker_);
  TUTTI_CHECK(fresh, "piece {} was pushed twice in step {}", place.second, place.first);
}

void ClientState::pull(int piece, int64_t step, bool again) {
  wanted_[piece] = step;
  if (!again) {
    ++looks_.at(piece);
    looked_.insert(piece);
  }
  ask(piece, step);
}

void ClientState::ask(int piece, int64_t step) {
  if (!may_ask(piece)) return;
  const bool exactly =
      knows_first_ && step == first_step_ && spec_.on_lost_worker == OnLostWorker::wait;
  send(partition_of(piece), {.kind = Kind::pull,
                             .flags = exactly ? Message::exactly : 0U,
                             .piece = piece,
                             .sequence = looked_.contains(piece) ? looks_.at(piece) : 0,
                             .step = step});
}

void ClientState::sparse_push(SparseOrder order) {
  TUTTI_CHECK(order.payloads.size() == partitions_.size(), "{} payloads for {} partitions",
              order.payloads.size(), partitions_.size());
  hand_in(order.step);
  const int number = order.table - static_cast<int>(spec_.tables.size());
  for (size_t i = 0; i < partitions_.size(); ++i) {
    ++counts_.pushes;
    PushOrder part{.piece = number,
                   .step = order.step,
                   .learning_rate = order.learning_rate,
                   .then_pull = false,
                   .parts = {},
                   .payload = std::move(order.payloads[i])};
    const bool fresh =
        partitions_[i].unsent.emplace(std::pair(order.step, number), std::move(part)).second;
    TUTTI_CHECK(fresh, "table {} was pushed twice in step {}", order.table, order.step);
  }
}

int64_t ClientState::sparse_pull(int table, int64_t step, std::vector<Bytes> keys) {
  TUTTI_CHECK(keys.size() == partitions_.size(), "keys of {} partitions of {}", keys.size(),
              partitions_.size());
  SparsePull& pull = sparse_pulls_[++last_pull_];
  pull = {.table = table, .step = step, .keys = {}, .waiting = {}};
  for (size_t i = 0; i < keys.size(); ++i) pull.keys[static_cast<int>(i)] = std::move(keys[i]);
  for (size_t i = 0; i < keys.size(); ++i) ask_rows(last_pull_, static_cast<int>(i));
  return last_pull_;
}

// Not before its own push has left, as may_ask().
void ClientState::ask_rows(int64_t number, int partition) {
  const SparsePull& pull = sparse_pulls_.at(number);
  const auto keys = pull.keys.find(partition);
  const Partition& there = partitions_[partition];
  if (keys == pull.keys.end() || !there.welcome ||
      std::ranges::any_of(there.unsent, [&](const auto& entry) {
        return entry.first.second < 0 && table_of(entry.first.second) == pull.table;
      }))
    return;
  send(partition, {.kind = Kind::sparse_pull,
                   .piece = pull.table,
                   .sequence = number,
                   .step = pull.step,
                   .payload = keys->second});
}

void ClientState::ask_rows_of(int partition) {
  for (const auto& [number, pull] : sparse_pulls_) ask_rows(number, partition);
}

// The most urgent that has not left, or whose turn it is.
std::map<std::pair<int64_t, int>, PushOrder>::iterator ClientState::next_of(
    Partition& partition) const {
  if (!partition.turns.follows()) return partition.unsent.begin();
  const auto piece = partition.turns.next();
  if (!piece) return partition.unsent.end();
  return std::ranges::find_if(partition.unsent,
                              [&](const auto& entry) { return entry.second.piece == *piece; });
}

bool ClientState::send_next(int server) {
  int best = -1;
  for (int i = 0; i < static_cast<int>(partitions_.size()); ++i) {
    Partition& partition = partitions_[i];
    if (primary(i) != server || !partition.welcome || partition.unsent.empty()) continue;
    const auto next = next_of(partition);
    if (next == partition.unsent.end()) continue;
    if (best < 0 || next->first < next_of(partitions_[best])->first) best = i;
  }
  if (best < 0) return false;
  Partition& partition = partitions_[best];
  auto taken = partition.unsent.extract(next_of(partition));
  ++partition.turns.turn;
  const int piece = taken.mapped().piece;
  const bool then_pull = taken.mapped().then_pull;
  Message message = message_of(partition, piece, std::move(taken.mapped()));
  partition.unsettled.emplace(message.sequence, message);
  send(best, std::move(message));
  // What was asked for while the push was still here.
  if (piece == kMark) return true;
  if (piece < 0)
    ask_rows_of(best);
  else if (const auto wish = wanted_.find(piece); !then_pull && wish != wanted_.end())
    ask(piece, wish->second);
  return true;
}

Message ClientState::message_of(Partition& partition, int piece, PushOrder order) {
  if (piece == kMark)
    return {.kind = Kind::mark,
            .piece = static_cast<int32_t>(cut_.view),
            .sequence = ++partition.sequence,
            .step = order.step,
            .version = cut_.sequence,
            .text = cut_.text};
  const bool sparse = piece < 0;
  const int64_t version = sparse ? partition.versions[table_of(piece)] : versions_[piece];
  const int each_step = partition.num_pieces + static_cast<int>(spec_.tables.size());
  const bool last_of_step = ++partition.num_sent % each_step == 0;
  return {.kind = sparse ? Kind::sparse_push : Kind::push,
          .flags = (last_of_step ? Message::last_of_step : 0U) |
                   (order.then_pull ? Message::then_pull : 0U),
          .piece = sparse ? table_of(piece) : piece,
          .sequence = ++partition.sequence,
          .step = order.step,
          .version = version,
          .learning_rate = order.learning_rate,
          .parts = std::move(order.parts),
          .payload = std::move(order.payload)};
}

int64_t ClientState::num_unsettled() const noexcept {
  int64_t count = 0;
  for (const Partition& partition : partitions_)
    count += static_cast<int64_t>(partition.unsettled.size() + partition.unsent.size());
  return count;
}

}  // namespace tutti::ps
