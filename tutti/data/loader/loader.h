/// Loader: computes the parts of coming batches while the replicas are busy with the present one.
///
/// A worker of the job has one, for all its replicas. What it gives is what Epoch::part() gives, to
/// the byte, whatever the number of threads or processes, and however far ahead. fit() and
/// DistributedDataset make one; by hand:
///
///   Loader loader({.workers = 4});
///   loader.begin(epoch, {.replicas = 1, .end_step = epoch.num_batches(), .part = whole_batches});
///   for (int64_t step = 0; step < epoch.num_batches(); ++step)
///     Batch batch = loader.take(step, 0, Deadline(Millis{30'000}));
///
/// Thread rule: begin(), end() and the destructor are called by one thread while nobody takes; each
/// replica may take its parts in a thread of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/data/dataset.h"

namespace tutti::data {

/// Let the loader choose, and follow when the load changes.
inline constexpr int kAuto = -1;

struct ReplaceOptions {
  double at_most =
      1e-3;  ///< of an epoch's samples, in [0, 1]; more are an error. One always may be
};

/// What becomes of a sample that is damaged (a DataError; a disk that does not answer is none).
struct OnBad {
  std::optional<ReplaceOptions> replace{};  ///< unset: the error
};

/// By another sample of the epoch, drawn by (seed, epoch, sample): batches keep their size and
/// order, and all replicas agree without a word. The loader's report lists what was replaced.
inline OnBad replace(ReplaceOptions options = {}) { return {.replace = options}; }

enum class WorkerKind : uint8_t {
  threads,
  /// Of one thread each, for code that several threads must not run at once. The dataset has to
  /// come from a registered function (registered.h).
  processes,
};

struct LoaderOptions {
  /// That compute at once, 0 to 256. 0: each replica reads its part when it needs it. kAuto: the
  /// fewest that keep up.
  int workers = kAuto;
  /// Bytes of batches made, in the making, and in use. kAuto: 1 GiB, or four parts for each replica
  /// where that is more.
  int64_t memory = kAuto;
  int64_t ahead = kAuto;  ///< batches, 1 to 1,000,000; kAuto: what memory holds, at most 16
  OnBad on_bad{};
  WorkerKind kind = WorkerKind::threads;
};

/// Throws UsageError for numbers out of range.
void check_options(const LoaderOptions& options);

/// What a loader's host has besides.
struct LoaderPlace {
  int busy_cores = 1;  ///< that the replicas of this host keep busy
};

/// A part of a batch: samples [share.begin, share.end) of global batch `batch`.
struct BatchPart {
  int64_t batch = 0;
  Share share{};
};

/// What is taken in an epoch.
struct LoaderPlan {
  int replicas = 1;        ///< each takes a part of every step; >= 1
  int64_t first_step = 0;  ///< steps [first_step, end_step) are computed in order
  int64_t end_step = 0;    ///< first_step: none before expect() names it
  std::function<BatchPart(int64_t step, int replica)> part;  ///< pure
};

struct StageReport {
  std::string name;
  int64_t samples = 0;
  double seconds = 0;  ///< of all workers together, in this stage alone
};

struct LoaderReport {
  int64_t steps = 0;
  double seconds = 0;                   ///< from the first take() to the last
  double waiting_seconds = 0;           ///< of the replicas' time, on the mean
  int workers = 0;                      ///< threads or processes, at the end
  std::vector<StageReport> stages{};    ///< most time first
  std::vector<std::string> replaced{};  ///< damaged samples, once each: where, what was wrong
  int64_t peak_bytes = 0;               ///< of batches

  double wait_share() const;  ///< waiting_seconds / seconds, 0 without a step
  /// "input-bound: 34 % of step time waiting; decode_crop takes 81 % of worker time", in one line
  /// where nothing was replaced.
  std::string to_string() const;
  /// A table of the stages: time a sample, share, samples a second and worker.
  std::string table() const;
};

class Loader {
 public:
  explicit Loader(LoaderOptions options, LoaderPlace place = {});
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// Starts on an epoch; what is left of the one before is dropped. Throws UsageError when
  /// `memory` is less than two parts for each replica, with the least that works.
  void begin(const Epoch& epoch, LoaderPlan plan);

  /// Step `step` will be taken, though the plan did not say so: parameter servers have leased it.
  void expect(int64_t step);

  /// The part of a replica: waits for it, and helps. Earlier steps that it did not take are
  /// dropped. The memory is given back when the last array (or tensor) of it dies. Throws what
  /// Epoch::part() throws; Timeout that names the worker, sample and stage it waits for, or the
  /// steps whose tensors hold all memory.
  Batch take(int64_t step, int replica, const Deadline& deadline);

  /// Whether it has begun with this epoch (or a copy), at this step or before it, and with none
  /// since.
  bool has(const Epoch& epoch, int64_t step) const;

  /// Whether damaged samples are replaced.
  bool replaces() const;

  /// No more of this epoch: workers rest.
  void end();

  LoaderReport report() const;

 private:
  class Work;
  std::shared_ptr<Work> work_;
};

}  // namespace tutti::data
