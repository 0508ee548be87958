// Parameters of servers that come after forward has begun. The second worker of the job is the
// test itself: it decides when a piece can come.

#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

#include "tutti/base/error.h"
#include "tutti/cluster/rendezvous/job_links.h"
#include "tutti/comm/solo/solo.h"
#include "tutti/observe/trace.h"
#include "tutti/sync/before_use.h"
#include "tutti/sync/tensors.h"
#include "tutti/sync/updater.h"

#include "tests/unit/ps/job_of_threads.h"

namespace tutti {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr int64_t kWidth = 512;  // a weight of 1 MiB
constexpr Millis kLateLimit{20'000};

// The servers know a job by its token.
Credentials credentials_in_environment() {
  const Token token = Token::random();
  setenv(kTokenVariable, token.secret_hex().c_str(), 1);
  return {token, job_of_token(token), nullptr};
}

// Worker 0 of two, of two layers without bias; each weight is a piece. Every gradient is 1 on both
// workers and the rate is 1: a step with one replica each takes 2 from every element.
class ServedLate : public testing::Test {
 protected:
  explicit ServedLate(Millis limit = kLateLimit, int local = 1)
      : job_(1, 2, true, credentials_in_environment()),
        local_(local),
        weights_(weights(local)),
        first_(weights_[0][0].second),
        second_(weights_[0][1].second),
        updater_(make_served_updater(world(limit, local), optim::sgd({.learning_rate = 1}),
                                     weights_,
                                     {.worker = 0,
                                      .num_workers = 2,
                                      .num_servers = 1,
                                      .view_service = job_.where(),
                                      .piece_bytes = kWidth * kWidth * 4},
                                     {})),
        other_(std::make_unique<ps::Client>(job_.options(1), job_.credentials(),
                                            updater_->parts().client->spec(), nullptr)) {}
  ~ServedLate() override { unsetenv(kTokenVariable); }

  static std::vector<NamedTensors> weights(int local) {
    const auto ones = [] { return torch::ones({kWidth, kWidth}).requires_grad_(); };
    std::vector<NamedTensors> all;
    for (int i = 0; i < local; ++i) all.push_back({{"first", ones()}, {"second", ones()}});
    return all;
  }
  static World world(Millis limit, int local) {
    World world{{.size = 2 * local, .local = local}};
    for (int i = 0; i < local; ++i) world.groups.emplace_back(make_solo());
    world.shape = ReductionShape::flat(2 * local);
    world.time_limit = limit;
    return world;
  }

  at::Tensor forward(const at::Tensor& x) { return torch::mm(torch::mm(x, first_), second_); }

  // Worker 0's step, with gradients of ones.
  void step() {
    updater_->begin(0, Overlap::on);
    (first_.sum() + second_.sum()).backward();
    updater_->step(0, {{first_.grad(), second_.grad()}}, {}, Deadline(kLateLimit));
    first_.mutable_grad().reset();
    second_.mutable_grad().reset();
  }

  // What worker 1 hands in of one piece.
  void push_of_other(int piece, int64_t step) {
    const ps::Piece& known = other_->spec().pieces.at(piece);
    auto memory = other_->allocate(known.num_bytes);
    std::fill_n(reinterpret_cast<float*>(memory.get()), known.num_bytes / 4, 1.0F);
    other_->push({.piece = piece,
                  .step = step,
                  .learning_rate = 1,
                  .parts = {{local_, std::vector<uint8_t>(known.segments.size(), 1)}},
                  .payload = {{memory.get(), static_cast<size_t>(known.num_bytes)}, memory}});
    other_->wait_until_settled(Deadline(kLateLimit));
  }

  ps::Job job_;
  const int local_;
  const std::vector<NamedTensors> weights_;  // by replica
  const at::Tensor first_, second_;
  std::shared_ptr<Updater> updater_;
  std::unique_ptr<ps::Client> other_;
};

const nlohmann::json& the(const std::vector<nlohmann::json>& events, const std::string& name,
                          int piece, int64_t step = -1) {
  for (const auto& event : events)
    if (event.at("name") == name && event.at("args").at("piece") == piece &&
        (step < 0 || event.at("args").at("step") == step))
      return event;
  throw Error("no " + name);
}

TEST_F(ServedLate, ForwardBeginsBeforeTheLastParameterHasCome) {
  const auto trace = std::make_shared<Trace>(0, "worker 0");
  add_sink(trace);
  ASSERT_EQ(updater_->parts().client->spec().pieces.size(), 2u);
  step();
  const at::Tensor x = torch::ones({1, kWidth});
  push_of_other(0, 0);
  const at::Tensor hidden = torch::mm(x, first_);
  EXPECT_EQ(hidden.data_ptr<float>()[0], -static_cast<float>(kWidth));  // 1 - 2, of each
  EXPECT_FALSE(updater_->parts().client->arrived(1, 1));
  push_of_other(1, 0);
  EXPECT_EQ(torch::mm(x, second_).data_ptr<float>()[0], -static_cast<float>(kWidth));
  remove_sink(trace);

  const std::vector<nlohmann::json> events = nlohmann::json::parse(trace->json()).at("traceEvents");
  const double begins = the(events, "sync.first_use", 0).at("ts");
  const double last_came = the(events, "ps.arrived", 1, 1).at("ts");
  EXPECT_LT(begins, last_came);
  EXPECT_LT(the(events, "ps.arrived", 0, 1).at("ts").get<double>(), last_came);
  EXPECT_LT(last_came, the(events, "sync.fill", 1).at("ts").get<double>() +
                           the(events, "sync.fill", 1).at("dur").get<double>());
}

TEST_F(ServedLate, WhoeverReadsOtherwiseGetsWhatIsNew) {
  step();
  push_of_other(0, 0);
  push_of_other(1, 0);
  EXPECT_EQ(static_cast<const float*>(span_of(second_).data)[kWidth * kWidth - 1], -1.0F);
  updater_->parts().late->complete();
  EXPECT_EQ(first_.data_ptr<float>()[0], -1.0F);
  step();
  push_of_other(0, 1);
  push_of_other(1, 1);
  require_ready(first_);
  EXPECT_EQ(first_.data_ptr<float>()[1], -3.0F);
  updater_->parts().late->complete();
}

// What no operator has read is taken before the next gradients go.
TEST_F(ServedLate, AParameterThatIsNotUsedComesBeforeTheNextStep) {
  step();
  push_of_other(0, 0);
  push_of_other(1, 0);
  updater_->begin(0, Overlap::on);
  first_.sum().backward();
  updater_->step(0, {{first_.grad(), at::Tensor()}}, {}, Deadline(kLateLimit));
  EXPECT_EQ(second_.data_ptr<float>()[0], -1.0F);
  first_.mutable_grad().reset();
  push_of_other(0, 1);
  push_of_other(1, 1);
  updater_->parts().late->complete();
  EXPECT_EQ(first_.data_ptr<float>()[0], -3.0F);
  EXPECT_EQ(second_.data_ptr<float>()[0], -2.0F);  // the other worker's gradient alone
}

// Reads its weight behind the back of all observers.
struct ReadsMemory : torch::autograd::Function<ReadsMemory> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& weight) {
    context->saved_data["rows"] = weight.size(0);
    return torch::full({}, *static_cast<const float*>(weight.data_ptr()));
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               const torch::autograd::tensor_list&) {
    const int64_t rows = context->saved_data["rows"].toInt();
    return {torch::ones({rows, rows})};
  }
};

TEST_F(ServedLate, AGradientOfWhatNoOperatorHasReadIsAnError) {
  step();
  updater_->begin(0, Overlap::on);
  EXPECT_THAT([&] { ReadsMemory::apply(first_).backward(); },
              ThrowsMessage<UsageError>(HasSubstr("\"first\" has a gradient, but no operator")));
  push_of_other(0, 0);
  push_of_other(1, 0);
  updater_->parts().late->complete();
}

struct ServedLateTwice : ServedLate {
  ServedLateTwice() : ServedLate(kLateLimit, 2) {}
};

// The first that sees all gradients handed in begins the step for both.
TEST_F(ServedLateTwice, EachReplicaIsWatched) {
  std::vector<std::jthread> threads;
  const auto step = [&](int replica) {
    updater_->begin(replica, Overlap::on);
    const at::Tensor ones = torch::ones({kWidth, kWidth});
    updater_->step(replica, {{ones, ones}}, {}, Deadline(kLateLimit));
    EXPECT_TRUE(at::hasThreadLocalCallbacks()) << replica;
  };
  for (const int replica : {0, 1}) threads.emplace_back(step, replica);
  threads.clear();  // joins
  push_of_other(0, 0);
  push_of_other(1, 0);
  updater_->ready(1, Deadline(kLateLimit));
  EXPECT_EQ((weights_[1][0].second + 0).data_ptr<float>()[0], -2.0F);
  updater_->parts().late->complete();
}

struct ServedTooLate : ServedLate {
  ServedTooLate() : ServedLate(Millis{300}) {}
};

TEST_F(ServedTooLate, WhomItWaitedForIsNamedAndNothingIsTrainedOnOldValues) {
  step();
  EXPECT_THAT([&] { static_cast<void>(forward(torch::ones({1, kWidth}))); },
              ThrowsMessage<c10::Error>(HasSubstr("worker 1")));
  const auto says_who = ThrowsMessage<Timeout>(HasSubstr("step 1 waits for worker 1"));
  EXPECT_THAT([&] { updater_->parts().late->rethrow_failure(); }, says_who);
  EXPECT_THAT([&] { updater_->step(0, {{at::Tensor(), at::Tensor()}}, {}, Deadline(kLateLimit)); },
              says_who);
  EXPECT_THAT([&] { updater_->parts().late->complete(); }, says_who);
  EXPECT_THAT([&] { updater_->require_whole(); }, says_who);
  EXPECT_THAT([&] { static_cast<void>(span_of(first_)); }, says_who);
  push_of_other(0, 0);
  push_of_other(1, 0);
}

}  // namespace
}  // namespace tutti
