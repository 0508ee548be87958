#include "tutti/ps/partition_state.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "tutti/base/check.h"

namespace tutti::ps {
namespace {

using nlohmann::json;
using Kind = Message::Kind;

std::string push_words(const Message& push) {
  return fmt::format("worker {}, push {} of piece {} in step {}", push.worker, push.sequence,
                     push.piece, push.step);
}

std::vector<const Part*> pointers_to(const std::vector<Part>& parts) {
  std::vector<const Part*> pointers;
  for (const Part& part : parts) pointers.push_back(&part);
  return pointers;
}

}  // namespace

std::vector<const std::byte*> data_of_parts(const Message& push, int64_t num_bytes,
                                            size_t num_segments, int replicas) {
  std::set<int> ranks;
  std::vector<const std::byte*> data;
  if (push.payload.size() != num_bytes * static_cast<int64_t>(push.parts.size()))
    throw Error(fmt::format("{}: {} bytes for {} parts of {}", push_words(push),
                            push.payload.size(), push.parts.size(), num_bytes));
  for (const Part& part : push.parts) {
    if (part.rank < 0 || part.rank >= replicas || !ranks.insert(part.rank).second)
      throw Error(
          fmt::format("{}: a part of rank {} of {}", push_words(push), part.rank, replicas));
    if (part.used.size() != num_segments)
      throw Error(fmt::format("{}: {} marks for {} segments", push_words(push), part.used.size(),
                              num_segments));
    data.push_back(push.payload.span.data() + num_bytes * static_cast<int64_t>(data.size()));
  }
  return data;
}

std::string to_text(const PartitionCounts& counts) {
  json bins = json::array();
  for (const auto& [staleness, updates] : counts.staleness.bins())
    bins.push_back({staleness, updates});
  return json{counts.pushes, counts.updates, counts.dropped, counts.not_finite, bins}.dump();
}

PartitionCounts counts_from(std::string_view text) {
  try {
    const json list = json::parse(text);
    PartitionCounts counts{list.at(0), list.at(1), list.at(2), list.at(3), {}};
    for (const json& bin : list.at(4)) counts.staleness.add(bin.at(0), bin.at(1));
    return counts;
  } catch (const json::exception& error) {
    throw Error(fmt::format("counts of a partition cannot be read: {}", error.what()));
  }
}

PartitionState::PartitionState(int partition, Compute compute)
    : partition_(partition), compute_(std::move(compute)) {}

int64_t PartitionState::last_sequence(int worker) const {
  const auto found = sequences_.find(worker);
  return found == sequences_.end() ? 0 : found->second;
}

bool PartitionState::in_round(const Message& push) const {
  const auto round = rounds_.find(push.piece);
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

std::string PartitionState::objection(const Message& request) const {
  try {
    if (request.kind == Kind::hello) {
      const Spec spec = spec_from(request.text);
      if (request.worker < 0 || request.worker >= spec.num_workers)
        return fmt::format("worker {} of {}", request.worker, spec.num_workers);
      const std::string differs = registered() ? difference(spec, *spec_) : "";
      if (differs.empty()) return "";
      return fmt::format("worker {} does not train what the others do: {}", request.worker,
                         differs);
    }
    if (!registered()) return "no worker has registered yet";
    if (request.kind == Kind::counts) return "";
    if (request.kind == Kind::lease) return cursor_.objection(lease_request_from(request.text));
    if (request.worker < 0 || request.worker >= spec_->num_workers)
      return fmt::format("worker {} of {}", request.worker, spec_->num_workers);
    const DensePiece& wanted = piece(request.piece);
    if (request.step < 0 || request.step > Staleness::kMost)
      return fmt::format("worker {} is in step {}", request.worker, request.step);
    if (request.kind == Kind::assign && request.payload.size() != wanted.num_bytes())
      return fmt::format("worker {} gives {} bytes for piece {}, which has {}", request.worker,
                         request.payload.size(), request.piece, wanted.num_bytes());
    return request.kind == Kind::push ? objection_to_push(request) : "";
  } catch (const Error& error) {
    return error.what();
  }
}

std::string PartitionState::objection_to_push(const Message& push) const {
  const DensePiece& wanted = piece(push.piece);
  data_of_parts(push, wanted.num_bytes(), spec_->pieces[push.piece].segments.size(),
                spec_->shape.replicas());
  spec_->rule.next({}, push.learning_rate);
  if (push.sequence < 1 || push.version < 0 || unassigned_.contains(push.piece))
    return fmt::format("{}: computed on version {} of {}", push_words(push), push.version,
                       wanted.version());
  // Whoever is right has pulled that version, from a primary whose log this one has.
  if (spec_->staleness.synchronous() && push.step > wanted.version())
    return fmt::format("{}: step {} is not over", push_words(push), wanted.version());
  return "";
}

std::vector<Settled> PartitionState::apply(const Message& order) {
  ++num_orders_;
  std::vector<Settled> settled;
  switch (order.kind) {
    case Kind::hello: on_hello(order); break;
    case Kind::assign: on_assign(order); break;
    case Kind::pull: on_pull(order); break;
    case Kind::lease: on_lease(order); break;
    case Kind::push: on_push(order, settled); break;
    case Kind::leave: on_leave(order.worker, settled); break;
    default: throw Error(fmt::format("a {} is no order", name_of(order.kind)));
  }
  answer_leases();
  return settled;
}

void PartitionState::on_lease(const Message& order) {
  int64_t& last = lease_asked_[order.worker];
  if (order.sequence <= last || !gate_->is_here(order.worker)) return;
  last = order.sequence;
  const LeaseRequest request = lease_request_from(order.text);
  // What another worker's order made impossible meanwhile gets no answer.
  if (cursor_.objection(request).empty()) cursor_.ask(order.worker, request);
}

void PartitionState::answer_leases() {
  if (!registered()) return;
  for (const auto& [worker, lease] :
       cursor_.answers([this](int asks) { return gate_->may_begin(gate_->steps_of(asks)); })) {
    lease_told_[worker] = {.kind = Kind::leased,
                           .worker = worker,
                           .sequence = lease_asked_[worker],
                           .text = ps::to_text(lease)};
    answers_.push_back(lease_told_[worker]);
  }
}

std::vector<Message> PartitionState::take_answers() { return std::exchange(answers_, {}); }

int64_t PartitionState::last_lease(int worker) const {
  const auto found = lease_asked_.find(worker);
  return found == lease_asked_.end() ? 0 : found->second;
}

const Message* PartitionState::last_answer(int worker) const {
  const auto found = lease_told_.find(worker);
  const bool newest = found != lease_told_.end() && found->second.sequence == last_lease(worker);
  return newest ? &found->second : nullptr;
}

void PartitionState::enrol(const Spec& spec) {
  spec_ = spec;
  gate_.emplace(spec.num_workers, spec.staleness);
  for (int i = 0; i < static_cast<int>(spec.pieces.size()); ++i) {
    if (spec.pieces[i].partition != partition_) continue;
    pieces_.emplace(i, DensePiece(spec.pieces[i], spec.rule, compute_));
    unassigned_.insert(i);
  }
}

void PartitionState::on_hello(const Message& order) {
  if (!registered()) enrol(spec_from(order.text));
  if (!gate_->is_here(order.worker)) gate_->join(order.worker);
}

void PartitionState::on_assign(const Message& order) {
  if (unassigned_.erase(order.piece) != 0) own(order.piece).assign(order.payload);
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

void PartitionState::on_leave(int worker, std::vector<Settled>& settled) {
  if (!gate_->is_here(worker)) return;
  gate_->leave(worker);
  cursor_.leave(worker);
  std::erase_if(pulled_, [&](const auto& entry) { return entry.first.first == worker; });
  // What it has pushed counts; nobody waits for more of it.
  finish_full_rounds(settled);
}

bool PartitionState::leave_out(const Push& push, std::vector<Settled>& settled) {
  const DensePiece& piece = own(push.piece);
  const auto data = data_of_parts(
      push, piece.num_bytes(), spec_->pieces[push.piece].segments.size(), spec_->shape.replicas());
  for (size_t i = 0; i < data.size(); ++i) {
    const auto variable = piece.not_finite(push.parts[i], data[i]);
    if (!variable) continue;
    ++counts_.not_finite;
    settled.push_back({push.worker, push.sequence, push.piece, piece.version(), Message::not_finite,
                       spec_->variables[*variable].name});
    return true;
  }
  return false;
}

// ---- not synchronous ----

void PartitionState::apply_alone(const Push& push, std::vector<Settled>& settled) {
  DensePiece& piece = own(push.piece);
  const int64_t staleness = std::max<int64_t>(0, piece.version() - push.version);
  const bool last_of_step = (push.flags & Message::last_of_step) != 0;
  const bool in_order = push.step <= gate_->steps_of(push.worker);
  if (last_of_step && in_order) gate_->pushed(push.worker, push.step);
  if (leave_out(push, settled)) return;
  const auto parts = pointers_to(push.parts);
  const auto data = data_of_parts(
      push, piece.num_bytes(), spec_->pieces[push.piece].segments.size(), spec_->shape.replicas());
  const auto pulled = pulled_.find({push.worker, push.piece});
  piece.update(
      {.parts = parts,
       .data = data,
       .shape = &spec_->shape,
       .scale =
           spec_->scale_by_staleness && staleness > 1 ? 1.0 / static_cast<double>(staleness) : 1.0,
       .learning_rate = push.learning_rate,
       .computed_on = pulled == pulled_.end() ? nullptr : pulled->second.values.span.data(),
       .compensation = spec_->delay_compensation});
  if (last_of_step) {
    ++counts_.updates;
    counts_.staleness.add(staleness);
  }
  settled.push_back({push.worker, push.sequence, push.piece, piece.version(), 0, ""});
}

// ---- synchronous ----

void PartitionState::add_to_round(const Push& push, std::vector<Settled>& settled) {
  DensePiece& piece = own(push.piece);
  if ((push.flags & Message::last_of_step) != 0 && push.step <= gate_->steps_of(push.worker))
    gate_->pushed(push.worker, push.step);
  if (push.step < piece.version()) {
    ++counts_.dropped;
    settled.push_back(
        {push.worker, push.sequence, push.piece, piece.version(), Message::dropped, ""});
    return;
  }
  rounds_[push.piece].insert_or_assign(push.worker, push);
  if (round_is_full(push.piece)) finish_round(push.piece, settled);
}

bool PartitionState::round_is_full(int piece) const {
  const auto& parts = rounds_.at(piece);
  const int wanted = std::max(1, gate_->num_here() - spec_->drop_slowest);
  const auto here =
      std::ranges::count_if(parts, [&](const auto& entry) { return gate_->is_here(entry.first); });
  return here >= wanted;
}

void PartitionState::finish_full_rounds(std::vector<Settled>& settled) {
  std::vector<int> begun;
  for (const auto& [piece, parts] : rounds_)
    if (!parts.empty()) begun.push_back(piece);
  for (const int piece : begun)
    if (round_is_full(piece)) finish_round(piece, settled);
}

void PartitionState::finish_round(int number, std::vector<Settled>& settled) {
  DensePiece& piece = own(number);
  const std::map<int, Push> round = std::move(rounds_[number]);
  rounds_.erase(number);
  std::vector<const Part*> parts;
  std::vector<const std::byte*> data;
  std::vector<Settled> through;
  int counted = 0;
  for (const auto& [worker, push] : round) {
    if (leave_out(push, settled)) continue;
    const auto more = data_of_parts(push, piece.num_bytes(), spec_->pieces[number].segments.size(),
                                    spec_->shape.replicas());
    data.insert(data.end(), more.begin(), more.end());
    for (const Part& part : push.parts) parts.push_back(&part);
    through.push_back({worker, push.sequence, number, piece.version() + 1, 0, ""});
    ++counted;
  }
  const int missing = gate_->num_here() - static_cast<int>(round.size());
  const bool scaled = spec_->drop_slowest > 0 && missing > 0 && counted > 0;
  piece.update({.parts = parts,
                .data = data,
                .shape = &spec_->shape,
                .scale = scaled ? static_cast<double>(counted + missing) / counted : 1.0,
                .learning_rate = round.begin()->second.learning_rate});
  // Workers send pieces in orders of their own: a step is over when no piece is behind.
  if (std::ranges::all_of(
          pieces_, [&](const auto& entry) { return entry.second.version() >= piece.version(); })) {
    ++counts_.updates;
    counts_.staleness.add(0);
  }
  settled.insert(settled.end(), through.begin(), through.end());
}

// ---- what is asked ----

bool PartitionState::may_pull(int number, int64_t step) const {
  if (!assigned()) return false;
  return spec_->staleness.synchronous() ? piece(number).version() >= step : gate_->may_begin(step);
}

std::vector<int> PartitionState::waits_for(int number, int64_t step) const {
  if (!registered() || !spec_->staleness.synchronous())
    return registered() ? gate_->waits_for(step) : std::vector<int>{};
  std::vector<int> missing;
  const auto round = rounds_.find(number);
  for (int worker = 0; worker < spec_->num_workers; ++worker)
    if (gate_->is_here(worker) && (round == rounds_.end() || !round->second.contains(worker)))
      missing.push_back(worker);
  return missing;
}

// ---- copies ----

std::string PartitionState::rest() const {
  json text;
  text["orders"] = num_orders_;
  text["unassigned"] = unassigned_;
  for (const auto& [worker, sequence] : sequences_) text["sequences"].push_back({worker, sequence});
  text["counts"] = to_text(counts_);
  for (int worker = 0; worker < spec_->num_workers; ++worker)
    if (gate_->is_here(worker)) text["clocks"].push_back({worker, gate_->steps_of(worker)});
  text["slowest"] = gate_->slowest();
  text["cursor"] = cursor_.to_text();
  for (const auto& [worker, sequence] : lease_asked_)
    text["lease_asked"].push_back({worker, sequence});
  for (const auto& [worker, told] : lease_told_)
    text["lease_told"].push_back({worker, told.sequence, told.text});
  return text.dump();
}

void PartitionState::restore_rest(std::string_view bytes) {
  const json text = json::parse(bytes);
  const auto list = [&](const char* name) { return text.value(name, json::array()); };
  num_orders_ = text.at("orders");
  unassigned_ = text.at("unassigned").get<std::set<int>>();
  for (const json& entry : list("sequences")) sequences_[entry.at(0)] = entry.at(1);
  counts_ = counts_from(text.at("counts").get<std::string>());
  cursor_.restore(text.at("cursor").get<std::string>());
  for (const json& entry : list("lease_asked")) lease_asked_[entry.at(0)] = entry.at(1);
  for (const json& entry : list("lease_told"))
    lease_told_[entry.at(0)] = {
        .kind = Kind::leased, .worker = entry.at(0), .sequence = entry.at(1), .text = entry.at(2)};
  std::map<int, int64_t> clocks;
  for (const json& entry : list("clocks")) clocks[entry.at(0)] = entry.at(1);
  gate_->restore(clocks, text.at("slowest"));
}

std::vector<Message> PartitionState::chunks() const {
  std::vector<Message> chunks;
  const auto add = [&](json what, Bytes payload = {}) {
    chunks.push_back({.kind = Kind::chunk,
                      .partition = partition_,
                      .text = what.dump(),
                      .payload = std::move(payload)});
  };
  if (!registered()) return chunks;
  add({{"what", "spec"}, {"text", to_text(*spec_)}});
  for (const auto& [number, piece] : pieces_) {
    const auto memory = piece.memory();
    for (size_t i = 0; i < memory.size(); ++i)
      add({{"what", "memory"},
           {"piece", number},
           {"last", i + 1 == memory.size()},
           {"facts", piece.facts()}},
          memory[i]);
  }
  for (const auto& [number, round] : rounds_)
    for (const auto& [worker, push] : round) {
      Message copy = push;
      copy.kind = Kind::chunk;
      copy.text = json{{"what", "round"}}.dump();
      chunks.push_back(std::move(copy));
    }
  for (const auto& [key, pulled] : pulled_)
    add({{"what", "pulled"},
         {"worker", key.first},
         {"piece", key.second},
         {"step", pulled.step},
         {"version", pulled.version}},
        pulled.values);
  add({{"what", "rest"}, {"text", rest()}});
  return chunks;
}

void PartitionState::take(const Message& chunk) {
  try {
    const json text = json::parse(chunk.text);
    const std::string what = text.at("what");
    if (registered() == (what == "spec"))
      throw Error("a chunk before the first, or the first again");
    if (what == "spec") {
      enrol(spec_from(text.at("text").get<std::string>()));
    } else if (what == "memory") {
      const int number = text.at("piece");
      piece(number);  // is one of this partition
      taken_.push_back(chunk.payload);
      if (!text.at("last").get<bool>()) return;
      own(number).restore(text.at("facts").get<std::string>(), taken_);
      taken_.clear();
    } else if (what == "round") {
      Message push = chunk;
      push.kind = Kind::push;
      push.text.clear();
      rounds_[push.piece].insert_or_assign(push.worker, std::move(push));
    } else if (what == "pulled") {
      pulled_[{text.at("worker"), text.at("piece")}] = {text.at("step"), text.at("version"),
                                                        chunk.payload};
    } else if (what == "rest") {
      restore_rest(text.at("text").get<std::string>());
    } else {
      throw Error("of unknown kind: " + what);
    }
  } catch (const json::exception& error) {
    throw Error(
        fmt::format("a chunk of partition {} cannot be read: {}", partition_, error.what()));
  }
}

}  // namespace tutti::ps
