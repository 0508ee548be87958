// What a partition knows: as chunks for a server that joins and back, as a fork for a cut, and from
// a snapshot.
#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/ps/partition/partition_state.h"
#include "tutti/ps/spec/detail/json_fields.h"

namespace tutti::ps {
namespace {

using Kind = Message::Kind;

}  // namespace

std::string PartitionState::rest() const {
  Json text;
  text["orders"] = num_orders_;
  text["records"] = num_records_;
  text["first_step"] = first_step_;
  text["unassigned"] = unassigned_;
  text["chunks_taken"] = chunks_taken_;
  for (const auto& [worker, sequence] : sequences_) text["sequences"].push_back({worker, sequence});
  for (const auto& [worker, pushes] : flagged_)
    for (const auto& [sequence, push] : pushes)
      text["flagged"].push_back(
          {worker, sequence, push.piece, push.version, push.flags, push.text});
  text["counts"] = to_text(counts_);
  for (int worker = 0; worker < spec_->num_workers; ++worker)
    if (gate_->is_here(worker))
      text["clocks"].push_back({worker, gate_->steps_of(worker), gate_->begun_of(worker)});
  text["slowest"] = gate_->slowest();
  text["tables"] = tables_->versions();
  text["cursor"] = cursor_.to_text();
  for (const auto& [worker, sequence] : lease_asked_)
    text["lease_asked"].push_back({worker, sequence});
  for (const auto& [worker, told] : lease_told_)
    text["lease_told"].push_back({worker, told.sequence, told.text});
  return dump_json(text);
}

void PartitionState::restore_rest(std::string_view bytes) {
  const Json text = parse_json(bytes);
  const auto list = [&](const char* name) { return text.value(name, Json::array()); };
  num_orders_ = text.at("orders");
  num_records_ = text.at("records");
  first_step_ = text.at("first_step");
  unassigned_ = text.at("unassigned").get<std::set<int>>();
  for (const Json& entry : list("sequences")) sequences_[entry.at(0)] = entry.at(1);
  chunks_taken_ = text.at("chunks_taken");
  for (const Json& entry : list("flagged"))
    flagged_[entry.at(0)][entry.at(1)] = {entry.at(0), entry.at(1), entry.at(2),
                                          entry.at(3), entry.at(4), entry.at(5)};
  counts_ = counts_from(text.at("counts").get<std::string>());
  cursor_.restore(text.at("cursor").get<std::string>());
  for (const Json& entry : list("lease_asked")) lease_asked_[entry.at(0)] = entry.at(1);
  for (const Json& entry : list("lease_told"))
    lease_told_[entry.at(0)] = {
        .kind = Kind::leased, .worker = entry.at(0), .sequence = entry.at(1), .text = entry.at(2)};
  tables_->restore_versions(text.at("tables").get<std::vector<int64_t>>());
  std::map<int, int64_t> clocks, begun;
  for (const Json& entry : list("clocks")) {
    clocks[entry.at(0)] = entry.at(1);
    begun[entry.at(0)] = entry.at(2);
  }
  gate_->restore(clocks, text.at("slowest"), begun);
}

void PartitionCopy::add(std::string text, Bytes payload) {
  (rows_ ? last_ : ready_)
      .push_back({.kind = Kind::chunk,
                  .partition = partition_,
                  .text = std::move(text),
                  .payload = std::move(payload)});
}

std::optional<Message> PartitionCopy::next() {
  if (ready_.empty() && rows_) {
    if (auto rows = rows_->next())
      return Message{.kind = Kind::chunk,
                     .partition = partition_,
                     .text = dump_json(Json{{"what", "rows"}, {"text", rows->first}}),
                     .payload = std::move(rows->second)};
    rows_.reset();
    ready_.swap(last_);
  }
  if (ready_.empty()) return {};
  Message chunk = std::move(ready_.front());
  ready_.pop_front();
  return chunk;
}

PartitionCopy PartitionState::copy() const {
  PartitionCopy copy;
  copy.partition_ = partition_;
  const auto add = [&](const Json& what, Bytes payload = {}) {
    copy.add(dump_json(what), std::move(payload));
  };
  if (!registered()) return copy;
  add({{"what", "spec"}, {"worker", registrant_}, {"text", to_text(*spec_)}});
  for (const auto& [number, piece] : pieces_) {
    const auto memory = piece.memory();
    for (size_t i = 0; i < memory.size(); ++i)
      add({{"what", "memory"},
           {"piece", number},
           {"last", i + 1 == memory.size()},
           {"facts", piece.facts()}},
          memory[i]);
  }
  copy.rows_ = tables_->copy();
  for (const auto& [target, round] : rounds_)
    for (const auto& [worker, push] : round) {
      Message chunk = push;
      chunk.kind = Kind::chunk;
      chunk.text = dump_json(Json{{"what", target.first ? "sparse round" : "round"}});
      copy.last_.push_back(std::move(chunk));
    }
  for (const auto& [key, pulled] : pulled_)
    add({{"what", "pulled"},
         {"worker", key.first},
         {"piece", key.second},
         {"step", pulled.step},
         {"version", pulled.version}},
        pulled.values);
  for (const auto& [number, values] : before_) add({{"what", "before"}, {"piece", number}}, values);
  if (spec_->on_lost_worker != OnLostWorker::end)
    for (auto& [text, payload] : meetings_.chunks())
      add({{"what", "meeting"}, {"text", text}}, std::move(payload));
  add({{"what", "rest"}, {"text", rest()}});
  return copy;
}

void PartitionState::take(const Message& chunk) {
  const std::string whose = fmt::format("a chunk of partition {}", partition_);
  detail::read_json(chunk.text, whose, [&](const Json& text) {
    const std::string what = text.at("what");
    if (registered() == (what == "spec"))
      throw Error("a chunk before the first, or the first again");
    if (what == "spec") {
      enrol(spec_from(text.at("text").get<std::string>()), text.at("worker"));
    } else if (what == "memory") {
      const int number = text.at("piece");
      piece(number);  // is one of this partition
      taken_.push_back(chunk.payload);
      if (!text.at("last").get<bool>()) return;
      own(number).restore(text.at("facts").get<std::string>(), taken_);
      taken_.clear();
    } else if (what == "rows") {
      tables_->take(text.at("text").get<std::string>(), chunk.payload);
    } else if (what == "round" || what == "sparse round") {
      Message push = chunk;
      push.kind = what == "round" ? Kind::push : Kind::sparse_push;
      push.text.clear();
      rounds_[target_of(push)].insert_or_assign(push.worker, std::move(push));
    } else if (what == "pulled") {
      pulled_[{text.at("worker"), text.at("piece")}] = {text.at("step"), text.at("version"),
                                                        chunk.payload};
    } else if (what == "before") {
      before_[text.at("piece")] = chunk.payload;
    } else if (what == "meeting") {
      meetings_.take(text.at("text").get<std::string>(), chunk.payload);
    } else if (what == "rest") {
      restore_rest(text.at("text").get<std::string>());
    } else {
      throw Error("of unknown kind: " + what);
    }
  });
}

// ---- cuts ----

PartitionState PartitionState::fork() {
  PartitionState fork(partition_, compute_);
  fork.is_fork_ = true;
  fork.num_orders_ = num_orders_;
  fork.spec_ = spec_;
  fork.carriers_ = carriers_;
  fork.registrant_ = registrant_;
  if (gate_) fork.gate_.emplace(*gate_);
  fork.pieces_ = pieces_;
  fork.unassigned_ = unassigned_;
  fork.sequences_ = sequences_;
  if (tables_) fork.tables_.emplace(tables_->fork());
  fork.rounds_ = rounds_;
  fork.pulled_ = pulled_;
  fork.cursor_ = cursor_;
  fork.lease_asked_ = lease_asked_;
  fork.counts_ = counts_;
  return fork;
}

void PartitionState::forget_rounds(int64_t step) {
  for (auto& [target, round] : rounds_)
    std::erase_if(round, [step](const auto& entry) { return entry.second.step >= step; });
  std::erase_if(rounds_, [](const auto& entry) { return entry.second.empty(); });
}

void PartitionState::share_pull(const PartitionState& live, const Message& pull) {
  const auto pulled = live.pulled_.find({pull.worker, pull.piece});
  if (pulled != live.pulled_.end()) pulled_[pulled->first] = pulled->second;
}

Cursor PartitionState::reopened_cursor() const {
  Cursor cursor = cursor_;
  cursor.reopen();
  return cursor;
}

// Messages may come again, from the first on, when their worker's connection broke.
void PartitionState::restore_part(const Message& order) {
  if (order.sequence > 0) {
    if (order.sequence != chunks_taken_ + 1) return;
    tables_->take(order.text, order.payload);
    ++chunks_taken_;
    return;
  }
  const Restored restored = restored_from(order.text);
  if (restored.num_chunks != chunks_taken_)
    throw Error(fmt::format("partition {} has {} of {} chunks of rows of the snapshot", partition_,
                            chunks_taken_, restored.num_chunks));
  tables_->restore_versions(restored.tables);
  counts_ = restored.counts;
  if (!restored.cursor.empty()) cursor_.restore(restored.cursor);
  if (spec_->staleness.synchronous()) {
    std::map<int, int64_t> clocks;
    for (int worker = 0; worker < spec_->num_workers; ++worker)
      if (gate_->is_here(worker)) clocks[worker] = restored.step;
    gate_->restore(std::move(clocks), restored.step);
    first_step_ = restored.step;
  }
  unassigned_.erase(Message::kRest);
}

}  // namespace tutti::ps
