#include "tutti/sync/shared/detail/host_sums.h"

#include <algorithm>
#include <array>
#include <bit>
#include <iterator>
#include <ranges>
#include <utility>

#include "tutti/comm/engine/debug_mode.h"
#include "tutti/net/arena.h"

namespace tutti::detail {
namespace {

// Steps before an order: the first are not like those that follow (a graph is planned, memory is
// new); then some are made with a rest, some without, and the faster way is taken.
constexpr std::array<int64_t, 3> kStepsBeforeOrder = {3, 12, 21};
// By this thread, in a backward pass, which is not to wait: engines take no more than some.
constexpr size_t kMostUnderWay = 16;
// Of a sum, whoever sends it: debug mode compares places.
const CallSite kSite = CallSite::current();

}  // namespace

HostSums::HostSums(HostView view, const Slots& layout,
                   const std::vector<std::vector<Stretch>>& slices, const Options& options)
    : view_(std::move(view)),
      rails_(view_.rails.size()),
      parts_(layout.slots.size()),
      begin_of_(layout.slots.size()),
      dtype_of_(layout.slots.size()),
      late_(options.late) {
  constexpr int64_t kWidest = 64;  // of whole elements, whatever their dtype
  const int64_t asked =
      options.piece_bytes != 0 ? options.piece_bytes : piece_bytes(view_.num_hosts);
  const int64_t most_bytes = std::max(asked / kWidest, int64_t{1}) * kWidest;
  for (size_t rail = 0; rail < rails_.size(); ++rail)
    cut(layout, static_cast<int>(rail), slices[static_cast<size_t>(view_.first_slice) + rail],
        most_bytes);
  sums_ = Array::zeros(DType::uint8, {end_});
}

// Pieces begin where stretches do, or at a block of one; their bytes lie as the layout has them.
void HostSums::cut(const Slots& layout, int rail, const std::vector<Stretch>& slice,
                   int64_t most_bytes) {
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
      piece.stretches.push_back({stretch.parameter, begin, end});
      piece.num_elements += end - begin;
      end_ += (end - begin) * width;
      begin = end;
    }
  }
  std::ranges::reverse(order);
  rails_[static_cast<size_t>(rail)].before = order.size();
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

SumMover::Sum HostSums::sum_of_piece(int number) const {
  const Piece& piece = pieces_[static_cast<size_t>(number)];
  const MemorySpan data = span_of(number);
  const auto start = [group = view_.rails[static_cast<size_t>(piece.rail)],
                      data](Millis limit) mutable {
    return group.all_reduce(data, ReduceOp::sum, limit, kSite);
  };
  return {.start = start, .num_bytes = data.num_bytes()};
}

void HostSums::begin_step(bool early) {
  const TimePoint now = Clock::now();
  const bool compares = view_.host == 0 && orders_ < kStepsBeforeOrder.size();
  if (was_early_ && compares) taken_.push_back(std::chrono::duration<double>(now - began_).count());
  early_ = was_early_ = early;
  began_ = now;
  handed_in_ = 0;
  for (Piece& piece : pieces_) {
    piece.missing = static_cast<int>(piece.stretches.size());
    piece.rest = false;
  }
  for (size_t i = 0; i < rails_.size(); ++i) {
    Rail& rail = rails_[i];
    rail.seen.clear();
    rail.sent = 0;
    // Calls that are compared wait for the others, which a backward pass does not.
    const bool lent = view_.rails[i].engine().can_be_lent();
    rail.hides = early && std::ssize(rail.order) >= kLeastPieces && (lent || !debug_mode());
    if (rail.hides && lent && rail.mover == nullptr)
      rail.mover = std::make_unique<SumMover>(view_.rails[i]);
    if (rail.mover != nullptr) rail.mover->seconds_a_byte();  // those of this step count
  }
}

double HostSums::seconds() const {
  return std::chrono::duration<double>(Clock::now() - began_).count();
}

void HostSums::end_early() {
  early_ = false;
  handed_in_ = seconds();
  // A step without a backward pass tells nothing of one.
  was_early_ &= std::ranges::any_of(rails_, [](const Rail& rail) { return !rail.seen.empty(); });
}

void HostSums::put(const Part& part) {
  Piece& piece = pieces_[static_cast<size_t>(part.piece)];
  if (--piece.missing > 0) return;
  piece.whole = seconds();
  Rail& rail = rails_[static_cast<size_t>(piece.rail)];
  rail.seen.push_back(part.piece);
  if (!early_ || !rail.hides) return;
  // Engines go on with all that is under way.
  while (!rail.under_way.empty() && rail.under_way.front().test()) rail.under_way.pop_front();
  for (; rail.sent < rail.before && rail.under_way.size() < kMostUnderWay; ++rail.sent) {
    const int next = rail.order[rail.sent];
    if (pieces_[static_cast<size_t>(next)].missing > 0) break;
    SumMover::Sum sum = sum_of_piece(next);
    rail.mover != nullptr ? rail.mover->put(std::move(sum))
                          : rail.under_way.push_back(sum.start(kLongestLimit));
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
  const bool orders =
      orders_ < kStepsBeforeOrder.size() && early_steps_ >= kStepsBeforeOrder[orders_];
  rail.words.push_back(first && orders ? 1 : 0);
}

void HostSums::finish(std::span<uint8_t> used, double& learning_rate, Millis limit) {
  early_ = false;
  early_steps_ += was_early_ ? 1 : 0;
  const Deadline deadline(limit);
  const auto left = [&] { return std::max(Millis{1}, deadline.left()); };
  // Who waits moves the bytes itself: of one rail after the other, in one order on all hosts, since
  // two that drove other ones would wait for each other.
  for (size_t i = 0; i < rails_.size(); ++i) {
    Rail& rail = rails_[i];
    Group& group = view_.rails[i];
    std::deque<Work>& works = rail.under_way;  // whoever is given up in here ends the group
    if (rail.mover != nullptr)
      std::ranges::move(rail.mover->take_back(left()), std::back_inserter(works));
    const size_t taken_back = works.size();
    for (; rail.sent < rail.before; ++rail.sent)
      works.push_back(
          group.all_reduce(span_of(rail.order[rail.sent]), ReduceOp::sum, left(), kSite));
    say(used, learning_rate, rail);
    works.push_back(
        group.all_reduce(tutti::span_of(std::span(rail.words)), ReduceOp::max, left(), kSite));
    for (size_t done = 0; done < works.size(); ++done) {
      works[done].wait(left());
      if (rail.mover != nullptr && done + 1 == taken_back) rail.mover->count_taken_back();
    }
    works.clear();
    rail.rest.assign(rail.order.begin() + static_cast<std::ptrdiff_t>(rail.before),
                     rail.order.end());
    for (const int piece : rail.rest) pieces_[static_cast<size_t>(piece)].rest = true;
  }
  // Each rail has one member of every host.
  const std::vector<uint8_t>& words = rails_.front().words;
  std::copy_n(words.begin(), used.size(), used.begin());
  uint64_t rate = 0;
  for (size_t i = 0; i < sizeof rate; ++i) rate |= uint64_t{words[used.size() + i]} << (8 * i);
  learning_rate = std::bit_cast<double>(rate);
  if (view_.host == 0 && words.back() != 0) compare_times();
  for (size_t i = 0; i < rails_.size(); ++i)
    if (rails_[i].words.back() != 0) agree_on_order(i, left());
  orders_ += words.back();
}

// Of host 0: the pieces as they are to go, and last how many before the words.
std::vector<int> HostSums::plan(const Rail& rail) const {
  const auto piece_of = [this](int number) -> const Piece& {
    return pieces_[static_cast<size_t>(number)];
  };
  std::vector<int> order = rail.seen;
  if (!late_ || rail.mover == nullptr) {
    order.push_back(static_cast<int>(order.size()));
    return order;
  }
  // What the next forward pass needs first has its gradient last. So of those that are whole the
  // last one goes, and the wire is as busy as in any order; what is left when backward is over is
  // needed late.
  const double seconds_a_byte = rail.mover->seconds_a_byte();
  if (seconds_a_byte == 0) {  // nothing went early: there is nothing to go by
    order.push_back(static_cast<int>(order.size()));
    return order;
  }
  order.clear();
  std::vector<int> whole;
  double now = 0;
  for (auto next = rail.seen.begin(); now < handed_in_;) {
    while (next != rail.seen.end() && piece_of(*next).whole <= now) whole.push_back(*next++);
    if (whole.empty() && next == rail.seen.end()) break;
    if (whole.empty()) {
      now = piece_of(*next).whole;
      continue;
    }
    order.push_back(whole.back());
    whole.pop_back();
    now += seconds_a_byte * static_cast<double>(span_of(order.back()).num_bytes());
  }
  const auto before = static_cast<int>(order.size());
  for (const int piece : rail.seen | std::views::reverse)
    if (std::ranges::find(order, piece) == order.end()) order.push_back(piece);
  order.push_back(before);
  return order;
}

// Of host 0: those of the steps since the last order, but the first.
void HostSums::compare_times() {
  std::vector<double> times;
  times.swap(taken_);
  if (times.size() < 2) return;
  const auto middle = times.begin() + 1 + (std::ssize(times) - 1) / 2;
  std::nth_element(times.begin() + 1, middle, times.end());
  rest_is_faster_ = orders_ == 2 && taken_with_rest_ < *middle;
  taken_with_rest_ = *middle;
}

std::vector<int> HostSums::next_order(Rail& rail) const {
  if (orders_ == 0) return rail.with_rest = plan(rail);
  if (rest_is_faster_) return rail.with_rest;
  std::vector<int> without = rail.seen;
  without.push_back(static_cast<int>(without.size()));
  return without;
}

void HostSums::agree_on_order(size_t rail, Millis limit) {
  std::vector<int>& order = rails_[rail].order;
  if (order.size() < 2) return;
  // Pieces have other numbers on hosts that carry other slices.
  const int first = std::ranges::min(order);
  std::vector<int> told(order.size() + 1);
  if (view_.host == 0) {
    told = next_order(rails_[rail]);
    for (int& piece : std::span(told).first(order.size())) piece -= first;
  }
  view_.rails[rail].broadcast(tutti::span_of(std::span(told)), 0, limit).wait(limit);
  for (size_t i = 0; i < order.size(); ++i) order[i] = told[i] + first;
  rails_[rail].before = static_cast<size_t>(told.back());
}

int64_t HostSums::num_rest() const { return std::ranges::count(pieces_, true, &Piece::rest); }

void HostSums::add_rest(Millis limit) {
  for (size_t i = 0; i < rails_.size(); ++i) {
    std::vector<Work> works;
    for (const int piece : rails_[i].rest)
      works.push_back(view_.rails[i].all_reduce(span_of(piece), ReduceOp::sum, limit, kSite));
    for (Work& work : works) work.wait(limit);
    rails_[i].sent += rails_[i].rest.size();
  }
}

void HostSums::add_rest_late(const std::function<void(int piece)>& then, Millis limit) {
  for (size_t i = 0; i < rails_.size(); ++i) {
    Rail& rail = rails_[i];
    if (rail.mover == nullptr && !rail.rest.empty())
      rail.mover = std::make_unique<SumMover>(view_.rails[i]);
    for (const int piece : rail.rest) {
      SumMover::Sum sum = sum_of_piece(piece);
      sum.then = [then, piece] { then(piece); };
      sum.limit = limit;  // all hosts put theirs now
      rail.mover->put_late(std::move(sum), limit);
    }
    rail.sent += rail.rest.size();
  }
}

void HostSums::drain(Millis limit) {
  for (const Rail& rail : rails_)
    if (rail.mover != nullptr) rail.mover->drain(limit);
}

void HostSums::rethrow_failure() const {
  for (const Rail& rail : rails_)
    if (rail.mover != nullptr) rail.mover->rethrow_failure();
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
