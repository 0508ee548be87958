// Checkpoints of loops of one's own: one that was cut off ends as one that was not.
#include <torch/torch.h>

#include <csignal>
#include <limits>

#include "tutti/base/preemption.h"
#include "tutti/base/stop.h"
#include "tutti/checkpoint/checkpoint.h"
#include "tutti/checkpoint/folder.h"
#include "tutti/loops.h"
#include "tutti/train/model/weights.h"

#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/train/checkpointed.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kLoopSteps = 12, kLoopEvery = 2;

// ---- over a Strategy ----

struct Loop {
  std::string kind = "mirrored";
  int replicas = 2;
  std::function<Optimizer(const ReplicatedModules&)> make = [](const auto& modules) {
    return Optimizer(modules, optim::adam({.learning_rate = 0.01}));
  };
  bool scaled = false;
};

struct Norms : torch::nn::Module {
  Norms() {
    first = register_module("first", torch::nn::Linear(4, 6));
    norm = register_module("norm", torch::nn::BatchNorm1d(6));
    last = register_module("last", torch::nn::Linear(6, 3));
  }
  at::Tensor forward(const at::Tensor& x) {
    return last(torch::dropout(norm(first(x)).relu(), 0.2, true));
  }
  torch::nn::Linear first{nullptr}, last{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};

// What a loop leaves, all of which must be equal: weights with buffers, sums, a variable.
using Left = std::vector<std::string>;

// Steps until `until`, of three epochs of four; with a folder it goes on from what is there.
Left train_loop(const Loop& loop, const fs::path& folder, int64_t until = kLoopSteps) {
  torch::manual_seed(3);  // one replica alone draws from the default generator
  Strategy strategy = strategy_of(loop.kind, loop.replicas);
  Replicated<Norms> net(strategy, [] { return std::make_shared<Norms>(); });
  Optimizer optimizer = loop.make(net);
  if (loop.scaled) optimizer.scale_losses(optim::LossScale({.initial = 1024}));
  Variable seen(strategy, torch::zeros({}, at::kLong),
                {.name = "seen",
                 .synchronization = VariableSynchronization::on_read,
                 .aggregation = VariableAggregation::sum});
  int64_t step = 0, epoch = 0, in_epoch = 0;
  std::vector<double> sums(static_cast<size_t>(strategy.world().local));
  Checkpoint checkpoint(strategy, {.folder = folder, .every_steps = kLoopEvery, .resume = true});
  checkpoint.add("net", net).add("optimizer", optimizer).add("seen", seen).add_own("sums", sums);
  checkpoint.add("step", step).add("epoch", epoch).add("in_epoch", in_epoch);
  checkpoint.restore();
  auto data = strategy.distribute(flat_samples());
  for (; step < until; ++epoch, in_epoch = 0)
    for (auto&& batch : data.epoch(epoch, in_epoch)) {
      strategy.run([&](ReplicaContext& replica) {
        auto [x, y] = batch.local(replica);
        const auto each =
            torch::cross_entropy_loss(net.local(replica)->forward(x), y, {}, at::Reduction::None);
        sums[static_cast<size_t>(replica.local_rank())] += each.sum().item<double>();
        seen.assign_add(replica, torch::full({}, x.size(0), at::kLong));
        optimizer.minimize(replica, each, batch.global_size());
      });
      ++in_epoch;
      checkpoint.after_step(++step);
      if (step == until) break;
    }
  if (until == kLoopSteps) {
    EXPECT_EQ(checkpoint.end(), "");
  }
  Left left{fmt::format("{} seen, sums {}", seen.read().item<int64_t>(), fmt::join(sums, " "))};
  for (int local = 0; local < net.modules().size(); ++local)
    left.push_back(weights_sha256(state_of(*net.modules().module(local))));
  return left;
}

TEST(LoopCheckpoints, LoopsThatWereCutOffEndAsThoseThatWereNot) {
  const auto by = [](const auto& recipe) {
    return [recipe](const ReplicatedModules& modules) { return Optimizer(modules, recipe); };
  };
  const std::vector<Loop> cases = {
      {},
      {.kind = "one_device", .replicas = 1},
      {.kind = "one_device", .replicas = 3},
      {.replicas = 3},
      {.make = by(optim::sgd({.learning_rate = 0.05, .momentum = 0.9}))},
      {.make = by(optim::lamb({.learning_rate = 0.01})), .scaled = true},
      {.make = by(optim::adamw({.learning_rate = 0.01, .beta2 = 0.5, .amsgrad = true}))},
      {.make = by(TorchOptimizerFactory([](std::vector<at::Tensor> parameters) {
         return std::make_unique<torch::optim::AdamW>(std::move(parameters),
                                                      torch::optim::AdamWOptions(0.01));
       }))},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(i);
    const Left straight = train_loop(cases[i], "");
    // In the middle of an epoch, and at its last step.
    for (const int64_t cut : {7, 8}) {
      const TempFolder folder;
      train_loop(cases[i], folder.path(), cut);
      EXPECT_THAT(trainings_in(folder.path()), Not(IsEmpty()));
      EXPECT_EQ(train_loop(cases[i], folder.path()), straight);
    }
  }
}

TEST(LoopCheckpoints, ThreadsGoOnInTurn) {
  const TempFolder folder;
  train_loop({}, folder.path(), 7);
  EXPECT_EQ(train_loop({.kind = "one_device"}, folder.path()), train_loop({}, ""));
}

TEST(LoopCheckpoints, SayWhatIsOfAnotherLoop) {
  const TempFolder folder;
  train_loop({}, folder.path(), 7);
  EXPECT_THAT(message_of<UsageError>([&] { train_loop({.replicas = 3}, folder.path()); }),
              AllOf(HasSubstr("loop: checkpoint "), HasSubstr("is of another loop"),
                    HasSubstr("replicas: 2 in the checkpoint, 3 here")));
  const auto by_sgd = [](const ReplicatedModules& modules) {
    return Optimizer(modules, optim::sgd({.learning_rate = 0.05}));
  };
  EXPECT_THAT(message_of<UsageError>([&] { train_loop({.make = by_sgd}, folder.path()); }),
              HasSubstr("\"optimizer\": optimizer adam in the checkpoint, optimizer sgd here"));
  EXPECT_THAT(message_of<UsageError>([&] { resumed_in(folder.path()); }),
              AllOf(HasSubstr("is of another training"),
                    HasSubstr("\"net\": module in the checkpoint, none here")));
  const TempFolder of_fit;
  train_into(of_fit.path());
  EXPECT_THAT(message_of<UsageError>([&] { train_loop({}, of_fit.path()); }),
              HasSubstr("\"net\": none in the checkpoint, module here"));
}

// ---- of LibTorch alone ----

struct Plain {
  torch::nn::Sequential model{torch::nn::Linear(4, 5), torch::nn::Tanh(), torch::nn::Linear(5, 1)};
  std::unique_ptr<torch::optim::Optimizer> optimizer;
};

using MakeTorch = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>;

std::string train_plain(const MakeTorch& make, const fs::path& folder, int64_t until = kLoopSteps) {
  torch::manual_seed(5);
  Plain plain;
  plain.optimizer = make(plain.model->parameters());
  torch::optim::StepLR schedule(*plain.optimizer, 3, 0.5);
  int step = 0;
  double worst = -std::numeric_limits<double>::infinity();
  at::Tensor mean = torch::zeros({5, 4});
  Checkpoint checkpoint({.folder = folder, .every_steps = kLoopEvery, .resume = true});
  checkpoint.add("model", *plain.model).add("torch", *plain.optimizer).add("schedule", schedule);
  checkpoint.add("step", step).add("worst", worst).add("mean", mean);
  checkpoint.restore();
  while (step < until) {
    const at::Tensor x = torch::rand({16, 4});  // of the generator, which is kept, too
    const auto loss = [&] {
      plain.optimizer->zero_grad();
      auto value = torch::mse_loss(plain.model->forward(x), x.sum(1, true));
      value.backward();
      return value;
    };
    worst = std::max(worst, plain.optimizer->step(loss).item<double>());
    schedule.step();
    mean.lerp_(plain.model[0]->as<torch::nn::Linear>()->weight.detach(), 0.1);
    checkpoint.after_step(++step);
  }
  if (until == kLoopSteps) checkpoint.end();
  return fmt::format("{} {} {} {}", weights_sha256(state_of(*plain.model)), worst,
                     mean.sum().item<double>(),
                     plain.optimizer->param_groups()[0].options().get_lr());
}

template <class O, class Options>
MakeTorch torch_of(Options options) {
  return [options](std::vector<at::Tensor> parameters) {
    return std::make_unique<O>(std::move(parameters), options);
  };
}

std::vector<MakeTorch> torch_optimizers() {
  namespace optim = torch::optim;
  return {torch_of<optim::SGD>(optim::SGDOptions(0.05).momentum(0.9)),
          torch_of<optim::SGD>(optim::SGDOptions(0.05)),
          torch_of<optim::Adam>(optim::AdamOptions(0.01)),
          torch_of<optim::Adam>(optim::AdamOptions(0.01).amsgrad(true)),
          torch_of<optim::AdamW>(optim::AdamWOptions(0.01)),
          torch_of<optim::RMSprop>(optim::RMSpropOptions(0.01).momentum(0.5).centered(true)),
          torch_of<optim::Adagrad>(optim::AdagradOptions(0.05)),
          // A group of its own for the biases, without weight decay.
          [](const std::vector<at::Tensor>& all) {
            auto own = std::make_unique<optim::AdamOptions>(0.02);
            std::vector<optim::OptimizerParamGroup> groups;
            groups.emplace_back(std::vector<at::Tensor>{all[0], all[2]});
            groups.emplace_back(std::vector<at::Tensor>{all[1], all[3]}, std::move(own));
            return std::make_unique<optim::Adam>(groups,
                                                 optim::AdamOptions(0.01).weight_decay(0.01));
          }};
}

TEST(LoopCheckpoints, KeepAnyOptimizerOfLibTorch) {
  for (size_t i = 0; i < torch_optimizers().size(); ++i) {
    SCOPED_TRACE(i);
    const MakeTorch make = torch_optimizers()[i];
    const std::string straight = train_plain(make, "");
    const TempFolder folder;
    train_plain(make, folder.path(), 7);
    EXPECT_EQ(train_plain(make, folder.path()), straight);
  }
}

TEST(LoopCheckpoints, KeepTensorsUnderTheNamesOfParameters) {
  const TempFolder folder;
  train_plain(torch_optimizers()[2], folder.path(), 7);
  const TrainingCheckpoint saved(trainings_in(folder.path()).back());
  EXPECT_EQ(saved.manifest().step, 6);
  const CheckpointTensors tensors = saved.tensors();
  EXPECT_TRUE(tensors.contains("optimizer/torch/exp_avg/model/0.weight"));
  EXPECT_TRUE(tensors.contains("optimizer/torch/exp_avg_sq/model/2.bias"));
  EXPECT_EQ(saved.manifest().kept.at("step"), "6");
  std::vector<std::string> names;
  for (const auto& weight : weights_of(saved)) names.push_back(weight.name);
  EXPECT_THAT(names, UnorderedElementsAre("0.weight", "0.bias", "2.weight", "2.bias"));
}

TEST(LoopCheckpoints, NameAnOptimizerThatDoesNotFit) {
  const TempFolder folder;
  train_plain(torch_optimizers()[2], folder.path(), 7);
  EXPECT_THAT(message_of<UsageError>([&] { train_plain(torch_optimizers()[0], folder.path()); }),
              HasSubstr("\"torch\": optimizer torch::optim::Adam in the checkpoint, optimizer "
                        "torch::optim::SGD here"));
  EXPECT_THAT(message_of<DataError>([&] { train_plain(torch_optimizers()[7], folder.path()); }),
              HasSubstr("\"torch\": does not fit: 1 groups of parameters, here there are 2"));
  torch::nn::Linear model(2, 1);
  torch::optim::LBFGS lbfgs(model->parameters());
  Checkpoint checkpoint({.folder = folder.path()});
  EXPECT_THAT(message_of<UsageError>([&] { checkpoint.add("lbfgs", lbfgs); }),
              HasSubstr("\"lbfgs\" is of torch::optim::LBFGS"));
}

// One number is all that it keeps, and a model.
struct Small {
  explicit Small(const fs::path& folder, bool resume = true, int64_t width = 3)
      : model(4, width), checkpoint({.folder = folder, .every_steps = 1, .resume = resume}) {
    checkpoint.add("model", *model).add("step", step);
  }
  torch::nn::Linear model;
  int64_t step = 0;
  Checkpoint checkpoint;
};

TEST(LoopCheckpoints, KeepNamesThatBeginAlike) {
  const TempFolder folder;
  const auto loop = [&](double value) {
    at::Tensor x = torch::full({2}, value), more = torch::full({3}, value + 1);
    std::vector<double> sum{value + 2}, more_of_sum{value + 3};
    Small small(folder.path());
    small.checkpoint.add("x", x).add("xy", more).add_own("s", sum).add_own("sum", more_of_sum);
    small.checkpoint.restore();
    small.checkpoint.after_step(++small.step);
    return std::vector{x[1].item<double>(), more[2].item<double>(), sum[0], more_of_sum[0]};
  };
  EXPECT_THAT(loop(1), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(loop(7), ElementsAre(1, 2, 3, 4));
}

TEST(LoopCheckpoints, NameStatesThatAreOfAnotherDtype) {
  const TempFolder folder;
  const auto loop = [&](bool other) {
    torch::nn::Linear model(2, 1);
    torch::optim::Adam adam(model->parameters(), 0.1);
    model(torch::ones({1, 2})).sum().backward();
    adam.step();
    if (other) {
      auto& state = static_cast<torch::optim::AdamParamState&>(
          *adam.state().at(model->weight.unsafeGetTensorImpl()));
      state.exp_avg(state.exp_avg().to(at::kDouble));
    }
    Checkpoint checkpoint({.folder = folder.path(), .resume = true});
    checkpoint.add("model", *model).add("adam", adam);
    checkpoint.save(checkpoint.restore().value_or(0) + 1);
  };
  loop(false);
  loop(false);
  EXPECT_THAT(message_of<DataError>([&] { loop(true); }),
              HasSubstr("exp_avg of \"model/weight\" is Float [1, 2], here Double [1, 2]"));
}

TEST(LoopCheckpoints, NameWhatDoesNotFitTheModel) {
  const TempFolder folder;
  Small(folder.path(), false).checkpoint.save(3);
  {
    Small other(folder.path(), true, 2);
    EXPECT_THAT(message_of<DataError>([&] { other.checkpoint.restore(); }),
                AllOf(HasSubstr("\"model\""), HasSubstr("weight"), HasSubstr("bias"),
                      HasSubstr("[3, 4]"), HasSubstr("[2, 4]")));
  }
  Small more(folder.path());
  double extra = 0;
  more.checkpoint.add("extra", extra);
  EXPECT_THAT(message_of<UsageError>([&] { more.checkpoint.restore(); }),
              HasSubstr("\"extra\": none in the checkpoint, number here"));
}

TEST(LoopCheckpoints, AUsedFolderIsRefusedUnlessTheLoopGoesOn) {
  const TempFolder folder;
  Small(folder.path(), false).checkpoint.save(3);
  Small anew(folder.path(), false);
  const std::string refused = message_of<UsageError>([&] { anew.checkpoint.restore(); });
  EXPECT_THAT(refused, HasSubstr("loop: checkpoints in " + folder.path().string()));
  // Neither does it go on without.
  EXPECT_EQ(message_of<UsageError>([&] { anew.checkpoint.after_step(1); }), refused);
  EXPECT_EQ(message_of<UsageError>([&] { anew.checkpoint.end(); }), refused);
  EXPECT_THAT(message_of<UsageError>([&] { anew.checkpoint.add("late", anew.step); }),
              HasSubstr("\"late\" is added too late"));
  Small first(folder.path());
  EXPECT_EQ(first.checkpoint.restore(), 3);
  Small second(folder.path());
  EXPECT_THAT(message_of<UsageError>([&] { second.checkpoint.restore(); }),
              HasSubstr(fmt::format("process {} on ", getpid())));
}

TEST(LoopCheckpoints, ATornFileIsSetAsideAndTheOneBeforeIsUsed) {
  const TempFolder folder;
  {
    Small loop(folder.path());
    EXPECT_EQ(loop.checkpoint.restore(), std::nullopt);
    for (loop.step = 1; loop.step < 4; ++loop.step) loop.checkpoint.after_step(loop.step);
    EXPECT_EQ(loop.checkpoint.end(), "");
  }
  const auto all = trainings_in(folder.path());
  ASSERT_THAT(all, SizeIs(3));
  fs::resize_file(all[2] / "part-0-of-1.safetensors", 100);
  {
    Small loop(folder.path());
    EXPECT_EQ(loop.checkpoint.restore(), 2);
    EXPECT_EQ(loop.step, 2);
  }
  EXPECT_THAT(damaged_trainings_in(folder.path()), SizeIs(1));
  for (const auto& path : trainings_in(folder.path())) fs::remove(path / "manifest.json");
  Small loop(folder.path());
  EXPECT_THAT(message_of<DataError>([&] { loop.checkpoint.restore(); }),
              HasSubstr("none of the 3 checkpoints"));
}

TEST(LoopCheckpoints, TheNewestStayAndTheBest) {
  const TempFolder folder;
  torch::nn::Linear model(2, 2);
  Checkpoint checkpoint({.folder = folder.path(),
                         .newest_kept = 1,
                         .best_kept = 1,
                         .monitor = "score",
                         .better = Better::higher});
  checkpoint.add("model", *model);
  for (int64_t step = 1; step <= 4; ++step)
    checkpoint.save(step, {{"score", step == 2 ? 1.0 : 0.5}});
  EXPECT_EQ(checkpoint.end(), "");
  EXPECT_THAT(trainings_in(folder.path()),
              ElementsAre(folder / name_of_checkpoint(2), folder / name_of_checkpoint(4)));
}

TEST(LoopCheckpoints, WhatIsAddedHasANameOfItsOwn) {
  const TempFolder folder;
  Small loop(folder.path());
  EXPECT_THAT(message_of<UsageError>([&] { loop.checkpoint.add("step", loop.step); }),
              HasSubstr("two things are added as \"step\""));
  EXPECT_THAT(message_of<UsageError>([&] { loop.checkpoint.add("a/b", loop.step); }),
              HasSubstr("\"a/b\" is no name"));
  EXPECT_THAT(message_of<UsageError>([&] { loop.checkpoint.after_step(1); }),
              HasSubstr("restore() was not called"));
  EXPECT_THAT(message_of<UsageError>([&] { loop.checkpoint.save(1); }),
              HasSubstr("restore() was not called"));
  loop.checkpoint.restore();
  EXPECT_THAT(message_of<UsageError>([&] { loop.checkpoint.add("late", loop.step); }),
              HasSubstr("\"late\" is added too late"));
  loop.checkpoint.after_step(1);
  EXPECT_THAT(message_of<UsageError>([&] { loop.checkpoint.after_step(1); }),
              HasSubstr("steps ascend"));
  EXPECT_THAT(message_of<UsageError>([&] { loop.checkpoint.save(0); }), HasSubstr("steps ascend"));
}

TEST(LoopCheckpoints, TheScaleOfLossesHasANameOfItsOwn) {
  const TempFolder folder;
  Strategy strategy = strategy_of("one_device", 1);
  Replicated<Norms> net(strategy, [] { return std::make_shared<Norms>(); });
  Optimizer optimizer(net, optim::sgd({.learning_rate = 0.1}));
  optimizer.scale_losses(optim::LossScale({.initial = 1024}));
  double scale = 1;
  Checkpoint checkpoint(strategy, {.folder = folder.path()});
  checkpoint.add("net", net).add("sgd.loss_scale", scale);
  EXPECT_THAT(message_of<UsageError>([&] { checkpoint.add("sgd", optimizer); }),
              HasSubstr("two things are added as \"sgd.loss_scale\""));
}

TEST(LoopCheckpoints, SharesThatMoveAreRefused) {
  const TempFolder folder;
  StrategyOptions options{.kind = "mirrored", .replicas = 2};
  options.by_speed.emplace();
  const Strategy strategy(options);
  EXPECT_THAT(message_of<UsageError>([&] { Checkpoint(strategy, {.folder = folder.path()}); }),
              HasSubstr("shares that move"));
  Checkpoint(strategy, {});
}

// ---- being asked to end ----

TEST(LoopCheckpoints, WhoIsAskedToEndSavesThatStep) {
  const TempFolder folder;
  put_bytes(folder / "stop", "");
  for (const bool by_file : {true, false}) {
    torch::nn::Linear model(2, 2);
    int64_t step = by_file ? 0 : 5;
    Checkpoint checkpoint({.folder = folder / (by_file ? "a" : "b")},
                          {.file = by_file ? folder / "stop" : fs::path()});
    checkpoint.add("model", *model).add("step", step);
    if (!by_file) ::raise(SIGTERM);
    const std::string said = message_of<Interrupted>([&] { checkpoint.after_step(++step); });
    EXPECT_THAT(said, AllOf(HasSubstr(by_file ? "file " + (folder / "stop").string() : "SIGTERM"),
                            HasSubstr("it can go on from " + name_of_checkpoint(step))));
    remove_stop_handler();
  }
  EXPECT_THAT(trainings_in(folder / "a"), SizeIs(1));
}

}  // namespace
}  // namespace tutti
