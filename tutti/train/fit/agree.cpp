// What replicas tell each other: before a step how many labels count in it, where a loss divides by
// those; after it what lets all end at the same one and count the same steps.

#include <algorithm>
#include <array>
#include <limits>

#include "tutti/strategy/input/detail/input.h"
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

// The columns of several batches are copied: a loader's memory is for those that it computes ahead.
StepInput Fit::read_counted(int local, const Epoch& epoch, int64_t first, int64_t end) const {
  const Goals& goals = compiled_.goals;
  const World& world = *epoch.world;
  StepInput input{.first = first,
                  .columns = std::vector<Tensors>(static_cast<size_t>(end - first)),
                  .counted = std::vector<double>(goals.size(), 0)};
  if (!world.gives_outputs(local)) return input;
  for (int64_t number = first; number < end; ++number) {
    if (part_of(*epoch.data, world, nullptr, number, local).share.size() == 0) continue;
    Tensors& columns = input.columns[static_cast<size_t>(number - first)];
    columns = epoch.batch(number).read(local, world.time_limit);
    if (options_.accumulate > 1)
      for (at::Tensor& column : columns) column = column.clone();
    const Tensors targets = targets_of(columns, model_.num_inputs, goals);
    for (size_t i = 0; i < goals.size(); ++i)
      input.counted[i] +=
          static_cast<double>(goals[i].loss.kernel().counted(targets[i]).value_or(0));
  }
  return input;
}

// All before the first of them computes: nobody can ask another one.
std::vector<StepInput> Fit::read_in_turn(const Epoch& epoch, int64_t first, int64_t end) const {
  std::vector<StepInput> each;
  std::vector<double> all(compiled_.goals.size(), 0);
  for (int local = 0; local < epoch.world->local; ++local) {
    each.push_back(read_counted(local, epoch, first, end));
    for (size_t i = 0; i < all.size(); ++i) all[i] += each.back().counted[i];
  }
  for (StepInput& input : each) input.counted = all;
  return each;
}

Tensors Fit::take_columns(const ReplicaContext& replica, const DistributedBatch& batch,
                          StepInput& input) {
  const auto place = static_cast<size_t>(batch.step() - input.first);
  if (place >= input.columns.size() || input.columns[place].empty())
    return batch.host_columns(replica);
  if (replica.is_measured()) replica.computes(batch.local_size(replica), batch.global_size());
  return std::move(input.columns[place]);
}

// Who has more to say than goes with the update: figures of a device come late, callbacks decide
// once the step is made, and a step that scaled losses leave out is one.
void Fit::tell(const ReplicaContext& replica, const Totals& totals) {
  const bool calls_back = callbacks_->any() && replica.local_rank() == 0;
  const bool ends_here = totals.bad_step >= 0 && options_.on_nan != OnNan::go_on;
  compiled_.optimizer.tell(replica, asked_to_end(),
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
  if (totals.bad_step > bad_step) not_finite_[static_cast<size_t>(local)].clear();
  totals.bad_step = bad_step;
  const bool ends_there = bad_step >= 0 && options_.on_nan != OnNan::go_on;
  tally.count_until(ends_there ? std::min(known, bad_step) : known);
}

void Fit::take_back_left_out(const Epoch& epoch, const Totals& totals) {
  if (!leaves_out(totals)) return;
  compiled_.optimizer.forget_left_out();
  const int64_t made = epoch.steps_before + totals.bad_step;
  for (int64_t step = totals.bad_step; history_.steps > made; ++step, --history_.steps) {
    epoch_images_ -= samples_of(epoch, step);
    history_.step_ms.pop_back();
  }
}

}  // namespace tutti::detail
