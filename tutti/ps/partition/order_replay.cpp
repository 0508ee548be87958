#include "tutti/ps/partition/order_replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tutti/base/error.h"

namespace tutti::ps {
namespace {

using RecordKind = OrderRecord::Kind;

constexpr std::string_view kRecordNames[] = {"a gradient", "a look", "a batch", "the end",
                                             "the return"};

std::string words_of(const OrderRecord& record) {
  return fmt::format("{} of worker {} (piece {})", kRecordNames[static_cast<int>(record.kind)],
                     record.worker, record.piece);
}

}  // namespace

OrderReplay::OrderReplay(std::shared_ptr<const UpdateOrder> order, int partition)
    : order_(std::move(order)), partition_(static_cast<size_t>(partition)) {
  if (partition_ >= order_->partitions.size())
    throw Error(fmt::format("--replay-order: partition {} of an order of {}", partition,
                            order_->partitions.size()));
  for (size_t i = 0; i < records().size(); ++i) {
    const OrderRecord& record = records()[i];
    const bool push = record.kind == RecordKind::push;
    if (push || record.kind == RecordKind::look)
      asked_[{record.worker, record.piece}].push_back({push, i});
  }
  all_changed();
}

void OrderReplay::all_changed() {
  workers_of_.clear();
  for (const auto& [place, asked] : asked_) {
    workers_of_[place.second].push_back(place.first);
    changed_.insert(place.second);
  }
}

const OrderRecord* OrderReplay::next() const {
  size_t at = handed_in_;
  while (at < records().size() && records()[at].kind == RecordKind::look) ++at;
  return at < records().size() ? &records()[at] : nullptr;
}

void OrderReplay::hand_in() {
  while (records().at(handed_in_).kind == RecordKind::look) ++handed_in_;
  note(records()[handed_in_++]);
}

void OrderReplay::note(const OrderRecord& record) {
  if (record.kind == RecordKind::leave && record.number == 0) lost_.insert(record.worker);
  if (record.kind == RecordKind::comes) lost_.erase(record.worker);
  if (record.kind == RecordKind::leave) ++gone_[record.worker];
}

void OrderReplay::skip(int64_t num_records) {
  for (int64_t orders = 0; followed_ < records().size(); ++followed_) {
    const OrderRecord& record = records()[followed_];
    const bool look = record.kind == RecordKind::look;
    if (!look && orders++ == num_records) break;
    if (look || record.kind == RecordKind::push) ++at_[{record.worker, record.piece}];
    if (record.kind == RecordKind::leave) ++left_[record.worker];
    note(record);
  }
  handed_in_ = followed_;
  all_changed();
}

void OrderReplay::follow(const OrderRecord& record) {
  // Looks before it were taken as the orders before them were carried out.
  if (followed_ == records().size())
    throw Error(fmt::format("--replay-order: {} behind the end of the order", words_of(record)));
  if (const OrderRecord& expected = records()[followed_]; record != expected)
    throw Error(fmt::format(
        "--replay-order: record {} of partition {} is {}, number {}; expected {}, number {}: this "
        "job does not do what the recorded one did",
        followed_, partition_, words_of(record), record.number, words_of(expected),
        expected.number));
  if (++followed_ > handed_in_) note(record);
  handed_in_ = std::max(handed_in_, followed_);
  const Place place(record.worker, record.piece);
  if (record.kind == RecordKind::push) {
    ++at_[place];
    held_.erase(place);
    changed_.insert(record.piece);
  }
  if (record.kind == RecordKind::leave) ++left_[record.worker];
  if (record.kind == RecordKind::comes)
    std::erase_if(looks_, [&](const auto& entry) { return entry.first.first == record.worker; });
}

void OrderReplay::look(const PartitionState& state) {
  if (!state.assigned()) return;
  take_looks(state);
  for (const int piece : std::exchange(changed_, {}))
    for (const int worker : workers_of_[piece]) keep(state, {worker, piece});
}

// The same question twice was asked again since its answer was lost: the last counts, and comes
// last here.
void OrderReplay::take_looks(const PartitionState& state) {
  for (; followed_ < records().size() && records()[followed_].kind == RecordKind::look;
       ++followed_) {
    const OrderRecord& record = records()[followed_];
    const Place place(record.worker, record.piece);
    const DensePiece& piece = state.piece(record.piece);
    const auto& asked = asked_.at(place);
    const size_t at = at_[place]++;
    changed_.insert(record.piece);
    const bool again = at + 1 < asked.size() && !asked[at + 1].with_gradient &&
                       records()[asked[at + 1].at].number == record.number;
    if (!again) looks_[place][record.number] = Values{piece.parameters(), piece.version()};
  }
  handed_in_ = std::max(handed_in_, followed_);
}

void OrderReplay::keep(const PartitionState& state, const Place& place) {
  const auto& asked = asked_.at(place);
  const size_t at = at_[place];
  if (at == asked.size() || !asked[at].with_gradient || held_.contains(place)) return;
  const DensePiece& piece = state.piece(place.second);
  if (records()[asked[at].at].number == piece.version() % kOrderNumbers)
    held_[place] = Values{piece.parameters(), piece.version()};
}

const std::optional<OrderReplay::Values>* OrderReplay::given(int worker, int piece, int64_t look) {
  const Place place(worker, piece);
  if (look > 0) {
    auto& looks = looks_[place];
    looks.erase(looks.begin(), looks.lower_bound(look % kOrderNumbers));
    const auto found = looks.find(look % kOrderNumbers);
    return found == looks.end() ? nullptr : &found->second;
  }
  const auto asked = asked_.find(place);
  const size_t at = at_[place];
  if (asked == asked_.end() || at == asked->second.size() || !asked->second[at].with_gradient)
    return &newest_;
  const auto held = held_.find(place);
  return held == held_.end() ? nullptr : &held->second;
}

bool OrderReplay::may_give(int worker, int piece, int64_t look) const {
  const Place place(worker, piece);
  if (const auto asked = asked_.find(place); asked != asked_.end()) {
    const auto at = at_.find(place);
    const auto comes = [&](const Asked& one) {
      return !one.with_gradient && records()[one.at].number >= look % kOrderNumbers;
    };
    const auto begin =
        asked->second.begin() + static_cast<int64_t>(at == at_.end() ? 0 : at->second);
    if (std::any_of(begin, asked->second.end(), comes)) return true;
  }
  return std::any_of(records().begin() + static_cast<int64_t>(handed_in_), records().end(),
                     [&](const OrderRecord& record) {
                       return record.kind == RecordKind::leave && record.worker == worker &&
                              record.number == 0;
                     });
}

int64_t OrderReplay::times_gone(int worker) const {
  const auto found = gone_.find(worker);
  return found == gone_.end() ? 0 : found->second;
}

int64_t OrderReplay::times_left(int worker) const {
  const auto found = left_.find(worker);
  return found == left_.end() ? 0 : found->second;
}

bool OrderReplay::comes_again(int worker) const {
  return std::any_of(records().begin() + static_cast<int64_t>(handed_in_), records().end(),
                     [&](const OrderRecord& record) {
                       return record.kind == RecordKind::comes && record.worker == worker;
                     });
}

int64_t OrderReplay::updates_left(int worker) const {
  return std::count_if(records().begin() + static_cast<int64_t>(handed_in_), records().end(),
                       [&](const OrderRecord& record) {
                         return record.kind == RecordKind::push &&
                                (worker < 0 || record.worker == worker);
                       });
}

}  // namespace tutti::ps
