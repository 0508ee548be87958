#include "tutti/plan/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <thread>
#include <utility>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/host.h"
#include "tutti/base/resident.h"
#include "tutti/base/threads.h"
#include "tutti/plan/detail/quantile.h"

namespace tutti::plan {
namespace {

using detail::median_of;
using detail::quantile_of;
using detail::spread_of;

constexpr int kWarmUps = 3;
constexpr int kJitterPieces = 50;

double seconds_since(TimePoint begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

template <class Get>
std::vector<double> each(const std::vector<StepSeconds>& steps, Get&& get) {
  std::vector<double> values;
  values.reserve(steps.size());
  for (const StepSeconds& step : steps) values.push_back(get(step));
  return values;
}

double compute_of(const StepSeconds& step) { return step.forward + step.backward; }

std::vector<StepSeconds> steps_of(const Subject& subject, const MeasureOptions& options,
                                  int64_t batch) {
  for (int i = 0; i < kWarmUps; ++i) subject.step(batch);
  std::vector<StepSeconds> steps;
  const double share = options.seconds / static_cast<double>(options.batches.size());
  const TimePoint begin = Clock::now();
  while (std::ssize(steps) < options.least_steps || seconds_since(begin) < share)
    steps.push_back(subject.step(batch));
  return steps;
}

void require_quiet(const std::vector<double>& compute, int64_t batch,
                   const MeasureOptions& options) {
  const double spread = spread_of(compute);
  if (spread > options.most_spread)
    throw Error(fmt::format(
        "steps of {} samples take {:.3g} ms in the middle, and the middle half of them spreads "
        "over {:.0f} % of that; {:.0f} % is the most that says anything: measure on a machine that "
        "does nothing else, or for longer",
        batch, 1e3 * median_of(compute), 100 * spread, 100 * options.most_spread));
}

/// Relative standard deviation of the medians of quarters.
double drift_of(const std::vector<double>& values) {
  const auto quarter = std::ssize(values) / 4;
  std::array<double, 4> medians{};
  double mean = 0, squares = 0;
  for (int i = 0; i < 4; ++i) {
    medians[static_cast<size_t>(i)] =
        median_of({values.begin() + i * quarter, values.begin() + (i + 1) * quarter});
    mean += medians[static_cast<size_t>(i)] / 4;
  }
  for (double one : medians) squares += (one - mean) * (one - mean);
  return std::sqrt(squares / 3) / mean;
}

/// Bytes over batches as a straight line, by least squares; slopes below 0 are none.
std::pair<double, double> line_of(const std::vector<int64_t>& batches,
                                  const std::vector<double>& bytes) {
  const double n = static_cast<double>(batches.size());
  double x = 0, y = 0, xx = 0, xy = 0;
  for (size_t i = 0; i < batches.size(); ++i) {
    const auto batch = static_cast<double>(batches[i]);
    x += batch / n;
    y += bytes[i] / n;
    xx += batch * batch / n;
    xy += batch * bytes[i] / n;
  }
  const double slope = xx > x * x ? std::max(0.0, (xy - x * y) / (xx - x * x)) : 0;
  return {std::max(0.0, y - slope * x), slope};
}

void check(const Subject& subject, const MeasureOptions& options) {
  if (subject.parameters < 1)
    throw UsageError(fmt::format("model {}: no parameters to train", subject.model));
  if (options.batches.empty()) throw UsageError("batches: none to measure");
  int64_t last = 0;
  for (int64_t batch : options.batches) {
    if (batch <= last)
      throw UsageError(
          fmt::format("batches: {} after {}; expected ascending numbers from 1", batch, last));
    last = batch;
  }
  if (!(options.seconds > 0) || options.least_steps < 4)
    throw UsageError(fmt::format("{} s and {} steps: expected more than 0, and 4 or more",
                                 options.seconds, options.least_steps));
}

}  // namespace

Machine measure(const Subject& subject, const MeasureOptions& options) {
  check(subject, options);
  const HostFacts& host = host_facts();
  Machine machine{
      .name = options.name,
      .model = subject.model,
      .parameters = subject.parameters,
      .bytes = subject.bytes,
      .largest_parameter = subject.largest_parameter,
      .update_streams = subject.update_streams,
      .cores = host.usable_cores,
      .memory = std::min(host.memory_total_bytes,
                         host.cgroup_memory_limit_bytes.value_or(host.memory_total_bytes)),
      .compute_error = 0.02};
  std::vector<double> jitter, updates, inputs, peaks;
  for (size_t i = 0; i < options.batches.size(); ++i) {
    const int64_t batch = options.batches[i];
    if (options.progress) options.progress(i, options.batches.size());
    forget_peak_resident();
    const auto steps = steps_of(subject, options, batch);
    peaks.push_back(static_cast<double>(peak_resident_bytes()));
    const auto compute = each(steps, compute_of);
    require_quiet(compute, batch, options);
    machine.compute.push_back(
        {.batch = batch,
         .forward = median_of(each(steps, [](const StepSeconds& s) { return s.forward; })),
         .backward = median_of(each(steps, [](const StepSeconds& s) { return s.backward; }))});
    for (double one : compute) jitter.push_back(one / median_of(compute));
    machine.compute_error = std::max(machine.compute_error, drift_of(compute));
    updates.push_back(median_of(each(steps, [](const StepSeconds& s) { return s.update; })));
    inputs.push_back(median_of(each(steps, [](const StepSeconds& s) { return s.input; })) /
                     static_cast<double>(batch * machine.cores));
  }
  machine.compute_error = std::min(machine.compute_error, 0.5);
  machine.update = median_of(updates);
  machine.input = median_of(inputs);
  machine.jitter.clear();
  for (int i = 0; i <= kJitterPieces; ++i)
    machine.jitter.push_back(quantile_of(jitter, static_cast<double>(i) / kJitterPieces));
  std::tie(machine.fixed_memory, machine.sample_memory) = line_of(options.batches, peaks);
  machine.core_memory_rate = memory_rate_of(1);
  machine.memory_rate =
      machine.cores == 1 ? machine.core_memory_rate : memory_rate_of(machine.cores);
  return machine;
}

double memory_rate_of(int threads) {
  constexpr size_t kBytes = 64 << 20;
  constexpr int kRounds = 7;
  std::barrier all(threads);
  std::vector<double> seconds(kRounds);
  const auto work = [&](bool first) {
    std::vector<std::byte> from(kBytes), to(kBytes);
    for (double& round : seconds) {
      all.arrive_and_wait();
      const TimePoint begin = Clock::now();
      std::memcpy(to.data(), from.data(), kBytes);
      all.arrive_and_wait();
      if (first) round = seconds_since(begin);
      std::swap(from, to);
    }
  };
  at_once(threads, "the measure of memory", [&](int number) { work(number == 0); });
  return 2.0 * kBytes * threads / median_of(seconds);
}

}  // namespace tutti::plan
