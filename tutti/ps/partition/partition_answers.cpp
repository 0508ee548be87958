// What a worker asks for and may have to wait for others to get, by the log of partition 0:
// batches, and what others bring to a meeting.
#include <utility>

#include "tutti/ps/partition/partition_state.h"

namespace tutti::ps {
namespace {

using Kind = Message::Kind;

}  // namespace

void PartitionState::on_lease(const Message& order) {
  int64_t& last = lease_asked_[order.worker];
  if (order.sequence <= last || !gate_->is_here(order.worker)) return;
  last = order.sequence;
  const LeaseRequest request = lease_request_from(order.text);
  if (is_fork_) return cursor_.record(request);
  // What another worker's order made impossible meanwhile gets no answer.
  if (cursor_.objection(request).empty()) cursor_.ask(order.worker, request);
}

void PartitionState::answer_leases() {
  if (!assigned() || is_fork_) return;
  for (const auto& [worker, lease] :
       cursor_.answers([this](int asks) { return gate_->may_begin(gate_->steps_of(asks)); })) {
    lease_told_[worker] = {.kind = Kind::leased,
                           .worker = worker,
                           .sequence = lease_asked_[worker],
                           .text = ps::to_text(lease)};
    answers_.push_back(lease_told_[worker]);
  }
}

// ---- meetings ----

// Where the job begins nobody has come again.
void PartitionState::on_begins(const Message& order) {
  if (order.step > first_step_) meetings_.begins(order.worker, order.step);
}

// The meeting may have ended while this was on its way through the log.
void PartitionState::on_bring(const Message& order) {
  if (is_fork_ || !gate_->is_here(order.worker)) return;
  if (auto answer = answer_to_bring(order))
    answers_.push_back(std::move(*answer));
  else
    meetings_.bring(order.worker, {order.step, order.sequence}, order.payload);
}

void PartitionState::end_meetings() {
  if (!registered() || is_fork_) return;
  for (const Meetings::Session& session : meetings_.end(workers_here()))
    for (const auto& [worker, value] : *meetings_.values(session))
      answers_.push_back(
          *answer_to_bring({.worker = worker, .sequence = session.number, .step = session.step}));
}

std::optional<Message> PartitionState::answer_to_bring(const Message& bring) const {
  const Brought* const values = meetings_.values({bring.step, bring.sequence});
  if (values == nullptr) return std::nullopt;
  auto [text, payload] = packed(*values);
  return Message{.kind = Kind::brought,
                 .worker = bring.worker,
                 .sequence = bring.sequence,
                 .step = bring.step,
                 .text = std::move(text),
                 .payload = std::move(payload)};
}

bool PartitionState::has_brought(const Message& bring) const {
  return meetings_.has_brought(bring.worker, {bring.step, bring.sequence});
}

std::vector<int> PartitionState::waits_for_meeting(const Message& bring) const {
  return meetings_.waits_for({bring.step, bring.sequence}, workers_here());
}

std::vector<int> PartitionState::workers_here() const {
  std::vector<int> here;
  for (int worker = 0; worker < spec_->num_workers; ++worker)
    if (gate_->is_here(worker)) here.push_back(worker);
  return here;
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

}  // namespace tutti::ps
