// Workers of one host that push as one, here threads of one process, against one loop that does
// what they do in turn.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <mutex>
#include <thread>

#include "tutti/base/error.h"
#include "tutti/cluster/rendezvous/job_links.h"
#include "tutti/comm/engine/reduce_kernels.h"
#include "tutti/comm/shm/shm.h"
#include "tutti/sync/updater.h"

#include "tests/unit/ps/job_of_threads.h"

namespace tutti {
namespace {

using ::testing::HasSubstr;

constexpr Millis kLimit{20'000};
constexpr int64_t kElements = 5'000;  // of each of two parameters, five pieces of 1,024
constexpr int64_t kPieceBytes = 4'096;

at::Tensor first_values(int parameter) {
  return torch::sin(torch::arange(kElements, torch::kFloat32) + static_cast<float>(parameter));
}

// What a replica multiplies its parameters by to get its gradient.
at::Tensor factors(int rank, int64_t step, int parameter) {
  return torch::cos(torch::arange(kElements, torch::kFloat32) * static_cast<float>(rank + 1) +
                    static_cast<float>(3 * step + parameter)) /
         16;
}

std::vector<at::Tensor> in_turn(int replicas, int64_t steps) {
  std::vector<at::Tensor> parameters = {first_values(0), first_values(1)};
  for (int64_t step = 0; step < steps; ++step)
    for (int i = 0; i < 2; ++i) {
      std::vector<at::Tensor> gradients;
      std::vector<const void*> inputs;
      for (int rank = 0; rank < replicas; ++rank) {
        gradients.push_back(parameters[i] * factors(rank, step, i));
        inputs.push_back(gradients.back().data_ptr());
      }
      at::Tensor sum = torch::empty({kElements});
      reduce_inputs(DType::float32, ReduceOp::sum, ReductionShape::flat(replicas), inputs,
                    sum.data_ptr(), kElements);
      parameters[i] = parameters[i] - sum;
    }
  return parameters;
}

class ServedHost : public testing::Test {
 protected:
  ServedHost() : credentials_(in_environment()), job_(1, 3, true, credentials_) {}
  ~ServedHost() override { unsetenv(kTokenVariable); }

  static Credentials in_environment() {
    const Token token = Token::random();
    setenv(kTokenVariable, token.secret_hex().c_str(), 1);
    return {token, job_of_token(token), nullptr};
  }

  struct Worker {
    // Until all have ended: they are of one process here, and have their parameters in the same
    // memory, so that one may be waiting in another one's updater.
    std::shared_ptr<Updater> updater;
    std::vector<NamedTensors> replicas;
    int64_t pushes = 0;
    std::string error;
  };

  // Changes what the second parameter is multiplied by; may be empty.
  using Spoil = std::function<void(int rank, int64_t step, at::Tensor& factor)>;

  // All workers at once, each with as many replicas.
  std::vector<Worker> train(int local, int64_t steps, const ServedOptions& options,
                            const Spoil& spoil = {}) {
    std::vector<Worker> workers(3);
    const auto engines = make_shm_threads(3 * local);
    std::vector<std::thread> threads;
    for (int number = 0; number < 3; ++number)
      threads.emplace_back([&, number] {
        World world{{.size = 3 * local, .first_rank = number * local, .local = local}};
        for (int i = 0; i < local; ++i) world.groups.emplace_back(engines[number * local + i]);
        world.shape = world.groups[0].reduction_shape();
        world.time_limit = kLimit;
        try {
          run(workers[number], world, number, steps, options, spoil);
        } catch (const Error& error) {
          workers[number].error = error.what();
        }
      });
    for (std::thread& thread : threads) thread.join();
    for (Worker& worker : workers) worker.updater.reset();
    return workers;
  }

 private:
  void run(Worker& worker, const World& world, int number, int64_t steps,
           const ServedOptions& options, const Spoil& spoil) {
    for (int i = 0; i < world.local; ++i)
      worker.replicas.push_back(
          {{"a", first_values(0).requires_grad_()}, {"b", first_values(1).requires_grad_()}});
    worker.updater = make_served_updater(world, optim::sgd({.learning_rate = 1}), worker.replicas,
                                         {.worker = number,
                                          .num_workers = 3,
                                          .num_servers = 1,
                                          .view_service = job_.where(),
                                          .piece_bytes = kPieceBytes},
                                         options);
    std::vector<std::thread> threads;
    std::mutex mutex;
    for (int local = 0; local < world.local; ++local)
      threads.emplace_back([&, local] {
        try {
          for (int64_t step = 0; step < steps; ++step)
            do_step(*worker.updater, worker.replicas[local], local, world.first_rank + local, step,
                    spoil);
        } catch (const std::exception& error) {
          const std::lock_guard lock(mutex);
          worker.error = error.what();
          Group(world.groups[local]).abort(error.what());
        }
      });
    for (std::thread& thread : threads) thread.join();
    worker.pushes = worker.updater->parts().client->counts().pushes;
    if (!worker.error.empty()) return;
    worker.updater->parts().late->complete();
    for (NamedTensors& replica : worker.replicas)
      for (auto& [name, tensor] : replica) tensor = tensor.detach().clone();
  }

  static void do_step(Updater& updater, const NamedTensors& parameters, int local, int rank,
                      int64_t step, const Spoil& spoil) {
    updater.ready(local, Deadline(kLimit));
    updater.begin(local, Overlap::on);
    std::vector<at::Tensor> gradients;
    for (int i = 0; i < 2; ++i) {
      const at::Tensor& parameter = parameters[i].second;
      at::Tensor factor = factors(rank, step, i);
      if (spoil && i == 1) spoil(rank, step, factor);
      (parameter.detach() * factor * parameter).sum().backward();
      gradients.push_back(parameter.grad());
    }
    updater.step(local, gradients, {}, Deadline(kLimit));
    for (const auto& [name, parameter] : parameters) parameter.mutable_grad().reset();
  }

  const Credentials credentials_;
  ps::Job job_;
};

class ServedHostOf : public ServedHost, public testing::WithParamInterface<int> {};

TEST_P(ServedHostOf, HasTheBitsOfOneLoopForAThirdOfThePushes) {
  const int local = GetParam();
  constexpr int64_t kSteps = 6;
  const auto expected = in_turn(3 * local, kSteps);
  const auto workers = train(local, kSteps, {});
  int64_t pushes = 0;
  for (const Worker& worker : workers) {
    ASSERT_EQ(worker.error, "");
    pushes += worker.pushes;
    for (const NamedTensors& replica : worker.replicas)
      for (int i = 0; i < 2; ++i)
        EXPECT_EQ(std::memcmp(replica[i].second.data_ptr(), expected[i].data_ptr(),
                              kElements * sizeof(float)),
                  0);
  }
  EXPECT_EQ(pushes, kSteps * 10);
}

INSTANTIATE_TEST_SUITE_P(Replicas, ServedHostOf, testing::Values(1, 2),
                         [](const auto& info) { return std::to_string(info.param) + "_each"; });

TEST_F(ServedHost, WithoutHostSumsEveryWorkerPushesAll) {
  const auto workers = train(1, 2, {.host_sums = false});
  for (const Worker& worker : workers) {
    EXPECT_EQ(worker.error, "");
    EXPECT_EQ(worker.pushes, 2 * 10);
  }
}

class ServedHostBlames : public ServedHost, public testing::WithParamInterface<int> {};

// Not whoever carries the piece.
TEST_P(ServedHostBlames, WhoseGradientIsNotFinite) {
  const auto workers = train(1, 5, {}, [](int rank, int64_t step, at::Tensor& factor) {
    if (rank == GetParam() && step == 2)
      factor[kElements - 1] = std::numeric_limits<float>::quiet_NaN();
  });
  for (const Worker& worker : workers)
    EXPECT_THAT(worker.error,
                HasSubstr(fmt::format("\"b\" is not finite (worker {})", GetParam())));
}

INSTANTIATE_TEST_SUITE_P(Workers, ServedHostBlames, testing::Values(0, 1, 2));

}  // namespace
}  // namespace tutti
