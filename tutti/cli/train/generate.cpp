// tutti generate: a model that was trained on text writes on.
#include "tutti/models/generate.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <cstdio>
#include <limits>
#include <memory>
#include <string>

#include "tutti/base/error.h"
#include "tutti/base/idle.h"
#include "tutti/base/standard_streams.h"
#include "tutti/base/stop.h"
#include "tutti/cli/arguments.h"
#include "tutti/cli/checks.h"
#include "tutti/cli/commands.h"
#include "tutti/cli/train/checkpoints.h"
#include "tutti/cli/train/device_flags.h"
#include "tutti/cli/train/network.h"
#include "tutti/cli/train/network_module.h"
#include "tutti/data/sources/text.h"
#include "tutti/train/model/model.h"

namespace tutti::cli {
namespace {

struct GenerateFlags {
  std::string weights;
  std::string prompt = "\n";
  models::GenerateOptions options;
  int64_t threads = 1;  // of which one sample at a time makes little use
  DeviceFlags devices;
};

DataSpec spec_of(const GenerateFlags& flags) {
  if (checkpoints_in(flags.weights).empty())
    throw UsageError(
        fmt::format("{}: no weights are there; expected the folder that --out of tutti train gpt "
                    "was given, or a checkpoint in it",
                    flags.weights));
  const auto spec = spec_beside(flags.weights);
  if (!spec)
    throw UsageError(fmt::format(
        "{}: there is no {} beside it, which has the characters; tutti train gpt --out DIR writes "
        "it",
        flags.weights, kDataSpecFile));
  if (!spec->of_text())
    throw UsageError(fmt::format("{}: was trained on {}, not on text", flags.weights,
                                 data::name_of(spec->kind)));
  return *spec;
}

const std::vector<NeededBy<GenerateFlags>>& needs_of_generating() {
  constexpr std::string_view kOfDrawing = "--top-k 1 takes the likeliest: nothing is drawn";
  static const auto draws = [](const GenerateFlags& flags) { return flags.options.top_k != 1; };
  static const std::vector<NeededBy<GenerateFlags>> rows = {{"--temperature", draws, kOfDrawing},
                                                            {"--seed", draws, kOfDrawing}};
  return rows;
}

int generate(GenerateFlags& flags) {
  const DataSpec spec = spec_of(flags);
  if (flags.prompt.empty()) throw UsageError("--prompt: is empty; expected a character or more");
  if (flags.options.top_k > std::ssize(spec.classes))
    throw UsageError(fmt::format("--top-k {}: the text has {} characters", flags.options.top_k,
                                 spec.classes.size()));
  const auto prompt = data::text_labels(flags.prompt, spec.classes, "--prompt");
  const Network network = network_beside(spec, "", flags.weights);
  if (network.exported && num_outputs(*network.exported) != std::ssize(spec.classes))
    throw UsageError(fmt::format(
        "WEIGHTS {}: {} gives {} logits a position, the text has {} characters: it could write "
        "what "
        "is none; export it for as many",
        flags.weights, spec.model, num_outputs(*network.exported), spec.classes.size()));
  flags.options.context = spec.shape.at(0);
  StrategyOptions options{.threads_per_replica = static_cast<int>(flags.threads), .alone = true};
  take_devices(flags.devices, options);
  Model model(Strategy(options), [&] { return made_of(network); });
  model.load(checkpoints_in(flags.weights).back().path);
  at::set_num_threads(static_cast<int>(flags.threads));
  install_stop_handler();
  fmt::print("{}", flags.prompt);
  models::generate(model, prompt, flags.options, [&](int64_t token) {
    throw_if_stop_requested("generate");
    fmt::print("{}", spec.classes[static_cast<size_t>(token)]);
    flush_results();
  });
  fmt::print("\n");
  return 0;
}

}  // namespace

void add_generate(Command& program) {
  auto flags = std::make_shared<GenerateFlags>();
  Command& command = program.command("generate", "Let a model that was trained on text write");
  command.place("WEIGHTS", &flags->weights, some_name(),
                "The folder that --out of tutti train gpt was given, or a checkpoint in it");
  command
      .add("--prompt", "TEXT", &flags->prompt,
           "What it goes on with, of the characters that it was trained on (default: a new "
           "line)")
      .preset = "";
  command.add("--tokens", "N", &flags->options.tokens, whole_number(1, int64_t{1} << 40),
              "Characters to add");
  command.add("--temperature", "T", &flags->options.temperature, positive_number(1e6),
              "Below 1 it is surer of itself, above more adventurous");
  command.add("--top-k", "K", &flags->options.top_k, whole_number(1, 1'000'000),
              "Each is one of the K likeliest (default: of all); 1: always the likeliest");
  command
      .add("--seed", "S", &flags->options.seed,
           whole_number(0, std::numeric_limits<int64_t>::max()), "The same seed: the same text")
      .preset = "0";
  add_device_flags(command, flags->devices);
  command.add("--threads", "T", &flags->threads, whole_number(1, 1024),
              "Of LibTorch; more help large models alone");
  command.footer =
      "Examples:\n"
      "  tutti generate runs/gpt --prompt \"ROMEO:\"\n"
      "  tutti generate runs/gpt --prompt \"ROMEO:\" --tokens 500 --temperature 0.8 --top-k 20 "
      "--seed 1";
  command.action = [&command, flags] {
    refuse_idle(command.typed(), *flags, needs_of_generating());
    return generate(*flags);
  };
}

}  // namespace tutti::cli
