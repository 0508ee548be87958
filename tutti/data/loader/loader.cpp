// The replicas' side: taking parts, counting what was waited for, and deciding who helps.

#include "tutti/data/loader/loader.h"

#include <algorithm>
#include <cmath>

#include "tutti/base/error.h"
#include "tutti/base/host.h"
#include "tutti/base/log.h"
#include "tutti/data/loader/detail/work.h"

namespace tutti::data {
namespace {

// Decisions come after some steps and some time: the first as soon as a step's length is known.
constexpr int64_t kFirstSteps = 2;
constexpr int64_t kSteps = 16;
constexpr double kSeconds = 0.25;
// Fewer workers only after so many decisions for it in a row.
constexpr int kCalm = 4;

constexpr int kMostWorkers = 256;
constexpr int64_t kMostAhead = 1'000'000;

}  // namespace

void check_options(const LoaderOptions& options) {
  const auto& [workers, memory, ahead, on_bad, kind] = options;
  if (workers != kAuto && (workers < 0 || workers > kMostWorkers))
    throw UsageError(
        fmt::format("loader: workers {}: expected 0 to {}, or kAuto", workers, kMostWorkers));
  if (memory != kAuto && memory < 1)
    throw UsageError(fmt::format("loader: memory {}: expected bytes, or kAuto", memory));
  if (ahead != kAuto && (ahead < 1 || ahead > kMostAhead))
    throw UsageError(
        fmt::format("loader: ahead {}: expected 1 to {} batches, or kAuto", ahead, kMostAhead));
  if (on_bad.replace && !(on_bad.replace->at_most >= 0 && on_bad.replace->at_most <= 1))
    throw UsageError(fmt::format("loader: replace at most {}: expected a share, 0 to 1",
                                 on_bad.replace->at_most));
  if (kind == WorkerKind::processes && workers == 0)
    throw UsageError("loader: no workers, of kind processes: expected 1 or more, or kAuto");
}

Batch Loader::Work::take(int64_t step, int replica, const Deadline& deadline) {
  const TimePoint begin = Clock::now();
  Lock lock(mutex_);
  if (!epoch_) throw UsageError(fmt::format("loader: step {} of no epoch: begin() one", step));
  if (replica < 0 || replica >= plan_.replicas)
    throw UsageError(
        fmt::format("loader: replica {} of {} that take parts", replica, plan_.replicas));
  if (steps_ == 0 && window_.steps == 0 && first_take_ == TimePoint{}) first_take_ = begin;
  if (window_.begin == TimePoint{}) window_.begin = begin;
  if (std::erase(expected_, step) > 0) next_replica_ = 0;
  if (is_direct()) return take_directly(lock, step, replica, begin, deadline);
  const PartHandle part = wait_for_part(lock, step, replica, deadline);
  while (!part->complete()) {
    if (part->issued < part->rows() && options_.kind == WorkerKind::threads) {
      const Share rows = claim(*part);
      fill(lock, part, rows, nullptr, deadline.limit());
      continue;
    }
    if (ready_.wait_until(lock, deadline.at()) == std::cv_status::timeout && !part->complete())
      raise_late(*part, deadline);
  }
  parts_.remove(part);
  count_step(replica, part->rows(), begin);
  open_parts();
  const std::exception_ptr failure = part->failure;
  if (!failure) count_replaced(*part);
  Batch batch = std::move(part->batch);
  lock.unlock();
  if (failure) std::rethrow_exception(failure);
  return batch;
}

// What is copied out of memory by the replica itself needs no slot, and hardly a look at the clock.
bool Loader::Work::is_direct() const {
  return choice_.threads() == 0 && epoch_->plain() && !options_.on_bad.replace;
}

Batch Loader::Work::take_directly(Lock& lock, int64_t step, int replica, TimePoint begin,
                                  const Deadline& deadline) {
  constexpr int64_t kMeasured = 16;  // one of so many steps
  const BatchPart part = plan_.part(step, replica);
  const Epoch epoch = *whole_;
  std::optional<detail::StuckWatch::Visit> visit(std::in_place, stuck_watch_, epoch_, part.batch,
                                                 2 * deadline.limit());
  const bool measured = window_.steps < kFirstSteps || window_.steps % kMeasured == 0;
  taken_[static_cast<size_t>(replica)] = step;
  lock.unlock();
  std::optional<detail::Stopwatch> watch;
  if (measured) watch.emplace();
  Batch batch = epoch.part(part.batch, part.share);
  const auto rows = part.share.size();
  visit.reset();
  detail::Cost cost;
  if (measured && rows > 0) cost = watch->cost_of(rows, INFINITY);
  lock.lock();
  if (cost.rows > 0) count_cost(cost);
  StageReport& stage = stages_["read"];
  stage.samples += rows;
  stage.seconds += std::chrono::duration<double>(Clock::now() - begin).count();
  count_step(replica, rows, begin);
  return batch;
}

Loader::Work::PartHandle Loader::Work::wait_for_part(Lock& lock, int64_t step, int replica,
                                                     const Deadline& deadline) {
  // Parts stand in the order of their taking: what this replica has before the one was left out.
  const auto known = std::ranges::find_if(parts_, [&](const PartHandle& part) {
    return part->step == step && part->replica == replica;
  });
  const bool is_known = known != parts_.end();
  PartHandle part = is_known ? *known : nullptr;
  for (auto one = parts_.begin(); one != parts_.end() && *one != part;)
    one = (*one)->replica == replica && (is_known || (*one)->step < step) ? parts_.erase(one)
                                                                          : std::next(one);
  taken_[static_cast<size_t>(replica)] = step;
  for (;;) {
    if (!part) {
      part = make_part(step, replica);
      if (part) {
        parts_.push_front(part);
        work_.notify_all();
      }
    }
    if (part) {
      part->awaited = true;
      return part;
    }
    if (drop_last()) continue;
    // Memory comes back without the lock, so that its word may be missed.
    constexpr Millis kLook{10};
    ready_.wait_until(lock, std::min(deadline.at(), time_after(kLook)));
    if (deadline.passed()) raise_held(step, deadline);
  }
}

void Loader::Work::raise_late(const detail::Part& part, const Deadline& deadline) const {
  std::string who;
  for (size_t i = 0; i < workers_.size(); ++i) {
    const Worker& worker = *workers_[i];
    if (worker.part.get() != &part) continue;
    const std::string* const stage = worker.seen.stage;
    const int64_t row = worker.seen.row;
    const std::string process =
        worker.remote ? fmt::format(" (pid {})", pid_t{worker.remote->process()}) : "";
    who += fmt::format("; worker {}{} is {} for {:.1f} s, with sample {} ({})", i, process,
                       stage == nullptr ? "reading" : "in " + *stage,
                       std::chrono::duration<double>(Clock::now() - worker.since).count(), row + 1,
                       part.epoch->content->where(part.epoch->order.ids[static_cast<size_t>(
                           part.epoch->places(part.of.batch).begin + row)]));
  }
  throw Timeout(
      fmt::format("input: batch {} of epoch {} was not ready within {} ms, {} of {} samples of "
                  "replica {} are{}",
                  part.of.batch + 1, part.epoch->pass.epoch + 1, deadline.limit().count(),
                  part.done, part.rows(), part.replica, who));
}

void Loader::Work::raise_held(int64_t step, const Deadline& deadline) const {
  throw Timeout(fmt::format(
      "input: no memory for step {} within {} ms: the {} of the loader are held by tensors (or "
      "arrays) of steps {}, counted from 0\n  let go of batches once used, or raise its memory",
      step, deadline.limit().count(), size_words(pool_->peak_bytes()),
      fmt::join(pool_->steps_in_use(), ", ")));
}

// Called with mutex_ held.
void Loader::Work::count_step(int replica, int64_t rows, TimePoint begin) {
  const TimePoint now = Clock::now();
  const double waited = std::chrono::duration<double>(now - begin).count() / plan_.replicas;
  last_take_ = now;
  waiting_ += waited;
  window_.waiting += waited;
  window_.rows += rows;
  if (replica != 0) return;
  ++steps_;
  ++window_.steps;
  decide();
}

// Called with mutex_ held. A step begins with its take(): the running one does not count yet.
void Loader::Work::decide() {
  if (options_.workers == 0 || window_.steps == 0) return;
  const double elapsed =
      std::chrono::duration<double>(last_take_ - window_.begin).count() - window_.waiting;
  const bool first = !decided_ && window_.steps >= kFirstSteps;
  if (!first && (window_.steps < kSteps || elapsed + window_.waiting < kSeconds)) return;
  if (window_.cost.rows == 0 || window_.rows == 0) return;
  const double steps = static_cast<double>(window_.steps) - (first ? 1 : 0);
  // Workers compute ahead: what a step wants is what its rows cost on the mean.
  const double a_step = static_cast<double>(window_.rows) / static_cast<double>(window_.steps) /
                        static_cast<double>(window_.cost.rows);
  const detail::LoadFigures figures{.period = std::max(1e-6, elapsed / std::max(1.0, steps)),
                                    .compute = window_.cost.compute * a_step,
                                    .blocked = window_.cost.blocked * a_step,
                                    .reading = window_.cost.reading * a_step,
                                    .free_cores = free_cores_};
  detail::WorkerChoice choice = options_.workers == kAuto
                                    ? detail::choose_workers(figures)
                                    : detail::with_workers(options_.workers, figures);
  if (options_.kind == WorkerKind::processes) choice.at_once = std::max(1, choice.at_once);
  follow(choice, figures);
  decided_ = true;
  window_ = {.begin = last_take_};
}

void Loader::Work::follow(const detail::WorkerChoice& choice, const detail::LoadFigures& figures) {
  if (choice == choice_) {
    calm_ = 0;
    return;
  }
  const bool fewer = choice.threads() <= choice_.threads() && choice.at_once <= choice_.at_once;
  if (fewer && ++calm_ < kCalm && decided_) return;
  calm_ = 0;
  choice_ = choice;
  log(LogLevel::info, "{}", detail::words_of(choice, figures));
  start_threads();
  open_parts();
  work_.notify_all();
}

LoaderReport Loader::Work::report() const {
  const Lock lock(mutex_);
  LoaderReport report{.steps = steps_,
                      .seconds = std::chrono::duration<double>(last_take_ - first_take_).count(),
                      .waiting_seconds = waiting_,
                      .workers = choice_.threads(),
                      .peak_bytes = pool_ ? pool_->peak_bytes() : 0};
  for (const auto& [where, what] : replaced_) report.replaced.push_back(what);
  for (const auto& [name, stage] : stages_) {
    report.stages.push_back(stage);
    report.stages.back().name = name;
  }
  std::ranges::stable_sort(report.stages, std::greater<>(), &StageReport::seconds);
  return report;
}

Loader::Loader(LoaderOptions options, LoaderPlace place)
    : work_(std::make_shared<Work>(options, place)) {}

Loader::~Loader() { work_->stop(); }

void Loader::begin(const Epoch& epoch, LoaderPlan plan) { work_->begin(epoch, std::move(plan)); }

void Loader::expect(int64_t step) { work_->expect(step); }

Batch Loader::take(int64_t step, int replica, const Deadline& deadline) {
  return work_->take(step, replica, deadline);
}

bool Loader::has(const Epoch& epoch, int64_t step) const { return work_->has(epoch, step); }

bool Loader::replaces() const { return work_->replaces(); }

void Loader::end() { work_->end(); }

LoaderReport Loader::report() const { return work_->report(); }

}  // namespace tutti::data
