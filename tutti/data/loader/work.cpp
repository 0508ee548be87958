// Who computes what: parts are opened in the order of their taking, as far as memory goes, and
// workers claim rows of the first that has unclaimed ones.

#include "tutti/data/loader/detail/work.h"

#include <pthread.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tutti/base/error.h"
#include "tutti/base/host.h"
#include "tutti/base/log.h"
#include "tutti/base/printable.h"
#include "tutti/base/threads.h"
#include "tutti/data/loader/detail/loader_process.h"
#include "tutti/data/loader/detail/stopwatch.h"

namespace tutti::data {
namespace {

constexpr int64_t kAheadUnlessTold = 16;
constexpr int64_t kMemoryUnlessTold = int64_t{1} << 30;
// Rows of a claim take about so long: long beside a lock, short beside a step.
constexpr double kClaimSeconds = 200e-6;
// A stage that hangs in a user's code cannot be ended; it is left behind, and said so.
constexpr Millis kLeaveAfter{2'000};

double seconds_between(TimePoint begin, TimePoint end) {
  return std::chrono::duration<double>(end - begin).count();
}

const std::string kRead = "read";

// A worker begins as whoever made it left that thread: pinned to a core, say.
void be_a_loader_thread() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  for (int core : host_facts().cores) CPU_SET(core, &cores);
  pthread_setaffinity_np(pthread_self(), sizeof cores, &cores);
  pthread_setname_np(pthread_self(), "tutti loader");
}

}  // namespace

// Reads of sources leave the number that compute at once; left() is how long they took.
class Loader::Work::Turns final : public detail::Turn {
 public:
  Turns(Work& work, bool counted) : work_(work), counted_(counted) {}
  void leave() override {
    const TimePoint begin = begin_ = Clock::now();
    if (!counted_) return;
    const std::scoped_lock lock(work_.mutex_);
    begin_ = Clock::now();
    waited_ += seconds_between(begin, begin_);
    --work_.computing_;
    work_.work_.notify_one();
    work_.turn_.notify_one();
  }
  void enter() override {
    const TimePoint back = Clock::now();
    left_ += seconds_between(begin_, back);
    if (!counted_) return;
    Lock lock(work_.mutex_);
    work_.turn_.wait(lock, [&] {
      return work_.computing_ < std::max(1, work_.choice_.at_once) || work_.stopping_;
    });
    ++work_.computing_;
    waited_ += seconds_between(back, Clock::now());
  }
  double left() const noexcept { return left_; }
  double waited() const noexcept { return waited_; }

 private:
  Work& work_;
  const bool counted_;
  TimePoint begin_{};
  double left_ = 0;
  double waited_ = 0;  // for the others
};

// Kept with the part until that is taken: what was computed ahead counts for nothing yet.
class Loader::Work::Bad final : public detail::BadSamples {
 public:
  Bad(Work& work, detail::Part& part) : work_(work), part_(part) {}
  void replaced(const std::string& where, const std::string& what) override {
    const std::scoped_lock lock(work_.mutex_);
    part_.replaced.emplace(where, what);
  }

 private:
  Work& work_;
  detail::Part& part_;
};

// Called with mutex_ held, in the order in which parts are taken.
void Loader::Work::count_replaced(const detail::Part& part) {
  if (!options_.on_bad.replace || part.replaced.empty()) return;
  const double at_most = options_.on_bad.replace->at_most;
  const int64_t most = std::max<int64_t>(1, static_cast<int64_t>(at_most * samples_here_));
  for (const auto& [where, what] : part.replaced) {
    replaced_.emplace(where, what);
    replaced_in_epoch_.insert(where);
    if (std::ssize(replaced_in_epoch_) > most)
      throw DataError(fmt::format(
          "{}\n  {} of {:.0f} samples of this epoch are damaged by now, more than the {:g} of them "
          "that may be replaced",
          what, replaced_in_epoch_.size(), samples_here_, at_most));
  }
}

Loader::Work::Work(LoaderOptions options, LoaderPlace place)
    : options_(options), free_cores_(host_facts().usable_cores - place.busy_cores) {
  check_options(options_);
  choice_ = detail::with_workers(std::max(0, options_.workers), {});
  if (options_.kind == WorkerKind::processes) choice_.at_once = std::max(1, choice_.at_once);
}

void Loader::Work::begin(const Epoch& epoch, LoaderPlan plan) {
  if (plan.replicas < 1 || !plan.part)
    throw UsageError("loader: a plan needs a function of parts, and 1 replica or more");
  const Lock lock(mutex_);
  if (!pool_) {
    pool_ = std::make_shared<detail::SlotPool>(
        options_.memory == kAuto ? kMemoryUnlessTold : options_.memory, [weak = weak_from_this()] {
          // Without the lock, which whoever lets go of a part may hold.
          if (const auto self = weak.lock()) {
            self->work_.notify_one();
            self->ready_.notify_all();
          }
        });
  }
  epoch_ = detail::EpochState::of(epoch);
  whole_ = epoch;
  if (options_.kind == WorkerKind::processes) require_origin();
  plan_ = std::move(plan);
  parts_.clear();
  expected_.clear();
  next_step_ = plan_.first_step;
  next_replica_ = 0;
  taken_.assign(static_cast<size_t>(plan_.replicas), plan_.first_step - 1);
  replaced_in_epoch_.clear();
  measure_shares();
  window_ = {};
  // Of padded batches each may be the largest.
  const int64_t last = epoch_->batching->sizes ? plan_.end_step : plan_.first_step + 1;
  for (int64_t step = plan_.first_step; step < std::min(last, plan_.end_step); ++step) {
    const BatchPart part = plan_.part(step, 0);
    require_memory(bytes_of_part(part, epoch_->columns(part.batch)));
  }
  start_threads();
  open_parts();
}

// As the first step deals samples out, so do the others.
void Loader::Work::measure_shares() {
  takes_.assign(taken_.size(), true);
  samples_here_ = static_cast<double>(epoch_->order.size());
  if (plan_.first_step >= epoch_->batching->num_batches) return;
  int64_t here = 0;
  int64_t all = 0;
  for (int replica = 0; replica < plan_.replicas; ++replica) {
    const BatchPart part = plan_.part(plan_.first_step, replica);
    takes_[static_cast<size_t>(replica)] = part.share.size() > 0;
    here += part.share.size();
    all = std::max(all, epoch_->places(part.batch).size());
  }
  if (here > 0 && here < all) samples_here_ *= static_cast<double>(here) / static_cast<double>(all);
  if (here == 0) takes_.assign(taken_.size(), true);
}

void Loader::Work::require_origin() {
  const auto origin = detail::origin_of(*epoch_->content);
  if (!origin || epoch_->content->sequential())
    throw UsageError(
        "loader: processes cannot be given this dataset: its samples have to be made, maps and "
        "all, "
        "by a registered function (data/loader/registered.h), and not by a generator; or use "
        "threads");
  const std::string now = origin->name + "\n" + origin->arguments;
  if (!workers_.empty() && now != origin_)
    throw UsageError(
        fmt::format("loader: its processes make dataset \"{}\", and cannot be given \"{}\"; make "
                    "another loader",
                    printable(origin_), printable(now)));
  origin_ = now;
}

void Loader::Work::expect(int64_t step) {
  const Lock lock(mutex_);
  expected_.push_back(step);
  open_parts();
}

bool Loader::Work::steps_ahead_allow(int64_t step) const {
  const int64_t ahead = options_.ahead == kAuto ? kAheadUnlessTold : options_.ahead;
  int64_t slowest = std::numeric_limits<int64_t>::max();
  for (size_t replica = 0; replica < taken_.size(); ++replica)
    if (takes_[replica]) slowest = std::min(slowest, taken_[replica]);
  return step <= slowest + 1 + ahead;
}

// Called with mutex_ held. True when there is more to compute.
bool Loader::Work::open_parts() {
  if (choice_.threads() == 0 || !epoch_ || stopping_) return false;
  bool opened = false;
  for (;;) {
    const bool leased = !expected_.empty();
    const int64_t step = leased ? expected_.front() : next_step_;
    if (!leased && (step >= plan_.end_step || !steps_ahead_allow(step))) break;
    const int64_t taken = taken_[static_cast<size_t>(next_replica_)];
    if (leased ? step != taken : step > taken) {
      try {
        PartHandle part = make_part(step, next_replica_);
        if (!part) break;
        parts_.push_back(std::move(part));
      } catch (const std::exception&) {
        break;  // who takes it is told
      }
      opened = true;
    }
    if (++next_replica_ < plan_.replicas) continue;
    next_replica_ = 0;
    if (leased)
      expected_.pop_front();
    else
      ++next_step_;
  }
  if (opened) work_.notify_all();
  return opened;
}

Loader::Work::PartHandle Loader::Work::next_open() const {
  const auto open = std::ranges::find_if(
      parts_, [](const PartHandle& part) { return part->issued < part->rows(); });
  return open == parts_.end() ? nullptr : *open;
}

Share Loader::Work::claim(detail::Part& part) const {
  const double fit = seconds_a_row_ > 0 ? kClaimSeconds / seconds_a_row_ : 1;
  const int64_t left = part.rows() - part.issued;
  auto rows = std::clamp<int64_t>(static_cast<int64_t>(std::min(fit, 1e6)), 1, left);
  // Rows of a pair are mixed by one, who has both.
  const bool pairs = !part.epoch->batching->transforms.empty();
  if (pairs && (part.of.share.begin + part.issued + rows) % 2 == 1) rows = std::min(left, rows + 1);
  const Share claimed{part.issued, part.issued + rows};
  part.issued += rows;
  return claimed;
}

// Rows that this thread has claimed; `worker` null: a replica that helps, and has that time limit.
void Loader::Work::fill(Lock& lock, const PartHandle& part, Share rows, Worker* worker,
                        Millis limit) {
  Turns turns(*this, worker != nullptr);
  Bad bad(*this, *part);
  detail::StageTimes times;
  detail::Reading reading(*part->epoch->session);
  reading.times = &times;
  reading.turn = &turns;
  if (worker != nullptr) {
    worker->part = part;
    worker->rows = rows;
    worker->since = Clock::now();
    worker->seen.row = part->of.share.begin + rows.begin;
    reading.seen = &worker->seen;
    reading.remote = worker->remote.get();
  }
  lock.unlock();
  std::optional<detail::StuckWatch::Visit> visit;
  std::exception_ptr failure;
  const int64_t first = part->of.share.begin;
  const detail::Stopwatch watch;
  // Whatever is thrown: others wait for these rows.
  try {
    if (worker == nullptr) {
      visit.emplace(stuck_watch_, part->epoch, part->of.batch, 2 * limit);  // as run() has patience
      reading.seen = &visit->seen();
    }
    std::vector<Array> into;
    for (const Array& column : part->batch.columns)
      into.push_back(column.rows(rows.begin, rows.end));
    part->epoch->write(part->of.batch, {first + rows.begin, first + rows.end}, into, reading,
                       options_.on_bad.replace ? &bad : nullptr);
  } catch (...) {
    failure = std::current_exception();
  }
  visit.reset();
  const detail::Cost cost = watch.cost_of(rows.size(), turns.left(), turns.waited());
  if (times.entries.empty() && part->epoch->plain())
    times.add(kRead, std::chrono::nanoseconds(static_cast<int64_t>(1e9 * cost.wall)), rows.size());

  lock.lock();
  if (worker != nullptr) {
    worker->part = nullptr;
    worker->seen.stage = nullptr;
  }
  part->done += rows.size();
  // Of several failures that of the first row is told, whoever came first.
  if (failure && (part->failed_row < 0 || rows.begin < part->failed_row)) {
    part->failed_row = rows.begin;
    part->failure = failure;
  }
  count_cost(cost);
  for (const detail::StageTimes::Entry& entry : times.entries) {
    StageReport& stage = stages_[*entry.stage];
    stage.samples += entry.samples;
    stage.seconds += std::chrono::duration<double>(entry.time).count();
  }
  if (part->complete()) ready_.notify_all();
}

// Called with mutex_ held.
void Loader::Work::count_cost(const detail::Cost& cost) {
  const double a_row = cost.wall / static_cast<double>(cost.rows);
  seconds_a_row_ = seconds_a_row_ == 0 ? a_row : 0.9 * seconds_a_row_ + 0.1 * a_row;
  window_.cost.add(cost);
}

void Loader::Work::run(Worker& worker, size_t number) {
  be_a_loader_thread();
  Lock lock(mutex_);
  while (!stopping_) {
    const bool wanted = std::cmp_less(number, choice_.threads());
    PartHandle part;
    if (wanted && computing_ < std::max(1, choice_.at_once)) {
      part = next_open();
      if (!part && open_parts()) continue;
    }
    if (!part) {
      work_.wait(lock);
      continue;
    }
    const Share rows = claim(*part);
    ++computing_;
    fill(lock, part, rows, &worker);
    --computing_;
    turn_.notify_one();
    // Another may have found as many computing as may.
    if (next_open()) work_.notify_one();
  }
  worker.running = false;
  ready_.notify_all();
}

// Called with mutex_ held. Threads are never fewer: those not wanted sleep.
void Loader::Work::start_threads() {
  while (std::cmp_less(workers_.size(), choice_.threads())) {
    const size_t number = workers_.size();
    auto made = std::make_unique<Worker>();
    Worker& worker = *made;
    if (options_.kind == WorkerKind::processes)
      worker.remote = std::make_unique<detail::RemoteReader>(*detail::origin_of(*epoch_->content),
                                                             static_cast<int>(number));
    worker.running = true;
    workers_.reserve(number + 1);  // nothing throws behind the thread's start
    worker.thread =
        start_thread(fmt::format("the input: loader thread {}", number),
                     [self = shared_from_this(), &worker, number] { self->run(worker, number); });
    workers_.push_back(std::move(made));
  }
}

bool Loader::Work::has(const Epoch& epoch, int64_t step) const {
  const Lock lock(mutex_);
  return epoch_ && epoch_ == detail::EpochState::of(epoch) && step >= plan_.first_step;
}

void Loader::Work::end() {
  const Lock lock(mutex_);
  parts_.clear();
  expected_.clear();
  next_step_ = plan_.end_step = 0;
  epoch_ = nullptr;
  whole_.reset();
}

void Loader::Work::stop() {
  end();
  Lock lock(mutex_);
  stopping_ = true;
  for (const auto& worker : workers_)
    if (worker->remote) worker->remote->stop();
  work_.notify_all();
  turn_.notify_all();
  const TimePoint until = time_after(kLeaveAfter);
  ready_.wait_until(lock, until, [&] {
    return std::ranges::none_of(workers_, [](const auto& worker) { return worker->running; });
  });
  std::vector<std::thread> ended;
  for (const auto& worker : workers_) {
    if (!worker->running) {
      ended.push_back(std::move(worker->thread));
      continue;
    }
    const std::string* const stage = worker->seen.stage;
    log(LogLevel::error, "a loader thread is still in {} after {} ms and is left behind",
        stage == nullptr ? "a read" : *stage, kLeaveAfter.count());
    worker->thread.detach();
  }
  const auto pool = pool_;
  lock.unlock();
  for (std::thread& thread : ended) thread.join();
  if (pool) pool->close();
}

}  // namespace tutti::data
