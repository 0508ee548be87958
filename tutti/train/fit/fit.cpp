#include "tutti/train/fit/detail/fit.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <iterator>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/event.h"
#include "tutti/base/log.h"
#include "tutti/net/host_meeting.h"
#include "tutti/nn/graph_module.h"
#include "tutti/ps/client/client.h"
#include "tutti/strategy/input/detail/input.h"
#include "tutti/strategy/membership/detail/worlds.h"
#include "tutti/train/fit/detail/parts.h"
#include "tutti/train/model/detail/agreement.h"
#include "tutti/train/model/detail/settings.h"

namespace tutti {

using detail::Totals;

namespace {

// What callbacks see after an epoch.
std::vector<std::string> watched(const detail::Compiled& compiled, bool validation) {
  const std::vector<std::string> trained = quantities_of(compiled.goals);
  std::vector<std::string> names = trained;
  std::ranges::copy(names_of(compiled.measures), std::back_inserter(names));
  for (size_t i = 0; validation && i < trained.size(); ++i) names.push_back("val_" + trained[i]);
  return names;
}

// Those of History.
std::vector<std::string> columns_of(std::vector<std::string> quantities) {
  quantities.front() = "train_loss";
  quantities.insert(quantities.end(), {"seconds", "images_per_second"});
  return quantities;
}

double seconds_since(TimePoint begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

int64_t number_of_next_fit() {
  static std::atomic<int64_t> begun{0};
  return ++begun;
}

// Workers of parameter servers, each of which takes batches as it comes.
bool not_in_step(const ps::Client* servers) {
  return servers != nullptr && !servers->spec().staleness.synchronous();
}

// Of input that was waited for, or mended. In a training of seconds the first batches are all that
// is waited for.
std::string words_worth_saying(const data::LoaderReport& input) {
  constexpr double kWorthSaying = 0.05, kSeconds = 5;
  const bool waited = input.seconds > kSeconds && input.wait_share() > kWorthSaying;
  return waited || !input.replaced.empty() ? input.to_string() : "";
}

// Of replicas that differ tests and callbacks see the mean.
class ShownAverage {
 public:
  explicit ShownAverage(AveragedParameters* averaged) : averaged_(averaged) {
    if (averaged_ != nullptr) averaged_->show();
  }
  ShownAverage(const ShownAverage&) = delete;
  ~ShownAverage() { hide(); }
  void hide() {
    if (auto* const averaged = std::exchange(averaged_, nullptr)) averaged->hide();
  }

 private:
  AveragedParameters* averaged_;
};

bool computes_alone(const World& world) {
  return world.processes() == 1 && world.threads() == 1 && world.plugin == nullptr;
}

}  // namespace

namespace detail {

Fit::Fit(Model::State& model, data::Dataset train, FitOptions options)
    : model_(model),
      compiled_(model.require_compiled("fit")),
      train_(std::move(train)),
      options_(std::move(options)),
      seed_(options_.seed.value_or(model.strategy.options().seed)),
      label_weights_(label_weights_of(compiled_.goals, options_)),
      counted_(compiled_.goals, model.num_inputs, options_.accumulate > 1),
      course_{.epochs = options_.epochs,
              .epoch_length = options_.steps_per_epoch > 0
                                  ? options_.steps_per_epoch
                                  : updates_of(train_.num_batches(), options_.accumulate),
              .max_steps = options_.max_steps,
              .initial_epoch = options_.initial_epoch,
              .by_lease = not_in_step(compiled_.optimizer.updater().parts().client)},
      preemption_({.signals = false, .after = std::max(options_.stop_after, Millis{0})}) {
  compiled_.optimizer.forget_accumulated();  // an earlier fit() may have ended in an error
  compiled_.optimizer.forget_left_out();
  speak(model.strategy.world().chief);
  scale_rate();
  watchers_ = all_watchers();
  const auto quantities = watched(compiled_, options_.validation.has_value());
  history_.columns = columns_of(quantities);
  take_pace();
  callbacks_.emplace(model_, options_.callbacks, options_.epochs, quantities,
                     way_.pace->all_meet());
  take_up_checkpoints();
  // The first fit() of a program goes on where the job was; later ones are trainings of their own.
  const ps::Client* const servers = compiled_.optimizer.updater().parts().client;
  if (servers != nullptr && servers->first_step() == compiled_.optimizer.version())
    servers_at_ = servers->first_step();
}

StepWatchers Fit::all_watchers() {
  StepWatchers watchers = watchers_of(compiled_.measures, compiled_.optimizer,
                                      train_.global_batch_size() * options_.accumulate);
  watchers.push_back(watch_shares(model_, train_, options_));
  const Strategy& strategy = model_.strategy;
  if (computes_alone(strategy.world()))
    watchers.push_back(watch_cores(strategy.options().threads_per_replica));
  if (options_.slow)
    watchers.push_back(watch_slow_worker(*options_.slow, seed_, compiled_.optimizer));
  return watchers;
}

std::shared_ptr<const World> Fit::world_now() const {
  World world = model_.strategy.world();
  world.microbatches = options_.microbatches;
  return std::make_shared<const World>(std::move(world));
}

void Fit::take_pace() {
  counted_.make_room(model_.strategy.world().local);
  way_.pace = pace_of(*this);
  way_.bodies.clear();
  for (int local = 0; local < model_.strategy.world().local; ++local)
    way_.bodies.push_back(body_of(*this, local));
  way_.generation = model_.strategy.world().generation;
  if (events_wanted()) say_who_trains();
}

// What a trace must know of a training, so that its steps can be replayed (extras/replay).
void Fit::say_who_trains() const {
  const World& world = model_.strategy.world();
  const StrategyOptions& options = model_.strategy.options();
  const std::string machine = boot_id();
  const std::string shares = fmt::format("{}", fmt::join(world.shares, ","));
  emit("train.begin", {{"strategy", std::string_view(options.kind)},
                       {"ranks", int64_t{world.size}},
                       {"model_ranks", int64_t{world.model_ranks()}},
                       {"in_turn", int64_t{world.in_turn()}},
                       {"on_devices", int64_t{world.on_devices()}},
                       {"shard", std::string_view(options.shard)},
                       {"shares", std::string_view(shares)},
                       {"machine", std::string_view(machine)}});
}

void Fit::speak(bool shows) {
  shown_.here = shows;
  shown_.progress.emplace(shows ? static_cast<Verbose>(options_.verbose) : Verbose::silent,
                          options_.epochs);
}

History Fit::run() {
  number_ = number_of_next_fit();
  loader_ = make_loader(options_.loader, model_.strategy.world(),
                        model_.strategy.options().threads_per_replica);
  agree();
  say_what_is_not_planned();
  for (const std::string& line : shown_.recipe) shown_.progress->say(line);
  callbacks_->train_begin();
  Position at = begin();
  if (saved_.checkpoints) saved_.checkpoints->lay_beside();
  tell_begun();
  while (!callbacks_->ends() && !not_finite_.ended) {
    const auto plan = next_epoch(course_, at, compiled_.optimizer.version());
    if (!plan) break;
    run_epoch(*plan);
    at = {.epoch = plan->number + 1, .steps = history_.steps};
  }
  if (saved_.resumed && !callbacks_->ends())
    shown_.progress->say(fmt::format(
        "nothing is left to do: {} steps, all that were asked for, had been made; ask for more "
        "(`epochs`, --epochs)",
        history_.steps));
  std::string lost;
  if (saved_.checkpoints) {
    lost = saved_.checkpoints->end();
    if (const std::string words = saved_.checkpoints->summary(); !words.empty())
      shown_.progress->say(words);
  }
  if (auto* const averaged = compiled_.optimizer.updater().averaged()) averaged->average();
  if (history_.rows.empty() && servers_at_ > 0)
    throw UsageError(fmt::format(
        "fit: all that was asked for ({} epochs, {} steps) was done before the snapshot that this "
        "job goes on from; ask for more",
        options_.epochs, history_.steps));
  callbacks_->train_end(shown_.values);
  for (const auto& watcher : watchers_)
    if (const std::string words = watcher->end(history_); !words.empty())
      shown_.progress->say(words);
  history_.lost = callbacks_->lost();
  if (!lost.empty()) history_.lost.push_back(lost);
  history_.input = loader_->report();
  if (const std::string words = words_worth_saying(history_.input); !words.empty())
    shown_.progress->say(words);
  return std::move(history_);
}

// The chief's failure is everybody's; workers that may be lost go on without him, as without any.
void Fit::tell_begun() {
  std::exception_ptr failure;
  try {
    if (options_.when_begun && model_.strategy.world().chief) options_.when_begun();
  } catch (const std::exception&) {
    failure = std::current_exception();
  }
  if (model_.strategy.membership().all_stay())
    agree_on_failure(model_.strategy, failure, "fit: when_begun");
  else if (failure)
    std::rethrow_exception(failure);
}

// Samples are looked at once caches are shared, so that what is computed for that is kept.
void Fit::agree() {
  Strategy& strategy = model_.strategy;
  if (is_alone(strategy)) return;
  const std::string words = fit_words(compiled_, train_, options_, seed_);
  require_same_words(strategy, "fit", words);
  const Membership& members = strategy.membership();
  share_caches(members, train_);
  if (options_.validation) share_caches(members, *options_.validation);
  require_same_data(members, "fit", "training data", train_, seed_);
  if (options_.validation)
    require_same_data(members, "fit", "validation data", *options_.validation, seed_);
  if (compiled_.optimizer.updater().parts().client == nullptr ||
      (members.all_stay() && !course_.by_lease))
    return;
  AgreedLines lines;
  add_digest(lines, "training data", train_, seed_);
  if (options_.validation) add_digest(lines, "validation data", *options_.validation, seed_);
  asked_ = strategy.world().asked + words + lines.text();
  // Who comes again begins behind that meeting.
  if (!members.all_stay() && version() == 0) members.require_same("fit", asked_);
}

void Fit::say_what_is_not_planned() const {
  const auto* const graph = dynamic_cast<const nn::GraphModule*>(model_.modules.module(0).get());
  if (graph == nullptr || model_.plugin || graph->why_not_planned().empty()) return;
  log(LogLevel::info, "fit: the graph is run by autograd, not as one planned step: {}",
      graph->why_not_planned());
}

// The batch of an update and the length of an epoch are known here alone.
void Fit::scale_rate() {
  if (!compiled_.large_batch) return;
  const int64_t batch = train_.global_batch_size() * options_.accumulate;
  ScaledRate scaled = scaled_rate(*compiled_.large_batch, batch, course_.epoch_length);
  compiled_.rate = std::move(scaled.rate);
  shown_.recipe = std::move(scaled.words);
}

Position Fit::begin() {
  go_on();
  std::optional<CheckpointPosition> checkpoint;
  if (saved_.resumed)
    checkpoint = {.epoch = saved_.resumed->epoch,
                  .steps = saved_.resumed->step,
                  .in_epoch = saved_.resumed->step_in_epoch};
  const bool all_stay = model_.strategy.membership().all_stay();
  const Position at = where_to_begin(course_, checkpoint, servers_at_, !all_stay);
  history_.steps = at.steps;
  return at;
}

Totals Fit::run_batch() {
  if (!way_.pace->all_step())
    throw UsageError(
        "train_on_batch: workers are not in step (--staleness, --drop-slowest), so that none can "
        "wait for the others' parts of a batch; use fit()");
  if (compiled_.optimizer.updater().averaged() != nullptr)
    throw UsageError(
        "train_on_batch: with local updates replicas differ from one averaging to the next, and "
        "nobody knows after which batch they are wanted alike; use fit()");
  require_same_words(model_.strategy, "train_on_batch",
                     fit_words(compiled_, train_, options_, seed_));
  require_same_data(model_.strategy.membership(), "train_on_batch", "the batch", train_, seed_);
  model_.modules.train(true);
  since_.step = Clock::now();
  Epoch epoch{{.steps = 1, .first_update = compiled_.optimizer.version()},
              std::make_shared<const data::Epoch>(train_.epoch({.seed = seed_})),
              world_now()};
  std::vector<Totals> each;
  return train_epoch(epoch, each).value();
}

void Fit::run_epoch(const EpochPlan& plan) {
  const TimePoint begin = since_.epoch = since_.step = Clock::now();
  Epoch epoch{
      plan,
      std::make_shared<const data::Epoch>(train_.epoch({.epoch = plan.number, .seed = seed_})),
      world_now(), model_.modules.whole() == nullptr ? loader_ : nullptr};
  if (epoch.world->generation != way_.generation) take_pace();
  if (epoch.first_step > 0 && saved_.resumed)
    callbacks_->epoch_goes_on(epoch.number, epoch.steps, epoch.first_step);
  else
    callbacks_->epoch_begin(epoch.number, epoch.steps);
  since_.images = 0;
  shown_.progress->begin_epoch(epoch.number, epoch.steps, begin);
  model_.modules.train(true);
  std::vector<Totals> each;
  const auto all = train_epoch(epoch, each);
  if (!all || all->samples == 0) return;
  if (each[0].bad_step < 0) look_at_parameters(epoch);
  if (const bool shows = model_.strategy.membership().those_here().chief; shows != shown_.here) {
    speak(shows);
    callbacks_->be_chief(shows);
    shown_.progress->begin_epoch(epoch.number, epoch.steps, begin);
  }
  end_epoch(epoch, *all, each, seconds_since(begin));
}

std::optional<Totals> Fit::train_epoch(Epoch& epoch, std::vector<Totals>& each) {
  not_finite_.first.assign(static_cast<size_t>(epoch.world->local), "");
  each = first_totals(epoch);
  if (epoch.loader) read_ahead(epoch, epoch.first_step);
  auto all = way_.pace->run(epoch, each);
  if (epoch.loader) epoch.loader->end();
  return all;
}

void Fit::read_ahead(const Epoch& epoch, int64_t first_step) {
  const int64_t batches = epoch.data->num_batches();
  const int64_t first = std::min(first_step * options_.accumulate, batches);
  const int64_t end = std::min(epoch.steps * options_.accumulate, batches);
  begin_epoch(*epoch.loader, *epoch.data, epoch.world, nullptr, first,
              course_.by_lease ? first : end);
}

void Fit::before_steps(Epoch& epoch, int64_t next) {
  for (const auto& watcher : watchers_)
    if (const std::string words = watcher->before_steps(); !words.empty())
      shown_.progress->say(words);
  if (epoch.world->shares == model_.strategy.world().shares) return;
  epoch.world = world_now();
  if (epoch.loader) read_ahead(epoch, next);
}

void Fit::raise_in_turn(const Epoch& epoch, const Totals& own) {
  if (epoch.world->in_turn() && own.bad_step >= 0 && options_.on_nan == OnNan::stop)
    raise(epoch, own);
}

void Fit::end_epoch(const Epoch& epoch, const Totals& all, const std::vector<Totals>& each,
                    double seconds) {
  NamedValues values = means_of(all, compiled_.goals);
  for (const auto& watcher : watchers_)
    std::ranges::copy(watcher->values(), std::back_inserter(values));
  ShownAverage shown(compiled_.optimizer.updater().averaged());
  const bool validates = options_.validation && (epoch.number + 1) % options_.validation_freq == 0;
  if (validates && (!way_.pace->chief_validates_alone() || epoch.world->chief)) {
    const TimePoint validation_begin = Clock::now();
    const Scores scores = validate(epoch, each);
    history_.validation_seconds += seconds_since(validation_begin);
    values.emplace_back("val_loss", scores.loss);
    for (const auto& [name, value] : scores.metrics) values.emplace_back("val_" + name, value);
  }
  history_.train_seconds += seconds;  // until here a checkpoint adds those of the epoch
  history_.images += since_.images;
  const double rate = seconds > 0 ? static_cast<double>(since_.images) / seconds : 0;
  std::vector<double> row;
  for (const auto& [name, value] : values) row.push_back(value);
  row.resize(history_.columns.size() - 2, std::nan(""));  // not validated
  row.push_back(seconds);
  row.push_back(rate);
  if (history_.rows.empty()) history_.first_epoch = epoch.number;
  history_.rows.push_back(std::move(row));
  shown_.progress->end_epoch(values, seconds, rate);
  shown_.values = values;
  callbacks_->epoch_end(values);
  shown.hide();
  if (!not_finite_.ended) save_after(epoch);
}

std::unique_ptr<Pace> pace_of(Fit& fit) {
  const ps::Client* const servers = fit.optimizer().updater().parts().client;
  const World& world = fit.strategy().world();
  if (world.plugin) return make_by_plugin(fit);
  if (not_in_step(servers)) return make_by_lease(fit);
  if (servers != nullptr && servers->spec().drop_slowest > 0) return make_in_step_but_late(fit);
  if (!fit.strategy().membership().all_stay()) return make_in_step_but_lost(fit);
  return world.in_turn() && world.size > 1 ? make_in_turn(fit) : make_in_step(fit);
}

Totals train_on_batch(Model::State& model, const data::Dataset& data, FitOptions options) {
  return Fit(model, data, std::move(options)).run_batch();
}

}  // namespace detail

History Model::fit(const data::Dataset& train, FitOptions options) {
  take_input_of(train);
  const data::Dataset trained = state_->split_off_validation(train, options);
  state_->check_fit(trained, options);
  return detail::Fit(*state_, trained, std::move(options)).run();
}

}  // namespace tutti
