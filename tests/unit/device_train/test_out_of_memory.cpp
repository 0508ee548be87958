// A batch that a device has no memory for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/queues/out_of_memory.h"

#include "tests/support/message_of.h"
#include "tests/unit/device_train/device_model.h"

namespace tutti {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kMiB = 1 << 20;

TEST(OutOfMemoryWords, AskedForIsReadFromLibTorchsWords) {
  const auto asked = [](const char* words) { return detail::bytes_asked_for(words); };
  EXPECT_EQ(asked("CUDA out of memory. Tried to allocate 300.00 MiB. GPU 0 has a"), 300 * kMiB);
  EXPECT_EQ(asked("Tried to allocate 1.50 GiB. GPU"), 1536 * kMiB);
  EXPECT_EQ(asked("Tried to allocate 20.00 KiB. GPU"), 20 << 10);
  EXPECT_EQ(asked("Tried to allocate 512 bytes"), 512);
  EXPECT_EQ(asked("Tried to allocate much"), 0);
  EXPECT_EQ(asked("out of memory"), 0);
}

TEST(OutOfMemoryWords, SayWhatIsUsedAndWhatWouldFit) {
  DeviceMemory memory{.total = 80LL << 30, .free = 0, .used = 400 * kMiB, .peak = 1900 * kMiB};
  const auto words = [&](int64_t limit, int64_t asked, int64_t samples, bool trains = true) {
    memory.limit = limit;
    return detail::memory_words(
        {.where = "in step 12", .global_samples = samples, .trains = trains}, memory, asked);
  };
  // 1,600 MiB are for the batch, which takes 1,800 MiB and more.
  EXPECT_THAT(
      words(2000 * kMiB, 300 * kMiB, 90),
      AllOf(HasSubstr("1.9 GiB of 2.0 GiB in use, 300.0 MiB more asked for (limit from "
                      "--memory-limit"),
            HasSubstr("of the 90 samples of the batch at most 80 fit"), HasSubstr("accumulate")));
  EXPECT_THAT(words(0, 90LL << 30, 90, false),
              AllOf(HasSubstr("1.9 GiB of 80.0 GiB in use, 90.0 GiB more asked for"),
                    HasSubstr("try a smaller batch"), Not(HasSubstr("--memory-limit")),
                    Not(HasSubstr("accumulate"))));
  EXPECT_THAT(words(2000 * kMiB, 300 * kMiB, 1), Not(HasSubstr("at most")));
  EXPECT_THAT(words(2000 * kMiB, 0, 90), AllOf(Not(HasSubstr("asked")), Not(HasSubstr("at most"))));
  EXPECT_THAT(words(2 * kMiB, 0, 0, false), HasSubstr("2.0 MiB of 2.0 MiB in use"));
}

class OutOfMemory : public test::FakeCudaTest {};

// Wherever it is in the step, forward or backward.
TEST_F(OutOfMemory, IsOneErrorThatNamesReplicaDeviceAndStep) {
  for (const DevicePlace& place : device_places()) {
    SCOPED_TRACE(words_of(place));
    for (const uint64_t after : {1, 20, 60}) {
      Model model = model_at(place);
      FitOptions options{.verbose = 0};
      const int device = place.device == "cuda:1" ? 1 : 0;
      options.callbacks = {callbacks::lambda("fails", {.on_step_end = [=](Training& training) {
                                               if (training.step() == 2)
                                                 test::fake_cuda::fail_allocation(device, after);
                                             }})};
      EXPECT_THAT(test::message_of<Error>([&] { model.fit(pictures(200).batch(8), options); }),
                  AllOf(HasSubstr("(cuda:"), HasSubstr("): out of memory in step "),
                        HasSubstr(" in use"), HasSubstr("try a smaller batch")));
      test::fake_cuda::reset();
    }
  }
}

// Replicas that take turns may go on after an error; in backward it leaves gradients.
TEST_F(OutOfMemory, AFitWithASmallerBatchMayFollow) {
  for (uint64_t after = 1; after < 130; after += 8) {
    SCOPED_TRACE(after);
    test::in_all_orders(1, [&] {
      Model model = model_at({"one_device", 2, "cuda:1"});
      const FitOptions options{.max_steps = 3, .verbose = 0};
      model.fit(pictures(200).batch(4), options);
      test::fake_cuda::fail_allocation(1, after);
      EXPECT_THAT(test::message_of<Error>([&] { model.fit(pictures(200).batch(8), options); }),
                  HasSubstr("out of memory"));
      EXPECT_NO_THROW(model.fit(pictures(200).batch(4), options));
    });
    test::fake_cuda::reset();
  }
}

TEST_F(OutOfMemory, InEvaluateItNamesTheBatch) {
  Model model = model_at({"mirrored", 2, "cuda:0,1"});
  test::fake_cuda::fail_allocation(1, 20);
  EXPECT_THAT(test::message_of<Error>([&] { model.evaluate(pictures(40).batch(8)); }),
              AllOf(HasSubstr("replica 1 (cuda:1): out of memory in evaluate, batch ")));
}

// While modules and the optimizer are made, in a loop of a user's and in predict() of a tensor.
TEST_F(OutOfMemory, OutsideOfAStepItIsTheSameError) {
  Strategy strategy = strategy_at({"mirrored", 2, "cuda:0,1"});
  const auto failure = [](uint64_t after, auto work) {
    test::fake_cuda::fail_allocation(1, after);
    const std::string said = test::message_of<Error>(work);
    test::fake_cuda::reset();
    return said;
  };
  const auto factory = [] { return torch::nn::Sequential(torch::nn::Linear(4, 3)); };
  EXPECT_THAT(failure(1, [&] { Replicated<torch::nn::Sequential>(strategy, factory); }),
              HasSubstr("replica 1 (cuda:1): out of memory while the model is made: "));
  Replicated<torch::nn::Sequential> net(strategy, factory);
  for (const uint64_t after : {1, 4, 8, 11, 12})  // the last are of norms
    EXPECT_THAT(failure(after, [&] { Optimizer(net, {optim::adam(), {.norm = 1}}); }),
                HasSubstr("replica 1 (cuda:1): out of memory while the optimizer is made: "))
        << after;
  EXPECT_THAT(failure(1,
                      [&] {
                        strategy.run([](ReplicaContext& replica) {
                          torch::ones({5}, at::TensorOptions(replica.device()));
                        });
                      }),
              HasSubstr("replica 1 (cuda:1): out of memory in run(): "));
  Model model = small_model(strategy_at({"one_device", 1, "cuda:1"}));
  EXPECT_THAT(failure(1, [&] { model.predict(torch::ones({5, 4})); }),
              HasSubstr("replica 0 (cuda:1): out of memory in predict(): "));
}

}  // namespace
}  // namespace tutti
