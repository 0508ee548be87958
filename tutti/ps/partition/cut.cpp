#include "tutti/ps/partition/cut.h"

#include <fmt/format.h>

#include <utility>

namespace tutti::ps {
namespace {

using Kind = Message::Kind;

// Of whatever it has.
int64_t any_version(const PartitionState& state) {
  if (!state.pieces().empty()) return state.pieces().begin()->second.version();
  return state.tables().num_tables() > 0 ? state.tables().version(0) : 0;
}

}  // namespace

PartitionCut::PartitionCut(PartitionState& live, const Message& mark)
    : number_(mark.version),
      folder_(mark.text),
      step_(mark.step),
      marked_({{mark.worker, mark.step}}),
      state_(live.fork()) {
  if (state_.spec().staleness.synchronous()) state_.forget_rounds(step_);
}

PartitionCut::PartitionCut(PartitionState& live, int64_t number, std::string folder)
    : number_(number), folder_(std::move(folder)), step_(any_version(live)), state_(live.fork()) {}

bool PartitionCut::belongs(const Message& order) const {
  if (!state_.spec().staleness.synchronous()) return !marked_.contains(order.worker);
  return (order.kind != Kind::push && order.kind != Kind::sparse_push) || order.step < step_;
}

void PartitionCut::follow(const PartitionState& live, const Message& order) {
  if (order.kind == Kind::mark) {
    if (order.version == number_) marked_.emplace(order.worker, order.step);
  } else if (belongs(order)) {
    state_.apply(order);
    if (order.kind == Kind::pull) state_.share_pull(live, order);
  }
}

bool PartitionCut::complete(const PartitionState& live) const {
  const Spec& spec = state_.spec();
  if (spec.staleness.synchronous()) return state_.none_behind(step_);
  for (int worker = 0; worker < spec.num_workers; ++worker)
    if (live.is_here(worker) && !marked_.contains(worker)) return false;
  return true;
}

int64_t PartitionCut::step() const {
  if (state_.pieces().empty() && state_.tables().num_tables() == 0) return -1;
  return state_.spec().staleness.synchronous() ? step_ : state_.counts().updates;
}

std::string PartitionCut::objection() const {
  if (!state_.assigned()) return "it has no values yet";
  if (!state_.spec().staleness.synchronous()) return "";
  const auto words = [&](int64_t version) {
    return fmt::format("pieces have had {} and {} updates: the training ended within a step", step_,
                       version);
  };
  for (const auto& [number, piece] : state_.pieces())
    if (piece.version() != step_) return words(piece.version());
  for (const int64_t version : state_.tables().versions())
    if (version != step_) return words(version);
  return "";
}

CutPart PartitionCut::part(int partition) const {
  CutPart part{.partition = partition,
               .step = step(),
               .tables = state_.tables().versions(),
               .sums_of = sums_of(state_.spec())};
  if (!state_.spec().staleness.synchronous()) part.marks = marked_;
  return part;
}

}  // namespace tutti::ps
