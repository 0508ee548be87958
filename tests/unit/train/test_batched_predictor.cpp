// Calls of many threads that one forward pass answers.
#include <functional>
#include <thread>

#include "tutti/base/file.h"
#include "tutti/models/gpt.h"
#include "tutti/train/model/detail/joined_predictions.h"
#include "tutti/train/model/predictor.h"

#include "tests/support/expect.h"
#include "tests/support/pt2_files.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/train/small_model.h"

namespace tutti {
namespace {

using std::chrono::microseconds;

constexpr auto kForEver = microseconds::max();

/// What each of `count` threads gets, or the words of its error.
struct Answers {
  std::vector<at::Tensor> outputs;
  std::vector<std::string> errors;
};
template <class Ask>
Answers answers_of(size_t count, Ask ask) {
  Answers all{std::vector<at::Tensor>(count), std::vector<std::string>(count)};
  std::vector<std::jthread> threads;
  for (size_t i = 0; i < count; ++i)
    threads.emplace_back([&, i] {
      try {
        all.outputs[i] = ask(i);
      } catch (const std::exception& error) {
        all.errors[i] = plain_words(error.what());
      }
    });
  threads.clear();
  return all;
}

Predictor small_predictor() {
  const TempFolder folder;
  small_model(strategy_of("one_device", 1)).save(folder / "net.safetensors");
  return Predictor::load(folder / "net.safetensors");
}

TEST(BatchedPredictors, GiveEachThreadItsRowsOfOnePass) {
  const Predictor one = small_predictor();
  const Predictor joined = one.batched({.max_batch = 10, .max_wait = kForEver});
  torch::manual_seed(5);
  std::vector<at::Tensor> inputs;
  for (int64_t rows = 1; rows <= 4; ++rows) inputs.push_back(at::randn({rows, 4}));
  const auto got = answers_of(4, [&](size_t i) { return joined.predict(inputs[i]); });
  EXPECT_THAT(got.errors, Each(""));
  EXPECT_EQ(joined.joined().passes, 1);
  EXPECT_EQ(joined.joined().calls, 4);
  EXPECT_EQ(joined.joined().units, 10);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(at::allclose(got.outputs[i], one.predict(inputs[i]), 1e-6, 1e-7)) << i;
    EXPECT_FALSE(got.outputs[i].requires_grad());
    EXPECT_EQ(got.outputs[i].storage().nbytes(), got.outputs[i].nbytes()) << "memory of its own";
  }
}

TEST(BatchedPredictors, AnswerManyThreadsForALongTime) {
  const Predictor one = small_predictor();
  const Predictor joined = one.batched({.max_batch = 3, .max_wait = microseconds(20)});
  const auto wrong = answers_of(6, [&](size_t i) {
    const Predictor own = joined;
    int64_t bad = 0;
    for (int64_t call = 0; call < 100; ++call) {
      const at::Tensor x = at::full({1 + call % 4, 4}, static_cast<double>(i) + 0.01 * call);
      bad += at::allclose(own.predict(x), one.predict(x), 1e-5, 1e-6) ? 0 : 1;
    }
    return at::scalar_tensor(bad);
  });
  EXPECT_THAT(wrong.errors, Each(""));
  for (const at::Tensor& bad : wrong.outputs) EXPECT_EQ(bad.item<double>(), 0);
  EXPECT_EQ(joined.joined().calls, 600);
}

TEST(BatchedPredictors, ALoneCallIsThatOfAPredictor) {
  const Predictor one = small_predictor();
  const Predictor joined = one.batched({.max_batch = 8, .max_wait = microseconds(0)});
  const at::Tensor x = at::randn({5, 4}), none = at::zeros({0, 4}), many = at::randn({20, 4});
  EXPECT_TRUE(at::equal(joined.predict(x), one.predict(x)));
  EXPECT_TRUE(at::equal(joined.predict(none), one.predict(none)));
  EXPECT_TRUE(at::equal(joined.predict(many), one.predict(many))) << "one pass, however large";
  EXPECT_EQ(joined.joined().passes, 3);
  EXPECT_EQ(joined.graph().inputs()[0].name, one.graph().inputs()[0].name);
}

TEST(BatchedPredictors, AnErrorOfOneCallersRowsIsItsAlone) {
  const TempFolder folder;
  const auto net = [] {
    return models::gpt({.vocabulary = 5, .context = 3, .layers = 1, .heads = 1, .features = 4});
  };
  Model(strategy_of("one_device", 1), net).save(folder / "net.safetensors");
  const Predictor one = Predictor::load(folder / "net.safetensors");
  const Predictor joined = one.batched({.max_batch = 3, .max_wait = kForEver});
  const std::vector<at::Tensor> inputs{at::full({1, 3}, 1, at::kLong),
                                       at::full({1, 3}, 7, at::kLong),
                                       at::full({1, 3}, 2, at::kLong)};
  const auto got = answers_of(3, [&](size_t i) { return joined.predict(inputs[i]); });
  EXPECT_EQ(joined.joined().passes, 1) << "all three were in it";
  EXPECT_EQ(got.errors[0], "");
  EXPECT_THAT(got.errors[1], HasSubstr("token 7"));
  EXPECT_EQ(got.errors[2], "");
  EXPECT_TRUE(at::equal(got.outputs[0], one.predict(inputs[0])));
  EXPECT_TRUE(at::equal(got.outputs[2], one.predict(inputs[2])));
}

TEST(BatchedPredictors, WhatAModelThrowsMayBeNoException) {
  const auto doubled = [](at::TensorList inputs) {
    if ((inputs[0] == 7).any().item<bool>()) throw 42;
    return std::vector<at::Tensor>{inputs[0] * 2};
  };
  detail::JoinedPredictions joined(doubled, {.max_batch = 2, .max_wait = kForEver});
  int thrown = 0;
  std::jthread other([&] {
    try {
      joined.ask(at::full({1, 4}, 7));
    } catch (int what) {
      thrown = what;
    }
  });
  EXPECT_TRUE(at::equal(joined.ask(at::ones({1, 4}))[0], at::full({1, 4}, 2.0)));
  other.join();
  EXPECT_EQ(thrown, 42);
  EXPECT_EQ(joined.counts().passes, 1) << "both were in it";
}

TEST(BatchedPredictors, RefuseWhatAPredictorRefusesBeforeItWaits) {
  const Predictor joined = small_predictor().batched({.max_batch = 8, .max_wait = kForEver});
  const auto refused = [&](const at::Tensor& x) {
    return message_of<UsageError>([&] { joined.predict(x); });
  };
  EXPECT_THAT(refused(at::zeros({1, 5})), HasSubstr("expected [batch, 4]"));
  EXPECT_THAT(refused(at::zeros({1, 4}, at::kLong)), HasSubstr("is Long"));
  EXPECT_THAT(refused(at::Tensor()), HasSubstr("undefined"));
  EXPECT_THAT(message_of<UsageError>([&] { joined.predict_all({}); }), HasSubstr("got 0 inputs"));
  EXPECT_EQ(joined.joined().calls, 0);
}

TEST(BatchedPredictors, ACallHasALimit) {
  const Predictor joined =
      small_predictor().batched({.max_batch = 8, .max_wait = kForEver, .limit = Millis{1}});
  EXPECT_THAT(message_of<Timeout>([&] { joined.predict(at::zeros({1, 4})); }),
              HasSubstr("predict: no answer in 1 ms"));
}

TEST(BatchedPredictors, MayGoWhileCallsWait) {
  std::optional<Predictor> joined =
      small_predictor().batched({.max_batch = 2, .max_wait = kForEver});
  const Predictor copy = *joined;
  at::Tensor answer;
  std::jthread waits([&, own = *joined] { answer = own.predict(at::zeros({1, 4})); });
  while (copy.joined().waiting == 0) std::this_thread::yield();
  joined.reset();
  EXPECT_TRUE(copy.predict(at::zeros({1, 4})).defined());
  waits.join();
  EXPECT_EQ(answer.sizes(), (std::vector<int64_t>{1, 3}));
}

TEST(BatchedPredictors, OfANetworkOfPythonAreOfThoseWhoseBatchMayGrow) {
  const std::filesystem::path nets = "tests/tables/exported";
  const Predictor one = Predictor::load(nets / "cnn.eval.pt2");
  const Predictor joined = one.batched({.max_batch = 4, .max_wait = kForEver});
  const std::vector<at::Tensor> inputs{at::randn({3, 3, 8, 8}), at::randn({1, 3, 8, 8})};
  const auto got = answers_of(2, [&](size_t i) { return joined.predict(inputs[i]); });
  EXPECT_THAT(got.errors, Each(""));
  EXPECT_EQ(joined.joined().passes, 1);
  for (size_t i = 0; i < 2; ++i)
    EXPECT_TRUE(at::allclose(got.outputs[i], one.predict(inputs[i]), 1e-5, 1e-6));
  const TempFolder folder;
  const auto refused = [&](const std::function<void(OrderedJson&)>& change) {
    ZipFile file = read_zip(nets / "mlp.pt2");
    change_json(file, kModel, change);
    put_bytes(folder / "net.pt2", file.bytes());
    const auto network = from_export(folder / "net.pt2", {.eval = folder / "net.pt2"});
    return message_of<UsageError>([&] { Predictor::load(network).batched({.max_batch = 9}); });
  };
  EXPECT_THAT(refused([](OrderedJson& model) {
                model.at("range_constraints").at("s77").at("max_val") = 8;
              }),
              HasSubstr("fewer rows than max_batch, 9"));
}

TEST(BatchedPredictors, RefuseOptionsOutOfRange) {
  const Predictor one = small_predictor();
  EXPECT_THAT(message_of<UsageError>([&] { one.batched({.max_batch = 0}); }),
              HasSubstr("predict: at most 0 in one pass"));
  EXPECT_THAT(message_of<UsageError>([&] { one.batched({.max_wait = microseconds(-1)}); }),
              HasSubstr("-1 us"));
  EXPECT_THAT(message_of<UsageError>([&] { one.joined(); }), HasSubstr("see batched()"));
}

}  // namespace
}  // namespace tutti
