// What a partition knows, as chunks for a server that joins, and back.
#include <nlohmann/json.hpp>

#include "tutti/base/error.h"
#include "tutti/ps/partition_state.h"

namespace tutti::ps {
namespace {

using nlohmann::json;
using Kind = Message::Kind;

}  // namespace

std::string PartitionState::rest() const {
  json text;
  text["orders"] = num_orders_;
  text["unassigned"] = unassigned_;
  for (const auto& [worker, sequence] : sequences_) text["sequences"].push_back({worker, sequence});
  text["counts"] = to_text(counts_);
  for (int worker = 0; worker < spec_->num_workers; ++worker)
    if (gate_->is_here(worker)) text["clocks"].push_back({worker, gate_->steps_of(worker)});
  text["slowest"] = gate_->slowest();
  text["tables"] = tables_->versions();
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
  tables_->restore_versions(text.at("tables").get<std::vector<int64_t>>());
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
  for (auto& [text, payload] : tables_->chunks())
    add({{"what", "rows"}, {"text", text}}, std::move(payload));
  for (const auto& [target, round] : rounds_)
    for (const auto& [worker, push] : round) {
      Message copy = push;
      copy.kind = Kind::chunk;
      copy.text = json{{"what", target.first ? "sparse round" : "round"}}.dump();
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
