// Muon and Adafactor as Model::compile() has them: the same bits in threads and in turn, across a
// checkpoint, and refused by name where nobody has whole parameters.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tutti/sync/replicated/whole_rules.h"

#include "tests/support/message_of.h"
#include "tests/unit/train/checkpointed.h"

namespace tutti {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<OptimizerChoice> whole_choices() {
  return {OptimizerChoice(optim::muon({.learning_rate = 0.02})),
          OptimizerChoice(optim::muon({.learning_rate = 0.02, .others = {"conv2d_*"}})),
          OptimizerChoice(optim::adafactor({.learning_rate = 0.1}))};
}

TEST(WholeRulesOfModels, TrainWithTheSameBitsInThreadsAndInTurn) {
  std::vector<std::string> different;
  for (const OptimizerChoice& optimizer : whole_choices())
    for (const int replicas : {1, 3}) {
      const Setting threads{.replicas = replicas, .optimizer = optimizer};
      Setting in_turn = threads;
      in_turn.kind = "one_device";
      const Trained trained = straight(threads);
      EXPECT_EQ(straight(in_turn), trained) << replicas;
      EXPECT_EQ(std::ranges::find(different, trained.sha256), different.end());
      different.push_back(trained.sha256);
      EXPECT_LT(trained.columns[0].back(), trained.columns[0].front()) << "the loss did not fall";
    }
}

TEST(WholeRulesOfModels, GoOnFromACheckpointAlsoUnderAnotherStrategy) {
  for (const OptimizerChoice& optimizer : whole_choices()) {
    const Setting threads{.optimizer = optimizer};
    Setting in_turn = threads;
    in_turn.kind = "one_device";
    for (const auto& [before, after] :
         {std::pair(threads, threads), std::pair(threads, in_turn), std::pair(in_turn, threads)}) {
      const test::TempFolder folder;
      {
        Model model = checkpointed_model(before);
        FitOptions options = three_epochs({.folder = folder.path(), .every_steps = 2});
        options.callbacks = cut_after(7);
        EXPECT_THROW(model.fit(samples(), std::move(options)), Cut);
      }
      Model model = checkpointed_model(after);
      const History history = model.fit(
          samples(), three_epochs({.folder = folder.path(), .every_steps = 2, .resume = true}));
      EXPECT_EQ(trained_of(model, history), straight(threads));
    }
  }
}

TEST(WholeRulesOfModels, ACheckpointOfAnotherRuleOrFieldIsNamed) {
  const test::TempFolder folder;
  checkpointed_model({.optimizer = optim::muon()})
      .fit(samples(), three_epochs({.folder = folder.path(), .every_steps = 4}));
  for (const auto& [other, words] : std::vector<std::pair<OptimizerChoice, std::string>>{
           {optim::adafactor(), "adafactor"},
           {optim::muon({.steps = 4}), "steps 4"},
           {optim::muon({.others = {"linear_*"}}), "others [linear_*]"}}) {
    Model model = checkpointed_model({.optimizer = other});
    EXPECT_THAT(message_of<UsageError>([&] {
                  model.fit(
                      samples(),
                      three_epochs({.folder = folder.path(), .every_steps = 4, .resume = true}));
                }),
                AllOf(HasSubstr("muon"), HasSubstr(words)));
  }
}

TEST(WholeRulesOfModels, AreRefusedByNameWhereNobodyHasWholeParameters) {
  const auto refusal = [](const StrategyOptions& options, const OptimizerChoice& optimizer) {
    return message_of<UsageError>([&] {
      Model model(Strategy(options), [] { return graph_with_state(); });
      CompileOptions compile = adam_and_accuracy();
      compile.optimizer = optimizer;
      model.compile(compile);
    });
  };
  const OptimizerChoice muon = optim::muon(), adafactor = optim::adafactor();
  EXPECT_THAT(refusal({.kind = "central_storage", .replicas = 2}, muon),
              AllOf(HasSubstr("optimizer muon"), HasSubstr("use mirrored or multi_worker")));
  EXPECT_THAT(refusal({.kind = "mirrored", .replicas = 2, .shard = "state"}, adafactor),
              AllOf(HasSubstr("optimizer adafactor"), HasSubstr("--shard state"),
                    HasSubstr("elementwise rule")));
  EXPECT_THAT(refusal({.kind = "mirrored", .replicas = 2, .mesh = "stage=2"}, muon),
              AllOf(HasSubstr("optimizer muon"), HasSubstr("stage=2")));
  EXPECT_THAT(refusal({.replicas = 1}, optim::muon({.others = {"no.such"}})),
              AllOf(HasSubstr("others \"no.such\""), HasSubstr("conv2d")));
}

TEST(WholeRulesOfModels, LargeBatchAndCallsWithoutNamesSayWhatTheyGot) {
  CompileOptions options = adam_and_accuracy();
  options.optimizer = optim::muon();
  options.large_batch.emplace();
  Model model(Strategy({.replicas = 1}), [] { return graph_with_state(); });
  EXPECT_THAT(message_of<UsageError>([&] { model.compile(options); }),
              HasSubstr("got optimizer muon"));
  EXPECT_THAT(message_of<UsageError>([] { optim::adafactor()({}); }),
              AllOf(HasSubstr("adafactor"), HasSubstr("Model::compile()")));
}

}  // namespace
}  // namespace tutti
