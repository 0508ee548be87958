// tutti train: trains a model of the zoo on a folder of doodles, under any strategy.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/base/agreed_lines.h"
#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/json.h"
#include "tutti/base/standard_streams.h"
#include "tutti/base/stop.h"
#include "tutti/cli/arguments.h"
#include "tutti/cli/commands.h"
#include "tutti/cli/outputs.h"
#include "tutti/cli/results.h"
#include "tutti/cli/train/figures.h"
#include "tutti/cli/train/files.h"
#include "tutti/cli/train/flags.h"
#include "tutti/cli/train/job.h"
#include "tutti/cli/train/network.h"
#include "tutti/cli/train/network_module.h"
#include "tutti/cli/train/settled.h"
#include "tutti/cluster/join/join.h"
#include "tutti/nn/dense_kernel.h"
#include "tutti/observe/trace.h"
#include "tutti/ps/client/client.h"
#include "tutti/queues/config.h"
#include "tutti/sync/tensors.h"
#include "tutti/train/model/detail/adapters.h"
#include "tutti/train/model/detail/agreement.h"
#include "tutti/train/model/detail/model_state.h"
#include "tutti/train/model/model.h"
#include "tutti/train/model/weights.h"

namespace tutti::cli {
namespace {

// Those of this worker's replicas: "cuda:0, cuda:1".
std::string places_words(const World& world) {
  std::vector<std::string> names;
  for (const DeviceQueue& queue : world.queues) names.push_back(queue.device().str());
  return fmt::format("{}", fmt::join(names, ", "));
}

void announce(const TrainFlags& flags, const TrainPlan& plan, const Strategy& strategy) {
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
  if (!flags.lora.empty())
    say_line("adapters: {} of the parameters are trained, beside {} matrices that stay",
             with_commas(static_cast<double>(plan.network.num_trained())),
             plan.network.adapters().size());
  if (!flags.freeze.empty())
    say_line("frozen: {} of the parameters",
             with_commas(static_cast<double>(plan.network.num_frozen())));
  if (flags.accumulate > 1)
    say("an update every {} batches; steps are updates\n", flags.accumulate);
  if (flags.precision != "float32")
    say("forward and backward in {}, parameters in float32\n", flags.precision);
  if (const auto& rate = plan.compile.learning_rate)
    say("learning rate: {}, {:.6g} in the first step\n", rate->name(), (*rate)(0));
  if (const CommunicationFacts& facts = strategy.options().communication.chosen;
      facts.asked != "auto")
    say("communication: {}\n", sentence_of(facts));
  if (const auto& local = strategy.options().local)
    say("replicas average every {} updates from update {} on: outer learning rate {}, momentum "
        "{}{}\n",
        local->every, local->start_step, local->outer.learning_rate, local->outer.momentum,
        local->outer.nesterov ? " (Nesterov)" : "");
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

// Once nothing refuses the training, for what is there may be an earlier one's, and before its
// first checkpoint, which others may read at once; and after the last: somebody may have removed
// the folder meanwhile.
void write_spec(const TrainFlags& flags, const TrainPlan& plan) {
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
History fit(const TrainFlags& flags, Model& model, const TrainPlan& plan) {
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

// Collective over workers.
ModelState adapters_to_save(const TrainFlags& flags, const Model& model) {
  if (flags.out.empty() || flags.lora.empty()) return {};
  return {unique_parameters(*model.modules().module(0)), model.modules().merged_buffers()};
}

// Without --lora what an earlier training has left is no more of these weights.
void write_adapters(const TrainFlags& flags, const Model& model, const ModelState& adapters,
                    Outputs& outputs) {
  const auto file = adapters_file(flags);
  if (flags.lora.empty())
    outputs.attempt("", [&] { std::filesystem::remove(file); });
  else
    outputs.attempt(file, [&] {
      detail::save_adapters(*detail::adapted(*model.modules().module(0)), adapters, file);
    });
}

// Collective over workers; worker 0 writes and prints, or the lowest that is left.
int train_here(const TrainFlags& flags, TrainPlan& plan) {
  Strategy strategy(plan.strategy);
  const bool chief = strategy.world().chief, speaks = flags.verbose > 0;
  Model model(strategy, [&plan] { return made_of(plan.network); }, model_layout(flags));
  take_weights(flags, strategy, model);
  model.compile(plan.compile);
  plan.out.know();
  if (chief && speaks) announce(flags, plan, strategy);

  if (!flags.out.empty()) plan.fit.when_begun = [&] { write_spec(flags, plan); };
  const History history = fit(flags, model, plan);
  Outputs outputs;
  for (const std::string& why : history.lost) outputs.attempt("", [&] { throw Error(why); });
  const bool has_folder =
      !flags.out.empty() && outputs.attempt("", [&] { keep_folder(plan.out, strategy, flags); });
  if (has_folder) outputs.attempt(weights_file(flags), [&] { model.save(weights_file(flags)); });
  const ModelState adapters = adapters_to_save(flags, model);
  const std::string sha256 = model.weights_sha256();
  const int64_t wire_bytes = model.optimizer().wire_bytes_per_step();
  const Attendance there = attendance_of(strategy);
  strategy.by_chief([&] {
    if (has_folder) {
      outputs.attempt(spec_files(flags).front(), [&] { write_spec(flags, plan); });
      write_adapters(flags, model, adapters, outputs);
      outputs.attempt(history_file(flags), [&] { history.save_csv(history_file(flags)); });
      outputs.attempt(picture_file(flags), [&] { history.plot(picture_file(flags)); });
    }
    const bool has_figures = !flags.json.empty() && outputs.attempt("", [&] {
      auto json = figures_of(flags, plan.spec, strategy, model, history, sha256, there, wire_bytes);
      json["parameters"] = plan.network.num_parameters();
      json["parameters_trained"] = plan.network.num_trained();
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
int train_traced(const TrainFlags& flags, TrainPlan& plan) {
  install_stop_handler();
  if (flags.trace.empty()) return train_here(flags, plan);
  const auto job = job_of_this_process();
  RunningTrace trace(flags.trace, job ? job->worker : 0);
  const int exit_code = train_here(flags, plan);
  trace.end();
  return exit_code;
}

int train(TrainFlags& flags) {
  TrainPlan plan = settle(flags);
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
      "  tutti train net.pt2 --lora \"*.attn.*:rank=8\" --data input.txt --out runs/adapted\n"
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
