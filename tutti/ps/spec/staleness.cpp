#include "tutti/ps/spec/staleness.h"

#include <fmt/format.h>

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/typed.h"

namespace tutti::ps {

Staleness::Staleness(int64_t steps) : steps_(steps) {
  if (steps < 0 || steps > kMost)
    throw UsageError(
        fmt::format("staleness is {}; expected 0 to {}, or none at all (inf)", steps, kMost));
}

Staleness Staleness::unbounded() {
  Staleness none;
  none.steps_ = kUnbounded;
  return none;
}

Staleness Staleness::parse(std::string_view text, std::string_view what) {
  if (text == "inf") return unbounded();
  const auto steps = number_in<int64_t>(text);
  if (!steps || *steps < 0 || *steps > kMost)
    throw UsageError(fmt::format(
        "{} {}: expected a number of steps from 0 (synchronous) on, or inf (asynchronous)", what,
        text));
  return Staleness(*steps);
}

std::string Staleness::text() const { return bounded() ? std::to_string(steps_) : "inf"; }

std::string objection_to_snapshots(int drop_slowest) {
  if (drop_slowest == 0) return {};
  return fmt::format(
      "--drop-slowest {}: each server leaves other late steps out, so there is no moment at which "
      "all have the same",
      drop_slowest);
}

StalenessGate::StalenessGate(int workers, Staleness staleness) : staleness_(staleness) {
  for (int w = 0; w < workers; ++w) clocks_[w] = 0;
}

int64_t StalenessGate::steps_of(int worker) const {
  const auto found = clocks_.find(worker);
  if (found == clocks_.end()) throw UsageError(fmt::format("worker {} is not here", worker));
  return found->second;
}

void StalenessGate::pushed(int worker, int64_t step) {
  const int64_t clock = steps_of(worker);
  if (step > clock)
    throw UsageError(fmt::format("worker {} pushed step {} after {} steps; expected step {}",
                                 worker, step, clock, clock));
  clocks_[worker] = std::max(clock, step + 1);
}

bool StalenessGate::may_begin(int64_t step) const { return staleness_.allows(step - slowest()); }

std::vector<int> StalenessGate::waits_for(int64_t step) const {
  std::vector<int> workers;
  for (const auto& [worker, clock] : clocks_)
    if (!staleness_.allows(step - clock)) workers.push_back(worker);
  return workers;
}

void StalenessGate::leave(int worker) {
  if (clocks_.size() == 1 && clocks_.contains(worker)) reached_ = slowest();
  clocks_.erase(worker);
}

int64_t StalenessGate::join(int worker) {
  const int64_t step = slowest();
  clocks_[worker] = begun_[worker] = step;
  return step;
}

int64_t StalenessGate::begun_of(int worker) const {
  const auto found = begun_.find(worker);
  return found == begun_.end() ? 0 : found->second;
}

void StalenessGate::restore(std::map<int, int64_t> steps, int64_t slowest,
                            std::map<int, int64_t> begun) {
  clocks_ = std::move(steps);
  begun_ = std::move(begun);
  reached_ = slowest;
}

int64_t StalenessGate::slowest() const {
  if (clocks_.empty()) return reached_;
  return std::ranges::min_element(clocks_, {}, [](const auto& entry) { return entry.second; })
      ->second;
}

void StalenessHistogram::add(int64_t staleness, int64_t updates) {
  bins_[staleness] += updates;
  count_ += updates;
  sum_ += staleness * updates;
}

void StalenessHistogram::merge(const StalenessHistogram& other) {
  for (const auto& [staleness, updates] : other.bins_) add(staleness, updates);
}

double StalenessHistogram::mean() const noexcept {
  return count_ == 0 ? 0.0 : static_cast<double>(sum_) / static_cast<double>(count_);
}

int64_t StalenessHistogram::most() const noexcept {
  return bins_.empty() ? 0 : bins_.rbegin()->first;
}

}  // namespace tutti::ps
