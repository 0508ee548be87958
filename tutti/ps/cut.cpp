#include "tutti/ps/cut.h"

#include <utility>

namespace tutti::ps {
namespace {

using Kind = Message::Kind;

}  // namespace

PartitionCut::PartitionCut(PartitionState& live, const Message& mark)
    : number_(mark.version),
      folder_(mark.text),
      step_(mark.step),
      marked_({mark.worker}),
      state_(live.fork()) {
  if (state_.spec().staleness.synchronous()) state_.forget_rounds(step_);
}

PartitionCut::PartitionCut(PartitionState& live, int64_t number, std::string folder)
    : number_(number),
      folder_(std::move(folder)),
      step_(live.pieces().empty() ? 0 : live.pieces().begin()->second.version()),
      state_(live.fork()) {}

bool PartitionCut::belongs(const Message& order) const {
  if (!state_.spec().staleness.synchronous()) return !marked_.contains(order.worker);
  return (order.kind != Kind::push && order.kind != Kind::sparse_push) || order.step < step_;
}

void PartitionCut::follow(const PartitionState& live, const Message& order) {
  if (order.kind == Kind::mark) {
    if (order.version == number_) marked_.insert(order.worker);
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

}  // namespace tutti::ps
