// What replicas tell each other with a step's update and after it, which lets all end at the same
// step and count the same ones.

#include <algorithm>
#include <array>
#include <limits>

#include "tutti/train/fit/detail/fit.h"

namespace tutti::detail {
namespace {

constexpr double kNone = -std::numeric_limits<double>::infinity();

/// What a replica says. Of all of them the largest of each.
enum Flag : uint8_t { kSignal, kStop, kBadStep, kKnown, kFlags };
using Flags = std::array<double, kFlags>;

/// The first bad step and the least that is known are what all look for: negated.
Flags flags_of(const Totals& totals, int64_t known) {
  return {static_cast<double>(totals.signal), static_cast<double>(totals.stop),
          totals.bad_step >= 0 ? -static_cast<double>(totals.bad_step) : kNone,
          -static_cast<double>(known)};
}

}  // namespace

// Who has more to say than goes with the update: figures of a device come late, callbacks decide
// once the step is made, and a step that scaled losses leave out is one.
void Fit::tell(const ReplicaContext& replica, const Totals& totals) {
  const bool calls_back = callbacks_->any() && replica.local_rank() == 0;
  const bool ends_here = totals.bad_step >= 0 && options_.on_nan != OnNan::go_on;
  compiled_.optimizer.tell(
      replica, [this] { return asked_to_end(); },
      replica.queue().on_device() || calls_back || ends_here);
}

void Fit::agree(ReplicaContext& replica, const Epoch& epoch, int64_t step, Tally& tally,
                int together) {
  const Verdict& all = compiled_.optimizer.verdict(replica);
  if (together > 1 && !all.meets) {
    tally.totals.signal = all.signal;
    return;
  }
  tally.totals.signal = asked_to_end();
  tally.poll();
  tell_all(replica, epoch, step, tally, together);
}

void Fit::settle(ReplicaContext& replica, const Epoch& epoch, int64_t step, Tally& tally,
                 int together) {
  tally.settle();
  tell_all(replica, epoch, step, tally, together);
}

// They have just met in the updater, so this costs no waiting: 0.1 to 0.2 us.
void Fit::tell_all(ReplicaContext& replica, const Epoch& epoch, int64_t step, Tally& tally,
                   int together) {
  Flags flags = flags_of(tally.totals, tally.known(step));
  if (together > 1)
    replica.group().all_reduce_now(span_of(std::span<double>(flags)), ReduceOp::max,
                                   epoch.world->time_limit);
  tally.totals.signal = static_cast<int>(flags[kSignal]);
  tally.totals.stop = static_cast<Stop>(flags[kStop]);
  learn(replica.local_rank(), tally, flags[kBadStep] == kNone ? -1 : -std::lround(flags[kBadStep]),
        -std::lround(flags[kKnown]));
}

void Fit::agree_in_turn(std::span<const std::unique_ptr<Tally>> each, int64_t step, bool wait) {
  Flags all{0, 0, kNone, kNone};
  for (const auto& tally : each) {
    wait ? tally->settle() : tally->poll();
    const Flags own = flags_of(tally->totals, tally->known(step));
    std::ranges::transform(all, own, all.begin(),
                           [](double a, double b) { return std::max(a, b); });
  }
  for (size_t local = 0; local < each.size(); ++local)
    learn(static_cast<int>(local), *each[local],
          all[kBadStep] == kNone ? -1 : -std::lround(all[kBadStep]), -std::lround(all[kKnown]));
}

// What is said of a step that is not finite is said of the first.
void Fit::learn(int local, Tally& tally, int64_t bad_step, int64_t known) {
  Totals& totals = tally.totals;
  if (totals.bad_step > bad_step) not_finite_.first[static_cast<size_t>(local)].clear();
  totals.bad_step = bad_step;
  const bool ends_there = bad_step >= 0 && options_.on_nan != OnNan::go_on;
  tally.count_until(ends_there ? std::min(known, bad_step) : known);
}

void Fit::take_back_left_out(const Epoch& epoch, const Totals& totals) {
  if (!leaves_out(totals)) return;
  compiled_.optimizer.forget_left_out();
  const int64_t made = epoch.steps_before + totals.bad_step;
  for (int64_t step = totals.bad_step; history_.steps > made; ++step, --history_.steps) {
    since_.images -= samples_of(epoch, step);
    history_.step_ms.pop_back();
  }
}

}  // namespace tutti::detail
