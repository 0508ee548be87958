// When a worker marks a cut: between two steps, and its next batch comes behind the mark.

#include <algorithm>

#include "tutti/base/detail/check.h"
#include "tutti/ps/client/client_state.h"

namespace tutti::ps {
namespace {

using Kind = Message::Kind;

}  // namespace

void ClientState::on_cut(const Message& cut) {
  if (cut.sequence <= cut_.sequence) return;
  if (const std::string why = objection_to_snapshots(spec_.drop_slowest); !why.empty())
    failure_ = "snapshots with " + why;
  // One that was begun before was given up.
  for (Partition& partition : partitions_)
    std::erase_if(partition.unsent, [](const auto& entry) { return entry.second.piece == kMark; });
  cut_ = cut;
  cut_open_ = true;
  // In step, a mark says that this worker has the parameters of its next step: it waits for a push.
  release_lease();
  mark_if_between_steps();
}

// It is to come behind the mark before it.
void ClientState::release_lease() {
  if (!lease_held_ || marks(0)) return;
  lease_held_ = false;
  if (partitions_[0].welcome) send_lease();
  mark_if_between_steps();
}

// The first push of a step may come right behind a mark.
int64_t ClientState::enter(int64_t step, bool has_all) {
  if (step != step_) {
    const bool in_batch = lease_sequence_ > 0 && in_batch_;
    const bool lacks_parameters = spec_.staleness.synchronous() && (waits() || !has_all);
    if (cut_open_ && !in_batch && !lacks_parameters) mark(step);
    step_ = step;
    handed_in_ = 0;
  }
  return marked_step_ == step ? marked_cut_ : 0;
}

void ClientState::mark_with_host(int64_t cut, int64_t step) {
  TUTTI_CHECK(knows_cut(cut), "cut {} after {}", cut, cut_.sequence);
  if (cut_.sequence == cut && cut_open_) mark(step);
}

void ClientState::hand_in(int64_t step) {
  enter(step, true);
  in_batch_ = true;
  if (++handed_in_ == each_step_ && lease_sequence_ == 0) in_batch_ = false;
}

void ClientState::mark_if_between_steps() {
  const bool between = !in_batch_ && !lease_held_;
  if (cut_open_ && between && !spec_.staleness.synchronous()) mark(step_ + 1);
}

void ClientState::mark(int64_t step) {
  cut_open_ = false;
  marked_cut_ = cut_.sequence;
  marked_step_ = step;
  for (Partition& partition : partitions_)
    partition.unsent.insert_or_assign({step, kMark}, PushOrder{.piece = kMark, .step = step});
}

bool ClientState::marks(int partition) const {
  const auto is_mark = [](const auto& entry) { return entry.second.piece == kMark; };
  const Partition& there = partitions_[partition];
  return std::ranges::any_of(there.unsent, is_mark) ||
         std::ranges::any_of(there.unsettled,
                             [](const auto& entry) { return entry.second.kind == Kind::mark; });
}

}  // namespace tutti::ps
