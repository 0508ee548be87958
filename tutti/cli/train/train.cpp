// tutti train: trains a model of the zoo on a folder of doodles, under any strategy.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "tutti/base/agreed_lines.h"
#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/json.h"
#include "tutti/base/standard_streams.h"
#include "tutti/base/stop.h"
#include "tutti/base/typed.h"
#include "tutti/cli/arguments.h"
#include "tutti/cli/checks.h"
#include "tutti/cli/commands.h"
#include "tutti/cli/data/reading.h"
#include "tutti/cli/output_folder.h"
#include "tutti/cli/outputs.h"
#include "tutti/cli/results.h"
#include "tutti/cli/train/facts.h"
#include "tutti/cli/train/figures.h"
#include "tutti/cli/train/files.h"
#include "tutti/cli/train/flags.h"
#include "tutti/cli/train/job.h"
#include "tutti/cli/train/network.h"
#include "tutti/cli/train/network_module.h"
#include "tutti/cli/train/options.h"
#include "tutti/cluster/join/join.h"
#include "tutti/device/devices.h"
#include "tutti/models/models.h"
#include "tutti/nn/dense_kernel.h"
#include "tutti/nn/precision.h"
#include "tutti/observe/trace.h"
#include "tutti/ps/client/client.h"
#include "tutti/queues/config.h"
#include "tutti/train/model/detail/agreement.h"
#include "tutti/train/model/detail/model_state.h"
#include "tutti/train/model/model.h"

namespace tutti::cli {
namespace {

// All that is settled before the first step.
struct Plan {
  StrategyOptions strategy;
  data::Dataset train, test;
  DataSpec spec;
  std::vector<std::string> sentences;
  Network network;
  CompileOptions compile;
  FitOptions fit;
  OutputFolder out;
};

// Where workers are not in step, each takes its share of the global batch alone.
int64_t batch_of_worker(const TrainFlags& flags) {
  const bool alone =
      flags.job.uses_servers() && !served_options(flags.job.served).staleness.synchronous();
  const auto job = job_of_this_process();
  return alone && job ? std::max<int64_t>(1, flags.job.global_batch / job->num_workers)
                      : flags.job.global_batch;
}

// "1:4:0.2": worker 1 takes 4 times as long in a step with probability 0.2.
std::optional<SlowWorker> slow_worker_from(const TrainFlags& flags) {
  const std::string& text = flags.slow_worker;
  if (text.empty()) return std::nullopt;
  const auto wrong = [&] {
    return UsageError(fmt::format(
        "--slow-worker {}: expected WORKER:FACTOR or WORKER:FACTOR:PROBABILITY, as 1:4:0.2", text));
  };
  std::vector<double> numbers;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (numbers.size() < 3) {
    double number = 0;
    const auto [stop, failure] = std::from_chars(at, end, number);
    if (failure != std::errc{}) throw wrong();
    numbers.push_back(number);
    if (stop == end) break;
    if (*stop != ':') throw wrong();
    at = stop + 1;
  }
  numbers.resize(std::max<size_t>(numbers.size(), 2), 0);
  const double probability = numbers.size() > 2 ? numbers[2] : 1;
  const bool known = numbers[0] >= 0 && numbers[0] == std::floor(numbers[0]);
  if (!known || !(numbers[1] >= 1 && numbers[1] <= 1000) || !(probability >= 0 && probability <= 1))
    throw wrong();
  const int workers = workers_of_job(flags.job);
  if (numbers[0] >= workers)
    throw UsageError(fmt::format("--slow-worker {}: there is no such worker; expected {}", text,
                                 workers == 1 ? "0" : fmt::format("0 to {}", workers - 1)));
  const auto job = job_of_this_process();
  if (numbers[0] != (job ? job->worker : 0)) return std::nullopt;
  return SlowWorker{.factor = numbers[1], .probability = probability};
}

// The same few samples in every epoch and under every strategy, of all classes.
data::Dataset taken(const TrainFlags& flags, const data::Dataset& all) {
  if (flags.take == 0) return all;
  if (flags.take > all.num_samples())
    throw UsageError(fmt::format("--take {}: there are {} training samples in {}", flags.take,
                                 all.num_samples(), flags.job.data));
  return all.shuffle({.seed = flags.job.seed, .each_epoch = false}).take(flags.take);
}

// Of the devices that are here, which choose() does not look at.
void check_precision(const TrainFlags& flags, const StrategyOptions& strategy) {
  try {
    const bool on_gpus = std::ranges::all_of(
        devices_from(strategy.device),
        [](const DeviceSpec& device) { return device.kind == DeviceKind::cuda; });
    require_precision(precision_by_name(flags.precision), on_gpus ? "cuda" : "cpu");
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("--precision: {}", error.what()));
  }
}

CompileOptions compile_options(const TrainFlags& flags, const DataSpec& spec,
                               const data::Dataset& train) {
  const int64_t all = detail::updates_of(train.num_batches(), flags.accumulate);
  if (flags.steps_per_epoch > all)
    throw UsageError(fmt::format("--steps-per-epoch {}: an epoch has {} step{}",
                                 flags.steps_per_epoch, all, all == 1 ? "" : "s"));
  int64_t steps = flags.epochs * (flags.steps_per_epoch > 0 ? flags.steps_per_epoch : all);
  if (flags.max_steps > 0) steps = std::min(steps, flags.max_steps);
  return {.optimizer = recipe_from(flags.job.optimizer),
          .loss = loss_for(spec),
          .metrics = metrics_from(flags),
          .learning_rate = schedule_from(flags, steps),
          .precision = precision_by_name(flags.precision),
          .loss_scaling = loss_scaling_from(flags),
          .large_batch = large_batch_from(flags),
          .measures = flags.measures,
          .steps_per_execution = flags.steps_per_execution};
}

parallel::ModelLayout model_layout(const TrainFlags& flags) {
  const size_t colon = flags.pipeline.find(':');
  const auto chunks = colon == std::string::npos
                          ? std::optional(0)
                          : number_in<int>(std::string_view(flags.pipeline).substr(colon + 1));
  if (!chunks || (colon != std::string::npos && *chunks < 1))
    throw UsageError(
        fmt::format("--pipeline {}: expected NAME or interleaved:CHUNKS", flags.pipeline));
  parallel::ModelLayout layout{
      .schedule = parallel::schedule_choice(flags.pipeline.substr(0, colon), *chunks),
      .recompute = parallel::recompute_choice(flags.recompute)};
  for (const std::string_view layer : parts_of(flags.cut, ','))
    if (!layer.empty()) layout.cut.before.emplace_back(layer);
  return layout;
}

FitOptions fit_options(const TrainFlags& flags, const data::Dataset& train,
                       const data::Dataset& test) {
  return {.epochs = flags.epochs,
          .validation = test,
          .callbacks = callbacks_from(flags),
          .max_steps = flags.max_steps,
          .verbose = static_cast<int>(flags.verbose),
          .on_nan = flags.nan == "stop"  ? OnNan::stop
                    : flags.nan == "end" ? OnNan::end
                                         : OnNan::go_on,
          .slow = slow_worker_from(flags),
          .steps_per_epoch = flags.steps_per_epoch,
          .validation_freq = flags.validation_freq,
          .class_weight = class_weight_from(flags, train.classes()),
          .accumulate = flags.accumulate,
          .microbatches = static_cast<int>(flags.microbatches),
          .checkpoints = checkpoint_options(flags),
          .stop_after = millis_of(flags.stop_after_s),
          .loader = loader_options(flags.loader)};
}

// Of MODEL, where it is a file; what the data is to be like is then the file's to say.
std::optional<FromExport> exported_by(TrainFlags& flags) {
  if (!is_exported(flags.job.model)) {
    if (!flags.eval_model.empty())
      throw UsageError(
          fmt::format("--eval-model {}: is for a model of a .pt2 file; the model is {}",
                      flags.eval_model, flags.job.model));
    return std::nullopt;
  }
  if (!flags.freeze.empty())
    throw UsageError(
        fmt::format("--freeze {}: what of {} is frozen was settled when it was exported: call "
                    "requires_grad_(False) in Python, before that",
                    flags.freeze, flags.job.model));
  FromExport exported = from_export(flags.job.model, {.eval = flags.eval_model});
  const ExportedSamples samples = samples_of(exported);
  flags.data.as_text = samples.of_text;
  if (samples.of_text && flags.data.context == 0 && samples.shape[0] > 0)
    flags.data.context = samples.shape[0];
  if (samples.shape.size() == 3 && flags.data.image_size == 0 && samples.shape[1] > 0 &&
      samples.shape[0] == 3)
    flags.data.image_size = samples.shape[1];
  return exported;
}

Plan make_plan(TrainFlags& flags) {
  StrategyOptions strategy = strategy_options(flags.job);
  strategy.step_graph = flags.step_graph;
  require_together(strategy, recipe_facts(flags), fit_facts(flags), machine_of(flags.job));
  check_precision(flags, strategy);
  loader_options(flags.loader);  // what it refuses is refused here
  check_gpt_flags(flags.job.model, flags.gpt);
  model_layout(flags);
  Network network;
  if (auto exported = exported_by(flags)) network.exported = std::move(exported);
  flags.data.as_text = flags.data.as_text || flags.job.model == kGpt;
  TrainData data = open_train_data(flags.job.data, flags.data);
  data.spec.model = network.exported ? kExportFile : flags.job.model;
  if (data.spec.predicts_number()) flags.number_scale = data.spec.target().deviation;
  if (data.spec.of_text() && !network.exported) data.spec.gpt = gpt_options(flags.gpt, data.spec);
  const auto all = taken(flags, data.train);
  const auto test = data.validation.batch(kTestBatch);
  if (network.exported)
    check_exported(*network.exported, data.spec);
  else
    network.graph = frozen_by(flags, model_for_spec(flags.job.model, data.spec));
  check_groups(flags.job, network.variables());
  if (std::string words = fit_default_batch(flags.job, all); !words.empty())
    data.sentences.push_back(std::move(words));
  check_from(flags, data.spec);
  check_batch(flags.job, all);
  check_given_shares(flags.job);
  check_placement(flags.job, network.variables());
  const int64_t steps =
      flags.max_steps > 0 ? flags.max_steps * flags.accumulate : all.num_samples();
  if (network.graph) check_batch_norm(flags.job, *network.graph, all, steps);
  const auto train = all.shuffle().batch(batch_of_worker(flags));
  CompileOptions compile = compile_options(flags, data.spec, train);
  FitOptions fit = fit_options(flags, train, test);
  check_outputs(flags);
  return {std::move(strategy),
          train,
          test,
          std::move(data.spec),
          std::move(data.sentences),
          std::move(network),
          std::move(compile),
          std::move(fit),
          OutputFolder(flags.out)};
}

// Those of this worker's replicas: "cuda:0, cuda:1".
std::string places_words(const World& world) {
  std::vector<std::string> names;
  for (const DeviceQueue& queue : world.queues) names.push_back(queue.device().str());
  return fmt::format("{}", fmt::join(names, ", "));
}

void announce(const TrainFlags& flags, const Plan& plan, const Strategy& strategy) {
  const int replicas = strategy.num_replicas_in_sync();
  for (const std::string& sentence : plan.sentences) say_line("{}", sentence);
  say_line("{}: {} parameters, {}; {} samples to train on, {} to test", flags.job.model,
           with_commas(static_cast<double>(plan.network.num_parameters())),
           plan.spec.predicts_number()
               ? "predicts " + plan.spec.target().name
               : fmt::format("{} {}", plan.spec.classes.size(),
                             plan.spec.of_text() ? "characters" : "classes"),
           with_commas(static_cast<double>(plan.train.num_samples())),
           with_commas(static_cast<double>(plan.test.num_samples())));
  say("{}: {} replica{} of {} thread{}, reduction shape {}, dense kernel {}; global batch {}\n",
      strategy.kind(), replicas, replicas == 1 ? "" : "s", strategy.options().threads_per_replica,
      strategy.options().threads_per_replica == 1 ? "" : "s",
      strategy.reduction_shape().to_string(), nn::name_of(nn::dense_kernel()),
      flags.job.global_batch);
  if (strategy.world().on_devices()) say("on {}\n", places_words(strategy.world()));
  if (strategy.world().mesh.model_ranks() > 1)
    say("mesh: {}; pipeline {}, {} microbatches\n", strategy.world().mesh.sentence(),
        flags.pipeline, flags.microbatches);
  if (!flags.from.empty() || plan.network.exported)
    say_line("begins with the weights of {}", flags.from.empty() ? flags.job.model : flags.from);
  if (!flags.freeze.empty())
    say_line("frozen: {} of the parameters",
             with_commas(static_cast<double>(plan.network.num_frozen())));
  if (flags.accumulate > 1)
    say("an update every {} batches; steps are updates\n", flags.accumulate);
  if (flags.precision != "float32")
    say("forward and backward in {}, parameters in float32\n", flags.precision);
  if (const auto& rate = plan.compile.learning_rate)
    say("learning rate: {}, {:.6g} in the first step\n", rate->name(), (*rate)(0));
  if (strategy.options().reduction != "fused")
    say("gradients: reduction {}, compression {}\n", strategy.options().reduction,
        describe(strategy.options().compression));
}

// "a, b and c"
std::string listed(const std::vector<std::string>& words) {
  if (words.size() < 2) return fmt::format("{}", fmt::join(words, ""));
  return fmt::format("{} and {}", fmt::join(words.begin(), words.end() - 1, ", "), words.back());
}

// Collective over workers: who writes there keeps it, and all go on without it when he cannot.
void keep_folder(OutputFolder& out, Strategy& strategy, const TrainFlags& flags) {
  std::exception_ptr failure;
  strategy.by_chief([&] {
    try {
      out.keep();
    } catch (const std::exception&) {
      failure = std::current_exception();
    }
  });
  detail::agree_on_failure(strategy, failure, "--out " + flags.out);
}

// Before the first checkpoint, which others may read at once, and after the last: somebody may have
// removed the folder meanwhile.
void write_spec(const TrainFlags& flags, const Plan& plan) {
  for (const auto& file : spec_files(flags))
    std::filesystem::create_directories(file.parent_path());
  // Who follows the training waits for the spec.
  if (plan.network.exported) keep_exported(*plan.network.exported, flags.out);
  for (const auto& file : spec_files(flags)) write_file_atomically(file, plan.spec.to_json());
}

void say_what_came_out(const TrainFlags& flags, const DataSpec& spec, const Strategy& strategy,
                       const History& history, const std::vector<std::string>& saved,
                       bool has_figures) {
  say("{}\n", history.to_string());
  const std::string metric = metric_for(spec).name();
  const double value = history.last("val_" + metric);
  say_line("test {} {} after {} steps: {:.1f} s of training, {} {}/s",
           spec.predicts_number() ? fmt::format("{} of {}", metric, spec.target().name) : metric,
           std::isnan(value) ? "unknown (--validation-freq)" : figure_words(spec, value),
           with_commas(static_cast<double>(history.steps)), history.train_seconds,
           with_commas(history.images_per_second() *
                       (spec.of_text() ? static_cast<double>(spec.shape[0]) : 1)),
           spec.of_text()          ? "characters"
           : spec.shape.size() > 1 ? "images"
                                   : "samples");
  if (flags.out.empty())
    say("weights were not kept: --out DIR saves them\n");
  else if (!saved.empty())
    say_line("saved {}", listed(saved));
  if (has_figures) say_line("figures are in {}", flags.json);
  if (strategy.kind() == "mirrored" && !strategy.world().on_devices())
    say("try next: --strategy multi_worker, which trains the same weights, bit for bit, in {} "
        "processes\n",
        strategy.world().size);
}

// What helps against a sample that is damaged is said with it.
History fit(const TrainFlags& flags, Model& model, const Plan& plan) {
  try {
    return model.fit(plan.train, plan.fit);
  } catch (const DataError& error) {
    const std::string what = error.what();
    const bool replaces = plan.fit.loader.on_bad.replace.has_value();
    if (replaces || what.find(" of batch ") == std::string::npos) throw;
    throw DataError(
        fmt::format("{}\n  tutti data verify {} names all that is damaged; --on-bad replace takes "
                    "other samples instead",
                    what, flags.job.data));
  }
}

// The same for all workers, before servers or others take them from the model.
void take_weights(const TrainFlags& flags, Strategy& strategy, Model& model) {
  const auto agree = [&](const std::string& words) {
    AgreedLines lines;
    lines.add("weights to begin with", words);
    detail::require_same_words(strategy, "--from", lines.text());
  };
  agree(flags.from.empty() ? "drawn by --seed" : "read");
  if (flags.from.empty()) return;
  try {
    model.load(weights_to_begin_with(flags));
  } catch (const DataError& error) {
    const std::string what = error.what();
    if (what.find("does not fit the model") == std::string::npos) throw;
    throw DataError(fmt::format(
        "{}\n  --from {} takes a network whole, its last layer too: train on as many classes, or "
        "load a part of it in a program",
        what, flags.from));
  }
  agree(model.weights_sha256());
}

// Collective over workers; worker 0 writes and prints, or the lowest that is left.
int train_here(const TrainFlags& flags, Plan& plan) {
  Strategy strategy(plan.strategy);
  const bool chief = strategy.world().chief, speaks = flags.verbose > 0;
  Model model(strategy, [&plan] { return made_of(plan.network); }, model_layout(flags));
  take_weights(flags, strategy, model);
  model.compile(plan.compile);
  plan.out.know();
  if (chief && speaks) announce(flags, plan, strategy);

  if (!flags.out.empty() && chief) write_spec(flags, plan);
  const History history = fit(flags, model, plan);
  Outputs outputs;
  for (const std::string& why : history.lost) outputs.attempt("", [&] { throw Error(why); });
  const bool has_folder =
      !flags.out.empty() && outputs.attempt("", [&] { keep_folder(plan.out, strategy, flags); });
  if (has_folder) outputs.attempt(weights_file(flags), [&] { model.save(weights_file(flags)); });
  const std::string sha256 = model.weights_sha256();
  const int64_t wire_bytes = model.optimizer().wire_bytes_per_step();
  const Attendance there = attendance_of(strategy);
  strategy.by_chief([&] {
    if (has_folder) {
      outputs.attempt(spec_files(flags).front(), [&] { write_spec(flags, plan); });
      outputs.attempt(history_file(flags), [&] { history.save_csv(history_file(flags)); });
      outputs.attempt(picture_file(flags), [&] { history.plot(picture_file(flags)); });
    }
    const bool has_figures = !flags.json.empty() && outputs.attempt("", [&] {
      const auto json =
          figures_of(flags, plan.spec, strategy, model, history, sha256, there, wire_bytes);
      write_file_atomically(flags.json, json_text(json, 2) + "\n");
    });
    if (speaks)
      say_what_came_out(flags, plan.spec, strategy, history, outputs.saved(), has_figures);
    if (there.finished < there.workers)
      say("{} of {} workers came to the end\n", there.finished, there.workers);
  });
  outputs.require_all();
  return 0;
}

// The trace comes last: it shows the end of the strategy, and nothing is lost with it.
int train_traced(const TrainFlags& flags, Plan& plan) {
  install_stop_handler();
  if (flags.trace.empty()) return train_here(flags, plan);
  const auto job = job_of_this_process();
  RunningTrace trace(flags.trace, job ? job->worker : 0);
  const int exit_code = train_here(flags, plan);
  trace.end();
  return exit_code;
}

int train(TrainFlags& flags) {
  Plan plan = make_plan(flags);
  if (!starts_workers(flags.job)) return train_traced(flags, plan);
  return run_as_workers("train", flags.job, num_workers_of(flags.job), plan.out.environment());
}

}  // namespace

void add_train(Command& program) {
  auto flags = std::make_shared<TrainFlags>();
  Command& command =
      program.command("train", "Train a model of the zoo on photos, tables, text, IDX or doodles");
  command.place("MODEL", &flags->job.model, model_or_export(),
                all_model_words() + "; or FILE.pt2, as python -m tutti.export writes it");
  add_train_flags(command, *flags);
  command.footer =
      "Examples:\n"
      "  tutti train doodle_cnn --data examples/data/quickdraw --strategy mirrored --replicas 2\n"
      "  tutti train resnet18 --data photos/train --validation photos/val --image-size 64 "
      "--augment --out runs/photos\n"
      "  tutti train linear_regression --data housing.csv --target median_house_value\n"
      "  tutti train gpt --data input.txt --context 64 --out runs/gpt\n"
      "  tutti train net.pt2 --eval-model net.eval.pt2 --data photos/train --out runs/net\n"
      "  tutti train mlp --data examples/data/quickdraw --epochs 3 --batch-size 256 --out "
      "runs/mlp\n"
      "  tutti train cnn --data examples/data/quickdraw --strategy multi_worker --replicas 2 "
      "--json cnn.json\n"
      "  tutti train cnn --data examples/data/quickdraw --out runs/cnn --checkpoint-every 500 "
      "--resume\n"
      "  tutti train cnn --data examples/data/quickdraw --schedule cosine --warm-up 100 "
      "--clip-global-norm 1 --early-stopping patience=3 --tensorboard runs/events\n"
      "  tutti train cnn --data examples/data/quickdraw --replicas 2 --batch-size 4096 --optimizer "
      "sgd --large-batch base=64,base_rate=0.05 --noise-scale\n"
      "  tutti train mlp --data examples/data/quickdraw --strategy mirrored --replicas 2 "
      "--compression topk:0.01\n"
      "  tutti train mlp --data examples/data/quickdraw --strategy parameter_server --servers 2 "
      "--replicas 3 --staleness inf\n\n"
      "N replicas give the same weights, bit for bit, as threads (mirrored), as processes\n"
      "(multi_worker) and in turn (one_device --replicas N). Exit codes: 0 done; 1 training "
      "failed;\n"
      "2 wrong usage or bad input, of samples too; 128+signal.";
  command.action = [flags] { return train(*flags); };
}

}  // namespace tutti::cli
