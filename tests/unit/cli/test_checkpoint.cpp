// What `tutti checkpoint` says of checkpoints that `tutti train` cannot make.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/cli/arguments.h"
#include "tutti/cli/commands.h"
#include "tutti/data/safetensors.h"
#include "tutti/nn/sparse_embedding.h"
#include "tutti/train/model/model.h"

#include "tests/support/temp_folder.h"

namespace tutti::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Two tables beside a scale.
struct TablesNet : torch::nn::Module {
  TablesNet() {
    user = register_module("user", nn::SparseEmbedding({.name = "user", .width = 2}));
    item = register_module("item", nn::SparseEmbedding({.name = "item", .width = 2}));
    scale = register_parameter("scale", at::ones({1}));
  }
  at::Tensor forward(const at::Tensor& keys) {
    return scale * (user(keys) + item(keys)).sum(-1, true);
  }
  nn::SparseEmbedding user{nullptr}, item{nullptr};
  at::Tensor scale;
};

void train_into(const std::filesystem::path& folder) {
  Model model(Strategy({.threads_per_replica = 1}), [] { return std::make_shared<TablesNet>(); });
  model.compile({.optimizer = optim::sgd(), .loss = losses::mean_squared_error()});
  const std::vector<int64_t> keys = {1, 2, 3, 4};
  const std::vector<float> targets = {1, 2, 3, 4};
  model.fit(
      data::from_arrays({data::array_of(keys, {4}), data::array_of(targets, {4, 1})}).batch(4),
      {.verbose = 0, .checkpoints = {.folder = folder}});
}

TEST(CheckpointCommand, ConvertSaysWhichTablesTheFileHasNot) {
  const test::TempFolder folder;
  train_into(folder / "checkpoints");
  const std::string to = folder / "weights.safetensors";
  Command program;
  add_checkpoint(program);
  ::testing::internal::CaptureStderr();
  const int exit_code = parse(program, {"checkpoint", "convert", folder.path(), to});
  EXPECT_THAT(
      ::testing::internal::GetCapturedStderr(),
      AllOf(HasSubstr("weights.safetensors has no rows of"), HasSubstr("embedding table \"user\""),
            HasSubstr("embedding table \"item\""), HasSubstr("Model::load")));
  EXPECT_EQ(exit_code, 0);
  EXPECT_EQ(data::read_safetensors(to).arrays.size(), 1);
}

}  // namespace
}  // namespace tutti::cli
