// reduce, gather, merge and datasets of the workers' own over several processes.
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/base/error.h"
#include "tutti/strategy/values/variable.h"

#include "tests/support/run_workers.h"
#include "tests/support/small_training.h"

namespace tutti {
namespace {

std::string text_of(const at::Tensor& tensor) {
  const at::Tensor values = tensor.to(at::kDouble).contiguous();
  return fmt::format("{}", fmt::join(std::span(values.data_ptr<double>(), values.numel()), " "));
}

// Everything that is asked of all replicas, as text.
std::string answers(Strategy strategy) {
  const auto rows = strategy.run([](ReplicaContext& replica) {
    return torch::full({replica.rank(), 2}, 0.1 + replica.rank(), at::kDouble);
  });
  std::string text = text_of(strategy.gather(rows)) + " | " +
                     text_of(strategy.reduce(ReduceOp::mean, rows, {0})) + " | ";
  // In the midst of run(): collectives over the workers, on the threads that wait.
  const auto merged = strategy.run([&](ReplicaContext& replica) {
    return strategy.merge(
        replica,
        [](Strategy& inner, const PerReplica<at::Tensor>& parts, const PerReplica<double>& ranks) {
          return text_of(inner.gather(parts)) +
                 fmt::format(" {}", inner.reduce(ReduceOp::sum, ranks));
        },
        torch::full({1}, 0.3 * replica.rank(), at::kDouble), 1.0 * replica.rank());
  });
  for (const auto& one : merged.values()) EXPECT_EQ(one, merged.local(0));
  return text + merged.local(0);
}

RANK_PROGRAM(answer) {
  rank.mark("answers " +
            answers(test::strategy_of("multi_worker", std::stoi(rank.arguments.at(0)))));
  if (::testing::Test::HasFailure()) throw Error("replicas of a worker got different answers");
}

TEST(CrossReplicaOfProcesses, IsThatOfThreads) {
  const std::pair<int, int> jobs[] = {{2, 2}, {3, 3}, {2, 4}};
  for (const auto& [workers, replicas] : jobs) {
    const auto out = test::run_workers(workers, "answer", {std::to_string(replicas)});
    ASSERT_EQ(out.exit_code, 0) << out.log;
    EXPECT_THAT(test::lines_after(out.log, "answers "),
                ::testing::AllOf(::testing::SizeIs(workers),
                                 ::testing::Each(answers(test::strategy_of("mirrored", replicas)))))
        << out.log;
  }
}

RANK_PROGRAM(gather_unlike) {
  Strategy strategy = test::strategy_of("multi_worker", 3);
  strategy.gather(strategy.run(
      [](ReplicaContext& replica) { return torch::ones({2, replica.rank() == 2 ? 5 : 4}); }));
}

TEST(CrossReplicaOfProcesses, UnlikeTensorsAreNamedOnEachWorker) {
  const auto out = test::run_workers(3, "gather_unlike");
  EXPECT_EQ(out.exit_code, 1);
  for (int worker = 0; worker < 3; ++worker)
    EXPECT_THAT(out.log, ::testing::HasSubstr(fmt::format(
                             "[{}] error: gather along axis 0: replica 2 has Float [2, 5], replica "
                             "0 has Float [2, 4]",
                             worker)));
}

RANK_PROGRAM(reduce_unlike) {
  Strategy strategy = test::strategy_of("multi_worker", 2);
  const auto values = [&](int64_t length) {
    return strategy.run([&](ReplicaContext&) { return torch::ones({length}); });
  };
  const auto two = values(2), own = values(rank.rank == 1 ? 5 : 4);
  rank.mark("alike " + text_of(batch_reduce_to(strategy, ReduceOp::sum, {{two}, {two}})[1]));
  try {
    batch_reduce_to(strategy, ReduceOp::sum, {{two}, {own}});
  } catch (const Mismatch& error) {
    rank.mark(std::string("unlike ") + error.what());
  }
  try {  // of which the lengths agree
    batch_reduce_to(strategy, ReduceOp::sum,
                    rank.rank == 1 ? std::vector<ReduceTo>{{two}, {values(4)}}
                                   : std::vector<ReduceTo>{{values(4)}, {two}});
  } catch (const Mismatch& error) {
    rank.mark(std::string("swapped ") + error.what());
  }
}

TEST(CrossReplicaOfProcesses, UnlikeValuesOfABatchAreNamedOnEachWorker) {
  const auto out = test::run_workers(2, "reduce_unlike");
  ASSERT_EQ(out.exit_code, 0) << out.log;
  EXPECT_THAT(test::lines_after(out.log, "alike "),
              ::testing::AllOf(::testing::SizeIs(2), ::testing::Each("2 2")));
  for (const char* lines : {"unlike ", "swapped "})
    EXPECT_THAT(test::lines_after(out.log, lines),
                ::testing::AllOf(::testing::SizeIs(2),
                                 ::testing::Each(::testing::StartsWith("batch_reduce_to"))))
        << out.log;
  EXPECT_THAT(out.log, ::testing::HasSubstr("worker 1 has value 2: Float [5]"));
  EXPECT_THAT(out.log, ::testing::HasSubstr("worker 1 has value 1: Float [2]"));
}

// Worker 0 has 3 batches of 2, worker 1 one of 2 and one of 1: the others wait for nobody.
RANK_PROGRAM(own_datasets) {
  Strategy strategy = test::strategy_of("multi_worker", 2);
  auto batches = strategy.distribute_from_function([](const InputContext& context) {
    const int64_t id = context.input_pipeline_id;
    std::vector<float> values;
    for (int64_t i = 0; i < 6 - 3 * id; ++i) values.push_back(static_cast<float>(10 * id + i));
    const auto count = static_cast<int64_t>(values.size());
    return data::from_arrays({data::array_of(values, {count}), data::array_of(values, {count})})
        .batch(context.per_replica_batch_size(4));
  });
  std::string text;
  for (auto&& batch : batches.epoch(0)) {
    const auto parts = strategy.run([&](ReplicaContext& replica) {
      text += fmt::format("{}/{}@{} ", batch.local_size(replica), batch.global_size(),
                          batch.first_row(replica));
      return batch.local(replica).first;
    });
    text += fmt::format("[{}] ", text_of(strategy.gather(parts)));
  }
  rank.mark(fmt::format("worker {}: {}", rank.rank, text));
}

TEST(CrossReplicaOfProcesses, DatasetsOfTheWorkersOwnMayEndApart) {
  const auto out = test::run_workers(2, "own_datasets");
  ASSERT_EQ(out.exit_code, 0) << out.log;
  EXPECT_THAT(out.log,
              ::testing::HasSubstr("worker 0: 2/4@0 [0 1 10 11] 2/3@0 [2 3 12] 2/2@0 [4 5]"));
  EXPECT_THAT(out.log,
              ::testing::HasSubstr("worker 1: 2/4@2 [0 1 10 11] 1/3@2 [2 3 12] 0/2@2 [4 5]"));
}

// Values of variables of each kind after replicas and workers have written them.
std::string variables(Strategy strategy) {
  std::string text;
  for (const auto synchronization :
       {VariableSynchronization::on_write, VariableSynchronization::on_read})
    for (const auto aggregation : {VariableAggregation::sum, VariableAggregation::mean,
                                   VariableAggregation::only_first_replica}) {
      // Rank 0's initial value counts, and rank 0's value of assign().
      const double own = strategy.world().first_rank;
      Variable variable(strategy, torch::full({2}, own + 0.7, at::kDouble),
                        {.synchronization = synchronization, .aggregation = aggregation});
      strategy.run([&](ReplicaContext& replica) {
        variable.assign_add(replica, torch::full({2}, 0.1 * replica.rank() + 0.1, at::kDouble));
      });
      text += text_of(variable.read()) + ", ";
      variable.assign(torch::full({2}, own + 3, at::kDouble));
      text += text_of(variable.read()) + " | ";
    }
  return text;
}

RANK_PROGRAM(write_variables) {
  rank.mark("variables " +
            variables(test::strategy_of("multi_worker", std::stoi(rank.arguments.at(0)))));
}

TEST(CrossReplicaOfProcesses, VariablesAreThoseOfThreads) {
  const std::pair<int, int> jobs[] = {{2, 2}, {3, 3}, {2, 4}};
  for (const auto& [workers, replicas] : jobs) {
    const auto out = test::run_workers(workers, "write_variables", {std::to_string(replicas)});
    ASSERT_EQ(out.exit_code, 0) << out.log;
    EXPECT_THAT(
        test::lines_after(out.log, "variables "),
        ::testing::AllOf(::testing::SizeIs(workers),
                         ::testing::Each(variables(test::strategy_of("mirrored", replicas)))))
        << out.log;
  }
}

}  // namespace
}  // namespace tutti
