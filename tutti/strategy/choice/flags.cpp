#include <algorithm>
#include <cmath>
#include <span>
#include <string_view>

#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/base/suggest.h"
#include "tutti/base/typed.h"
#include "tutti/strategy/choice/launched.h"
#include "tutti/strategy/choice/options.h"

namespace tutti {
namespace {

template <class Number>
Number number_of(std::string_view flag, std::string_view text, Number low) {
  const auto value = number_in<Number>(text);
  if (!value || *value < low)
    throw UsageError(fmt::format("{} {}: expected a number, {} or more", flag, text, low));
  return *value;
}

// More of them than any check allows are still a number of milliseconds.
Millis seconds_of(std::string_view flag, std::string_view text) {
  constexpr int64_t kBeyond = int64_t{1} << 40;
  return Millis(1000 * std::min(number_of<int64_t>(flag, text, 1), kBeyond));
}

// More than any check allows are still a number of bytes.
int64_t bytes_of_mib(std::string_view flag, std::string_view text) {
  constexpr double kBeyond = 1 << 20;
  const double mib = std::min(number_of<double>(flag, text, 0.0), kBeyond);
  return static_cast<int64_t>(std::ceil(mib * (1 << 20)));
}

bool on_or_off(std::string_view flag, std::string_view text) {
  if (text != "on" && text != "off")
    throw UsageError(fmt::format("{} {}: expected on or off", flag, text));
  return text == "on";
}

std::string engine_of(std::string_view flag, std::string_view text) {
  if (text != "nccl" && text != "hier")
    throw UsageError(fmt::format("{} {}: expected nccl or hier", flag, text));
  return std::string(text);
}

std::string implementation_of(std::string_view text) {
  const CommunicationOptions options{.implementation = std::string(text)};
  check_communication(options);
  return options.implementation;
}

Order order_of(std::string_view flag, std::string_view text) {
  if (text == "shape")
    log(LogLevel::warning, "{0} shape is {0} fixed now; shape goes with the next release", flag);
  else if (text != "any" && text != "fixed")
    throw UsageError(fmt::format("{} {}: expected any or fixed", flag, text));
  return text == "any" ? Order::any : Order::fixed;
}

// Those without a value.
constexpr std::string_view kSwitches[] = {"--scale-by-staleness", "--deterministic", "--step-graph",
                                          "--outer-nesterov"};

// The others do nothing without --local-steps, which require_together() says.
void apply_local(StrategyOptions& options, std::string_view flag, std::string_view value) {
  if (!flag.starts_with("--local-") && !flag.starts_with("--outer-")) return;
  LocalUpdates local = options.local.value_or(LocalUpdates{});
  if (flag == "--local-steps") local.every = number_of<int64_t>(flag, value, 1);
  if (flag == "--local-start") local.start_step = number_of<int64_t>(flag, value, 0);
  if (flag == "--outer-learning-rate")
    local.outer.learning_rate = number_of<double>(flag, value, 0.0);
  if (flag == "--outer-momentum") local.outer.momentum = number_of<double>(flag, value, 0.0);
  if (flag == "--outer-nesterov") local.outer.nesterov = true;
  options.local = local;
}

void apply(StrategyOptions& options, std::string_view flag, std::string_view value) {
  if (flag == "--strategy") options.kind = value;
  if (flag == "--replicas") options.replicas = number_of<int>(flag, value, 1);
  if (flag == "--reduction-shape") options.reduction_shape = value;
  if (flag == "--threads") options.threads_per_replica = number_of<int>(flag, value, 1);
  if (flag == "--device") options.device = value;
  if (flag == "--plugin") options.plugin = value;
  if (flag == "--memory-limit") options.memory_limit_mib = number_of<int64_t>(flag, value, 1);
  if (flag == "--time-limit") options.time_limit = seconds_of(flag, value);
  if (flag == "--shares") take_shares(value, options);
  if (flag == "--mesh") options.mesh = value;
  if (flag == "--shard") options.shard = value;
  if (flag == "--tensor-blocks") options.tensor_blocks = number_of<int>(flag, value, 1);
  if (flag == "--piece-mib") options.piece_bytes = bytes_of_mib(flag, value);
  if (flag == "--staleness") options.served.staleness = ps::Staleness::parse(value, flag);
  if (flag == "--drop-slowest") options.served.drop_slowest = number_of<int>(flag, value, 0);
  if (flag == "--host-sums") options.served.host_sums = on_or_off(flag, value);
  if (flag == "--on-lost-worker")
    options.served.on_lost_worker = ps::on_lost_worker_from(value, flag);
  if (flag == "--delay-compensation")
    options.served.delay_compensation = number_of<double>(flag, value, 0.0);
  if (flag == "--scale-by-staleness") options.served.scale_by_staleness = true;
  if (flag == "--deterministic") options.deterministic = true;
  if (flag == "--step-graph") options.step_graph = true;
  if (flag == "--placement")
    options.served.placement.how = ps::PlacementOptions::how_from(value, flag);
  if (flag == "--partition")
    options.served.placement.partitioner = ps::Partitioner::parse(value, flag);
  if (flag == "--seed") options.seed = number_of<uint64_t>(flag, value, 0);
  if (flag == "--reduction") options.reduction = value;
  if (flag == "--sum-order") {
    options.sum_order = order_of(flag, value);
    options.communication.order = options.sum_order;
  }
  if (flag == "--communication") options.communication.implementation = implementation_of(value);
  if (flag == "--engine") options.engine = engine_of(flag, value);
  if (flag == "--compression") {
    const int64_t start_step = options.compression.start_step;
    options.compression = compression_from(value);
    options.compression.start_step = start_step;
  }
  apply_local(options, flag, value);
  if (flag == "--algorithm-table") options.table = load_table(value);
  if (flag == "--compression-start")
    options.compression.start_step = number_of<int64_t>(flag, value, 0);
}

constexpr std::string_view kFlags[] = {
    "--strategy",    "--replicas",      "--reduction-shape",     "--threads",
    "--device",      "--plugin",        "--memory-limit",        "--time-limit",
    "--seed",        "--shares",        "--reduction",           "--sum-order",
    "--engine",      "--compression",   "--compression-start",   "--algorithm-table",
    "--staleness",   "--drop-slowest",  "--on-lost-worker",      "--delay-compensation",
    "--placement",   "--partition",     "--host-sums",           "--mesh",
    "--shard",       "--tensor-blocks", "--piece-mib",           "--communication",
    "--local-steps", "--local-start",   "--outer-learning-rate", "--outer-momentum"};

// Words that are near a flag of ours, and others.
constexpr std::string_view kOtherWords[] = {"--shared"};

bool is_in(std::span<const std::string_view> words, std::string_view word) {
  return std::ranges::find(words, word) != words.end();
}

// One mistake in six letters: that is no other word, and "--speed" is not "--seed".
void require_not_near(std::string_view name, std::string_view flag) {
  constexpr size_t kLettersAMistake = 6;
  const auto letters = [](std::string_view word) {
    return word.substr(std::min(word.find_first_not_of('-'), word.size()));
  };
  const size_t edits = edits_between(letters(name), letters(flag));
  if (name.starts_with('-') && edits <= letters(flag).size() / kLettersAMistake)
    throw UsageError(
        fmt::format("unknown flag {}; did you mean {}? One of the program's own comes after \"--\"",
                    name, flag));
}

// Programs have checkpoints and restarts of their own, too.
constexpr std::string_view kOrdinaryWords[] = {"--restore", "--restarts"};

bool is_typed(std::string_view flag, const StrategyOptions& options) {
  return std::ranges::any_of(
      options.typed, [&](std::string_view word) { return word.substr(0, word.find(' ')) == flag; });
}

void refuse_flag_of_servers(std::string_view name) {
  throw UsageError(fmt::format(
      "{}: servers are the launcher's: tutti run --servers S -n N PROGRAM ARGS..., where {} goes "
      "before PROGRAM; one of the program's own comes after \"--\"",
      name, name));
}

void require_the_programs_own(std::string_view name) {
  if (is_in(kOrdinaryWords, name)) return;
  if (is_in(kFlagsOfServers, name)) refuse_flag_of_servers(name);
  if (is_in(kOtherWords, name)) return;
  for (const std::string_view flag : kFlags) require_not_near(name, flag);
  for (const std::string_view flag : kSwitches) require_not_near(name, flag);
}

}  // namespace

StrategyOptions take_strategy_flags(int& argc, char** argv) {
  StrategyOptions options;
  std::string_view ordinary;
  int kept = 1;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    const std::string_view name = word.substr(0, word.find('='));
    if (word == "--") {
      while (i < argc) argv[kept++] = argv[i++];
      break;
    }
    if (is_in(kSwitches, word)) {
      apply(options, word, "");
      options.typed.emplace_back(word);
      continue;
    }
    if (!is_in(kFlags, name)) {
      require_the_programs_own(name);
      if (is_in(kOrdinaryWords, name)) ordinary = name;
      argv[kept++] = argv[i];
      continue;
    }
    const bool joined = name.size() < word.size();  // --flag=value
    if (!joined && i + 1 == argc) throw UsageError(fmt::format("{} needs a value", name));
    const std::string_view value = joined ? word.substr(name.size() + 1) : argv[++i];
    apply(options, name, value);
    options.typed.push_back(fmt::format("{} {}", name, value));
  }
  if (!is_typed("--local-steps", options)) options.local.reset();
  if (!ordinary.empty() && options.uses_servers()) refuse_flag_of_servers(ordinary);
  argc = kept;
  argv[argc] = nullptr;
  return options;
}

}  // namespace tutti
