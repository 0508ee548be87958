// Flags of `tutti train` beside the options of the library, as their headers have them.
#include <gmock/gmock.h>

#include <map>
#include <regex>
#include <set>

#include "tutti/base/error.h"
#include "tutti/base/typed.h"
#include "tutti/cli/arguments.h"
#include "tutti/cli/fields.h"
#include "tutti/cli/train/facts.h"
#include "tutti/cli/train/flags.h"
#include "tutti/cli/train/options.h"

#include "tests/support/message_of.h"
#include "tests/support/temp_folder.h"

namespace tutti::cli {
namespace {

using test::message_of;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;
using testing::UnorderedElementsAreArray;
using Names = std::vector<std::string>;

std::string code_of(const std::string& header) {
  const std::string text = test::get_bytes("tutti/" + header);
  EXPECT_FALSE(text.empty()) << header;
  return std::regex_replace(text, std::regex("//[^\n]*"), "");
}

// The data members of a struct without functions.
Names fields_of(const std::string& header, const std::string& name) {
  const std::string code = code_of(header);
  const size_t head = code.find("struct " + name + " {");
  EXPECT_NE(head, std::string::npos) << name;
  const size_t begin = code.find('{', head) + 1;
  const std::string body = code.substr(begin, code.find("\n};", begin) - begin);
  static const std::regex kMember(
      R"(^\s*(?:[\w:]|<[^;]*>|,|\s)+?\s(\w+)\s*(?:=[^;]*|\{[^;]*\})?$)");
  Names names;
  size_t at = 0;
  for (size_t end; (end = body.find(';', at)) != std::string::npos; at = end + 1) {
    std::smatch match;
    const std::string member = body.substr(at, end - at);
    if (std::regex_match(member, match, kMember))
      names.push_back(match[1]);
    else
      ADD_FAILURE() << name << ": what is this member? " << member;
  }
  return names;
}

// The functions of a header that return `type`.
Names functions_of(const std::string& header, const std::string& type) {
  const std::string code = code_of(header);
  const std::regex function("\n" + type + R"( (\w+)\()");
  Names names;
  for (std::sregex_iterator at(code.begin(), code.end(), function), end; at != end; ++at)
    names.push_back((*at)[1]);
  return names;
}

// "unknown field "?"; Known: a, b"
Names known_to(const std::string& refusal) {
  const size_t at = refusal.find("Known: ");
  EXPECT_NE(at, std::string::npos) << refusal;
  static const std::regex kComma(", ");
  const std::string list = refusal.substr(at + 7);
  return {std::sregex_token_iterator(list.begin(), list.end(), kComma, -1), {}};
}

TEST(TrainFlags, EveryOptionHasAFlagOrAReasonForNone) {
  std::set<std::string> options;
  const auto add = [&](const std::string& scope, const Names& names) {
    EXPECT_FALSE(names.empty()) << scope;
    for (const std::string& name : names) options.insert(scope + "::" + name);
  };
  add("FitOptions", fields_of("train/model/fit_options.h", "FitOptions"));
  add("CompileOptions", fields_of("train/model/compile_options.h", "CompileOptions"));
  add("Measures", fields_of("strategy/choice/measures.h", "Measures"));
  add("CheckpointOptions", fields_of("train/callbacks/checkpoint_options.h", "CheckpointOptions"));
  add("ModelLayout", fields_of("parallel/model/model_layout.h", "ModelLayout"));
  add("Clip", fields_of("optim/recipe.h", "Clip"));
  add("callbacks", functions_of("train/callbacks/callbacks.h", "std::shared_ptr<Callback>"));
  add("schedules", functions_of("train/callbacks/schedules.h", "RateSchedule"));

  Command command;
  TrainFlags flags;
  add_train_flags(command, flags);
  std::set<std::string> told;
  for (const OptionField& field : option_fields()) {
    EXPECT_TRUE(told.insert(field.field).second) << field.field << " is there twice";
    EXPECT_TRUE(options.contains(field.field)) << field.field << " is no option any more";
    EXPECT_NE(field.flag.empty(), field.why_none.empty()) << field.field << ": a flag, or why none";
    if (field.flag.empty()) continue;
    EXPECT_NO_THROW(command.at(field.flag)) << field.field;
  }
  Names without_flag;
  std::ranges::set_difference(options, told, std::back_inserter(without_flag));
  EXPECT_THAT(without_flag, IsEmpty()) << "give it a row in tutti/cli/train/flags.cpp";
}

TEST(TrainFlags, FieldsOfAFlagAreThoseOfItsOptions) {
  TrainFlags flags;
  const struct {
    const char* header;
    const char* options;
    std::string TrainFlags::* text;
    Names elsewhere;  // flags of their own
    std::string before{};
  } cases[] = {
      {"train/callbacks/callbacks.h", "EarlyStoppingOptions", &TrainFlags::early_stopping, {}},
      {"train/callbacks/callbacks.h", "ReduceOnPlateauOptions", &TrainFlags::reduce_on_plateau, {}},
      {"train/callbacks/callbacks.h", "ModelCheckpointOptions", &TrainFlags::model_checkpoint, {}},
      {"optim/loss_scale.h", "LossScaling", &TrainFlags::loss_scaling, {}},
      {"train/model/large_batch.h", "LargeBatch", &TrainFlags::large_batch, {}},
      {"train/callbacks/schedules.h",
       "PiecewiseConstantOptions",
       &TrainFlags::schedule,
       {},
       "piecewise_constant:"},
      {"train/callbacks/schedules.h",
       "ExponentialOptions",
       &TrainFlags::schedule,
       {"initial"},
       "exponential:"},
      {"train/callbacks/schedules.h",
       "InverseTimeOptions",
       &TrainFlags::schedule,
       {"initial"},
       "inverse_time:"},
      {"train/callbacks/schedules.h",
       "PolynomialOptions",
       &TrainFlags::schedule,
       {"initial"},
       "polynomial:"},
      {"train/callbacks/schedules.h",
       "CosineOptions",
       &TrainFlags::schedule,
       {"initial"},
       "cosine:"},
      {"train/callbacks/schedules.h",
       "CosineRestartsOptions",
       &TrainFlags::schedule,
       {"initial"},
       "cosine_restarts:"},
      {"train/callbacks/schedules.h",
       "OneCycleOptions",
       &TrainFlags::schedule,
       {"max"},
       "one_cycle:"},
  };
  for (const auto& c : cases) {
    TrainFlags wrong;
    wrong.*c.text = c.before + "?=1";
    Names known = known_to(message_of<UsageError>([&] {
      callbacks_from(wrong);
      loss_scaling_from(wrong);
      large_batch_from(wrong);
      schedule_from(wrong, 100);
    }));
    known.insert(known.end(), c.elsewhere.begin(), c.elsewhere.end());
    EXPECT_THAT(known, UnorderedElementsAreArray(fields_of(c.header, c.options))) << c.options;
  }
  OptimizerFlags optimizer{.groups = {"*:?=1"}};
  Names known = known_to(message_of<UsageError>([&] { recipe_from(optimizer); }));
  known.push_back("pattern");
  EXPECT_THAT(known, UnorderedElementsAreArray(fields_of("optim/recipe.h", "Group")));
}

TEST(TrainFlags, SchedulesAreThoseOfTheLibraryWithTheTrainingsLengthAndRate) {
  TrainFlags flags;
  flags.job.optimizer.learning_rate = 0.5;
  EXPECT_FALSE(schedule_from(flags, 100));
  const auto expect = [&](const std::string& text, int64_t warm_up, const RateSchedule& expected) {
    flags.schedule = text;
    flags.warm_up = warm_up;
    const auto schedule = schedule_from(flags, 100);
    ASSERT_TRUE(schedule) << text;
    EXPECT_EQ(schedule->name(), expected.name());
    for (int64_t step = 0; step < 120; ++step)
      ASSERT_EQ((*schedule)(step), expected(step)) << text << " at step " << step;
  };
  using namespace schedules;  // NOLINT
  expect("cosine", 0, cosine({.initial = 0.5, .decay_steps = 100}));
  expect("cosine:alpha=0.25,decay_steps=7", 0,
         cosine({.initial = 0.5, .decay_steps = 7, .alpha = 0.25}));
  expect("cosine", 10, warm_up(10, cosine({.initial = 0.5, .decay_steps = 90})));
  expect("", 10, warm_up(10, constant(0.5)));
  expect("piecewise_constant:boundaries=10/20,values=1/0.5/0.25", 0,
         piecewise_constant({.boundaries = {10, 20}, .values = {1, 0.5, 0.25}}));
  expect("exponential:decay_rate=0.5,staircase=true,decay_steps=10", 0,
         exponential({.initial = 0.5, .decay_steps = 10, .decay_rate = 0.5, .staircase = true}));
  expect("one_cycle:pct_start=0.1", 0,
         one_cycle({.max = 0.5, .total_steps = 100, .pct_start = 0.1}));
  expect("polynomial:end=0.1,power=2", 0,
         polynomial({.initial = 0.5, .decay_steps = 100, .end = 0.1, .power = 2}));
}

TEST(TrainFlags, LargeBatchIsThatOfTheLibrary) {
  TrainFlags flags;
  EXPECT_FALSE(large_batch_from(flags));
  flags.large_batch = "base=64,base_rate=0.05,warm_up=3,scaling=square_root,zero_last_norms=false";
  const auto large = large_batch_from(flags);
  ASSERT_TRUE(large);
  EXPECT_EQ(large->base, 64);
  EXPECT_EQ(large->base_rate, 0.05);
  EXPECT_EQ(large->warm_up.epochs, 3);
  EXPECT_EQ(large->scaling, BatchScaling::square_root);
  EXPECT_FALSE(large->zero_last_norms);
  EXPECT_FALSE(large->decay_norms_and_biases);
  for (const auto& [text, words] : {std::pair{"base=0", "large_batch: base = 0"},
                                    {"scaling=root", "square_root"},
                                    {"warm_up=-1", "warm_up.epochs = -1"}}) {
    flags.large_batch = text;
    EXPECT_THAT(message_of<UsageError>([&] { large_batch_from(flags); }),
                AllOf(StartsWith("--large-batch: "), HasSubstr(words)));
  }
}

TEST(TrainFlags, OptimizersAreThoseOfTheLibrary) {
  const auto recipe = recipe_from({.name = "sgd",
                                   .learning_rate = 0.25,
                                   .weight_decay = 1e-4,
                                   .options = "momentum=0.9,nesterov=true",
                                   .clip = {.global_norm = 2},
                                   .groups = {"*.bias:weight_decay=0,learning_rate_factor=2"}});
  const auto options = std::get<optim::SgdOptions>(recipe.rule().options());
  EXPECT_EQ(options.learning_rate, 0.25);
  EXPECT_EQ(options.momentum, 0.9);
  EXPECT_TRUE(options.nesterov);
  EXPECT_EQ(options.weight_decay, 1e-4);
  EXPECT_EQ(recipe.clip().global_norm, 2);
  ASSERT_EQ(recipe.groups().size(), 1u);
  EXPECT_EQ(recipe.groups()[0].pattern, "*.bias");
  EXPECT_EQ(recipe.groups()[0].weight_decay, 0);
  EXPECT_EQ(recipe.groups()[0].learning_rate_factor, 2);
  EXPECT_EQ(recipe_from({}).rule().name(), "adam");
}

TEST(TrainFlags, BadValuesAreNamedWithTheirFlag) {
  const test::TempFolder folder;
  const auto flags = [](std::string TrainFlags::* text, const std::string& value) {
    TrainFlags flags;
    flags.*text = value;
    return flags;
  };
  const auto optimizer = [](OptimizerFlags given) {
    TrainFlags flags;
    flags.job.optimizer = std::move(given);
    return flags;
  };
  const struct {
    TrainFlags flags;
    std::vector<const char*> answer;
  } cases[] = {
      {flags(&TrainFlags::schedule, "cosin"), {"--schedule: ", "did you mean \"cosine\"?"}},
      {flags(&TrainFlags::schedule, "cosine:alpa=1"), {"--schedule: ", "did you mean \"alpha\"?"}},
      {flags(&TrainFlags::schedule, "cosine:alpha=2"), {"--schedule: ", "alpha = 2", "0 to 1"}},
      {flags(&TrainFlags::schedule, "cosine:alpha"), {"got \"alpha\"; expected alpha=VALUE"}},
      {flags(&TrainFlags::schedule, "cosine:alpha=no"), {"alpha = \"no\"; expected a finite"}},
      {flags(&TrainFlags::schedule, "cosine:alpha=0,alpha=1"), {"alpha is given twice"}},
      {flags(&TrainFlags::schedule, "exponential:staircase=1"), {"expected true or false"}},
      {flags(&TrainFlags::schedule, "piecewise_constant:values=1/x"), {"\"1/x\"", "several"}},
      {flags(&TrainFlags::early_stopping, "patience=-1"), {"--early-stopping: ", "patience = -1"}},
      {flags(&TrainFlags::early_stopping, "monitor=val_acuracy"),
       {"--early-stopping: ", "did you mean \"val_accuracy\"?"}},
      {flags(&TrainFlags::early_stopping, "better=more"), {"by_name, lower or higher"}},
      {flags(&TrainFlags::reduce_on_plateau, "factor=1"), {"--reduce-on-plateau: ", "factor = 1"}},
      {flags(&TrainFlags::model_checkpoint, "monitor=loss"), {"--model-checkpoint: ", "path=FILE"}},
      {flags(&TrainFlags::model_checkpoint, "path=a{val_los}"), {"did you mean \"val_loss\"?"}},
      {flags(&TrainFlags::model_checkpoint, "path={epoch}/w"), {"name of the file alone"}},
      {flags(&TrainFlags::model_checkpoint, "path=" + folder.path().string()), {"is a folder"}},
      {flags(&TrainFlags::csv_log, "/not/there.csv"), {"--csv-log: ", "no folder /not"}},
      {flags(&TrainFlags::tensorboard, "/proc/no"), {"--tensorboard: ", "/proc/no"}},
      {flags(&TrainFlags::metrics, "top_x_accuracy"), {"--metrics: ", "top_5_accuracy"}},
      {flags(&TrainFlags::metrics, "auk"), {"--metrics: ", "unknown metric"}},
      {flags(&TrainFlags::metrics, "f1,r2_score"), {"--metrics r2_score: ", "classes"}},
      {flags(&TrainFlags::metrics, "f1,f1"), {"f1 is given twice"}},
      {flags(&TrainFlags::metrics, "f_beta_2,f_beta_2.0"), {"--metrics: ", "\"f_beta_2\""}},
      {flags(&TrainFlags::metrics, "binary_iou"),
       {"--metrics binary_iou: ", "label", "weighted_iou"}},
      {flags(&TrainFlags::metrics, "confusion_matrix"), {"--metrics confusion_matrix: "}},
      {flags(&TrainFlags::metrics, "micro_top_5_accuracy"), {"unknown metric"}},
      {flags(&TrainFlags::loss_scaling, "growth=1"), {"--loss-scaling: ", "growth"}},
      {flags(&TrainFlags::class_weight, "aple=2"), {"--class-weight: ", "mean \"apple\"?"}},
      {flags(&TrainFlags::class_weight, "apple=-2"), {"--class-weight: ", "apple = -2"}},
      {optimizer({.options = "beta=0.9"}), {"--optimizer-options: ", "did you mean \"beta1\"?"}},
      {optimizer({.options = "beta1=2"}), {"--optimizer-options: ", "beta1 = 2"}},
      {optimizer({.name = "ftrl", .weight_decay = 1}), {"--weight-decay 1", "ftrl has none"}},
      {optimizer({.clip = {.value = 1, .norm = 1}}), {"--clip-value", "give one of them"}},
      {optimizer({.name = "muon", .clip = {.norm = 1}}), {"--clip-norm: ", "muon has no clipping"}},
      {optimizer({.name = "muon", .groups = {"*.bias:weight_decay=0"}}),
       {"--parameter-group: ", "muon has no"}},
      {optimizer({.name = "muon", .options = "stepz=4"}),
       {"--optimizer-options: ", "did you mean \"steps\"?"}},
      {optimizer({.name = "muon", .options = "steps=0"}), {"--optimizer-options: ", "1 to 99"}},
      {optimizer({.name = "adafactor", .options = "clip=0.5"}), {"--optimizer-options: ", "clip"}},
      {optimizer({.groups = {"*.bias"}}), {"--parameter-group: ", "PATTERN:FIELD=VALUE"}},
  };
  for (const auto& c : cases) {
    const std::string message = message_of<UsageError>([&] {
      recipe_from(c.flags.job.optimizer);
      metrics_from(c.flags);
      loss_scaling_from(c.flags);
      class_weight_from(c.flags, {"apple", "pear"});
      callbacks_from(c.flags);
      schedule_from(c.flags, 100);
    });
    for (const char* part : c.answer) EXPECT_THAT(message, HasSubstr(part));
  }
  TrainFlags long_warm_up;
  long_warm_up.warm_up = 100;
  EXPECT_THAT(message_of<UsageError>([&] { schedule_from(long_warm_up, 100); }),
              AllOf(HasSubstr("--warm-up 100"), HasSubstr("100 steps")));
}

TEST(TrainFlags, MetricsThatAreThereAnywayMayBeNamed) {
  const auto names = [](const TrainFlags& flags) {
    Names all;
    for (const Metric& metric : metrics_from(flags)) all.push_back(metric.name());
    return all;
  };
  TrainFlags classes, text, number;
  classes.metrics = "f1,accuracy";
  EXPECT_EQ(names(classes), (Names{"accuracy", "f1"}));
  text.metrics = "perplexity,accuracy";
  text.data.as_text = true;
  EXPECT_EQ(names(text), (Names{"perplexity", "accuracy"}));
  number.metrics = "mean_absolute_error";
  number.number_scale = 2;
  EXPECT_EQ(names(number), (Names{"mean_absolute_error"}));
}

// Those that docs/guide/command_line.md names.
TEST(TrainFlags, EveryMetricOfThePageMayBeNamed) {
  Names all{"top_3_accuracy", "map_at_12", "perplexity"};
  for (const char* average : {"", "micro_", "weighted_"})
    for (const char* what : {"precision", "recall", "f1", "f_beta_0.5", "f_beta_2", "iou", "auc",
                             "pr_auc", "average_precision"})
      all.push_back(std::string(average) + what);
  TrainFlags flags;
  for (const std::string& name : all) {
    flags.metrics = name;
    const auto metrics = metrics_from(flags);
    ASSERT_EQ(metrics.size(), 2U) << name;
    EXPECT_EQ(metrics[1].name(), name);
  }
  // And all that are known of classes, of which the help says these.
  EXPECT_THAT(metric_words(), testing::IsSupersetOf({"micro_iou", "weighted_pr_auc", "map_at_3"}));
  EXPECT_THAT(metric_words(), testing::Not(testing::Contains("binary_accuracy")));
}

TEST(TrainFlags, AmsgradIsAnOptionOfTheOptimizer) {
  for (const char* name : {"adam", "adamw"}) {
    OptimizerFlags flags{.name = name, .options = "amsgrad=true"};
    EXPECT_EQ(recipe_from(flags).rule().num_states(), 3) << name;
    flags.options = "amsgrad=false";
    EXPECT_EQ(recipe_from(flags).rule().num_states(), 2) << name;
  }
}

// What was typed, as the command reads it.
TrainFlags typed(Names words) {
  Command command;
  TrainFlags flags;
  add_train_flags(command, flags);
  words.insert(words.begin(), {"--data", "nowhere"});
  parse(command, words);
  return flags;
}

void check(const TrainFlags& flags) {
  require_together(strategy_options(flags.job), recipe_facts(flags), fit_facts(flags),
                   machine_of(flags.job));
}

// What goes with what is in test_choice.cpp; here, that each flag is known there.
TEST(TrainFlags, WhatDoesNotGoTogetherIsRefused) {
  const std::string servers = "--strategy parameter_server ";
  const std::string cases[][2] = {
      {"--engine nccl", "--engine nccl under one_device: "},
      {"--communication auto", "--communication auto under one_device: "},
      {"--strategy mirrored --communication tcp", "--communication tcp under mirrored: "},
      {"--strategy multi_worker --communication nccl", "--communication nccl under multi_worker: "},
      {"--strategy multi_worker --communication ring --sum-order fixed",
       "--communication ring with --sum-order fixed: "},
      {"--strategy multi_worker --communication ring --compression bf16", "--communication ring: "},
      {"--sum-order fixed", "--sum-order fixed under one_device: "},
      {"--deterministic", "--deterministic under one_device: "},
      {"--step-graph", "--step-graph under one_device: "},
      {"--host-sums on", "--host-sums on under one_device: "},
      {"--compression-start 3", "--compression-start 3 under one_device: "},
      {"--algorithm-table t", "--algorithm-table t under one_device: "},
      {"--strategy mirrored --partition fixed:2", "--partition fixed:2 under mirrored: "},
      {"--strategy multi_worker --restarts 0", "--restarts 0 under multi_worker: "},
      {"--strategy mirrored --compression topk --reduction to_one_device",
       "--compression topk:0.01: "},
      {servers + "--snapshot-every 1", "--snapshot-every 1 under parameter_server: "},
      {servers + "--snapshots s --drop-slowest 1", "--snapshots s: "},
      {servers + "--restarts 1", "--restarts 1 under parameter_server: in step"},
      {servers + "--clip-norm 1", "clipping"},
      {servers + "--loss-scaling initial=2", "--loss-scaling initial=2: "},
      {servers + "--staleness 2 --early-stopping patience=1", "--early-stopping: one worker"},
      {servers + "--staleness 2 --nan end", "--nan end: one worker"},
      {servers + "--staleness 2 --accumulate 2", "--accumulate 2: "},
      {"--strategy mirrored --shard state --noise-scale", "--noise-scale: "},
      {"--large-batch base=64 --warm-up 5", "--large-batch base=64: "},
      {"--large-batch base=64,base_rate=0.1 --learning-rate 0.1", "--large-batch with base_rate: "},
      {"--large-batch base=64,base_rate=0.1 --schedule cosine", "--large-batch with base_rate: "},
      {"--large-batch base=64 --reduce-on-plateau patience=2", "--large-batch base=64: "},
      {"--schedule cosine --reduce-on-plateau patience=1", "--reduce-on-plateau patience=1: "},
      {"--schedule piecewise_constant:boundaries=1,values=1/2 --learning-rate 0.1",
       "--learning-rate 0.1 under one_device: "},
      {"--pipeline 1f1b --strategy mirrored --mesh tensor=2", "--pipeline 1f1b under mirrored: "},
      {"--cut dense_1", "--cut dense_1 under one_device: "},
      {"--recompute full", "--recompute full under one_device: "},
      {"--resume", "--resume under one_device: "},
      {servers + "--out o --keep-checkpoints 3", "--keep-checkpoints 3 under parameter_server: "},
      {"--out o --best-by val_loss", "--best-by val_loss under one_device: "},
      {"--strategy mirrored --grace 2", "--grace 2 under mirrored: "},
      {"--workers 0 --loader-memory 1024", "--loader-memory 1024 under one_device: "},
  };
  for (const auto& [words, answer] : cases) {
    Names names;
    for (const std::string_view word : parts_of(words, ' ')) names.emplace_back(word);
    EXPECT_THAT(message_of<UsageError>([&] { check(typed(names)); }), StartsWith(answer)) << words;
  }
}

TEST(TrainFlags, WhatGoesTogetherIsTaken) {
  for (const std::string words :
       {"--out o --keep-checkpoints 3 --disk-limit 600 --keep-best 1 --best-by val_loss --grace 2",
        "--strategy mirrored --mesh stage=2 --pipeline 1f1b --cut dense_1 --recompute full",
        "--schedule cosine --learning-rate 0.1 --large-batch base=64", "--workers 1 --ahead 1",
        "--strategy parameter_server --servers 1 --no-backups --snapshots s --snapshot-every 1 "
        "--snapshots-kept 2 --restarts 1 --on-lost-worker wait"}) {
    Names names;
    for (const std::string_view word : parts_of(words, ' ')) names.emplace_back(word);
    EXPECT_NO_THROW(check(typed(names))) << words;
  }
}

// Of a target whose deviation is 100, so that a difference of 1 is one of 100.
TEST(TrainFlags, MetricsOfANumberAreInItsUnit) {
  const float outputs[] = {1, -1, 2, 0}, targets[] = {1, 1, -1, -1};
  const SampleRows rows{
      .outputs = outputs, .rows = 4, .width = 1, .targets = targets, .target_width = 1};
  TrainFlags flags;
  flags.number_scale = 100;
  const auto values = [&](const std::string& typed) {
    flags.metrics = typed;
    std::map<std::string, double> all;
    for (const Metric& metric : metrics_from(flags)) {
      std::vector<double> state(static_cast<size_t>(metric.num_states(1)));
      metric.add(rows, state);
      all[metric.name()] = metric.value(state);
    }
    return all;
  };
  const std::pair<const std::string, double> absolute{"mean_absolute_error", 150};
  EXPECT_THAT(values(""), ElementsAre(absolute));
  const auto all = values("mse,r2,rmse");
  EXPECT_EQ(all.at("mean_squared_error"), 35'000) << "(0 + 4 + 9 + 1) / 4 * 100^2";
  EXPECT_EQ(all.at("root_mean_squared_error"), 100 * std::sqrt(3.5));
  EXPECT_EQ(all.at("r2_score"), 1 - 14.0 / 4) << "of targets whose mean is 0";
  EXPECT_EQ(values("mae,mean_squared_error,r2_score,root_mean_squared_error"), all);
  EXPECT_THAT(message_of<UsageError>([&] { values("rmse,root_mean_squared_error"); }),
              HasSubstr("root_mean_squared_error is given twice"));
  flags.data.target = "price";
  EXPECT_THAT(message_of<UsageError>([&] { values("rsme"); }),
              AllOf(StartsWith("--metrics rsme: --target price is a number"),
                    HasSubstr("did you mean \"rmse\"?")));
}

TEST(TrainFlags, NumbersThatFloat32HasNotAreRefused) {
  const Names cases[] = {{"--learning-rate", "1e-46"},
                         {"--learning-rate", "1e-39"},
                         {"--weight-decay", "1e38"},
                         {"--weight-decay", "1e-46"},
                         {"--clip-norm", "1e-46"},
                         {"--optimizer-options", "epsilon=1e-46"},
                         {"--optimizer-options", "epsilon=1e39"},
                         {"--optimizer-options", "epsilon=nan"},
                         {"--parameter-group", "*:learning_rate_factor=1e39"},
                         {"--parameter-group", "*:weight_decay=1e38"}};
  for (const Names& words : cases)
    EXPECT_THAT(message_of<UsageError>([&] { check(typed(words)); }),
                testing::AnyOf(HasSubstr("out of range"), HasSubstr("a finite number")))
        << testing::PrintToString(words);
  TrainFlags flags;
  for (const char* zero : {"apple=0,pear=0", "apple=1e-46", "apple=1e39"}) {
    flags.class_weight = zero;
    EXPECT_THAT(message_of<UsageError>([&] { class_weight_from(flags, {"apple", "pear"}); }),
                StartsWith("--class-weight: "));
  }
  flags.class_weight = "apple=0";
  EXPECT_THAT(class_weight_from(flags, {"apple", "pear"}), ElementsAre(std::pair(0, 0.0)));
  flags.schedule = "piecewise_constant:boundaries=1,values=1/1e-46";
  EXPECT_THAT(message_of<UsageError>([&] { schedule_from(flags, 10); }),
              HasSubstr("float32 keeps"));
  flags.large_batch = "base=64,base_rate=1e-46";
  EXPECT_THAT(message_of<UsageError>([&] { large_batch_from(flags); }), HasSubstr("float32 keeps"));
}

}  // namespace
}  // namespace tutti::cli
