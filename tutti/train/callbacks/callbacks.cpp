#include "tutti/train/callbacks/callbacks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/json.h"
#include "tutti/base/json_numbers.h"
#include "tutti/base/log.h"

namespace tutti::callbacks {
namespace {

// The best value so far of one quantity.
class Best {
 public:
  Best(std::string monitor, Better better, double min_delta)
      : monitor_(std::move(monitor)),
        higher_(higher_is_better(better, monitor_)),
        min_delta_(min_delta) {}

  /// Takes a value; whether it is better than all before, by more than min_delta. NaN never is.
  bool take(double value) {
    if (!better(value, best_)) return false;
    best_ = value;
    return true;
  }
  bool better(double value, const std::optional<double>& than) const {
    if (std::isnan(value)) return false;
    if (!than) return true;
    return higher_ ? value - min_delta_ > *than : value + min_delta_ < *than;
  }
  const std::string& monitor() const noexcept { return monitor_; }
  void require_known(const Training& training) const {
    if (std::ranges::find(training.quantities(), monitor_) == training.quantities().end())
      throw UsageError(unknown_quantity(monitor_, training.quantities()));
  }
  double value() const { return best_.value_or(std::nan("")); }
  void forget() noexcept { best_.reset(); }
  Json state() const { return best_ ? json_of(*best_) : Json(); }
  void restore(const Json& state) {
    if (!state.is_null()) best_ = double_from(state);
  }

 private:
  std::string monitor_;
  bool higher_;
  double min_delta_;
  std::optional<double> best_;
};

// Written so that NaN fails it.
void require(bool good, std::string_view callback, std::string_view field, double value,
             std::string_view range) {
  if (!good)
    throw UsageError(fmt::format("callback {}: {} = {} is out of range; expected {}", callback,
                                 field, value, range));
}

class EarlyStopping final : public Callback {
 public:
  explicit EarlyStopping(EarlyStoppingOptions options)
      : options_(std::move(options)), best_(options_.monitor, options_.better, options_.min_delta) {
    require(options_.min_delta >= 0, name(), "min_delta", options_.min_delta, ">= 0");
    require(options_.patience >= 0, name(), "patience", static_cast<double>(options_.patience),
            ">= 0");
  }

  std::string_view name() const override { return "early_stopping"; }

  void on_train_begin(Training& training) override {
    best_.require_known(training);
    best_.forget();
    waited_ = 0;
    kept_ = false;
  }

  void on_epoch_end(Training& training) override {
    if (training.epoch() < options_.start_from_epoch) return;
    const std::optional<double> watched = training.watch(best_.monitor());
    if (!watched) return;
    const double value = *watched;
    ++waited_;
    if (best_.take(value)) {
      if (options_.restore_best_weights) training.keep_weights();
      kept_ = options_.restore_best_weights;
      if (best_.better(value, options_.baseline)) waited_ = 0;
      return;
    }
    if (waited_ >= options_.patience && training.epoch() > 0)
      training.stop(fmt::format("{} has not improved for {} epoch{} (best {:.6g})", best_.monitor(),
                                waited_, waited_ == 1 ? "" : "s", best_.value()));
  }

  void on_train_end(Training& training) override {
    if (kept_) training.put_back_weights();
  }
  std::string state() const override { return dump_json(Json{best_.state(), waited_, kept_}); }
  void restore(const std::string& state) override {
    const auto json = parse_json(state);
    best_.restore(json.at(0));
    waited_ = json.at(1);
    kept_ = json.at(2);
  }

 private:
  EarlyStoppingOptions options_;
  Best best_;
  int64_t waited_ = 0;
  bool kept_ = false;
};

// "{epoch}" and "{name}" in a path.
std::string filled(std::string path, Training& training) {
  for (size_t at = path.find('{'); at != std::string::npos; at = path.find('{', at)) {
    const size_t end = path.find('}', at);
    if (end == std::string::npos) break;
    const std::string field = path.substr(at + 1, end - at - 1);
    const std::string value =
        field == "epoch" ? fmt::format("{:04}", training.epoch() + 1)
                         : fmt::format("{:.4f}", training.watch(field).value_or(std::nan("")));
    path.replace(at, end - at + 1, value);
    at += value.size();
  }
  return path;
}

class ModelCheckpoint final : public Callback {
 public:
  explicit ModelCheckpoint(ModelCheckpointOptions options)
      : options_(std::move(options)), best_(options_.monitor, options_.better, 0) {
    if (options_.path.empty()) throw UsageError("callback model_checkpoint: path is empty");
  }

  std::string_view name() const override { return "model_checkpoint"; }
  void on_train_begin(Training& training) override {
    if (options_.save_best_only) best_.require_known(training);
    best_.forget();
    if (options_.path.parent_path().string().find('{') == std::string::npos)
      require_writable(options_.path, "path");
  }
  void on_epoch_end(Training& training) override {
    if (options_.save_best_only) {
      const std::optional<double> watched = training.watch(best_.monitor());
      if (!watched || !best_.take(*watched)) return;
    }
    training.save(filled(options_.path.string(), training));
  }
  std::string state() const override { return dump_json(best_.state()); }
  void restore(const std::string& state) override { best_.restore(parse_json(state)); }

 private:
  ModelCheckpointOptions options_;
  Best best_;
};

class BackupAndRestore final : public Callback {
 public:
  explicit BackupAndRestore(BackupAndRestoreOptions options) : options_(std::move(options)) {
    if (options_.folder.empty()) throw UsageError("callback backup_and_restore: folder is empty");
  }
  std::string_view name() const override { return "backup_and_restore"; }
  std::optional<CheckpointOptions> checkpoints() const override {
    return CheckpointOptions{.folder = options_.folder,
                             .every_steps = options_.every_steps,
                             .resume = true,
                             .remove_at_end = options_.remove_at_end};
  }

 private:
  BackupAndRestoreOptions options_;
};

// Refuses now what would be refused when the rate is set first, maybe hours in.
void require_own_rate(Training& training) { training.set_learning_rate(training.learning_rate()); }

class RateScheduler final : public Callback {
 public:
  using Function = std::function<double(int64_t, double)>;
  explicit RateScheduler(Function schedule) : schedule_(std::move(schedule)) {
    if (!schedule_) throw UsageError("callback learning_rate_scheduler: no function");
  }
  std::string_view name() const override { return "learning_rate_scheduler"; }
  void on_train_begin(Training& training) override { require_own_rate(training); }
  void on_epoch_begin(Training& training) override {
    training.set_learning_rate(schedule_(training.epoch(), training.learning_rate()));
  }

 private:
  Function schedule_;
};

class ReduceOnPlateau final : public Callback {
 public:
  explicit ReduceOnPlateau(ReduceOnPlateauOptions options)
      : options_(std::move(options)), best_(options_.monitor, options_.better, options_.min_delta) {
    require(options_.factor > 0 && options_.factor < 1, name(), "factor", options_.factor,
            "0 < factor < 1");
    require(options_.min_delta >= 0, name(), "min_delta", options_.min_delta, ">= 0");
    require(options_.patience >= 0, name(), "patience", static_cast<double>(options_.patience),
            ">= 0");
  }

  std::string_view name() const override { return "reduce_on_plateau"; }

  void on_train_begin(Training& training) override {
    require_own_rate(training);
    best_.require_known(training);
    best_.forget();
    waited_ = cooling_ = 0;
  }

  void on_epoch_end(Training& training) override {
    const std::optional<double> watched = training.watch(best_.monitor());
    if (!watched) return;
    const bool improved = best_.take(*watched);
    if (cooling_ > 0) {
      --cooling_;
      waited_ = 0;
    }
    if (improved) waited_ = 0;
    if (improved || cooling_ > 0 || ++waited_ < options_.patience) return;
    const double now = training.learning_rate();
    if (now <= options_.min_learning_rate) return;
    const double next = std::max(now * options_.factor, options_.min_learning_rate);
    training.set_learning_rate(next);
    log(LogLevel::info, "fit: {} stands at {:.6g}: learning rate {:.6g} becomes {:.6g}",
        best_.monitor(), best_.value(), now, next);
    cooling_ = options_.cooldown;
    waited_ = 0;
  }
  std::string state() const override { return dump_json(Json{best_.state(), waited_, cooling_}); }
  void restore(const std::string& state) override {
    const auto json = parse_json(state);
    best_.restore(json.at(0));
    waited_ = json.at(1);
    cooling_ = json.at(2);
  }

 private:
  ReduceOnPlateauOptions options_;
  Best best_;
  int64_t waited_ = 0;
  int64_t cooling_ = 0;
};

class CsvLogger final : public Callback {
 public:
  CsvLogger(std::filesystem::path path, bool append) : path_(std::move(path)), append_(append) {
    if (path_.empty()) throw UsageError("callback csv_logger: path is empty");
  }

  std::string_view name() const override { return "csv_logger"; }

  void on_train_begin(Training& training) override {
    require_writable(path_, "the file");
    std::string columns = "epoch,learning_rate";
    for (const std::string& name : training.quantities()) columns += "," + name;
    columns += '\n';
    text_.clear();
    if (append_ && std::filesystem::is_regular_file(path_)) text_ = read_file(path_);
    if (text_.empty()) text_ = columns;
    if (!text_.starts_with(columns))
      throw UsageError(fmt::format("{} has other columns: {}; expected {}", path_.string(),
                                   text_.substr(0, text_.find('\n')),
                                   columns.substr(0, columns.size() - 1)));
  }

  void on_epoch_end(Training& training) override {
    text_ += fmt::format("{},{}", training.epoch() + 1, training.learning_rate());
    for (const std::string& name : training.quantities())
      text_ += fmt::format(",{}", training.watch(name).value_or(std::nan("")));
    text_ += '\n';
    training.write(path_, text_);
  }
  std::string state() const override { return text_; }
  void restore(const std::string& state) override { text_ = state; }

 private:
  std::filesystem::path path_;
  bool append_;
  std::string text_;
};

class ProgressBar final : public Callback {
 public:
  explicit ProgressBar(std::FILE* out) : out_(out) {}
  std::string_view name() const override { return "progress_bar"; }

  void on_train_begin(Training& training) override {
    progress_.emplace(Verbose::automatic, training.epochs(), out_);
    epoch_ = -1;
  }
  void on_epoch_begin(Training& training) override { begin(training); }
  void on_step_end(Training& training) override {
    if (training.epoch() != epoch_) begin(training);  // it goes on from a checkpoint
    const TimePoint now = Clock::now();
    if (progress_->due(now))
      progress_->show(training.epoch_step(), training.epoch_samples(), training.values(), now);
  }
  void on_epoch_end(Training& training) override {
    const double seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
    progress_->end_epoch(training.values(), seconds,
                         static_cast<double>(training.epoch_samples()) / seconds);
  }
  void on_train_end(Training&) override { progress_.reset(); }

 private:
  void begin(const Training& training) {
    begin_ = Clock::now();
    epoch_ = training.epoch();
    progress_->begin_epoch(epoch_, training.epoch_steps(), begin_);
  }

  std::FILE* out_;
  std::optional<Progress> progress_;
  TimePoint begin_{};
  int64_t epoch_ = -1;  // shown
};

class TerminateOnNan final : public Callback {
 public:
  std::string_view name() const override { return "terminate_on_nan"; }
  void on_step_end(Training& training) override {
    if (!std::isfinite(training.at("loss"))) training.stop("the loss is not finite");
  }
};

class Lambda final : public Callback {
 public:
  Lambda(std::string name, LambdaOptions functions)
      : name_(std::move(name)), functions_(std::move(functions)) {}
  std::string_view name() const override { return name_; }
  void on_train_begin(Training& t) override { call(functions_.on_train_begin, t); }
  void on_epoch_begin(Training& t) override { call(functions_.on_epoch_begin, t); }
  void on_step_begin(Training& t) override { call(functions_.on_step_begin, t); }
  void on_step_end(Training& t) override { call(functions_.on_step_end, t); }
  void on_epoch_end(Training& t) override { call(functions_.on_epoch_end, t); }
  void on_train_end(Training& t) override { call(functions_.on_train_end, t); }
  bool on_every_worker() const override { return functions_.on_every_worker; }
  void on_test_begin(const PassFacts& f) override { call(functions_.on_test_begin, f); }
  void on_test_step_begin(const PassFacts& f) override { call(functions_.on_test_step_begin, f); }
  void on_test_step_end(const PassFacts& f) override { call(functions_.on_test_step_end, f); }
  void on_test_end(const PassFacts& f) override { call(functions_.on_test_end, f); }
  void on_predict_begin(const PassFacts& f) override { call(functions_.on_predict_begin, f); }
  void on_predict_step_begin(const PassFacts& f) override {
    call(functions_.on_predict_step_begin, f);
  }
  void on_predict_step_end(const PassFacts& f) override { call(functions_.on_predict_step_end, f); }
  void on_predict_end(const PassFacts& f) override { call(functions_.on_predict_end, f); }

 private:
  template <class What>
  static void call(const std::function<void(What&)>& function, What& what) {
    if (function) function(what);
  }
  std::string name_;
  LambdaOptions functions_;
};

}  // namespace

std::shared_ptr<Callback> early_stopping(EarlyStoppingOptions options) {
  return std::make_shared<EarlyStopping>(std::move(options));
}
std::shared_ptr<Callback> model_checkpoint(ModelCheckpointOptions options) {
  return std::make_shared<ModelCheckpoint>(std::move(options));
}
std::shared_ptr<Callback> backup_and_restore(BackupAndRestoreOptions options) {
  return std::make_shared<BackupAndRestore>(std::move(options));
}
std::shared_ptr<Callback> learning_rate_scheduler(std::function<double(int64_t, double)> schedule) {
  return std::make_shared<RateScheduler>(std::move(schedule));
}
std::shared_ptr<Callback> reduce_on_plateau(ReduceOnPlateauOptions options) {
  return std::make_shared<ReduceOnPlateau>(std::move(options));
}
std::shared_ptr<Callback> csv_logger(std::filesystem::path path, bool append) {
  return std::make_shared<CsvLogger>(std::move(path), append);
}
std::shared_ptr<Callback> progress_bar(std::FILE* out) {
  return std::make_shared<ProgressBar>(out);
}
std::shared_ptr<Callback> terminate_on_nan() { return std::make_shared<TerminateOnNan>(); }
std::shared_ptr<Callback> lambda(std::string name, LambdaOptions functions) {
  return std::make_shared<Lambda>(std::move(name), std::move(functions));
}

}  // namespace tutti::callbacks
