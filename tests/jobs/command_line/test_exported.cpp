// `tutti train`, `evaluate`, `predict` and `inspect` on networks that were written in Python
// (tests/tables/exported/make_for_model.py).
#include "tests/jobs/command_line/user_data_test.h"

namespace tutti::test {
namespace {

namespace fs = std::filesystem;

class ExportedNetworks : public UserData {
 protected:
  const fs::path tables_ = fs::absolute("tests/tables/exported");
  const std::string net_ = tables_ / "pictures.pt2", eval_ = tables_ / "pictures.eval.pt2";
  Words training(const Words& more = {}) const {
    return Words{net_, "--eval-model", eval_, "--data", idx_, "--batch-size", "10"} + more;
  }
};

TEST_F(ExportedNetworks, ThreadsProcessesAndInTurnTrainTheSameBits) {
  const auto sha = [&](const Words& more) {
    return figures(training({"--max-steps", "6", "--replicas", "2"}), more).at("weights_sha256");
  };
  const auto expected = sha({});
  EXPECT_EQ(sha({"--strategy", "mirrored"}), expected);
  EXPECT_EQ(sha({"--strategy", "multi_worker"}), expected);
}

TEST_F(ExportedNetworks, AreTestedAndPredictedByWhatIsKeptBesideTheWeights) {
  const std::string out = folder_ / "run";
  const json trained = figures(training({"--epochs", "3", "--replicas", "2", "--out", out}));
  EXPECT_THAT(said_, HasSubstr("begins with the weights of " + net_));
  EXPECT_EQ(get_bytes(fs::path(out) / "model.pt2"), get_bytes(net_));
  EXPECT_EQ(get_bytes(fs::path(out) / "model.eval.pt2"), get_bytes(eval_));
  for (const std::string& weights : {out, out + "/checkpoints"}) {
    const auto tested = tutti({"evaluate", "--data", (folder_ / "t10k-images-idx3-ubyte").string(),
                               "--checkpoints", weights, "--json", folder_ / "test.json"});
    ASSERT_EQ(tested.exit_code, 0) << tested.err;
    EXPECT_NEAR(json_in(folder_ / "test.json").at("loss").get<double>(),
                trained.at("val_loss").get<double>(), 1e-6);
  }
  const auto predicted = tutti({"predict", "--weights", out, idx_});
  EXPECT_EQ(predicted.exit_code, 0) << predicted.err;
  EXPECT_THAT(predicted.out, HasSubstr("row 100: "));
}

TEST_F(ExportedNetworks, WhatDoesNotFitIsSaidBeforeWork) {
  EXPECT_THAT(
      tutti({"train", net_, "--data", idx_}),
      Exits(2, Err(AllOf(HasSubstr("was exported for training"), HasSubstr("--eval-model")))));
  EXPECT_THAT(tutti(Words{"train"} + training() + Words{"--data", flats_, "--target", "dear"}),
              Exits(2, Err(HasSubstr("--data"))));
  EXPECT_THAT(
      tutti({"train", net_, "--eval-model", eval_, "--data", flats_, "--target", "dear"}),
      Exits(2, Err(HasSubstr("was exported for samples float32 [1, 12, 12], the data has"))));
  EXPECT_THAT(tutti({"train", tables_ / "both.pt2", "--data", idx_}),
              Exits(2, Err(HasSubstr("takes 2 inputs (place, size)"))));
  EXPECT_THAT(tutti(Words{"train"} + training({"--freeze", "head"})),
              Exits(2, Err(HasSubstr("requires_grad_(False)"))));
  EXPECT_THAT(
      tutti(Words{"train"} + training({"--mesh", "stage=2", "--strategy", "mirrored"})),
      Exits(2, Err(HasSubstr("is one graph of operators, in which layers have no borders"))));
  EXPECT_THAT(tutti({"train", "mlp", "--eval-model", eval_, "--data", idx_}),
              Exits(2, Err(HasSubstr("is for a model of a .pt2 file; the model is mlp"))));
  EXPECT_THAT(tutti(Words{"train"} + training({"--parameter-group", "heads.*:weight_decay=0"})),
              Exits(2, Err(HasSubstr("the first of its 5 is conv.weight"))));
}

TEST_F(ExportedNetworks, InspectSaysWhatIsInThem) {
  const auto said = tutti({"inspect", net_, "--parameters", "--json", folder_ / "net.json"});
  ASSERT_EQ(said.exit_code, 0) << said.err;
  EXPECT_THAT(said.out,
              AllOf(HasSubstr("input x: float32 ["), HasSubstr(", 1, 12, 12]"),
                    HasSubstr("1  aten::batch_norm"), HasSubstr("head.weight float32 [2, 144]"),
                    HasSubstr("aten::dropout: behaves otherwise in training; "),
                    HasSubstr("it trains here")));
  const json found = json_in(folder_ / "net.json");
  EXPECT_EQ(found.at("operators").at("aten::linear"), 1);
  EXPECT_EQ(found.at("trained_elements"), 36 + 4 + 4 + 288 + 2);
  EXPECT_EQ(found.at("not_served"), json::array());
  EXPECT_THAT(tutti({"inspect", idx_}), Exits(2, Err(HasSubstr("no valid .pt2 file"))));
}

}  // namespace
}  // namespace tutti::test
