// Updates that begin while backward goes on give what updates after it give.
#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string_view>
#include <thread>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/nn/graph_module.h"
#include "tutti/strategy/modules/replicated.h"
#include "tutti/sync/detail/gradient_listener.h"
#include "tutti/sync/tensors.h"

#include "tests/support/message_of.h"

namespace tutti {
namespace {

using test::message_of;
using ::testing::HasSubstr;

nn::Graph graph_of_test() {
  const auto input = nn::input({1, 8, 8});
  auto x = nn::max_pool2d(2)(nn::relu()(nn::conv2d(8, 3, {.padding = 1}).named("conv")(input)));
  x = nn::relu()(nn::linear(96).named("hidden")(nn::flatten()(x)));
  return {input, nn::linear(4).named("out")(x)};
}

/// What a replica does in a step; `net` is its module.
struct Loop;
using Step = std::function<void(Loop&, ReplicaContext&, nn::GraphModule&, int number)>;

struct Loop {
  Loop(const std::string& kind, int replicas, bool planned, const optim::Recipe& recipe)
      : strategy({.kind = kind, .replicas = replicas, .threads_per_replica = 1, .seed = 5}),
        net(strategy,
            [planned] {
              auto module = nn::make_module(graph_of_test());
              module->set_planned(planned);
              return module;
            }),
        optimizer(net, recipe) {}

  at::Tensor loss(ReplicaContext& replica, nn::GraphModule& module, int number) const {
    const auto x = torch::sin(torch::arange(64 * 3).view({3, 1, 8, 8}) * 0.1 *
                              (1 + number + 10 * replica.rank()));
    return module.forward(x).pow(2).sum() / 10;
  }

  void step(const Step& what, int number) {
    strategy.run(
        [&](ReplicaContext& replica) { what(*this, replica, *net.local(replica), number); });
  }

  std::vector<at::Tensor> weights(int local) const {
    std::vector<at::Tensor> all;
    for (const auto& parameter : optimizer.updater().parameters(local))
      all.push_back(parameter.detach().clone());
    return all;
  }

  Strategy strategy;
  Replicated<nn::GraphModule> net;
  Optimizer optimizer;
};

/// Some steps on threads, planned, beside the parts in turn, layer by layer.
void expect_parts_in_turn(const Step& what, const optim::Recipe& recipe = optim::adam()) {
  for (const std::string kind : {"mirrored", "central_storage"})
    for (const int replicas : {1, 2, 3}) {
      Loop early(kind, replicas, true, recipe), oracle("one_device", replicas, false, recipe);
      for (int number = 0; number < 5; ++number) {
        early.step(what, number);
        oracle.step(what, number);
        const auto expected = oracle.weights(0);
        for (int local = 0; local < replicas; ++local) {
          const auto got = early.weights(local);
          for (size_t i = 0; i < got.size(); ++i)
            ASSERT_TRUE(torch::equal(got[i], expected[i]))
                << kind << ", " << replicas << " replicas, step " << number << ", parameter " << i;
        }
      }
      EXPECT_EQ(early.optimizer.version(), oracle.optimizer.version());
    }
}

void plain_step(Loop& loop, ReplicaContext& replica, nn::GraphModule& net, int number) {
  loop.optimizer.minimize(replica, loop.loss(replica, net, number));
}

TEST(EarlyUpdates, AreThoseOfThePartsInTurn) {
  expect_parts_in_turn(plain_step);
  expect_parts_in_turn(plain_step, optim::sgd({.learning_rate = 0.01, .momentum = 0.9}));
  expect_parts_in_turn(plain_step, {optim::adam(), {.value = 0.01}});
}

/// What a planned backward pass tells: parameters in order, and "|" where more is to come.
struct Spy final : detail::GradientListener {
  std::map<const at::TensorImpl*, std::string> names;
  std::string heard;
  bool take(const at::Tensor& parameter, const at::Tensor&) override {
    heard += names.at(parameter.unsafeGetTensorImpl()) + " ";
    return true;
  }
  void go_on() override { heard += "| "; }
};

TEST(EarlyUpdates, AreToldOfEachGradientAfterTheLastReadOfItsParameter) {
  const auto module = nn::make_module(graph_of_test());
  Spy spy;
  for (const auto& parameter : module->named_parameters())
    spy.names[parameter->unsafeGetTensorImpl()] = parameter.key();
  const auto loss = module->forward(torch::ones({2, 1, 8, 8})).sum();
  auto* const source = detail::only_source_of(loss);
  ASSERT_NE(source, nullptr);
  source->listener = &spy;
  loss.backward();
  EXPECT_EQ(spy.heard,
            "| out.weight out.bias | | hidden.weight hidden.bias | | | | conv.weight conv.bias ");
  for (const auto& parameter : module->named_parameters())
    EXPECT_FALSE(parameter->grad().defined()) << parameter.key();
}

/// Counts products in its thread.
class Products {
 public:
  Products() { seen() = 0; }
  ~Products() { at::removeCallback(handle_); }
  Products(const Products&) = delete;
  static int& seen() {
    thread_local int count = 0;
    return count;
  }

 private:
  static std::unique_ptr<at::ObserverContext> on_operator(const at::RecordFunction& function) {
    if (std::string_view(function.name()) == "aten::mm") ++seen();
    return nullptr;
  }
  at::CallbackHandle handle_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&on_operator).scopes({at::RecordScope::FUNCTION}));
};

/// Notes how many products had been made, and the gradient, when it hears of a weight.
struct Counter final : detail::GradientListener {
  bool sent = false;
  std::map<const at::TensorImpl*, std::pair<int, at::Tensor>> heard;
  bool take(const at::Tensor& parameter, const at::Tensor& gradient) override {
    heard[parameter.unsafeGetTensorImpl()] = {Products::seen(), gradient.clone()};
    return true;
  }
  bool sends() const override { return sent; }
  void go_on() override {}
};

// A dense layer has two products; the one for its weight is first where others wait for it, and
// else last, since an update reads it next.
TEST(EarlyUpdates, GradientsThatAreSentComeBeforeThoseOfInputs) {
  const auto module = nn::make_module(graph_of_test());
  Counter at_end, sent;
  sent.sent = true;
  for (Counter* listener : {&at_end, &sent}) {
    const auto loss =
        module->forward(torch::sin(torch::arange(2 * 64).view({2, 1, 8, 8}))).pow(2).sum();
    detail::only_source_of(loss)->listener = listener;
    const Products counting;
    loss.backward();
  }
  const auto parameters = module->named_parameters();
  const auto when = [&](const Counter& listener, const char* name) {
    return listener.heard.at(parameters[name].unsafeGetTensorImpl()).first;
  };
  EXPECT_EQ(when(at_end, "out.weight"), 2);
  EXPECT_EQ(when(sent, "out.weight"), 1);
  EXPECT_EQ(when(at_end, "hidden.weight"), 4);
  EXPECT_EQ(when(sent, "hidden.weight"), 3);
  ASSERT_EQ(sent.heard.size(), parameters.size());
  for (const auto& [parameter, of] : sent.heard)
    EXPECT_TRUE(torch::equal(of.second, at_end.heard.at(parameter).second));
}

TEST(EarlyUpdates, GradientsAreSentByAnAllReduceAlone) {
  for (const char* reduction : {"fused", "all_reduce"}) {
    Strategy strategy({.kind = "mirrored", .replicas = 2, .reduction = reduction});
    const Replicated<nn::GraphModule> net(strategy,
                                          [] { return nn::make_module(graph_of_test()); });
    Optimizer optimizer(net, optim::adam());
    strategy.run([&](ReplicaContext& replica) {
      const auto* const listener = optimizer.updater().begin(replica.local_rank(), Overlap::on);
      EXPECT_EQ(listener->sends(), std::string_view(reduction) == "all_reduce");
    });
  }
}

TEST(EarlyUpdates, AreMadeAsSoonAsAllReplicasHaveTheGradient) {
  Loop loop("mirrored", 2, true, optim::adam());
  Updater& updater = loop.optimizer.updater();
  std::atomic<int> taken{0}, looked{0};
  const auto meet = [](std::atomic<int>& all, int count) {
    const Deadline deadline(Millis{10'000});
    for (++all; all < count && !deadline.passed();) std::this_thread::yield();
    EXPECT_GE(all, count) << "the other replica has not come";
  };
  loop.strategy.run([&](ReplicaContext& replica) {
    const int local = replica.local_rank();
    const auto& parameters = updater.parameters(local);
    const auto last = parameters.back();
    const auto before = last.detach().clone();
    auto* const listener = updater.begin(local, Overlap::on);
    if (local == 1) {  // alone it updates nothing, though it owns the last parameter
      EXPECT_TRUE(listener->take(last, torch::ones_like(last)));
      listener->go_on();
      EXPECT_TRUE(torch::equal(last.detach(), before));
    }
    meet(looked, 2);
    EXPECT_TRUE(local == 1 || listener->take(last, torch::ones_like(last)));
    meet(taken, 2);
    listener->go_on();
    meet(looked, 4);
    EXPECT_FALSE(torch::equal(last.detach(), before));
    EXPECT_TRUE(torch::equal(parameters[0].detach(), loop.weights(local)[0]));
    const std::vector<at::Tensor> rest(parameters.size());
    updater.step(local, rest, {}, Deadline(Millis{10'000}));
  });
  EXPECT_EQ(loop.optimizer.version(), 1);
}

TEST(EarlyUpdates, AStepCannotBeginAgainOnceOthersHaveItsGradients) {
  Loop loop("mirrored", 1, true, optim::adam());
  Updater& updater = loop.optimizer.updater();
  EXPECT_THAT(message_of<UsageError>([&] {
                loop.strategy.run([&](ReplicaContext& replica) {
                  auto* const listener = updater.begin(0, Overlap::on);
                  const auto last = updater.parameters(0).back();
                  listener->take(last, torch::ones_like(last));
                  plain_step(loop, replica, *loop.net.local(replica), 0);
                });
              }),
              HasSubstr("cannot begin again"));
}

TEST(EarlyUpdates, AnErrorBeforeTheFirstGradientLeavesTheStepToBegin) {
  expect_parts_in_turn([](Loop& loop, ReplicaContext& replica, nn::GraphModule& net, int number) {
    if (replica.rank() == 0 && replica.num_replicas_in_sync() > 1 && number % 2 == 0 &&
        loop.strategy.kind() != "one_device") {
      const auto none = torch::ones({}) * 3;  // has no graph
      EXPECT_THROW(loop.optimizer.minimize(replica, none), UsageError);
      return loop.optimizer.abstain(replica);
    }
    if (replica.rank() == 0 && replica.num_replicas_in_sync() > 1 && number % 2 == 0)
      return loop.optimizer.abstain(replica);
    plain_step(loop, replica, net, number);
  });
}

TEST(EarlyUpdates, NormsWaitForAllGradients) {
  expect_parts_in_turn(plain_step, {optim::adam(), {.global_norm = 0.1}});
  expect_parts_in_turn(plain_step, optim::lamb({.learning_rate = 0.01}));
}

TEST(EarlyUpdates, AStepThatOneReplicaLeavesOutIsNobodys) {
  expect_parts_in_turn([](Loop& loop, ReplicaContext& replica, nn::GraphModule& net, int number) {
    const auto loss = loop.loss(replica, net, number);
    // Twice running, by another replica each time, and then as ever.
    if (number < 2 && replica.rank() == number % replica.num_replicas_in_sync())
      return loop.optimizer.leave_out(replica, loss / 0);
    loop.optimizer.minimize(replica, loss);
  });
}

TEST(EarlyUpdates, AReplicaWithoutSamplesCountsAsZero) {
  expect_parts_in_turn([](Loop& loop, ReplicaContext& replica, nn::GraphModule& net, int number) {
    if (replica.rank() > 0 && number % 2 == 0) return loop.optimizer.abstain(replica);
    plain_step(loop, replica, net, number);
  });
}

TEST(EarlyUpdates, WhatElseAParameterIsUsedForCounts) {
  const Step penalty = [](Loop& loop, ReplicaContext& replica, nn::GraphModule& net, int number) {
    const auto weight = net.named_parameters()["hidden.weight"];
    const auto loss = loop.loss(replica, net, number) + weight.pow(2).sum() * 0.1;
    EXPECT_EQ(detail::only_source_of(loss), nullptr);
    loop.optimizer.minimize(replica, loss);
  };
  expect_parts_in_turn(penalty);
  const Step two_passes = [](Loop& loop, ReplicaContext& replica, nn::GraphModule& net,
                             int number) {
    const auto loss = loop.loss(replica, net, number) + loop.loss(replica, net, number + 7);
    EXPECT_EQ(detail::only_source_of(loss), nullptr);
    loop.optimizer.minimize(replica, loss);
  };
  expect_parts_in_turn(two_passes);
}

TEST(EarlyUpdates, GradientsThatWereKeptAreAddedFirst) {
  expect_parts_in_turn([](Loop& loop, ReplicaContext& replica, nn::GraphModule& net, int number) {
    loop.optimizer.accumulate(replica, loop.loss(replica, net, number + 3));
    plain_step(loop, replica, net, number);
  });
}

TEST(EarlyUpdates, HooksOfTheUserChangeGradients) {
  expect_parts_in_turn([](Loop& loop, ReplicaContext& replica, nn::GraphModule& net, int number) {
    if (number == 0)
      net.named_parameters()["hidden.weight"].register_hook(
          [](const at::Tensor& gradient) { return gradient * 0.5; });
    plain_step(loop, replica, net, number);
  });
}

TEST(EarlyUpdates, FrozenParametersStay) {
  Loop loop("mirrored", 2, true, optim::adam());
  for (int local = 0; local < 2; ++local)
    loop.net.modules().module(local)->named_parameters()["conv.weight"].set_requires_grad(false);
  const auto frozen = loop.net.modules().module(0)->named_parameters()["conv.weight"];
  const auto before = frozen.detach().clone();
  loop.step([](Loop& own, ReplicaContext& replica, nn::GraphModule& net,
               int number) { plain_step(own, replica, net, number); },
            0);
  EXPECT_EQ(loop.optimizer.version(), 1);
  EXPECT_TRUE(torch::equal(frozen.detach(), before));
}

TEST(EarlyUpdates, ARestoredTrainingGoesOnAsTheFirst) {
  Loop loop("mirrored", 2, true, optim::adam());
  loop.step(plain_step, 0);
  loop.step(plain_step, 1);
  UpdaterState state = loop.optimizer.updater().state();
  for (auto& [name, tensor] : state.tensors) tensor = tensor.clone();
  NamedTensors parameters;
  for (size_t i = 0; i < loop.weights(0).size(); ++i)
    parameters.emplace_back(loop.optimizer.updater().layout().slots[i].name, loop.weights(0)[i]);
  loop.step(plain_step, 2);
  const auto once = loop.weights(0);
  loop.optimizer.updater().restore(state, parameters);
  loop.step(plain_step, 2);
  const auto again = loop.weights(1);
  for (size_t i = 0; i < once.size(); ++i) EXPECT_TRUE(torch::equal(once[i], again[i]));
}

TEST(OnlySource, IsNoneForOtherLosses) {
  const auto module = nn::make_module(graph_of_test());
  const auto x = torch::ones({2, 1, 8, 8});
  EXPECT_NE(detail::only_source_of(module->forward(x).sum()), nullptr);
  EXPECT_EQ(detail::only_source_of(torch::ones({2}).requires_grad_().sum()), nullptr);
  module->set_planned(false);
  EXPECT_EQ(detail::only_source_of(module->forward(x).sum()), nullptr);
}

}  // namespace
}  // namespace tutti
