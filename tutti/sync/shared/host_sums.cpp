#include "tutti/sync/shared/detail/host_sums.h"

#include <algorithm>
#include <bit>

#include "tutti/net/arena.h"

namespace tutti::detail {
namespace {

// The order of the first steps, which are not like those that follow (a graph is planned, memory is
// new), is not asked.
constexpr int64_t kStepsBeforeOrder = 3;
// Of a sum, whoever sends it: debug mode compares places.
const CallSite kSite = CallSite::current();

}  // namespace

HostSums::HostSums(HostView view, const Slots& layout,
                   const std::vector<std::vector<Stretch>>& slices)
    : view_(std::move(view)),
      rails_(view_.rails.size()),
      parts_(layout.slots.size()),
      begin_of_(layout.slots.size()),
      dtype_of_(layout.slots.size()) {
  for (size_t rail = 0; rail < rails_.size(); ++rail)
    cut(layout, static_cast<int>(rail), slices[static_cast<size_t>(view_.first_slice) + rail]);
  sums_ = Array::zeros(DType::uint8, {end_});
}

// Pieces begin where stretches do, or at a block of one; their bytes lie as the layout has them.
void HostSums::cut(const Slots& layout, int rail, const std::vector<Stretch>& slice) {
  const int64_t most_bytes = piece_bytes(view_.num_hosts);
  std::vector<int>& order = rails_[static_cast<size_t>(rail)].order;
  for (const Stretch& stretch : slice) {
    const auto parameter = static_cast<size_t>(stretch.parameter);
    const DType dtype = layout.slots[parameter].dtype;
    const int64_t width = size_of(dtype);
    if (!pieces_.empty() && pieces_.back().dtype != dtype) end_ = round_up(end_, 64);
    // A parameter that two of this replica's slices share goes on where it ended.
    begin_of_[parameter] = end_ - stretch.begin * width;
    dtype_of_[parameter] = dtype;
    for (int64_t begin = stretch.begin; begin < stretch.end;) {
      const bool fits = !order.empty() && pieces_.back().dtype == dtype &&
                        pieces_.back().num_elements * width < most_bytes;
      if (!fits) {
        order.push_back(static_cast<int>(pieces_.size()));
        pieces_.push_back({.dtype = dtype, .begin = end_, .rail = rail});
      }
      Piece& piece = pieces_.back();
      const int64_t room = most_bytes / width - piece.num_elements;
      const int64_t blocks = (room + kBlockElements - 1) / kBlockElements;
      const int64_t end = std::min(stretch.end, begin + blocks * kBlockElements);
      parts_[parameter].push_back({{stretch.parameter, begin, end}, order.back()});
      ++piece.num_parts;
      piece.num_elements += end - begin;
      end_ += (end - begin) * width;
      begin = end;
    }
  }
  std::ranges::reverse(order);
}

std::byte* HostSums::sum_of(const Stretch& stretch) const {
  const auto parameter = static_cast<size_t>(stretch.parameter);
  return static_cast<std::byte*>(sums_.data()) + begin_of_[parameter] +
         stretch.begin * size_of(dtype_of_[parameter]);
}

MemorySpan HostSums::span_of(int number) const {
  const Piece& piece = pieces_[static_cast<size_t>(number)];
  return {static_cast<std::byte*>(sums_.data()) + piece.begin, piece.num_elements, piece.dtype};
}

void HostSums::begin_step(bool early) {
  early_ = was_early_ = early;
  for (Piece& piece : pieces_) piece.missing = piece.num_parts;
  for (size_t i = 0; i < rails_.size(); ++i) {
    Rail& rail = rails_[i];
    rail.seen.clear();
    rail.sent = 0;
    const bool hides =
        std::ssize(rail.order) >= kLeastPieces && view_.rails[i].engine().can_be_lent();
    if (early && hides && rail.mover == nullptr)
      rail.mover = std::make_unique<SumMover>(view_.rails[i], kSite);
  }
}

void HostSums::put(const Part& part) {
  Piece& piece = pieces_[static_cast<size_t>(part.piece)];
  if (--piece.missing > 0) return;
  Rail& rail = rails_[static_cast<size_t>(piece.rail)];
  rail.seen.push_back(part.piece);
  if (!early_ || rail.mover == nullptr) return;
  for (; rail.sent < rail.order.size(); ++rail.sent) {
    const int next = rail.order[rail.sent];
    if (pieces_[static_cast<size_t>(next)].missing > 0) return;
    rail.mover->put(span_of(next));
  }
}

int64_t HostSums::num_sent() const {
  size_t sent = 0;
  for (const Rail& rail : rails_) sent += rail.sent;
  return static_cast<int64_t>(sent);
}

// Bytes of which host 0 alone has others than 0 are those of the maximum.
void HostSums::say(std::span<const uint8_t> used, double learning_rate, Rail& rail) const {
  const bool first = view_.host == 0;
  rail.words.assign(used.begin(), used.end());
  const uint64_t rate = first ? std::bit_cast<uint64_t>(learning_rate) : 0;
  for (size_t i = 0; i < sizeof rate; ++i)
    rail.words.push_back(static_cast<uint8_t>(rate >> (8 * i)));
  rail.words.push_back(first && !ordered_ && early_steps_ >= kStepsBeforeOrder ? 1 : 0);
}

void HostSums::finish(std::span<uint8_t> used, double& learning_rate, Millis limit) {
  early_ = false;
  early_steps_ += was_early_ ? 1 : 0;
  // Who waits moves the bytes itself: of one rail after the other, in one order on all hosts, since
  // two that drove other ones would wait for each other.
  for (size_t i = 0; i < rails_.size(); ++i) {
    Rail& rail = rails_[i];
    Group& group = view_.rails[i];
    std::vector<Work> works;
    if (rail.mover != nullptr)
      for (const MemorySpan& left : rail.mover->take_back(limit))
        works.push_back(group.all_reduce(left, ReduceOp::sum, limit, kSite));
    for (; rail.sent < rail.order.size(); ++rail.sent)
      works.push_back(
          group.all_reduce(span_of(rail.order[rail.sent]), ReduceOp::sum, limit, kSite));
    say(used, learning_rate, rail);
    works.push_back(
        group.all_reduce(tutti::span_of(std::span(rail.words)), ReduceOp::max, limit, kSite));
    for (Work& work : works) work.wait(limit);
  }
  // Each rail has one member of every host.
  const std::vector<uint8_t>& words = rails_.front().words;
  std::copy_n(words.begin(), used.size(), used.begin());
  uint64_t rate = 0;
  for (size_t i = 0; i < sizeof rate; ++i) rate |= uint64_t{words[used.size() + i]} << (8 * i);
  learning_rate = std::bit_cast<double>(rate);
  for (size_t i = 0; i < rails_.size(); ++i)
    if (rails_[i].words.back() != 0) agree_on_order(i, limit);
  ordered_ |= words.back() != 0;
}

// What host 0 has seen in this step.
void HostSums::agree_on_order(size_t rail, Millis limit) {
  std::vector<int>& order = rails_[rail].order;
  if (order.size() < 2) return;
  // Pieces have other numbers on hosts that carry other slices.
  const int first = std::ranges::min(order);
  std::vector<int> seen = rails_[rail].seen;
  for (int& piece : seen) piece -= first;
  view_.rails[rail].broadcast(tutti::span_of(std::span(seen)), 0, limit).wait(limit);
  for (size_t i = 0; i < order.size(); ++i) order[i] = seen[i] + first;
}

void HostSums::add(std::span<double> values, Millis limit) {
  std::vector<std::vector<double>> sums(rails_.size(), {values.begin(), values.end()});
  std::vector<Work> works;
  for (size_t i = 0; i < rails_.size(); ++i)
    works.push_back(
        view_.rails[i].all_reduce(tutti::span_of(std::span(sums[i])), ReduceOp::sum, limit));
  for (Work& work : works) work.wait(limit);
  std::ranges::copy(sums.front(), values.begin());
}

}  // namespace tutti::detail
