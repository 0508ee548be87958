// Local updates against a plain loop over replicas that knows nothing of strategies.
#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <optional>
#include <string>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/strategy/modules/replicated.h"

#include "tests/support/message_of.h"

namespace tutti::local_updates {
namespace {

using test::message_of;
using testing::HasSubstr;

constexpr int kReplicas = 3, kSteps = 8;
constexpr double kRate = 0.05, kMomentum = 0.9;

using Weights = std::vector<at::Tensor>;

struct Sample {
  at::Tensor x, y;
};

// What each replica sees of each step, the same in every call.
Sample sample_of(int step, int replica) {
  const auto generator =
      at::detail::createCPUGenerator(static_cast<uint64_t>(100 * step + replica));
  return {torch::rand({4, 5}, generator), torch::rand({4, 2}, generator)};
}

at::Tensor loss_of(const at::Tensor& out, const at::Tensor& y) {
  return (out - y).square().sum() / (4 * kReplicas);
}

torch::nn::Sequential small_net() {
  torch::manual_seed(1);
  return torch::nn::Sequential(torch::nn::Linear(5, 3), torch::nn::Tanh(), torch::nn::Linear(3, 2));
}

struct Trained {
  std::vector<Weights> each;  // of each local replica, at the end
  Weights last;               // of the last averaging, in the order of parameters
  Weights shown;              // the mean at the end
};

Weights copy_of(const Weights& of) {
  Weights copies;
  for (const at::Tensor& one : of) copies.push_back(one.detach().clone());
  return copies;
}

Trained train(const std::string& kind, const std::optional<LocalUpdates>& local,
              const std::string& reduction = "fused") {
  Strategy strategy({.kind = kind,
                     .replicas = kReplicas,
                     .threads_per_replica = 1,
                     .reduction = reduction,
                     .local = local});
  const Replicated<torch::nn::Sequential> nets(strategy, small_net);
  Optimizer optimizer(nets, optim::sgd({.learning_rate = kRate, .momentum = kMomentum}));
  for (int step = 0; step < kSteps; ++step)
    strategy.run([&](ReplicaContext& replica) {
      const auto [x, y] = sample_of(step, replica.replica());
      optimizer.minimize(replica, loss_of(nets.local(replica)->forward(x), y));
    });
  Trained trained;
  Updater& updater = optimizer.updater();
  const auto all = [&] {
    std::vector<Weights> each;
    for (int r = 0; r < kReplicas; ++r) each.push_back(copy_of(updater.parameters(r)));
    return each;
  };
  trained.each = all();
  auto* const averaged = updater.averaged();
  if (averaged == nullptr) return trained;
  for (const auto& [name, tensor] : averaged->last()) trained.last.push_back(tensor.clone());
  averaged->show();
  trained.shown = copy_of(updater.parameters(0));
  for (int r = 1; r < kReplicas; ++r)
    for (size_t i = 0; i < trained.shown.size(); ++i)
      EXPECT_TRUE(updater.parameters(r)[i].equal(trained.shown[i])) << "the mean of all";
  averaged->hide();
  const auto again = all();
  for (int r = 0; r < kReplicas; ++r)
    for (size_t i = 0; i < trained.shown.size(); ++i)
      EXPECT_TRUE(again[r][i].equal(trained.each[r][i])) << "nothing stays of what was shown";
  return trained;
}

// With float64 throughout, and no word of engines, groups or updaters.
Trained plainly(const LocalUpdates& local) {
  struct Replica {
    torch::nn::Sequential net = small_net();
    Weights velocity;
  };
  std::vector<Replica> replicas(kReplicas);
  Weights outer, outer_velocity;
  for (Replica& replica : replicas) {
    replica.net->to(torch::kFloat64);
    for (const at::Tensor& one : replica.net->parameters())
      replica.velocity.push_back(torch::zeros_like(one));
  }
  for (const at::Tensor& one : replicas[0].net->parameters()) {
    outer.push_back(one.detach().clone());
    outer_velocity.push_back(torch::zeros_like(one));
  }
  const at::NoGradGuard no_grad;
  int since = 0;
  for (int step = 0; step < kSteps; ++step) {
    std::vector<Weights> gradients;
    for (int r = 0; r < kReplicas; ++r) {
      const at::AutoGradMode with_grad(true);
      const auto [x, y] = sample_of(step, r);
      const auto loss = loss_of(replicas[r].net->forward(x.to(torch::kFloat64)), y);
      gradients.push_back(torch::autograd::grad({loss}, replicas[r].net->parameters()));
    }
    const bool together = step < local.start_step;
    for (int r = 0; r < kReplicas; ++r) {
      const auto parameters = replicas[r].net->parameters();
      for (size_t i = 0; i < parameters.size(); ++i) {
        at::Tensor gradient = gradients[r][i] * kReplicas;
        if (together) gradient = gradients[0][i] + gradients[1][i] + gradients[2][i];
        replicas[r].velocity[i] = kMomentum * replicas[r].velocity[i] + gradient;
        parameters[i].sub_(kRate * replicas[r].velocity[i]);
      }
    }
    if (together) {
      outer = copy_of(replicas[0].net->parameters());
    } else if (++since == local.every) {
      since = 0;
      for (size_t i = 0; i < outer.size(); ++i) {
        at::Tensor delta = torch::zeros_like(outer[i]);
        for (Replica& replica : replicas)
          delta += (outer[i] - replica.net->parameters()[i]) / kReplicas;
        outer_velocity[i] = local.outer.momentum * outer_velocity[i] + delta;
        const at::Tensor update = local.outer.nesterov
                                      ? delta + local.outer.momentum * outer_velocity[i]
                                      : outer_velocity[i];
        outer[i] = outer[i] - local.outer.learning_rate * update;
        for (Replica& replica : replicas) replica.net->parameters()[i].copy_(outer[i]);
      }
    }
  }
  Trained trained{.last = outer};
  for (Replica& replica : replicas) trained.each.push_back(copy_of(replica.net->parameters()));
  for (size_t i = 0; i < outer.size(); ++i)
    trained.shown.push_back((trained.each[0][i] + trained.each[1][i] + trained.each[2][i]) / 3);
  return trained;
}

void expect_near(const Weights& got, const Weights& expected, const char* what) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_TRUE(at::allclose(got[i].to(torch::kFloat64), expected[i], 1e-5, 1e-6))
        << what << ", parameter " << i;
}

void expect_same_bits(const Trained& one, const Trained& other) {
  for (int r = 0; r < kReplicas; ++r)
    for (size_t i = 0; i < one.each[r].size(); ++i)
      EXPECT_TRUE(one.each[r][i].equal(other.each[r][i])) << "replica " << r << ", " << i;
  for (size_t i = 0; i < one.last.size(); ++i) EXPECT_TRUE(one.last[i].equal(other.last[i]));
}

// 8 updates: averaged after each, in the middle of a round at the end, just then, and never.
TEST(LocalUpdates, AreWhatAPlainLoopMakes) {
  const OuterOptimizer outers[] = {{},
                                   {.learning_rate = 0.7},
                                   {.learning_rate = 0.7, .momentum = 0.9},
                                   {.learning_rate = 0.7, .momentum = 0.9, .nesterov = true}};
  for (const OuterOptimizer& outer : outers)
    for (const int64_t every : {1, 3, 4, 9})
      for (const int64_t start : {0, 2}) {
        const LocalUpdates local{.every = every, .outer = outer, .start_step = start};
        SCOPED_TRACE(testing::Message()
                     << "every " << every << " start " << start << " outer " << outer.learning_rate
                     << " " << outer.momentum << " " << outer.nesterov);
        const Trained in_turn = train("one_device", local), expected = plainly(local);
        expect_near(in_turn.last, expected.last, "the last averaging");
        expect_near(in_turn.shown, expected.shown, "the mean");
        for (int r = 0; r < kReplicas; ++r)
          expect_near(in_turn.each[r], expected.each[r], "a replica's own");
        expect_same_bits(train("mirrored", local), in_turn);
      }
}

TEST(LocalUpdates, BeforeTheirStartAreThoseOfAll) {
  const Trained together = train("mirrored", std::nullopt, "all_reduce");
  const Trained not_yet = train("mirrored", LocalUpdates{.every = 4, .start_step = 100});
  for (int r = 0; r < kReplicas; ++r)
    for (size_t i = 0; i < together.each[r].size(); ++i)
      EXPECT_TRUE(not_yet.each[r][i].equal(together.each[r][i]));
}

// Of one process, whose replicas are all that there are.
struct Job {
  Job(const std::string& kind, int replicas, const LocalUpdates& local)
      : strategy({.kind = kind, .replicas = replicas, .threads_per_replica = 1, .local = local}),
        nets(strategy, small_net),
        optimizer(nets, optim::adamw({.learning_rate = kRate})) {}

  void train(int first, int end) {
    for (int step = first; step < end; ++step)
      strategy.run([&](ReplicaContext& replica) {
        const auto [x, y] = sample_of(step, replica.replica());
        optimizer.minimize(replica, loss_of(nets.local(replica)->forward(x), y));
      });
  }

  UpdaterState state() const {
    UpdaterState state = optimizer.updater().state();
    const auto own = [](NamedTensors& tensors) {
      for (auto& [name, tensor] : tensors) tensor = tensor.clone();
    };
    own(state.tensors);
    for (NamedTensors& replica : state.replicas) own(replica);
    return state;
  }

  void restore(const UpdaterState& state, const Job& of) {
    NamedTensors last = of.optimizer.updater().averaged()->last(), parameters;
    for (const ParameterSlot& slot : optimizer.updater().layout().slots)
      for (const auto& [name, tensor] : last)
        if (name == slot.name) parameters.emplace_back(name, tensor.clone());
    optimizer.updater().restore(state, parameters);
  }

  Strategy strategy;
  Replicated<torch::nn::Sequential> nets;
  Optimizer optimizer;
};

TEST(LocalUpdates, GoOnFromTheirStateWithTheSameBits) {
  const LocalUpdates local{.every = 3,
                           .outer = {.learning_rate = 0.7, .momentum = 0.9, .nesterov = true}};
  for (const char* kind : {"one_device", "mirrored"})
    for (const int cut : {5, 6}) {  // in the middle of a round, and at its end
      Job straight(kind, kReplicas, local), begun(kind, kReplicas, local),
          resumed(kind, kReplicas, local);
      straight.train(0, kSteps);
      begun.train(0, cut);
      const UpdaterState state = begun.state();
      EXPECT_EQ(state.kind, "local adamw");
      EXPECT_EQ(std::ssize(state.replicas), kReplicas);
      resumed.train(0, 1);  // which is forgotten
      resumed.restore(state, begun);
      EXPECT_EQ(resumed.optimizer.version(), cut);
      resumed.train(cut, kSteps);
      for (int r = 0; r < kReplicas; ++r)
        for (size_t i = 0; i < straight.optimizer.updater().parameters(r).size(); ++i)
          EXPECT_TRUE(resumed.optimizer.updater().parameters(r)[i].equal(
              straight.optimizer.updater().parameters(r)[i]))
              << kind << " cut after " << cut << ", replica " << r << ", parameter " << i;
      Job fewer(kind, 2, local);
      EXPECT_THAT(
          message_of<UsageError>([&] { fewer.restore(state, begun); }),
          HasSubstr("3 replicas had weights and an optimizer of their own, and here are 2"));
    }
}

// Between replicas, whose first one counts.
void expect_alike(const Job& job, const Weights& expected) {
  for (int r = 0; r < kReplicas; ++r)
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_TRUE(job.optimizer.updater().parameters(r)[i].equal(expected[i]))
          << "replica " << r << ", parameter " << i;
}

TEST(LocalUpdates, OfAStateAreThoseThatGoOn) {
  const LocalUpdates local{.every = 4, .outer = {.learning_rate = 0.5, .momentum = 0.5}};
  const std::pair<LocalUpdates, const char*> others[] = {
      {{.every = 8, .outer = local.outer}, "every (--local-steps) was 4, and here it is 8"},
      {{.every = 4, .outer = local.outer, .start_step = 100}, "start_step (--local-start) was 0"},
      {{.every = 4, .outer = {.learning_rate = 1, .momentum = 0.5}}, "outer.learning_rate"},
      {{.every = 4, .outer = {.learning_rate = 0.5}}, "outer.momentum (--outer-momentum) was 0.5"},
      {{.every = 4, .outer = {.learning_rate = 0.5, .momentum = 0.5, .nesterov = true}},
       "outer.nesterov (--outer-nesterov) was 0, and here it is 1"}};
  for (const char* kind : {"one_device", "mirrored"}) {
    Job begun(kind, kReplicas, local);
    begun.train(0, 6);
    const UpdaterState state = begun.state();
    for (const auto& [other, why] : others) {
      Job resumed(kind, kReplicas, other);
      const Weights before = copy_of(resumed.optimizer.updater().parameters(0));
      EXPECT_THAT(message_of<UsageError>([&] { resumed.restore(state, begun); }), HasSubstr(why));
      EXPECT_EQ(resumed.optimizer.version(), 0);
      expect_alike(resumed, before);
    }
  }
}

// As after an error in the middle of a round: another optimizer begins from replica 0's weights.
TEST(LocalUpdates, BeginAlikeAfterAnEarlierOptimizer) {
  const LocalUpdates local{.every = 4, .outer = {.learning_rate = 0.7, .momentum = 0.9}};
  for (const char* kind : {"one_device", "mirrored"}) {
    Job job(kind, kReplicas, local);
    job.train(0, 2);
    const Weights first = copy_of(job.optimizer.updater().parameters(0));
    EXPECT_FALSE(job.optimizer.updater().parameters(1)[0].equal(first[0]));
    job.optimizer = Optimizer(job.nets, optim::adamw({.learning_rate = kRate}));
    expect_alike(job, first);
    job.train(0, 4);
    expect_alike(job, copy_of(job.optimizer.updater().parameters(0)));
  }
}

TEST(LocalUpdates, AMeanIsHiddenBeforeTrainingGoesOn) {
  for (const char* kind : {"one_device", "mirrored"}) {
    Job job(kind, kReplicas, {.every = 4}), straight(kind, kReplicas, {.every = 4});
    straight.train(0, kSteps);
    job.train(0, 2);
    Updater& updater = job.optimizer.updater();
    EXPECT_THAT(
        message_of<UsageError>([&] { updater.require_whole(); }),
        HasSubstr("2 updates after the last averaging each replica has weights of its own"));
    const UpdaterState before = job.state();
    updater.averaged()->show();
    EXPECT_NO_THROW(updater.require_whole());
    const UpdaterState while_shown = job.state();
    for (size_t r = 0; r < before.replicas.size(); ++r)
      for (size_t i = 0; i < before.replicas[r].size(); ++i)
        EXPECT_TRUE(while_shown.replicas[r][i].second.equal(before.replicas[r][i].second))
            << before.replicas[r][i].first;
    EXPECT_THAT(message_of<UsageError>([&] { updater.averaged()->show(); }),
                HasSubstr("show() while the mean is shown; expected hide() before"));
    EXPECT_THAT(message_of<UsageError>([&] { updater.averaged()->average(); }),
                HasSubstr("an averaging while the mean is shown"));
    updater.averaged()->hide();
    updater.averaged()->hide();  // of nothing
    job.train(2, kSteps);
    for (int r = 0; r < kReplicas; ++r)
      for (size_t i = 0; i < updater.parameters(r).size(); ++i)
        EXPECT_TRUE(updater.parameters(r)[i].equal(straight.optimizer.updater().parameters(r)[i]));
    EXPECT_NO_THROW(updater.require_whole());
    updater.averaged()->show();
    EXPECT_THAT(message_of<UsageError>([&] { job.train(0, 1); }),
                HasSubstr("an update while the mean is shown"));
  }
}

TEST(LocalUpdates, GoOnFromWeightsThatWereWritten) {
  const LocalUpdates local{.every = 3, .outer = {.learning_rate = 0.7, .momentum = 0.9}};
  const auto write = [](const Job& job) {
    const at::NoGradGuard no_grad;
    for (int r = 0; r < kReplicas; ++r)
      for (const at::Tensor& one : job.optimizer.updater().parameters(r)) one.fill_(0.25);
  };
  for (const char* kind : {"one_device", "mirrored"})
    for (const bool shown : {false, true}) {
      Job written(kind, kReplicas, local);
      auto* const averaged = written.optimizer.updater().averaged();
      written.train(0, shown ? 4 : 3);  // in the middle of a round, and with a velocity
      if (shown) averaged->show();
      write(written);
      written.optimizer.updater().parts().copies->take_over();
      averaged->hide();  // nothing
      for (int r = 0; r < kReplicas; ++r)
        for (const at::Tensor& one : written.optimizer.updater().parameters(r))
          EXPECT_TRUE(one.eq(0.25).all().item<bool>()) << "replica " << r;
      for (const auto& [name, tensor] : averaged->last())
        EXPECT_TRUE(tensor.eq(0.25).all().item<bool>()) << name;
      written.train(0, 3);
      for (const auto& [name, tensor] : written.optimizer.updater().state().tensors)
        if (name.starts_with("outer_momentum/")) {
          // One round's change, of which the outer step took 0.7: nothing of rounds before.
          const std::string of = name.substr(std::string("outer_momentum/").size());
          for (const auto& [last, values] : averaged->last())
            if (last == of) {
              EXPECT_TRUE(at::allclose(values - 0.25, tensor * 0.7, 1e-4, 1e-6)) << of;
            }
        }
    }
}

// As autograd gives them of a transposed weight, or of one that is channels_last.
TEST(LocalUpdates, TakeGradientsOfAnyStrides) {
  const auto trained = [](const char* kind, bool strided) {
    Job job(kind, kReplicas, {.every = 2});
    for (int step = 0; step < 3; ++step)
      job.strategy.run([&](ReplicaContext& replica) {
        const auto [x, y] = sample_of(step, replica.replica());
        auto net = job.nets.local(replica);
        auto gradients = torch::autograd::grad({loss_of(net->forward(x), y)}, net->parameters());
        for (at::Tensor& one : gradients)
          one = strided && one.dim() == 2 ? one.t().contiguous().t() : one.contiguous();
        job.optimizer.apply(replica, gradients);
      });
    std::vector<Weights> each;
    for (int r = 0; r < kReplicas; ++r)
      each.push_back(copy_of(job.optimizer.updater().parameters(r)));
    return each;
  };
  const auto expected = trained("one_device", false);
  for (const char* kind : {"one_device", "mirrored"}) {
    const auto got = trained(kind, true);
    for (int r = 0; r < kReplicas; ++r)
      for (size_t i = 0; i < expected[r].size(); ++i)
        EXPECT_TRUE(got[r][i].equal(expected[r][i])) << kind << " " << r << " " << i;
  }
}

TEST(LocalUpdates, OutOfRangeAreRefused) {
  const auto why = [](const LocalUpdates& local) {
    return message_of<UsageError>(
        [&] { const Strategy strategy({.kind = "mirrored", .replicas = 2, .local = local}); });
  };
  EXPECT_THAT(why({.every = 0}), HasSubstr("every (--local-steps) is 0; expected 1 to"));
  EXPECT_THAT(why({.outer = {.learning_rate = 0}}), HasSubstr("is 0; expected above 0 to 10"));
  EXPECT_THAT(why({.outer = {.momentum = 1}}), HasSubstr("is 1; expected 0 to below 1"));
  EXPECT_THAT(why({.outer = {.nesterov = true}}), HasSubstr("without outer.momentum"));
  EXPECT_THAT(why({.start_step = -1}), HasSubstr("start_step (--local-start) is -1"));
}

}  // namespace
}  // namespace tutti::local_updates
