// What a pipeline says when ranks disagree, or one is gone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/base/error.h"
#include "tutti/parallel/stages/pipeline.h"

#include "tests/support/comm.h"

namespace tutti::parallel {
namespace {

using test::run_members;
using test::words_of;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr Millis kShort{1'500};

struct Doubling : torch::nn::Module {};

/// One number a sample; stages multiply by 2.
Stage doubling_stage(int stage, int stages) {
  const Border border{.shape = {4}};
  Stage one{.module = std::make_shared<Doubling>(),
            .forward = [](at::TensorList x) { return std::vector<at::Tensor>{x[0] * 2}; }};
  if (stage > 0) one.inputs = {border};
  if (stage + 1 < stages) one.outputs = {border};
  return one;
}

Pipeline::Batch batch_of_ones(int microbatches) {
  return {.sizes = std::vector<int64_t>(static_cast<size_t>(microbatches), 2),
          .inputs = [](int) { return std::vector{at::ones({2, 4})}; },
          .loss = [](int, at::TensorList y) { return y[0].sum(); }};
}

/// What each rank says; `change(rank, schedule, stage)` makes one unlike the others.
template <class Change>
std::vector<std::string> errors_of_setup(int ranks, const Change& change) {
  std::vector<std::string> words;
  for (const auto& thrown : run_members(test::make_engines("shm", ranks), [&](const Group& group) {
         auto schedule = mesh::one_f_one_b({.ranks = ranks, .microbatches = 4});
         std::vector<Stage> chunks{doubling_stage(group.rank(), ranks)};
         change(group.rank(), schedule, chunks);
         const Pipeline pipeline(group, schedule, chunks, {.limit = kShort});
       }))
    words.push_back(words_of(thrown));
  return words;
}

TEST(PipelineErrors, ScheduleWithAFaultIsRefused) {
  const auto errors = errors_of_setup(
      2, [](int, mesh::Schedule& schedule, auto&) { schedule.actions[1].pop_back(); });
  EXPECT_THAT(errors, ::testing::Each(AllOf(StartsWith("Error: schedule 1f1b"),
                                            HasSubstr("B 0.3 is missing"))));
  auto schedule = mesh::zb_h1({.ranks = 1, .microbatches = 2});
  std::swap(schedule.actions[0].front(), schedule.actions[0].back());
  EXPECT_THROW(Pipeline(Group(), schedule, {doubling_stage(0, 1)}, {}), DataError);
}

TEST(PipelineErrors, RankWithAFaultOfItsOwnIsNamedByTheOthers) {
  const auto errors = errors_of_setup(3, [](int rank, auto&, std::vector<Stage>& chunks) {
    if (rank == 1) chunks.push_back(chunks[0]);
  });
  EXPECT_THAT(errors[1], AllOf(StartsWith("UsageError: "), HasSubstr("got 2 stages")));
  for (const int other : {0, 2})
    EXPECT_THAT(
        errors[static_cast<size_t>(other)],
        AllOf(StartsWith("Mismatch: "), HasSubstr("rank 1 of 3"), HasSubstr("got 2 stages")));
}

TEST(PipelineErrors, GroupOfAnotherSizeIsRefused) {
  const auto errors = errors_of_setup(2, [](int, mesh::Schedule& schedule, auto&) {
    schedule = mesh::gpipe({.ranks = 3, .microbatches = 2});
  });
  EXPECT_THAT(errors, ::testing::Each(HasSubstr("is for 3 ranks, the group has 2")));
}

TEST(PipelineErrors, UnlikeSchedulesAreNamed) {
  const auto errors = errors_of_setup(3, [](int rank, mesh::Schedule& schedule, auto&) {
    if (rank == 2) schedule = mesh::gpipe({.ranks = 3, .microbatches = 4});
  });
  EXPECT_THAT(errors,
              ::testing::Each(AllOf(StartsWith("Mismatch: "), HasSubstr("rank 2 of 3"),
                                    HasSubstr("gpipe"), HasSubstr("rank 0 has schedule 1f1b"))));
}

TEST(PipelineErrors, UnlikeBordersAreNamed) {
  const auto errors = errors_of_setup(3, [](int rank, auto&, std::vector<Stage>& chunks) {
    if (rank == 2) chunks[0].inputs = {{.shape = {5}}};
  });
  EXPECT_THAT(errors, ::testing::Each(AllOf(
                          StartsWith("Mismatch: "),
                          HasSubstr("stage 1 (rank 1) gives float32 [4], stage 2 (rank 2) takes "
                                    "float32 [5]"))));
}

TEST(PipelineErrors, TieAtOneEndAloneIsNamed) {
  const auto errors = errors_of_setup(3, [](int rank, auto&, std::vector<Stage>& chunks) {
    if (rank == 0) chunks[0].ties = {{"words", at::ones({3}).requires_grad_(), 0, 2}};
  });
  EXPECT_THAT(errors,
              ::testing::Each(AllOf(StartsWith("Mismatch: "), HasSubstr("stage 0 (rank 0)"),
                                    HasSubstr("\"words\""), HasSubstr("stage 2 (rank 2)"))));
}

/// Errors of a step of 3 ranks; `change` as above, for a rank's stage.
std::vector<std::string> errors_of_step(
    const std::function<void(int rank, Stage& stage, Pipeline::Batch& batch)>& change,
    const std::function<bool(int rank, Group group)>& leaves = {},
    const std::string& engine = "shm") {
  std::vector<std::string> words;
  for (const auto& thrown : run_members(test::make_engines(engine, 3), [&](const Group& group) {
         Stage stage = doubling_stage(group.rank(), 3);
         Pipeline::Batch batch = batch_of_ones(4);
         if (change) change(group.rank(), stage, batch);
         Pipeline pipeline(group, mesh::one_f_one_b({.ranks = 3, .microbatches = 4}), {stage},
                           {.limit = kShort});
         if (leaves && leaves(group.rank(), group)) return;
         pipeline.step(batch);
       }))
    words.push_back(words_of(thrown));
  return words;
}

const auto kBegin = AnyOf(StartsWith("Timeout: "), StartsWith("PeerLost: "));

TEST(PipelineErrors, RankThatNeverComesIsWaitedForByName) {
  for (const char* engine : {"shm", "tcp"}) {
    SCOPED_TRACE(engine);
    // The engine of the missing one lives on: nobody can tell that it is gone.
    const auto errors = errors_of_step({}, [](int rank, auto&&) { return rank == 1; }, engine);
    EXPECT_THAT(errors[0], AllOf(kBegin, HasSubstr("stage 0 (rank 0)"),
                                 HasSubstr("B of microbatch 0"), HasSubstr("stage 1 (rank 1)")));
    EXPECT_EQ(errors[1], "");
    EXPECT_THAT(errors[2], AllOf(kBegin, HasSubstr("stage 2 (rank 2) waited for F of microbatch 0 "
                                                   "from stage 1 (rank 1)")));
  }
}

TEST(PipelineErrors, StageThatThrowsEndsTheOthersWaits) {
  const auto errors = errors_of_step([](int rank, Stage& stage, auto&) {
    if (rank != 1) return;
    stage.forward = [calls = 0](at::TensorList x) mutable {
      if (++calls == 3) throw std::runtime_error("out of paper");
      return std::vector<at::Tensor>{x[0] * 2};
    };
  });
  EXPECT_EQ(errors[1], "std::exception: out of paper");
  for (const size_t other : {0, 2}) {
    const auto name = "stage " + std::to_string(other) + " (rank " + std::to_string(other) + ")";
    EXPECT_THAT(errors[other], AllOf(StartsWith("PeerLost: "), HasSubstr(name),
                                     HasSubstr("of microbatch"), HasSubstr("out of paper")));
  }
}

TEST(PipelineErrors, RankThatAbortsIsNamed) {
  const auto errors = errors_of_step({}, [](int rank, Group group) {
    if (rank != 2) return false;
    group.abort("its power went off");
    return true;
  });
  for (const size_t other : {0, 1}) {
    const auto name = "stage " + std::to_string(other) + " (rank " + std::to_string(other) + ")";
    EXPECT_THAT(errors[other], AllOf(StartsWith("PeerLost: "), HasSubstr(name),
                                     HasSubstr("of microbatch"), HasSubstr("its power went off")));
  }
}

TEST(PipelineErrors, OutputUnlikeItsBorderIsNamed) {
  const auto errors = errors_of_step([](int rank, Stage& stage, auto&) {
    if (rank == 1)
      stage.forward = [](at::TensorList x) { return std::vector<at::Tensor>{x[0].sum(1)}; };
  });
  EXPECT_THAT(errors[1],
              AllOf(StartsWith("UsageError: "), HasSubstr("output 0 of stage 1 (rank 1)"),
                    HasSubstr("float32 [2]"), HasSubstr("float32 [2, 4]")));
  EXPECT_THAT(errors[0], HasSubstr("output 0 of stage 1 (rank 1)"));
}

TEST(PipelineErrors, MicrobatchesOfUnlikeSizesAreNamed) {
  const auto errors = errors_of_step([](int rank, Stage&, Pipeline::Batch& batch) {
    if (rank == 1) batch.sizes[1] = 3;
  });
  EXPECT_THAT(errors[1], AllOf(StartsWith("Mismatch: "), HasSubstr("stage 1 (rank 1)"),
                               HasSubstr("rank 0 sent 32 bytes"), HasSubstr("expected 48")));
}

TEST(PipelineErrors, BatchesOfTheWrongKindAreRefused) {
  const auto error_of = [](const std::function<void(Pipeline::Batch&)>& change) {
    Pipeline::Batch batch = batch_of_ones(2);
    change(batch);
    Pipeline pipeline(Group(), mesh::gpipe({.ranks = 1, .microbatches = 2}), {doubling_stage(0, 1)},
                      {});
    try {
      pipeline.step(batch);
    } catch (...) {
      return words_of(std::current_exception());
    }
    return std::string();
  };
  EXPECT_THAT(error_of([](Pipeline::Batch& batch) { batch.sizes = {2}; }),
              AllOf(StartsWith("UsageError: "), HasSubstr("[2] samples"), HasSubstr("expected 2")));
  EXPECT_THAT(error_of([](Pipeline::Batch& batch) { batch.sizes = {2, -1}; }),
              StartsWith("UsageError: "));
  EXPECT_THAT(error_of([](Pipeline::Batch& batch) { batch.inputs = nullptr; }),
              HasSubstr("no function for inputs"));
  EXPECT_THAT(error_of([](Pipeline::Batch& batch) { batch.loss = nullptr; }), HasSubstr("no loss"));
  EXPECT_THAT(error_of([](Pipeline::Batch& batch) {
                batch.loss = [](int, at::TensorList y) { return y[0]; };
              }),
              HasSubstr("the loss of microbatch 0 is [2, 4]"));
}

TEST(PipelineErrors, RunningStatisticsAreRefusedWithRecompute) {
  torch::nn::BatchNorm1d norm(4);
  Stage stage{.module = norm.ptr(), .forward = [norm](at::TensorList x) mutable {
                return std::vector<at::Tensor>{norm(x[0])};
              }};
  stage.spans = {{.forward = stage.forward, .recompute = true}};
  const auto run = [&] {
    Pipeline(Group(), mesh::gpipe({.ranks = 1, .microbatches = 2}), {stage}, {})
        .step(batch_of_ones(2));
  };
  try {
    run();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("stage 0 (rank 0)"), HasSubstr("BatchNorm1d"),
                                    HasSubstr("running statistics")));
  }
  norm->eval();
  run();
}

}  // namespace
}  // namespace tutti::parallel
