#include "tutti/ps/partition/partition_state.h"

#include <algorithm>

#include "tutti/base/detail/check.h"

namespace tutti::ps {
namespace {

using Kind = Message::Kind;

}  // namespace

PartitionState::PartitionState(int partition, Compute compute)
    : partition_(partition), compute_(std::move(compute)) {}

int64_t PartitionState::last_sequence(int worker) const {
  const auto found = sequences_.find(worker);
  return found == sequences_.end() ? 0 : found->second;
}

bool PartitionState::in_round(const Message& push) const {
  const auto round = rounds_.find(target_of(push));
  if (round == rounds_.end()) return false;
  const auto mine = round->second.find(push.worker);
  return mine != round->second.end() && mine->second.sequence == push.sequence;
}

const DensePiece& PartitionState::piece(int number) const {
  const auto found = pieces_.find(number);
  if (found == pieces_.end())
    throw Error(fmt::format("piece {} is not in partition {}", number, partition_));
  return found->second;
}

const SparseShard& PartitionState::tables() const {
  if (!tables_) throw Error(fmt::format("nobody has registered in partition {}", partition_));
  return *tables_;
}

int64_t PartitionState::version_of(const Target& target) const {
  return target.first ? tables().version(target.second) : piece(target.second).version();
}

PartitionCounts PartitionState::counts() const {
  PartitionCounts counts = counts_;
  counts.sparse_rows = tables_ ? tables_->num_rows() : 0;
  counts.sparse_bytes = tables_ ? tables_->num_bytes() : 0;
  return counts;
}

std::vector<Settled> PartitionState::apply(const Message& order) {
  ++num_orders_;
  if (record_of(order)) ++num_records_;
  std::vector<Settled> settled;
  switch (order.kind) {
    case Kind::hello: on_hello(order); break;
    case Kind::assign: on_assign(order); break;
    case Kind::pull: on_pull(order); break;
    case Kind::lease: on_lease(order); break;
    case Kind::begins: on_begins(order); break;
    case Kind::bring: on_bring(order); break;
    case Kind::push:
    case Kind::sparse_push: on_push(order, settled); break;
    case Kind::mark: on_mark(order, settled); break;
    case Kind::leave: on_leave(order.worker, settled); break;
    default: throw Error(fmt::format("a {} is no order", name_of(order.kind)));
  }
  answer_leases();
  end_meetings();
  remember(settled);
  return settled;
}

std::optional<OrderRecord> PartitionState::record_of(const Message& order) const {
  using RecordKind = OrderRecord::Kind;
  if (!registered() || spec_->staleness.synchronous()) return std::nullopt;
  const bool here = gate_->is_here(order.worker);
  OrderRecord record{.worker = order.worker};
  bool counts = here;
  switch (order.kind) {
    case Kind::push:
      counts = here && !has(order.worker, order.sequence);
      record.piece = order.piece;
      record.number = order.version % kOrderNumbers;
      break;
    case Kind::pull:
      counts = here && order.sequence > 0;
      record.kind = RecordKind::look;
      record.piece = order.piece;
      record.number = order.sequence % kOrderNumbers;
      break;
    case Kind::lease:
      counts = here && order.sequence > last_lease(order.worker);
      record.kind = RecordKind::lease;
      break;
    case Kind::leave:
      record.kind = RecordKind::leave;
      record.number = (order.flags & Message::in_order) != 0 ? 1 : 0;
      break;
    case Kind::hello:
      counts = !here && order.worker < spec_->num_workers;
      record.kind = RecordKind::comes;
      break;
    default: return std::nullopt;
  }
  return counts ? std::optional(record) : std::nullopt;
}

// A worker has pushes of two steps on their way, at most: twice that is kept.
void PartitionState::remember(const std::vector<Settled>& settled) {
  if (!registered()) return;
  const auto kept = 4 * std::ssize(pieces_) + 4 * tables_->num_tables() + 4;
  for (const Settled& push : settled) {
    if (push.flags == 0) continue;
    auto& of_worker = flagged_[push.worker];
    of_worker[push.sequence] = push;
    of_worker.erase(of_worker.begin(), of_worker.upper_bound(last_sequence(push.worker) - kept));
  }
}

Settled PartitionState::settled_again(const Message& push) const {
  const auto flagged = flagged_.find(push.worker);
  if (flagged != flagged_.end())
    if (const auto found = flagged->second.find(push.sequence); found != flagged->second.end())
      return found->second;
  const int64_t version = push.kind == Kind::mark ? 0 : version_of(push);
  return {push.worker, push.sequence, push.piece, version, 0, ""};
}

void PartitionState::enrol(const Spec& spec, int registrant) {
  spec_ = spec;
  carriers_.emplace(spec);
  registrant_ = registrant;
  gate_.emplace(spec.num_workers, spec.staleness);
  tables_.emplace(spec, partition_, compute_);
  for (int i = 0; i < static_cast<int>(spec.pieces.size()); ++i) {
    if (spec.pieces[i].partition != partition_) continue;
    pieces_.emplace(i, DensePiece(spec.pieces[i], spec.rule, compute_));
    unassigned_.insert(i);
  }
  if (!spec.goes_on_from.empty()) unassigned_.insert(Message::kRest);
}

// Synchronous: what it would compute again is of other parameters than its parts that count.
bool PartitionState::has_left_for_good(int worker) const {
  return spec_->staleness.synchronous() && spec_->on_lost_worker == OnLostWorker::end &&
         !gate_->is_here(worker) && last_sequence(worker) > 0;
}

void PartitionState::on_hello(const Message& order) {
  if (!registered()) enrol(spec_from(order.text), order.worker);
  const bool known = order.worker < spec_->num_workers;  // else it is answered with an objection
  if (known && !gate_->is_here(order.worker) && !has_left_for_good(order.worker))
    gate_->join(order.worker);
}

void PartitionState::on_assign(const Message& order) {
  if (!unassigned_.contains(order.piece)) return;
  if (order.piece == Message::kRest) return restore_part(order);
  DensePiece& piece = own(order.piece);
  if (order.text.empty())
    piece.assign(order.payload);
  else
    piece.restore(order.text, piece.blocks_of(order.payload));
  unassigned_.erase(order.piece);
}

void PartitionState::on_pull(const Message& order) {
  if (spec_->delay_compensation == 0 || !gate_->is_here(order.worker)) return;
  const auto [place, fresh] = pulled_.try_emplace({order.worker, order.piece});
  if (!fresh && place->second.step == order.step) return;
  const DensePiece& from = piece(order.piece);
  place->second = {order.step, from.version(), from.parameters()};
}

std::pair<Bytes, int64_t> PartitionState::values_for(int worker, int number) const {
  const auto pulled = pulled_.find({worker, number});
  if (pulled != pulled_.end()) return {pulled->second.values, pulled->second.version};
  return {piece(number).parameters(), piece(number).version()};
}

Bytes PartitionState::values_of_version(int number, int64_t version) const {
  const DensePiece& now = piece(number);
  if (now.version() == version) return now.parameters();
  const auto before = before_.find(number);
  if (now.version() == version + 1 && before != before_.end()) return before->second;
  throw Error(fmt::format("version {} of piece {} is not known any more; it is at {}", version,
                          number, now.version()));
}

void PartitionState::on_push(const Message& order, std::vector<Settled>& settled) {
  int64_t& last = sequences_[order.worker];
  if (order.sequence <= last) return;
  last = order.sequence;
  ++counts_.pushes;
  if (!gate_->is_here(order.worker)) return;  // it left while this was on its way
  if (spec_->staleness.synchronous())
    add_to_round(order, settled);
  else
    apply_alone(order, settled);
}

// The worker's own way of saying "up to here"; what is made of it is the cut's (cut.h).
void PartitionState::on_mark(const Message& order, std::vector<Settled>& settled) {
  int64_t& last = sequences_[order.worker];
  if (order.sequence <= last) return;
  last = order.sequence;
  settled.push_back({order.worker, order.sequence, order.piece, 0, 0, ""});
}

void PartitionState::on_leave(int worker, std::vector<Settled>& settled) {
  if (!gate_->is_here(worker)) return;
  gate_->leave(worker);
  cursor_.leave(worker);
  std::erase_if(pulled_, [&](const auto& entry) { return entry.first.first == worker; });
  // What it has pushed counts; nobody waits for more of it.
  finish_full_rounds(settled);
}

std::optional<std::string> PartitionState::not_finite(const Push& push) const {
  if (push.kind == Kind::sparse_push) {
    if (tables_->finite(push)) return std::nullopt;
    return tables_->spec(push.piece).name;
  }
  for (const Part& part : push.parts)
    if (const auto variable = piece(push.piece).not_finite(part))
      return spec_->variables[*variable].name;
  return std::nullopt;
}

bool PartitionState::leave_out(const Push& push, std::vector<Settled>& settled) {
  const auto name = not_finite(push);
  if (!name) return false;
  ++counts_.not_finite;
  settled.push_back(
      {push.worker, push.sequence, push.piece, version_of(push), Message::not_finite, *name});
  return true;
}

void PartitionState::update_piece(int number, const std::vector<const Push*>& pushes, double scale,
                                  double learning_rate) {
  DensePiece& piece = own(number);
  if (spec_->on_lost_worker == OnLostWorker::wait) before_[number] = piece.parameters();
  std::vector<const Part*> parts;
  std::vector<const std::byte*> data;
  for (const Push* const push : pushes) {
    const auto more = data_of_parts(*push, piece.num_bytes(), spec_->pieces[number].segments.size(),
                                    spec_->shape.replicas());
    data.insert(data.end(), more.begin(), more.end());
    for (const Part& part : push->parts) parts.push_back(&part);
  }
  const auto pulled =
      pushes.size() == 1 ? pulled_.find({pushes[0]->worker, number}) : pulled_.end();
  piece.update(
      {.parts = parts,
       .data = data,
       .shape = &spec_->shape,
       .scale = scale,
       .learning_rate = learning_rate,
       .computed_on = pulled == pulled_.end() ? nullptr : pulled->second.values.span.data(),
       .compensation = spec_->delay_compensation});
}

// ---- not synchronous ----

void PartitionState::apply_alone(const Push& push, std::vector<Settled>& settled) {
  const int64_t staleness = std::max<int64_t>(0, version_of(push) - push.version);
  const bool last_of_step = (push.flags & Message::last_of_step) != 0;
  const int64_t step = step_of_job(push.worker, push.step);
  const bool in_order = step <= gate_->steps_of(push.worker);
  if (last_of_step && in_order) gate_->pushed(push.worker, step);
  if (leave_out(push, settled)) return;
  const double scale =
      spec_->scale_by_staleness && staleness > 1 ? 1.0 / static_cast<double>(staleness) : 1.0;
  const Push* const alone = &push;
  if (push.kind == Kind::sparse_push)
    tables_->update(push.piece, {&alone, 1}, scale, push.learning_rate);
  else
    update_piece(push.piece, {alone}, scale, push.learning_rate);
  if (last_of_step) {
    ++counts_.updates;
    counts_.staleness.add(staleness);
  }
  settled.push_back({push.worker, push.sequence, push.piece, version_of(push), 0, ""});
}

// ---- synchronous ----

void PartitionState::add_to_round(const Push& push, std::vector<Settled>& settled) {
  if ((push.flags & Message::last_of_step) != 0 && push.step <= gate_->steps_of(push.worker))
    gate_->pushed(push.worker, push.step);
  const Target target = target_of(push);
  if (push.step < version_of(target)) {
    ++counts_.dropped;
    settled.push_back(
        {push.worker, push.sequence, push.piece, version_of(target), Message::dropped, ""});
    return;
  }
  rounds_[target].insert_or_assign(push.worker, push);
  if (round_is_full(target)) finish_round(target, settled);
}

// Who pushes once a step: a host pieces, a worker rows.
int PartitionState::party_of(const Target& target, int worker) const {
  return target.first ? worker : carriers_->host_of(worker);
}

// A step without a worker's gradients would be another one than that of the job.
bool PartitionState::needs_all() const { return spec_->on_lost_worker != OnLostWorker::go_on; }

// Whose parts a round is to have.
std::set<int> PartitionState::parties(const Target& target) const {
  std::set<int> parties;
  for (int worker = 0; worker < spec_->num_workers; ++worker)
    if (needs_all() || gate_->is_here(worker)) parties.insert(party_of(target, worker));
  return parties;
}

bool PartitionState::round_is_full(const Target& target) const {
  const std::set<int> wanted = parties(target);
  const auto enough = std::max<ptrdiff_t>(1, std::ssize(wanted) - spec_->drop_slowest);
  return std::ranges::count_if(rounds_.at(target), [&](const auto& entry) {
           return wanted.contains(party_of(target, entry.first));
         }) >= enough;
}

std::vector<PartitionState::Vain> PartitionState::pushed_in_vain() const {
  if (!registered() || !spec_->staleness.synchronous() || !needs_all() ||
      gate_->num_here() == spec_->num_workers)
    return {};
  std::vector<Vain> vain;
  for (const auto& [target, round] : rounds_) {
    std::set<int> pushed;
    for (const auto& [worker, push] : round) pushed.insert(party_of(target, worker));
    std::map<int, int> gone;  // by party that has not pushed: a worker of it
    for (int worker = 0; worker < spec_->num_workers; ++worker)
      if (!gate_->is_here(worker) && !pushed.contains(party_of(target, worker)))
        gone.emplace(party_of(target, worker), worker);
    if (std::ssize(gone) <= spec_->drop_slowest) continue;
    for (const auto& [worker, push] : round)
      if (gate_->is_here(worker)) vain.push_back({worker, gone.begin()->second, push.step});
  }
  return vain;
}

void PartitionState::finish_full_rounds(std::vector<Settled>& settled) {
  std::vector<Target> begun;
  for (const auto& [target, parts] : rounds_)
    if (!parts.empty()) begun.push_back(target);
  for (const Target& target : begun)
    if (round_is_full(target)) finish_round(target, settled);
}

void PartitionState::finish_round(const Target& target, std::vector<Settled>& settled) {
  const std::map<int, Push> round = std::move(rounds_[target]);
  rounds_.erase(target);
  const int64_t version = version_of(target) + 1;
  std::vector<const Push*> counted;
  std::vector<Settled> through;
  for (const auto& [worker, push] : round) {
    if (leave_out(push, settled)) continue;
    counted.push_back(&push);
    through.push_back({worker, push.sequence, push.piece, version, 0, ""});
  }
  const auto used = static_cast<int>(counted.size());
  const bool goes_on = spec_->on_lost_worker == OnLostWorker::go_on;
  const ptrdiff_t all = goes_on ? spec_->num_workers : std::ssize(parties(target));
  const auto missing = static_cast<int>(all - std::ssize(round));
  const bool scaled = (spec_->drop_slowest > 0 || goes_on) && missing > 0 && used > 0;
  const double scale = scaled ? static_cast<double>(used + missing) / used : 1.0;
  const double learning_rate = round.begin()->second.learning_rate;
  if (target.first)
    tables_->update(target.second, counted, scale, learning_rate);
  else
    update_piece(target.second, counted, scale, learning_rate);
  if (none_behind(version)) {
    ++counts_.updates;
    counts_.staleness.add(0);
  }
  settled.insert(settled.end(), through.begin(), through.end());
}

// Workers send pieces in orders of their own: a step is over when nothing is behind.
bool PartitionState::none_behind(int64_t version) const {
  const auto versions = tables_->versions();
  return std::ranges::all_of(versions, [&](int64_t v) { return v >= version; }) &&
         std::ranges::all_of(pieces_,
                             [&](const auto& entry) { return entry.second.version() >= version; });
}

// ---- what is asked ----

int64_t PartitionState::step_of_job(int worker, int64_t step) const {
  const bool from_zero = registered() && !spec_->staleness.synchronous();
  return from_zero ? gate_->begun_of(worker) + step : step;
}

bool PartitionState::may_pull(int number, int64_t step) const {
  return assigned() && may_pull_from({false, number}, step);
}

bool PartitionState::may_pull_rows(int table, int64_t step) const {
  return registered() && !unassigned_.contains(Message::kRest) &&
         may_pull_from({true, table}, step);
}

bool PartitionState::may_pull_from(const Target& target, int64_t step) const {
  return spec_->staleness.synchronous() ? version_of(target) >= step : gate_->may_begin(step);
}

std::vector<int> PartitionState::waits_for(int number, int64_t step) const {
  return missing_for({false, number}, step);
}

std::vector<int> PartitionState::waits_for_rows(int table, int64_t step) const {
  return missing_for({true, table}, step);
}

std::vector<int> PartitionState::missing_for(const Target& target, int64_t step) const {
  if (!registered()) return {};
  if (!spec_->staleness.synchronous()) return gate_->waits_for(step);
  std::set<int> pushed;
  if (const auto round = rounds_.find(target); round != rounds_.end())
    for (const auto& [worker, push] : round->second) pushed.insert(party_of(target, worker));
  std::vector<int> missing;
  for (int worker = 0; worker < spec_->num_workers; ++worker)
    if ((needs_all() || gate_->is_here(worker)) && !pushed.contains(party_of(target, worker)))
      missing.push_back(worker);
  return missing;
}

}  // namespace tutti::ps
