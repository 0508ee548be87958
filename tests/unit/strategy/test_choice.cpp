// What goes with what: every pair of what can be asked for, under every strategy, on CPUs and on
// GPUs.
//
// choices.txt is the oracle. A line of it has a letter a strategy, in the order of kKinds: + fine
// on both, c on CPUs, g on GPUs, - refused. Its first part is each one alone. A pair is fine where
// both are fine alone, but for those in its second part. With TUTTI_WRITE_PAGES=1 the file and the
// table in docs/guide/strategies.md are written anew: read what changed.
#include <gmock/gmock.h>

#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/typed.h"
#include "tutti/strategy/choice/choice.h"

#include "tests/support/message_of.h"

namespace tutti {
namespace {

using test::message_of;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

struct Request {
  StrategyOptions strategy;
  RecipeFacts recipe;
  FitFacts fit{
      .checkpoints = false, .best_kept = false, .loads_ahead = true, .recomputes_part = false};
  Machine machine{.workers = 2, .snapshots = ""};
};

struct Ask {
  std::string name;
  void (*of)(Request&) = nullptr;  // null: it is only typed
};

using R = Request;

std::vector<Ask> asks_of_a_strategy() {
  return {
      {"--engine hier", [](R& r) { r.strategy.engine = "hier"; }},
      {"--sum-order fixed", [](R& r) { r.strategy.sum_order = Order::fixed; }},
      {"--local-steps 4", [](R& r) { r.strategy.local = LocalUpdates{.every = 4}; }},
      {"--local-start 3"},
      {"--outer-learning-rate 0.7"},
      {"--outer-momentum 0.9"},
      {"--outer-nesterov"},
      {"--communication ring", [](R& r) { r.strategy.communication.implementation = "ring"; }},
      {"--communication tcp", [](R& r) { r.strategy.communication.implementation = "tcp"; }},
      {"--communication shm", [](R& r) { r.strategy.communication.implementation = "shm"; }},
      {"--communication hier", [](R& r) { r.strategy.communication.implementation = "hier"; }},
      {"--communication nccl", [](R& r) { r.strategy.communication.implementation = "nccl"; }},
      {"bytes_per_pack 4096", [](R& r) { r.strategy.communication.bytes_per_pack = 4096; }},
      {"communication.order any", [](R& r) { r.strategy.communication.order = Order::any; }},
      {"communication.order fixed", [](R& r) { r.strategy.communication.order = Order::fixed; }},
      {"--deterministic", [](R& r) { r.strategy.deterministic = true; }},
      {"--plugin cpu", [](R& r) { r.strategy.plugin = "cpu"; }},
      {"--memory-limit 8", [](R& r) { r.strategy.memory_limit_mib = 8; }},
      {"--step-graph", [](R& r) { r.strategy.step_graph = true; }},
      {"--replicas 2", [](R& r) { r.strategy.replicas = 2; }},
      {"--reduction-shape 2", [](R& r) { r.strategy.reduction_shape = "2"; }},
      {"--algorithm-table t", [](R& r) { r.strategy.table.rows.clear(); }},
      {"--reduction all_reduce", [](R& r) { r.strategy.reduction = "all_reduce"; }},
      {"--reduction to_one_device", [](R& r) { r.strategy.reduction = "to_one_device"; }},
      {"a reduction of one's own",
       [](R& r) { r.strategy.make_reduction = [] { return nullptr; }; }},
      {"--compression bf16",
       [](R& r) { r.strategy.compression.kind = Compression::Kind::bfloat16; }},
      {"--compression topk", [](R& r) { r.strategy.compression.kind = Compression::Kind::top_k; }},
      {"--compression-start 3", [](R& r) { r.strategy.compression.start_step = 3; }},
      {"--staleness 2", [](R& r) { r.strategy.served.staleness = ps::Staleness(2); }},
      {"--staleness inf", [](R& r) { r.strategy.served.staleness = ps::Staleness::unbounded(); }},
      {"--drop-slowest 1", [](R& r) { r.strategy.served.drop_slowest = 1; }},
      {"--on-lost-worker wait",
       [](R& r) { r.strategy.served.on_lost_worker = ps::OnLostWorker::wait; }},
      {"--scale-by-staleness", [](R& r) { r.strategy.served.scale_by_staleness = true; }},
      {"--delay-compensation 0.5", [](R& r) { r.strategy.served.delay_compensation = 0.5; }},
      {"--placement round_robin",
       [](R& r) { r.strategy.served.placement.how = ps::PlacementOptions::How::round_robin; }},
      {"--partition max:4M",
       [](R& r) { r.strategy.served.placement.partitioner = ps::Partitioner::max_part(4 << 20); }},
      {"--host-sums off", [](R& r) { r.strategy.served.host_sums = false; }},
      {"stop_if_not_finite off", [](R& r) { r.strategy.served.stop_if_not_finite = false; }},
      {"--piece-mib 2", [](R& r) { r.strategy.piece_bytes = 2 << 20; }},
      {"--mesh stage=2", [](R& r) { r.strategy.mesh = "data=2,stage=2"; }},
      {"--mesh tensor=2", [](R& r) { r.strategy.mesh = "tensor=2"; }},
      {"--mesh shard=2", [](R& r) { r.strategy.mesh = "shard=2"; }},
      {"--shard state", [](R& r) { r.strategy.shard = "state"; }},
      {"--shard gradients", [](R& r) { r.strategy.shard = "gradients"; }},
      {"--shard parameters", [](R& r) { r.strategy.shard = "parameters"; }},
      {"shard_bucket_bytes 64", [](R& r) { r.strategy.shard_bucket_bytes = 64; }},
      {"--tensor-blocks 2", [](R& r) { r.strategy.tensor_blocks = 2; }},
      {"shares in numbers", [](R& r) { r.strategy.shares = {2, 1}; }},
      {"shares by speed", [](R& r) { r.strategy.by_speed.emplace(); }},
      {"shares of a file", [](R& r) { r.strategy.shares_file = "shares.json"; }},
      {"alone", [](R& r) { r.strategy.alone = true; }},
  };
}

std::vector<Ask> asks_of_a_recipe() {
  return {
      {"a torch optimizer", [](R& r) { r.recipe.torch_optimizer = true; }},
      {"muon",
       [](R& r) {
         r.recipe.torch_optimizer = true;
         r.recipe.more_than_a_rule = "optimizer muon, which needs whole parameters";
       }},
      {"a reduction with the optimizer", [](R& r) { r.recipe.own_reduction = true; }},
      {"clipping",
       [](R& r) {
         r.recipe.more_than_a_rule = "clipping by norm";
         r.recipe.clips_or_groups = true;
       }},
      {"an embedding table", [](R& r) { r.recipe.table = "words"; }},
      {"--precision bfloat16", [](R& r) { r.recipe.precision = "bfloat16"; }},
      {"--precision float16", [](R& r) { r.recipe.precision = "float16"; }},
      {"--steps-per-execution 4", [](R& r) { r.recipe.steps_per_execution = 4; }},
      {"--loss-scaling", [](R& r) { r.recipe.scales_losses = true; }},
      {"a loss that counts labels", [](R& r) { r.recipe.counts_labels = true; }},
      {"--noise-scale", [](R& r) { r.recipe.measures.noise_scale = true; }},
      {"SyncBatchNorm", [](R& r) { r.recipe.meets_in_forward = true; }},
  };
}

std::vector<Ask> asks_of_a_training() {
  return {
      {"--accumulate 2", [](R& r) { r.fit.accumulate = 2; }},
      {"--microbatches 2", [](R& r) { r.fit.microbatches = 2; }},
      {"--slow-worker 0:2", [](R& r) { r.fit.slows = true; }},
      {"a model in parts", [](R& r) { r.fit.in_parts = true; }},
      {"on_bad", [](R& r) { r.fit.replaces_damaged = true; }},
      {"validation_split", [](R& r) { r.fit.splits_validation = true; }},
      {"validation", [](R& r) { r.fit.validates = true; }},
      {"resize", [](R& r) { r.fit.resizes = true; }},
      {"restore_best_weights", [](R& r) { r.fit.restores_best = true; }},
      {"--early-stopping", [](R& r) { r.fit.decides = "--early-stopping"; }},
      {"a coordinator", [](R& r) { r.machine.coordinated = true; }},
      {"a coordinator, --staleness inf",
       [](R& r) {
         r.machine.coordinated = true;
         r.strategy.served.staleness = ps::Staleness::unbounded();
       }},
      {"--servers 1"},
      {"--restarts 1"},
      {"--no-backups"},
      {"--restore s"},
      {"--record-order o"},
      {"--replay-order o"},
      {"--snapshots s", [](R& r) { r.machine.snapshots = "s"; }},
      {"--snapshot-every 1"},
      {"--snapshots-kept 2"},
      {"--pipeline 1f1b"},
      {"--cut dense_1"},
      {"--dense-kernel blas", [](R& r) { r.strategy.typed.emplace_back("--dense-kernel blas"); }},
      {"--recompute full"},
      {"--recompute blocks",
       [](R& r) {
         r.strategy.typed.emplace_back("--recompute blocks");
         r.fit.recomputes_part = true;
       }},
      {"--out o", [](R& r) { r.fit.checkpoints = !r.strategy.uses_servers(); }},
      {"--keep-checkpoints 3"},
      {"--disk-limit 600"},
      {"--resume"},
      {"--checkpoint-every 2"},
      {"--keep-best 1",
       [](R& r) {
         r.strategy.typed.emplace_back("--keep-best 1");
         r.fit.best_kept = true;
       }},
      {"--best-by loss"},
      {"--grace 2"},
      {"--schedule piecewise_constant", [](R& r) { r.recipe.schedule = "piecewise_constant"; }},
      {"--schedule cosine", [](R& r) { r.recipe.schedule = "cosine"; }},
      {"--learning-rate 0.1", [](R& r) { r.recipe.rate_given = true; }},
      {"--warm-up 3", [](R& r) { r.recipe.warms_up = true; }},
      {"--reduce-on-plateau", [](R& r) { r.recipe.rate_on_plateau = true; }},
      {"--large-batch base=64", [](R& r) { r.recipe.large_batch = true; }},
      {"--large-batch base_rate=0.1",
       [](R& r) { r.recipe.large_batch = r.recipe.rate_of_base = true; }},
      {"--workers 0", [](R& r) { r.fit.loads_ahead = false; }},
      {"--loader-memory 8"},
      {"--ahead 1"},
  };
}

const std::vector<Ask>& asks() {
  static const std::vector<Ask> all = [] {
    std::vector<Ask> joined;
    for (const auto& some : {asks_of_a_strategy(), asks_of_a_recipe(), asks_of_a_training()})
      joined.insert(joined.end(), some.begin(), some.end());
    return joined;
  }();
  return all;
}

constexpr const char* kKinds[] = {"one_device",      "mirrored",         "multi_worker",
                                  "central_storage", "parameter_server", "tpu"};

// "" where it is fine.
std::string answer(const char* kind, const char* device, const std::vector<const Ask*>& asked) {
  Request request{.strategy = {.kind = kind, .device = device}};
  for (const Ask* const ask : asked)
    if (ask->of != nullptr)
      ask->of(request);
    else
      request.strategy.typed.push_back(ask->name);
  try {
    choose(request.strategy, request.recipe, request.fit, request.machine);
    return "";
  } catch (const UsageError& error) {
    return error.what();
  }
}

// All that is said of a pair, or of one, and a letter a strategy.
struct Answers {
  std::string letters;
  std::vector<std::string> refusals;
};

Answers answers(const std::vector<const Ask*>& asked) {
  Answers all;
  for (const char* const kind : kKinds) {
    const std::string on_cpus = answer(kind, "cpu", asked), on_gpus = answer(kind, "cuda", asked);
    all.letters += on_cpus.empty() ? (on_gpus.empty() ? '+' : 'c') : (on_gpus.empty() ? 'g' : '-');
    for (const std::string& words : {on_cpus, on_gpus})
      if (!words.empty()) all.refusals.push_back(words);
  }
  return all;
}

// Of two that have nothing to do with each other.
std::string both(const std::string& one, const std::string& other) {
  std::string letters;
  for (size_t i = 0; i < one.size(); ++i)
    letters += one[i] == other[i] || other[i] == '+' ? one[i] : one[i] == '+' ? other[i] : '-';
  return letters;
}

// Two values of one option are no pair.
bool are_one_option(const Ask& one, const Ask& other) {
  return one.name.starts_with("--") &&
         one.name.substr(0, one.name.find(' ')) == other.name.substr(0, other.name.find(' '));
}

std::string line_of(const std::string& names, const std::string& letters) {
  return letters + " " + names + "\n";
}

bool writes() { return std::getenv("TUTTI_WRITE_PAGES") != nullptr; }

const std::string kOracle = TUTTI_SOURCE_DIR "/tests/unit/strategy/choices.txt";
const std::string kPage = TUTTI_SOURCE_DIR "/docs/guide/strategies.md";

struct Tried {
  std::string said;  // as in choices.txt
  std::vector<std::string> refusals;
};

Tried try_all() {
  Tried tried{.said = "Each alone.\n"};
  std::vector<std::string> alone;
  const auto add = [&](const std::string& names, Answers answers, const std::string& otherwise) {
    if (answers.letters != otherwise) tried.said += line_of(names, answers.letters);
    std::ranges::move(answers.refusals, std::back_inserter(tried.refusals));
    return answers.letters;
  };
  for (const Ask& ask : asks()) alone.push_back(add(ask.name, answers({&ask}), ""));
  tried.said += "Pairs that are not as two that have nothing to do with each other.\n";
  for (size_t i = 0; i < asks().size(); ++i)
    for (size_t j = i + 1; j < asks().size(); ++j) {
      const Ask &one = asks()[i], &other = asks()[j];
      if (are_one_option(one, other)) continue;
      add(one.name + " + " + other.name, answers({&one, &other}), both(alone[i], alone[j]));
    }
  return tried;
}

const Tried& tried() {
  static const Tried all = try_all();
  return all;
}

TEST(Choice, EveryPairIsFineOrRefusedAsWritten) {
  if (writes()) write_file_atomically(kOracle, tried().said);
  std::multiset<std::string> expected, got;
  const std::string oracle = read_file(kOracle);
  for (const std::string_view line : parts_of(oracle, '\n')) expected.emplace(line);
  for (const std::string_view line : parts_of(tried().said, '\n')) got.emplace(line);
  for (const std::string& line : got)
    if (!expected.contains(line)) ADD_FAILURE() << "not in choices.txt: " << line;
  for (const std::string& line : expected)
    if (!got.contains(line)) ADD_FAILURE() << "in choices.txt, and is not so: " << line;
}

// Those behind "{one}" and the like.
std::vector<std::string> constant_parts(std::string_view text) {
  std::vector<std::string> parts;
  for (const std::string_view part : parts_of(text, '{'))
    parts.emplace_back(part.substr(parts.empty() ? 0 : part.find('}') + 1));
  return parts;
}

bool says(const std::string& refusal, const Rule& rule) {
  const auto letters = [](std::string_view words) {
    return words.substr(words.find_first_not_of('-'));
  };
  const std::string_view flag = rule.one.name.substr(0, rule.one.name.find(' '));
  if (flag.starts_with("--") && !letters(refusal).starts_with(letters(flag))) return false;
  if ((rule.together == Together::needed) != (refusal.find(" under ") < refusal.find(": ")))
    return false;
  return std::ranges::all_of(constant_parts(rule.why), [&](const std::string& part) {
    return refusal.find(part) != std::string::npos;
  });
}

TEST(Choice, EveryRuleIsSaidForSomePair) {
  for (const Rule& rule : rules()) {
    if (rule.other.name.find("independent") != std::string_view::npos) continue;  // below
    EXPECT_TRUE(std::ranges::any_of(tried().refusals,
                                    [&](const std::string& said) { return says(said, rule); }))
        << rule.one.name << ", " << rule.other.name;
  }
}

TEST(Choice, EveryRefusalSaysWhatWhyAndWhatToTry) {
  const std::set<std::string> all(tried().refusals.begin(), tried().refusals.end());
  for (const std::string& words : all)
    EXPECT_THAT(words, AllOf(HasSubstr(": "),
                             testing::ContainsRegex("[;,:] (leave|use|give|take|train|"
                                                    "say|so only|nothing|expected)"),
                             testing::Not(HasSubstr("{"))));
}

TEST(Choice, WhatIndependentReplicasDoNotShareIsRefused) {
  for (const StrategyOptions& options :
       {StrategyOptions{.kind = "independent", .mesh = "stage=2"},
        StrategyOptions{.kind = "independent", .shard = "state"},
        StrategyOptions{.kind = "independent", .shares = {2, 1}},
        StrategyOptions{.kind = "independent",
                        .compression = {.kind = Compression::Kind::bfloat16}}})
    EXPECT_THAT(message_of<UsageError>([&] { require_together(options); }),
                HasSubstr("replicas of strategy independent "));
}

// What programs set and nothing would go by.
TEST(Choice, OptionsOfCommunicationThatHaveNoPartAreRefused) {
  const auto why = [](StrategyOptions options, const CommunicationOptions& communication,
                      const Machine& machine = {}) {
    options.communication = communication;
    return message_of<UsageError>([&] { choose(options, {}, {}, machine); });
  };
  for (const char* kind : {"parameter_server", "central_storage", "tpu"})
    EXPECT_THAT(why({.kind = kind}, {.bytes_per_pack = 4096}), StartsWith("bytes_per_pack 4096: "))
        << kind;
  EXPECT_THAT(why({.kind = "mirrored", .local = LocalUpdates{}}, {.bytes_per_pack = 4096}),
              HasSubstr("exchange no gradients then"));
  EXPECT_THAT(why({.kind = "mirrored", .shard = "state"}, {.bytes_per_pack = 4096}),
              HasSubstr("packs of shard_bucket_bytes"));
  for (const char* kind : {"mirrored", "one_device", "parameter_server"})
    EXPECT_THAT(why({.kind = kind}, {.order = Order::any}),
                HasSubstr("communication.order any under " + std::string(kind)));
  EXPECT_THAT(why({.kind = "multi_worker", .device = "cuda"},
                  {.implementation = "hier", .order = Order::fixed}, {.gpus = true}),
              StartsWith("--communication hier: NCCL adds inside each host"));
  for (const CommunicationOptions& communication :
       {CommunicationOptions{.bytes_per_pack = 4096}, CommunicationOptions{.order = Order::any}}) {
    StrategyOptions options{.kind = "multi_worker"};
    options.communication = communication;
    EXPECT_NO_THROW(choose(options));
  }
}

TEST(Choice, WhatWasTypedCountsWithTheValueThatItHasAnyway) {
  const struct {
    const char* typed;
    const char* kind;
    const char* answer;
  } cases[] = {
      {"--engine nccl", "mirrored", "--engine nccl under mirrored: it adds up the gradients"},
      {"--communication auto", "one_device",
       "--communication auto under one_device: it is of grad"},
      {"--sum-order any", "multi_worker", "--sum-order any under multi_worker: it is of NCCL"},
      {"--compression-start 0", "mirrored",
       "--compression-start 0 under mirrored: it is the first"},
      {"--reduction fused", "parameter_server", "--reduction fused under parameter_server: "},
      {"--staleness 0", "one_device", "--staleness 0 under one_device: it says what parameter"},
      {"--host-sums on", "multi_worker", "--host-sums on under multi_worker: "},
      {"--placement greedy", "mirrored", "--placement greedy under mirrored: "},
  };
  for (const auto& [typed, kind, answer] : cases) {
    const std::string flag = std::string(typed).substr(0, std::string(typed).find(' '));
    const StrategyOptions options{.kind = kind, .typed = {typed}};
    EXPECT_THAT(message_of<UsageError>([&] { choose(options); }),
                AllOf(StartsWith(answer), testing::EndsWith("; leave " + flag + " out")));
  }
}

// Before it is known whether there are GPUs, and once it is that nobody adds up by NCCL.
TEST(Choice, GraceIsForProcessesOfOnesOwnAndForCheckpoints) {
  StrategyOptions options{.kind = "multi_worker"};
  options.typed = {"--grace 2"};
  const auto ask = [&](bool launched, bool checkpoints) {
    require_together(options, {}, {.checkpoints = checkpoints},
                     {.workers = 2, .launched = launched});
  };
  EXPECT_NO_THROW(ask(false, false));
  EXPECT_NO_THROW(ask(true, true));
  EXPECT_THAT(message_of<UsageError>([&] { ask(true, false); }),
              HasSubstr("--grace 2 under multi_worker: it has to end nobody but itself"));
}

TEST(Choice, WhatMeetsInForwardIsRefusedOnlyWhereSomeMayNotCome) {
  const RecipeFacts recipe{.meets_in_forward = true};
  StrategyOptions served{.kind = "parameter_server"};
  served.served.on_lost_worker = ps::OnLostWorker::go_on;
  EXPECT_NO_THROW(require_together(served, recipe, {}, {.workers = 1}));
  EXPECT_THAT(message_of<UsageError>([&] { require_together(served, recipe, {}, {.workers = 2}); }),
              HasSubstr("not all of its replicas come to every step"));
  const StrategyOptions stages{.kind = "one_device", .replicas = 2, .mesh = "stage=2"};
  EXPECT_NO_THROW(require_together(stages, recipe));
  const StrategyOptions turns{.kind = "one_device", .replicas = 2, .mesh = "data=2"};
  EXPECT_THAT(message_of<UsageError>([&] { require_together(turns, recipe); }),
              HasSubstr("take turns"));
}

TEST(Choice, OptionsOfNcclAreRefusedOnceItIsKnownThatNobodyHasIt) {
  const StrategyOptions options{
      .kind = "multi_worker", .device = "auto", .typed = {"--engine nccl"}};
  EXPECT_NO_THROW(choose(options));
  EXPECT_THAT(message_of<UsageError>([&] { choose(options, {}, {}, {.nccl = false}); }),
              HasSubstr("--engine nccl under multi_worker: "));
}

TEST(Choice, SaysWhichUpdaterAndWhyTheCpuHasIt) {
  const struct {
    StrategyOptions options;
    RecipeFacts recipe;
    Machine machine;
    UpdaterKind updater;
    const char* why;
  } cases[] = {
      {{}, {}, {}, UpdaterKind::shared, ""},
      {{.kind = "mirrored", .shard = "state"}, {}, {}, UpdaterKind::sharded, ""},
      {{.shard = "state"}, {}, {}, UpdaterKind::shared, ""},
      {{.kind = "mirrored", .reduction = "all_reduce"}, {}, {}, UpdaterKind::replicated, ""},
      {{.kind = "mirrored"}, {.torch_optimizer = true}, {}, UpdaterKind::replicated, ""},
      {{.kind = "parameter_server"}, {}, {}, UpdaterKind::served, ""},
      {{.device = "cuda"}, {}, {}, UpdaterKind::on_devices, ""},
      {{.device = "auto"}, {}, {.gpus = true}, UpdaterKind::on_devices, ""},
      {{.device = "auto"}, {}, {.gpus = false}, UpdaterKind::shared, ""},
      {{.kind = "mirrored", .device = "auto", .shard = "state"}, {}, {}, UpdaterKind::sharded, ""},
      {{.device = "cuda"}, {}, {.not_there = "of a lion"}, UpdaterKind::shared, "of a lion"},
      {{.kind = "mirrored", .device = "cuda", .reduction = "to_one_device"},
       {},
       {},
       UpdaterKind::replicated,
       "reduction to_one_device was chosen"},
      {{.device = "cuda"}, {.torch_optimizer = true}, {}, UpdaterKind::replicated, "a torch opt"},
      {{.device = "cuda"}, {.own_reduction = true}, {}, UpdaterKind::replicated, "a reduction was"},
      {{.kind = "parameter_server", .device = "cuda"},
       {},
       {},
       UpdaterKind::served,
       "parameter ser"},
      {{.kind = "central_storage", .device = "cuda"},
       {},
       {.several_devices = true},
       UpdaterKind::shared,
       "central_storage keeps"},
  };
  for (const auto& [options, recipe, machine, updater, why] : cases) {
    const Choice choice = choose(options, recipe, {}, machine);
    EXPECT_EQ(choice.updater, updater) << options.kind << " " << options.device;
    EXPECT_THAT(choice.why, StartsWith(why));
    EXPECT_EQ(choice.staged, !choice.why.empty());
  }
}

// "--shares by-speed" as "`--shares` by-speed".
std::string in_markdown(std::string_view name) {
  if (!name.starts_with("--")) return std::string(name);
  const size_t end = std::min(name.find(' '), name.size());
  return "`" + std::string(name.substr(0, end)) + "`" + std::string(name.substr(end));
}

std::string table_in_markdown() {
  std::vector<std::string> order;
  std::map<std::string, std::pair<std::string, std::string>> by_one;
  for (const Rule& rule : rules()) {
    const std::string one = in_markdown(rule.one.name);
    if (!by_one.contains(one)) order.push_back(one);
    std::string& cell = rule.together == Together::never ? by_one[one].first : by_one[one].second;
    cell += (cell.empty() ? "" : "; ") + in_markdown(rule.other.name);
  }
  std::string text = "| | not with | only with |\n|---|---|---|\n";
  for (const std::string& one : order)
    text += "| " + one + " | " + by_one[one].first + " | " + by_one[one].second + " |\n";
  return text;
}

TEST(Choice, ThePageHasTheTable) {
  const std::string begin = "<!-- the table of tutti/strategy/choice/rules.cpp -->\n";
  const std::string end = "<!-- its end -->\n";
  std::string page = read_file(kPage);
  const size_t from = page.find(begin) + begin.size(), to = page.find(end);
  ASSERT_LE(from, to);
  if (writes())
    write_file_atomically(kPage, page.replace(from, to - from, table_in_markdown()));
  else
    EXPECT_EQ(page.substr(from, to - from), table_in_markdown())
        << "TUTTI_WRITE_PAGES=1 build/bin/test_strategy --gtest_filter='Choice.*'";
}

}  // namespace
}  // namespace tutti
