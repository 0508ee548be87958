// Sources and maps as contents; what looks at all samples once.

#include "tutti/data/detail/content.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/host.h"
#include "tutti/base/log.h"
#include "tutti/base/random.h"
#include "tutti/base/threads.h"
#include "tutti/data/detail/epoch_state.h"

namespace tutti::data::detail {
namespace {

// A disk that is busy, a mount that comes back: 4 tries in about 0.7 s.
constexpr int kTries = 4;
constexpr std::chrono::milliseconds kFirstPause{100};

template <class Read>
auto tried_again(Read read) {
  for (int tries = 1;; ++tries) {
    try {
      return read();
    } catch (const IoError&) {
      if (tries == kTries) throw;
      std::this_thread::sleep_for(kFirstPause * (1 << (tries - 1)));
    }
  }
}

class SourceContent final : public Content {
 public:
  explicit SourceContent(std::shared_ptr<const Source> source)
      : source_(std::move(source)), stage_("read") {}

  const std::vector<Column>& columns() const override { return source_->columns(); }
  int64_t size() const override { return source_->num_rows(); }
  Sample read(Ref ref, Reading& reading) const override {
    return in_stage(reading, stage_, [&] {
      const LeftTurn left(reading.turn);
      Sample sample = tried_again([&] { return source_->read_row(ref.id); });
      require_shape(sample, source_->columns(), stage_);
      return sample;
    });
  }
  const Source* plain() const override { return source_.get(); }
  bool draws() const override { return false; }
  std::string who_draws() const override { return {}; }
  const std::vector<std::string>& classes() const override { return source_->classes(); }
  std::string where(int64_t id) const override { return source_->where(id); }
  std::string fingerprint() const override { return source_->fingerprint(); }
  std::shared_ptr<const Source> source() const override { return source_; }

 private:
  std::shared_ptr<const Source> source_;
  std::string stage_;
};

class Mapped final : public OverOne {
 public:
  Mapped(ContentHandle below, TransformHandle transform)
      : OverOne(std::move(below)),
        transform_(std::move(transform)),
        name_(transform_->name()),
        columns_(transform_->columns(below_->columns())) {}

  const std::vector<Column>& columns() const override { return columns_; }
  Sample read(Ref ref, Reading& reading) const override {
    return in_stage(reading, name_, [&] {
      Sample in = below_->read(ref, reading);
      reading.is_in(name_);
      Draw draw(random_key(reading.seed, RandomPurpose::augment,
                           {static_cast<uint64_t>(ref.epoch), static_cast<uint64_t>(ref.id),
                            static_cast<uint64_t>(below_->num_maps())}));
      Sample out = transform_->apply(std::move(in), draw);
      require_shape(out, columns_, name_);
      return out;
    });
  }
  bool draws() const override { return transform_->draws() || below_->draws(); }
  std::string who_draws() const override {
    return transform_->draws() ? name_ : below_->who_draws();
  }
  int num_maps() const override { return below_->num_maps() + 1; }
  std::string fingerprint() const override {
    const std::string below = below_->fingerprint();
    return below.empty() || !transform_->named() ? std::string() : below + "\n" + name_;
  }

 private:
  const TransformHandle transform_;
  const std::string name_;
  const std::vector<Column> columns_;
};

class Unfolded final : public OverOne {
 public:
  Unfolded(ContentHandle below, std::string name, std::vector<Column> columns, Parts parts,
           std::shared_ptr<const std::vector<int64_t>> first)
      : OverOne(std::move(below)),
        name_(std::move(name)),
        columns_(std::move(columns)),
        parts_(std::move(parts)),
        first_(std::move(first)) {}

  const std::vector<Column>& columns() const override { return columns_; }
  int64_t size() const override { return first_->back(); }
  Sample read(Ref ref, Reading& reading) const override {
    const int64_t whole = parent(ref.id);
    const Ref from{.id = whole, .epoch = ref.epoch};
    const auto part = static_cast<size_t>(ref.id - (*first_)[static_cast<size_t>(whole)]);
    return in_stage(reading, name_, [&] {
      const bool known = reading.unfolded == this && reading.unfolded_ref.id == from.id &&
                         reading.unfolded_ref.epoch == from.epoch &&
                         reading.unfolded_seed == reading.seed;
      if (!known) {
        Sample sample = below_->read(from, reading);
        reading.is_in(name_);
        reading.unfolded = nullptr;
        reading.parts = parts_(std::move(sample));
        reading.unfolded = this;
        reading.unfolded_ref = from;
        reading.unfolded_seed = reading.seed;
      }
      const auto expected =
          (*first_)[static_cast<size_t>(whole) + 1] - (*first_)[static_cast<size_t>(whole)];
      if (std::ssize(reading.parts) != expected)
        throw DataError(fmt::format("gave {} samples, and {} when it was looked at first",
                                    reading.parts.size(), expected));
      require_shape(reading.parts[part], columns_, name_);
      return reading.parts[part];
    });
  }
  std::string where(int64_t id) const override {
    const int64_t whole = parent(id);
    return fmt::format("part {} of {}", id - (*first_)[static_cast<size_t>(whole)],
                       below_->where(whole));
  }
  int num_maps() const override { return below_->num_maps() + 1; }
  std::string fingerprint() const override { return {}; }

 private:
  int64_t parent(int64_t id) const {
    return std::ranges::upper_bound(*first_, id) - first_->begin() - 1;
  }

  const std::string name_;
  const std::vector<Column> columns_;
  const Parts parts_;
  const std::shared_ptr<const std::vector<int64_t>> first_;
};

}  // namespace

void StageTimes::add(const std::string& stage, std::chrono::nanoseconds time, int64_t samples) {
  for (Entry& entry : entries) {
    if (entry.stage != &stage) continue;
    entry.time += time;
    entry.samples += samples;
    return;
  }
  entries.push_back({.stage = &stage, .samples = samples, .time = time});
}

void StageTimes::add(const StageTimes& other) {
  for (const Entry& entry : other.entries) add(*entry.stage, entry.time, entry.samples);
}

std::shared_ptr<const Order> Session::order(const ViewHandle& view, Pass pass) {
  constexpr size_t kMostOrders = 32;
  const std::pair key(view.get(), pass);
  const std::scoped_lock lock(mutex_);
  const auto known = std::ranges::find(orders_, key, [](const auto& entry) { return entry.first; });
  if (known != orders_.end()) return known->second;
  if (orders_.size() == kMostOrders) orders_.erase(orders_.begin());
  return orders_.emplace_back(key, std::make_shared<const Order>(view->order(pass))).second;
}

std::shared_ptr<StreamReader> Session::stream(
    const void* owner, int64_t epoch, const std::function<std::shared_ptr<StreamReader>()>& open) {
  const std::scoped_lock lock(mutex_);
  std::shared_ptr<StreamReader>& stream = streams_[{owner, epoch}];
  if (!stream) stream = open();
  return stream;
}

ContentHandle content_of(std::shared_ptr<const Source> source) {
  return std::make_shared<SourceContent>(std::move(source));
}

ContentHandle mapped(ContentHandle below, TransformHandle transform) {
  if (!transform) throw UsageError("map: expected a transform, got a null pointer");
  return std::make_shared<Mapped>(std::move(below), std::move(transform));
}

ContentHandle unfolded(ContentHandle below, std::string name, std::vector<Column> columns,
                       Parts parts, std::shared_ptr<const std::vector<int64_t>> first) {
  return std::make_shared<Unfolded>(std::move(below), std::move(name), std::move(columns),
                                    std::move(parts), std::move(first));
}

void require_fixed(const Content& content, const std::string& who) {
  if (content.sequential())
    throw UsageError(fmt::format(
        "{} looks at samples in any order, but they come from a generator, one after another; read "
        "it into arrays or files first",
        who));
  if (content.draws())
    throw UsageError(
        fmt::format("{} looks at each sample once, but {} makes another one of it in every epoch; "
                    "put {} before it",
                    who, content.who_draws(), who));
}

bool fits(const Array& value, const Column& column) {
  return value.dtype() == column.dtype &&
         std::ranges::equal(value.shape(), column.shape,
                            [](auto got, auto said) { return said == kAnySize || got == said; });
}

void require_shape(const Sample& sample, const std::vector<Column>& columns,
                   const std::string& stage) {
  if (sample.columns.size() != columns.size())
    throw DataError(fmt::format("{} gave {} columns, expected {}", stage, sample.columns.size(),
                                columns.size()));
  for (size_t c = 0; c < columns.size(); ++c) {
    const Array& got = sample.columns[c];
    const Column& expected = columns[c];
    if (!fits(got, expected))
      throw DataError(fmt::format("{} gave column \"{}\" as {}, expected {} {}", stage,
                                  expected.name, got.to_string(), name_of(expected.dtype),
                                  shape_words(expected.shape)));
  }
}

// A source of a user's own may end before it said, or give what its columns do not say.
void require_gathered(const Source& source, const Batch& batch, std::span<const int64_t> rows,
                      const std::string& where) {
  const auto refuse = [&](const std::string& gave, const std::string& expected) {
    throw DataError(
        fmt::format("{}gather() of the source gave {}, expected {}", where, gave, expected));
  };
  const auto& columns = source.columns();
  const auto wanted = std::ssize(rows);
  const auto require_rows = [&](int64_t got, const std::string& in) {
    if (got != wanted)
      refuse(fmt::format("{} rows{}", got, in),
             fmt::format("{}, of a source that says it has {} rows", wanted, source.num_rows()));
  };
  require_rows(batch.size, "");
  if (batch.columns.size() != columns.size())
    refuse(fmt::format("{} columns", batch.columns.size()), std::to_string(columns.size()));
  for (size_t c = 0; c < columns.size(); ++c) {
    const Array& got = batch.columns[c];
    require_rows(got.shape().empty() ? 0 : got.shape()[0],
                 fmt::format(" in column \"{}\"", columns[c].name));
    Column all = columns[c];
    all.shape.insert(all.shape.begin(), wanted);
    if (!fits(got, all))
      refuse(fmt::format("column \"{}\" as {}{}", all.name, got.to_string(),
                         rows.empty() ? "" : fmt::format(" from {} on", source.where(rows[0]))),
             fmt::format("{} {}, as its columns say", name_of(all.dtype), shape_words(all.shape)));
  }
}

namespace {

// By id: those of the view, where it has the same in every epoch; else all. What a filter() left
// out is nobody's business.
std::vector<uint8_t> looked_at(const Content& content, const View& view) {
  const bool same = view.same_samples();
  std::vector<uint8_t> flags(static_cast<size_t>(content.size()), same ? 0 : 1);
  if (same)
    for (int64_t id : view.order({}).ids) flags[static_cast<size_t>(id)] = 1;
  return flags;
}

thread_local int alone_at_work = 0;

int threads_for(const Content& content) {
  bool alone = alone_at_work > 0;
  content.visit([&](const Content& each) { alone = alone || each.for_one_thread(); });
  if (alone) return 1;
  return static_cast<int>(std::clamp<int64_t>(content.size() / 64, 1, host_facts().usable_cores));
}

}  // namespace

AloneAtWork::AloneAtWork() { ++alone_at_work; }
AloneAtWork::~AloneAtWork() { --alone_at_work; }

std::vector<int64_t> keys_of(const Content& content, const View& view, int width,
                             const std::string& name,
                             const std::function<void(const Sample&, int64_t*)>& key) {
  require_fixed(content, name);
  const int64_t size = content.size();
  const std::vector<uint8_t> wanted = looked_at(content, view);
  std::vector<int64_t> keys(static_cast<size_t>(size * width));
  std::atomic<int64_t> next = 0;
  std::mutex mutex;
  std::exception_ptr failure;
  int64_t failed = size;  // of several bad samples the first is named, however threads went
  const auto work = [&] {
    Session session(0);
    Reading reading(session);
    for (int64_t id = next++; id < size; id = next++) {
      if (wanted[static_cast<size_t>(id)] == 0) continue;
      try {
        const Sample sample = content.read({.id = id}, reading);
        reading.stage = &name;
        key(sample, keys.data() + id * width);
      } catch (...) {
        const std::scoped_lock lock(mutex);
        if (id > failed) continue;
        failed = id;
        failure = at_sample(content, id, reading.stage, fmt::format("{} looks at samples", name));
        next = size;
      }
    }
  };
  at_once(threads_for(content), "samples that are looked at", [&](int) { work(); });
  if (failure) std::rethrow_exception(failure);
  return keys;
}

}  // namespace tutti::data::detail
