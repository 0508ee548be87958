/// Content: what the samples of a dataset are, apart from their order: a function of
/// (seed, epoch, id).
///
/// A source, with maps, caches and combinations over it. Whoever computes a sample gets the same
/// bytes, in whatever thread, process or world. Thread rule: immutable but for what is kept
/// (caches, key tables), which locks itself; a Reading belongs to one thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tutti/data/dataset.h"
#include "tutti/data/detail/order.h"
#include "tutti/data/transform.h"

namespace tutti::data::detail {

/// Time that one thread has spent in each stage.
struct StageTimes {
  struct Entry {
    const std::string* stage;  ///< of a Content: lives as long as the dataset
    int64_t samples = 0;
    std::chrono::nanoseconds time{};  ///< its own, without the stages below
  };
  std::vector<Entry> entries;
  void add(const std::string& stage, std::chrono::nanoseconds time, int64_t samples);
  void add(const StageTimes& other);
};

class StreamReader;

/// What an epoch keeps for contents that need more than a Ref: orders of datasets inside of others,
/// generators that run. Any thread may use it.
class Session {
 public:
  explicit Session(uint64_t seed, int64_t reach = 1) : seed_(seed), reach_(reach) {}
  uint64_t seed() const noexcept { return seed_; }
  int64_t reach() const noexcept { return reach_; }  ///< samples that a generator remembers

  std::shared_ptr<const Order> order(const ViewHandle& view, Pass pass);
  /// The running generator of `owner` in that epoch; made by `open` when there is none.
  std::shared_ptr<StreamReader> stream(const void* owner, int64_t epoch,
                                       const std::function<std::shared_ptr<StreamReader>()>& open);

 private:
  const uint64_t seed_;
  const int64_t reach_;
  std::mutex mutex_;
  // A pass or two are in use at once; an older one is made again.
  std::vector<std::pair<std::pair<const View*, Pass>, std::shared_ptr<const Order>>> orders_;
  std::map<std::pair<const void*, int64_t>, std::shared_ptr<StreamReader>> streams_;
};

/// Around what may wait for a disk or another process: whoever computes as many as there are cores
/// lets another one compute meanwhile.
class Turn {
 public:
  virtual ~Turn() = default;
  virtual void leave() = 0;
  virtual void enter() = 0;
};

class LeftTurn {
 public:
  explicit LeftTurn(Turn* turn) : turn_(turn) {
    if (turn_ != nullptr) turn_->leave();
  }
  ~LeftTurn() {
    if (turn_ != nullptr) turn_->enter();
  }
  LeftTurn(const LeftTurn&) = delete;
  LeftTurn& operator=(const LeftTurn&) = delete;

 private:
  Turn* turn_;
};

/// Where a thread is at, for those that wait for it.
struct Seen {
  std::atomic<const std::string*> stage = nullptr;
  std::atomic<int64_t> row = -1;  ///< of the batch
};

class Content;
struct Reading;

/// Somebody else who reads samples.
class RemoteSamples {
 public:
  virtual ~RemoteSamples() = default;
  virtual Sample read(const Content& content, Ref ref, Reading& reading) = 0;
};

/// One thread's view of the epoch that it computes samples of.
struct Reading {
  Session& session;
  uint64_t seed;  ///< of the content that is read; those of a combination have one each
  StageTimes* times = nullptr;         ///< null: nobody asks
  RemoteSamples* remote = nullptr;     ///< null: this thread does
  Turn* turn = nullptr;                ///< null: nobody else computes
  const std::string* stage = nullptr;  ///< the one at work: where an error comes from
  Seen* seen = nullptr;                ///< the same, for another thread; null: none looks
  std::chrono::nanoseconds inner{};    ///< spent in stages below, since the caller looked
  const void* unfolded = nullptr;      ///< whose samples `parts` are
  Ref unfolded_ref{};
  uint64_t unfolded_seed = 0;
  std::vector<Sample> parts{};

  explicit Reading(Session& of) : session(of), seed(of.seed()) {}
  void is_in(const std::string& now) {
    stage = &now;
    if (seen != nullptr) seen->stage.store(stage, std::memory_order_relaxed);
  }
};

/// Runs `work` as a stage: what fails in it names it, and its time is counted as its own.
template <class Work>
Sample in_stage(Reading& reading, const std::string& stage, Work work) {
  reading.is_in(stage);
  if (reading.times == nullptr) return work();
  const auto begin = std::chrono::steady_clock::now();
  const auto outer = std::exchange(reading.inner, {});
  Sample sample = work();
  const auto all = std::chrono::steady_clock::now() - begin;
  reading.times->add(stage, all - reading.inner, 1);
  reading.inner = outer + all;
  return sample;
}

class SharedCache;
class Content;
using ContentHandle = std::shared_ptr<const Content>;

class Content {
 public:
  virtual ~Content() = default;

  virtual const std::vector<Column>& columns() const = 0;
  virtual int64_t size() const = 0;  ///< ids are in [0, size())

  /// Throws what sources and transforms throw; Epoch says where.
  virtual Sample read(Ref ref, Reading& reading) const = 0;

  /// The source whose row `id` a sample is, untouched: whole batches are read at once. Else null.
  virtual const Source* plain() const { return nullptr; }
  /// A sample differs by epoch or seed, so that it cannot be kept, or looked at once for all.
  virtual bool draws() const = 0;
  /// Whom the draws come from: "random_resized_crop(224)".
  virtual std::string who_draws() const = 0;
  /// Samples come one after another, and only so.
  virtual bool sequential() const { return false; }
  /// Maps from the source up to here: each has random numbers of its own.
  virtual int num_maps() const { return 0; }

  virtual const std::vector<std::string>& classes() const = 0;
  virtual std::string where(int64_t id) const = 0;
  /// Equal ones have equal samples; empty where nobody knows.
  virtual std::string fingerprint() const = 0;
  /// The one source under it; null where it is a combination.
  virtual std::shared_ptr<const Source> source() const { return nullptr; }

  /// This and all below it, lowest first.
  virtual void visit(const std::function<void(const Content&)>& visitor) const { visitor(*this); }
  /// What it keeps in memory, which all processes of a host can share; null: nothing.
  virtual SharedCache* cache() const { return nullptr; }
  /// It may hold code that several threads must not run at once.
  virtual bool for_one_thread() const { return false; }
};

/// As long as it lives, what its thread looks at (keys_of) is read by that thread alone.
class AloneAtWork {
 public:
  AloneAtWork();
  ~AloneAtWork();
  AloneAtWork(const AloneAtWork&) = delete;
  AloneAtWork& operator=(const AloneAtWork&) = delete;
};

/// What most contents over another one answer.
class OverOne : public Content {
 public:
  explicit OverOne(ContentHandle below) : below_(std::move(below)) {}
  const std::vector<Column>& columns() const override { return below_->columns(); }
  int64_t size() const override { return below_->size(); }
  bool draws() const override { return below_->draws(); }
  std::string who_draws() const override { return below_->who_draws(); }
  bool sequential() const override { return below_->sequential(); }
  int num_maps() const override { return below_->num_maps(); }
  const std::vector<std::string>& classes() const override { return below_->classes(); }
  std::string where(int64_t id) const override { return below_->where(id); }
  std::string fingerprint() const override { return below_->fingerprint(); }
  std::shared_ptr<const Source> source() const override { return below_->source(); }
  void visit(const std::function<void(const Content&)>& visitor) const override {
    below_->visit(visitor);
    visitor(*this);
  }

 protected:
  const ContentHandle below_;
};

ContentHandle content_of(std::shared_ptr<const Source> source);
ContentHandle mapped(ContentHandle below, TransformHandle transform);
/// Kept in memory once computed.
ContentHandle cached(ContentHandle below, int64_t most_bytes);
/// Kept in files of a folder.
ContentHandle cached(ContentHandle below, const std::filesystem::path& folder);
/// The parts of each sample as samples: `parts` gives as many as `first` says.
using Parts = std::function<std::vector<Sample>(Sample)>;
ContentHandle unfolded(ContentHandle below, std::string name, std::vector<Column> columns,
                       Parts parts, std::shared_ptr<const std::vector<int64_t>> first);

/// How far back a sample may be asked for where the order is followed by whoever is at most
/// `at_once` places apart.
int64_t reach_of(const Order& order, int64_t at_once);

/// Throws UsageError where samples cannot be looked at once for all epochs; `who`: "filter()".
void require_fixed(const Content& content, const std::string& who);
/// Whether that is a value of the column.
bool fits(const Array& value, const Column& column);
/// Throws DataError when a sample is not as its columns say; `stage` made it.
void require_shape(const Sample& sample, const std::vector<Column>& columns,
                   const std::string& stage);

/// Throws DataError when `batch` is not what gather(rows) of the source gives, as its columns say;
/// `where` begins the message.
void require_gathered(const Source& source, const Batch& batch, std::span<const int64_t> rows,
                      const std::string& where = {});

/// One number, or `width` of them, by id, for the samples of a view of a content that does not
/// draw; 0 for others. Looked at once, by all cores. `name` is what progress and errors call it.
std::vector<int64_t> keys_of(const Content& content, const View& view, int width,
                             const std::string& name,
                             const std::function<void(const Sample&, int64_t*)>& key);

}  // namespace tutti::data::detail
