#include "tutti/cli/train/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <system_error>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/suggest.h"
#include "tutti/base/typed.h"
#include "tutti/cli/checks.h"
#include "tutti/cli/fields.h"
#include "tutti/cli/train/files.h"
#include "tutti/cli/train/flags.h"
#include "tutti/cli/train/whole_flags.h"
#include "tutti/strategy/choice/choice.h"
#include "tutti/train/model/class_weight.h"

namespace tutti::cli {
namespace {

constexpr double kGraceToSave = 30;  // seconds

// ---- schedules: `rate` is the optimizer's, `steps` those of the training ----

void read(std::string_view text, const std::vector<Field>& fields) {
  if (!text.empty()) read_fields(text, fields);
}

RateSchedule piecewise_constant(std::string_view text, double, int64_t) {
  schedules::PiecewiseConstantOptions o;
  read(text, {{"boundaries", &o.boundaries}, {"values", &o.values}});
  return schedules::piecewise_constant(o);
}

// exponential and inverse_time.
template <class Options>
Options decay_options(std::string_view text, double rate, int64_t steps) {
  Options o{.initial = rate, .decay_steps = steps};
  read(text, {{"decay_steps", &o.decay_steps},
              {"decay_rate", &o.decay_rate},
              {"staircase", &o.staircase}});
  return o;
}

RateSchedule exponential(std::string_view text, double rate, int64_t steps) {
  return schedules::exponential(decay_options<schedules::ExponentialOptions>(text, rate, steps));
}

RateSchedule inverse_time(std::string_view text, double rate, int64_t steps) {
  return schedules::inverse_time(decay_options<schedules::InverseTimeOptions>(text, rate, steps));
}

RateSchedule polynomial(std::string_view text, double rate, int64_t steps) {
  schedules::PolynomialOptions o{.initial = rate, .decay_steps = steps};
  read(
      text,
      {{"decay_steps", &o.decay_steps}, {"end", &o.end}, {"power", &o.power}, {"cycle", &o.cycle}});
  return schedules::polynomial(o);
}

RateSchedule cosine(std::string_view text, double rate, int64_t steps) {
  schedules::CosineOptions o{.initial = rate, .decay_steps = steps};
  read(text, {{"decay_steps", &o.decay_steps}, {"alpha", &o.alpha}});
  return schedules::cosine(o);
}

RateSchedule cosine_restarts(std::string_view text, double rate, int64_t steps) {
  schedules::CosineRestartsOptions o{.initial = rate, .first_decay_steps = steps};
  read(text, {{"first_decay_steps", &o.first_decay_steps},
              {"t_mul", &o.t_mul},
              {"m_mul", &o.m_mul},
              {"alpha", &o.alpha}});
  return schedules::cosine_restarts(o);
}

RateSchedule one_cycle(std::string_view text, double rate, int64_t steps) {
  schedules::OneCycleOptions o{.max = rate, .total_steps = steps};
  read(text, {{"total_steps", &o.total_steps},
              {"pct_start", &o.pct_start},
              {"div_factor", &o.div_factor},
              {"final_div_factor", &o.final_div_factor}});
  return schedules::one_cycle(o);
}

struct ScheduleMaker {
  const char* name;
  RateSchedule (*make)(std::string_view fields, double rate, int64_t steps);
};
constexpr ScheduleMaker kSchedules[] = {
    {"piecewise_constant", piecewise_constant},
    {"exponential", exponential},
    {"inverse_time", inverse_time},
    {"polynomial", polynomial},
    {"cosine", cosine},
    {"cosine_restarts", cosine_restarts},
    {"one_cycle", one_cycle},
};

RateSchedule named_schedule(std::string_view text, double rate, int64_t steps) {
  const std::string_view name = text.substr(0, text.find(':'));
  const std::string_view fields =
      name.size() < text.size() ? text.substr(name.size() + 1) : std::string_view();
  for (const auto& schedule : kSchedules)
    if (schedule.name == name) return schedule.make(fields, rate, steps);
  throw UsageError(unknown_message("schedule", name, schedule_names()));
}

// ---- callbacks ----

// What they may watch.
std::vector<std::string> quantities(const TrainFlags& flags) {
  std::vector<std::string> names = {"loss"};
  for (const Metric& metric : metrics_from(flags))
    if (metric.scalar()) names.push_back(metric.name());
  const size_t of_training = names.size();
  for (size_t i = 0; i < of_training; ++i) names.push_back("val_" + names[i]);
  std::ranges::copy(names_of(flags.measures), std::back_inserter(names));
  return names;
}

void require_quantity(const TrainFlags& flags, const std::string& name) {
  const auto known = quantities(flags);
  if (std::ranges::find(known, name) == known.end())
    throw UsageError(unknown_message("quantity", name, known));
}

std::shared_ptr<Callback> early_stopping(const TrainFlags& flags) {
  callbacks::EarlyStoppingOptions o;
  read_fields(flags.early_stopping, {{"monitor", &o.monitor},
                                     {"min_delta", &o.min_delta},
                                     {"patience", &o.patience},
                                     {"better", &o.better},
                                     {"baseline", &o.baseline},
                                     {"restore_best_weights", &o.restore_best_weights},
                                     {"start_from_epoch", &o.start_from_epoch}});
  require_quantity(flags, o.monitor);
  require_together({.kind = flags.job.strategy}, {}, {.restores_best = o.restore_best_weights});
  return callbacks::early_stopping(o);
}

std::shared_ptr<Callback> reduce_on_plateau(const TrainFlags& flags) {
  callbacks::ReduceOnPlateauOptions o;
  read_fields(flags.reduce_on_plateau, {{"monitor", &o.monitor},
                                        {"factor", &o.factor},
                                        {"patience", &o.patience},
                                        {"min_delta", &o.min_delta},
                                        {"cooldown", &o.cooldown},
                                        {"min_learning_rate", &o.min_learning_rate},
                                        {"better", &o.better}});
  require_quantity(flags, o.monitor);
  return callbacks::reduce_on_plateau(o);
}

void make_folder(const std::filesystem::path& folder) {
  std::error_code failure;
  if (!folder.empty()) std::filesystem::create_directories(folder, failure);
  if (failure)
    throw UsageError(
        fmt::format("the folder {} cannot be made: {}", folder.string(), failure.message()));
}

// "{epoch}" and "{val_loss}" stand in the file's name alone, so that its folder is there.
void check_saved_path(const TrainFlags& flags, const std::filesystem::path& path) {
  if (path.parent_path().string().find('{') != std::string::npos)
    throw UsageError(fmt::format("path = \"{}\"; expected {{...}} in the name of the file alone",
                                 path.string()));
  const std::string name = path.filename().string();
  for (size_t at = name.find('{'); at != std::string::npos; at = name.find('{', at + 1)) {
    const size_t end = std::min(name.find('}', at), name.size());
    const std::string field = name.substr(at + 1, end - at - 1);
    if (field != "epoch") require_quantity(flags, field);
  }
  make_folder(path.parent_path());
  require_writable(path, "path");
}

std::shared_ptr<Callback> model_checkpoint(const TrainFlags& flags) {
  callbacks::ModelCheckpointOptions o;
  read_fields(flags.model_checkpoint, {{"path", &o.path},
                                       {"monitor", &o.monitor},
                                       {"save_best_only", &o.save_best_only},
                                       {"better", &o.better}});
  if (o.path.empty()) throw UsageError("expected path=FILE among its fields");
  require_quantity(flags, o.monitor);
  check_saved_path(flags, o.path);
  return callbacks::model_checkpoint(o);
}

std::shared_ptr<Callback> csv_log(const TrainFlags& flags) {
  require_writable(flags.csv_log, "the file");
  return callbacks::csv_logger(flags.csv_log);
}

std::shared_ptr<Callback> tensorboard(const TrainFlags& flags) {
  make_folder(flags.tensorboard);
  require_writable(std::filesystem::path(flags.tensorboard) / "events", "the folder");
  return callbacks::tensorboard(flags.tensorboard);
}

struct CallbackMaker {
  const char* flag;
  std::string TrainFlags::* text;
  std::shared_ptr<Callback> (*make)(const TrainFlags& flags);
  bool decides;  // and so needs replicas that meet in every step
};
// Those that only watch see an epoch before others change something after it.
constexpr CallbackMaker kCallbacks[] = {
    {"--csv-log", &TrainFlags::csv_log, csv_log, false},
    {"--tensorboard", &TrainFlags::tensorboard, tensorboard, false},
    {"--model-checkpoint", &TrainFlags::model_checkpoint, model_checkpoint, true},
    {"--reduce-on-plateau", &TrainFlags::reduce_on_plateau, reduce_on_plateau, true},
    {"--early-stopping", &TrainFlags::early_stopping, early_stopping, true},
};

// Of a number that is predicted, beside mean_absolute_error: in the target's own unit.
struct NumberMetric {
  const char* in_short;
  Metric (*make)();
  int power;  // of the unit
};
constexpr NumberMetric kNumberMetrics[] = {
    {"rmse", metrics::root_mean_squared_error, 1},
    {"mse", metrics::mean_squared_error, 2},
    {"r2", metrics::r2_score, 0},
};

std::optional<Metric> number_metric(std::string_view name, double scale) {
  for (const auto& [in_short, make, power] : kNumberMetrics)
    if (const Metric metric = make(); name == in_short || name == metric.name())
      return scaled(metric, std::pow(scale, power));
  return std::nullopt;
}

void add_once(std::vector<Metric>& all, Metric metric, std::string_view typed) {
  if (std::ranges::count(all, metric.name(), &Metric::name) > 0)
    throw UsageError(fmt::format("--metrics: {} is given twice", typed));
  all.push_back(std::move(metric));
}

std::vector<Metric> metrics_of_number(const TrainFlags& flags) {
  std::vector<Metric> all = {scaled_absolute_error(*flags.number_scale)};
  if (flags.metrics.empty()) return all;
  for (const std::string_view name : parts_of(flags.metrics, ',')) {
    if (name == "mae" || name == all[0].name()) continue;  // it is there anyway
    const auto metric = number_metric(name, *flags.number_scale);
    if (!metric)
      throw UsageError(fmt::format("--metrics {}: --target {} is a number: {}", name,
                                   flags.data.target,
                                   unknown_message("metric", name, number_metric_words())));
    add_once(all, *metric, name);
  }
  return all;
}

/// Whether it is one number of samples with a label each, several classes: tried on one.
bool is_of_classes(const Metric& metric) {
  const std::array<float, 2> outputs{1, 0};
  const int64_t label = 0;
  std::vector<double> state(static_cast<size_t>(metric.num_states(std::ssize(outputs))));
  try {
    metric.add({.outputs = outputs.data(), .labels = &label, .rows = 1, .width = 2}, state);
  } catch (const UsageError&) {
    return false;
  }
  return metric.scalar();
}

/// Of any K, any B; metric_by_name() says what is wrong with them.
bool has_a_number(std::string_view name) {
  for (const std::string_view average : {"micro_", "weighted_"})
    if (name.starts_with(average)) return name.substr(average.size()).starts_with("f_beta_");
  return (name.starts_with("top_") && name.ends_with("_accuracy")) || name.starts_with("map_at_") ||
         name.starts_with("f_beta_");
}

Metric metric_of_classes(std::string_view name, const std::vector<std::string>& known) {
  if (std::ranges::find(metric_words(), name) != metric_words().end() || has_a_number(name))
    return said_of("--metrics", [&] { return metric_by_name(name); });
  const std::vector<std::string> all = metric_names();
  if (std::ranges::find(all, name) == all.end())
    throw UsageError("--metrics: " + unknown_message("metric", name, known));
  throw UsageError(
      fmt::format("--metrics {}: is not of classes with a label a sample, as here; "
                  "expected some of {}",
                  name, fmt::join(known, ", ")));
}

}  // namespace

const std::vector<std::string>& schedule_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const auto& schedule : kSchedules) all.emplace_back(schedule.name);
    return all;
  }();
  return names;
}

std::optional<RateSchedule> schedule_from(const TrainFlags& flags, int64_t steps) {
  if (flags.schedule.empty() && flags.warm_up == 0) return std::nullopt;
  const double rate = learning_rate_of(flags.job.optimizer);
  if (flags.warm_up >= steps)
    throw UsageError(fmt::format("--warm-up {}: the training has {} step{}; expected fewer",
                                 flags.warm_up, steps, steps == 1 ? "" : "s"));
  const RateSchedule then = said_of("--schedule", [&] {
    return flags.schedule.empty() ? schedules::constant(rate)
                                  : named_schedule(flags.schedule, rate, steps - flags.warm_up);
  });
  const RateSchedule schedule = flags.warm_up > 0 ? schedules::warm_up(flags.warm_up, then) : then;
  for (const int64_t step : {int64_t{0}, steps - 1})
    said_of(fmt::format("the rate of step {} (--schedule, --warm-up)", step),
            [&] { require_rate(flags.job.optimizer, schedule(step)); });
  return schedule;
}

const std::vector<std::string>& metric_words() {
  static const std::vector<std::string> words = [] {
    std::vector<std::string> all;
    for (const std::string& name : metric_names())
      if (name != metrics::accuracy().name() && is_of_classes(metric_by_name(name)))
        all.push_back(name);
    return all;
  }();
  return words;
}

const std::vector<std::string>& number_metric_words() {
  static const std::vector<std::string> words = [] {
    std::vector<std::string> all;
    for (const auto& metric : kNumberMetrics) {
      all.emplace_back(metric.in_short);
      all.push_back(metric.make().name());
    }
    return all;
  }();
  return words;
}

std::vector<Metric> metrics_from(const TrainFlags& flags) {
  if (flags.number_scale) return metrics_of_number(flags);
  std::vector<Metric> all = {metrics::accuracy()};
  if (flags.data.as_text) all.insert(all.begin(), metrics::perplexity());
  if (flags.metrics.empty()) return all;
  std::vector<std::string> known;
  for (const Metric& metric : all) known.push_back(metric.name());
  const std::vector<std::string> always = known;
  std::ranges::copy(metric_words(), std::back_inserter(known));
  for (const std::string_view name : parts_of(flags.metrics, ',')) {
    if (std::ranges::find(always, name) != always.end()) continue;
    if (number_metric(name, 1))
      throw UsageError(
          fmt::format("--metrics {}: is for a number that is predicted; here classes are", name));
    add_once(all, metric_of_classes(name, known), name);
  }
  return all;
}

std::optional<optim::LossScaling> loss_scaling_from(const TrainFlags& flags) {
  if (flags.loss_scaling.empty()) return std::nullopt;
  return said_of("--loss-scaling", [&] {
    optim::LossScaling o;
    read_fields(flags.loss_scaling, {{"initial", &o.initial},
                                     {"growth", &o.growth},
                                     {"growth_interval", &o.growth_interval},
                                     {"backoff", &o.backoff}});
    optim::LossScale{o};  // what it refuses is refused here
    return o;
  });
}

std::optional<LargeBatch> large_batch_from(const TrainFlags& flags) {
  if (flags.large_batch.empty()) return std::nullopt;
  return said_of("--large-batch", [&] {
    LargeBatch o;
    std::string scaling;
    read_fields(flags.large_batch, {{"base", &o.base},
                                    {"base_rate", &o.base_rate},
                                    {"scaling", &scaling},
                                    {"warm_up", &o.warm_up.epochs},
                                    {"decay_norms_and_biases", &o.decay_norms_and_biases},
                                    {"zero_last_norms", &o.zero_last_norms}});
    if (scaling == "linear")
      o.scaling = BatchScaling::linear;
    else if (scaling == "square_root")
      o.scaling = BatchScaling::square_root;
    else if (!scaling.empty())
      throw UsageError(
          unknown_message("scaling", scaling, std::vector<std::string>{"linear", "square_root"}));
    require_valid(o);
    return o;
  });
}

std::map<int64_t, double> class_weight_from(const TrainFlags& flags,
                                            const std::vector<std::string>& classes) {
  if (flags.class_weight.empty()) return {};
  if (flags.number_scale)
    throw UsageError(fmt::format("--class-weight {}: is for classes; --target {} is a number",
                                 flags.class_weight, flags.data.target));
  std::vector<std::optional<double>> weights(classes.size());
  return said_of("--class-weight", [&] {
    std::vector<Field> fields;
    for (size_t i = 0; i < classes.size(); ++i) fields.emplace_back(classes[i], &weights[i]);
    read_fields(flags.class_weight, fields);
    std::map<int64_t, double> by_label;
    for (size_t i = 0; i < classes.size(); ++i)
      if (weights[i]) by_label[static_cast<int64_t>(i)] = *weights[i];
    for (const auto& [label, weight] : by_label)
      if (!(weight >= 0 && fits_float32(weight)))
        throw UsageError(fmt::format("{} = {}; expected 0 or {}",
                                     classes[static_cast<size_t>(label)], weight, kFloat32Range));
    require_class_weight("the weight", by_label, std::ssize(classes));
    return by_label;
  });
}

std::vector<std::string> frozen_patterns(const TrainFlags& flags) {
  std::vector<std::string> patterns;
  if (flags.freeze.empty()) return patterns;
  for (const std::string_view pattern : parts_of(flags.freeze, ',')) patterns.emplace_back(pattern);
  return patterns;
}

nn::Graph frozen_by(const TrainFlags& flags, const nn::Graph& graph) {
  if (flags.freeze.empty()) return graph;
  nn::Graph frozen =
      said_of("--freeze", [&] { return nn::with_frozen(graph, frozen_patterns(flags)); });
  if (frozen.num_frozen() == frozen.num_parameters())
    throw UsageError(fmt::format("--freeze {}: is all of {}, so that nothing would be trained",
                                 flags.freeze, flags.job.model));
  return frozen;
}

CheckpointOptions checkpoint_options(const TrainFlags& flags) {
  if (!keeps_checkpoints(flags)) return {};
  if (flags.keep_best > 0) said_of("--best-by", [&] { require_quantity(flags, flags.best_by); });
  return {.folder = std::filesystem::path(flags.out) / "checkpoints",
          .every_steps = flags.checkpoint_every,
          .resume = flags.resume,
          .newest_kept = static_cast<int>(flags.keep_checkpoints),
          .best_kept = static_cast<int>(flags.keep_best),
          .monitor = flags.best_by,
          .grace = millis_of(flags.job.grace_s.value_or(kGraceToSave)),
          .disk_limit = millis_of(flags.disk_limit_s)};
}

Callbacks callbacks_from(const TrainFlags& flags) {
  Callbacks all;
  for (const CallbackMaker& callback : kCallbacks)
    if (!(flags.*callback.text).empty())
      all.push_back(said_of(callback.flag, [&] { return callback.make(flags); }));
  return all;
}

std::string deciding_flag(const TrainFlags& flags) {
  for (const CallbackMaker& callback : kCallbacks)
    if (callback.decides && !(flags.*callback.text).empty()) return callback.flag;
  return flags.nan == "end" ? "--nan end" : "";
}

}  // namespace tutti::cli
