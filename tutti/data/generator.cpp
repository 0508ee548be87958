// Generators as contents: one runs for each epoch in use, and remembers what was passed over.

#include "tutti/data/generator.h"

#include <deque>
#include <exception>

#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/data/detail/content.h"
#include "tutti/data/detail/epoch_state.h"

namespace tutti::data {
namespace detail {

/// A running generator, and the last `reach` samples that it gave.
class StreamReader {
 public:
  using Open = std::function<Generator()>;
  StreamReader(Open open, int64_t reach) : open_(std::move(open)), reach_(reach) {}

  /// Sample `id`, counted from the epoch's begin; none: the generator ended before.
  std::optional<Sample> get(int64_t id, const std::string& name) {
    const std::scoped_lock lock(mutex_);
    if (!generator_ || id < next_ - std::ssize(kept_)) begin_anew(id, name);
    while (next_ <= id) {
      if (ended_) return std::nullopt;
      if (failure_) std::rethrow_exception(failure_);
      std::optional<Sample> sample = next_sample();
      ended_ = !sample;
      if (ended_) return std::nullopt;
      kept_.push_back(std::move(*sample));
      ++next_;
      if (std::ssize(kept_) > reach_) kept_.pop_front();
    }
    return kept_[static_cast<size_t>(id - (next_ - std::ssize(kept_)))];
  }

 private:
  void begin_anew(int64_t id, const std::string& name) {
    if (generator_)
      log(LogLevel::warning, "{} begins anew, for sample {}, which is {} behind", name, id,
          next_ - id);
    else if (id > reach_)
      log(LogLevel::info, "{} runs up to sample {}, where training goes on", name, id);
    generator_ = open_();
    kept_.clear();
    next_ = 0;
    ended_ = false;
    failure_ = nullptr;
  }
  // One that has thrown is not called again: what it gave then would stand a place too early.
  std::optional<Sample> next_sample() {
    try {
      return generator_();
    } catch (...) {
      failure_ = std::current_exception();
      throw;
    }
  }

  const Open open_;
  const int64_t reach_;
  std::mutex mutex_;  // of what follows
  Generator generator_;
  std::deque<Sample> kept_;  // samples [next_ - kept_.size(), next_)
  int64_t next_ = 0;
  bool ended_ = false;
  std::exception_ptr failure_;
};

namespace {

class Generated final : public Content {
 public:
  Generated(GeneratorFactory factory, GeneratorOptions options)
      : factory_(std::move(factory)), options_(std::move(options)) {}

  const std::vector<Column>& columns() const override { return options_.columns; }
  int64_t size() const override { return options_.num_samples; }
  Sample read(Ref ref, Reading& reading) const override {
    return in_stage(reading, options_.name, [&] {
      const auto stream = reading.session.stream(this, ref.epoch, [&] {
        const GeneratorContext context{.seed = reading.seed, .epoch = ref.epoch};
        return std::make_shared<StreamReader>([this, context] { return factory_(context); },
                                              reading.session.reach());
      });
      const LeftTurn left(reading.turn);
      std::optional<Sample> sample = stream->get(ref.id, options_.name);
      if (!sample)
        throw DataError(
            fmt::format("ended before sample {}, expected {} samples in an epoch "
                        "(GeneratorOptions::num_samples)",
                        ref.id, options_.num_samples));
      require_shape(*sample, options_.columns, options_.name);
      return std::move(*sample);
    });
  }
  bool draws() const override { return true; }
  std::string who_draws() const override { return options_.name; }
  bool sequential() const override { return true; }
  const std::vector<std::string>& classes() const override { return options_.classes; }
  std::string where(int64_t id) const override {
    return fmt::format("{}, sample {}", options_.name, id);
  }
  std::string fingerprint() const override { return {}; }

 private:
  const GeneratorFactory factory_;
  const GeneratorOptions options_;
};

}  // namespace

int64_t reach_of(const Order& order, int64_t at_once) {
  // By epoch, the furthest sample that places up to `ahead` have asked for.
  std::map<int64_t, int64_t> furthest;
  int64_t reach = 1;
  int64_t ahead = 0;
  for (int64_t place = 0; place < order.size(); ++place) {
    for (; ahead < order.size() && ahead <= place + at_once; ++ahead) {
      const Ref ref = order.at(static_cast<size_t>(ahead));
      int64_t& furthest_there = furthest.emplace(ref.epoch, ref.id).first->second;
      furthest_there = std::max(furthest_there, ref.id);
    }
    const Ref ref = order.at(static_cast<size_t>(place));
    reach = std::max(reach, furthest[ref.epoch] - ref.id + 1);
  }
  return reach;
}

}  // namespace detail

Dataset from_generator(GeneratorFactory factory, GeneratorOptions options) {
  if (!factory) throw UsageError("from_generator: expected a factory, got an empty function");
  if (options.columns.empty() || options.num_samples < 0)
    throw UsageError(fmt::format(
        "from_generator: {} columns, {} samples in an epoch: expected 1 column or more, in "
        "GeneratorOptions::columns, and 0 samples or more",
        options.columns.size(), options.num_samples));
  const int64_t samples = options.num_samples;
  return detail::Combining::dataset(
      std::make_shared<detail::Generated>(std::move(factory), std::move(options)),
      detail::all_rows(samples));
}

}  // namespace tutti::data
