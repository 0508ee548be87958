// What a model's file holds.
#include <filesystem>

#include "tutti/nn/sparse_embedding.h"

#include "tests/support/expect.h"
#include "tests/unit/train/small_model.h"

namespace tutti {
namespace {

TEST(ModelSave, AndLoadGiveTheSameWeights) {
  const auto path = std::filesystem::path(::testing::TempDir()) / "tutti_model_test.safetensors";
  Model model = small_model(strategy_of("mirrored", 2));
  model.fit(three_classes(12).batch(6), {.verbose = 0});
  model.save(path);
  Model other(Strategy({.kind = "mirrored", .replicas = 2, .seed = 99}),
              [] { return small_graph(); });
  EXPECT_NE(other.weights_sha256(), model.weights_sha256());
  other.load(path);
  EXPECT_EQ(other.weights_sha256(), model.weights_sha256());
  const auto first = other.modules().module(0)->parameters();
  const auto second = other.modules().module(1)->parameters();
  for (size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(torch::equal(first[i], second[i]));
  EXPECT_THROW(model.save("/no/such/folder/m.safetensors"), Error);
  EXPECT_THROW(model.load("/no/such/file.safetensors"), DataError);
  std::filesystem::remove(path);
}

TEST(ModelSave, HasMergedBuffersAndEvaluationGivesThemBack) {
  Model model(strategy_of("mirrored", 2), [] {
    const auto input = nn::input({1, 2, 2});
    return nn::Graph(input, nn::linear(3)(nn::flatten()(nn::batch_norm2d().named("bn")(input))));
  });
  model.compile(adam_and_accuracy());
  const auto flat = three_classes(12).batch(12).epoch({}).batch(0);
  const auto data = data::from_arrays({Array::view(flat.columns[0].data(), DType::float32,
                                                   {12, 1, 2, 2}, flat.columns[0].owner()),
                                       flat.columns[1]})
                        .batch(6);
  model.fit(data, {.verbose = 0});
  const auto mean_of = [&](int local) {
    return model.modules().module(local)->named_buffers()["bn.running_mean"].item<double>();
  };
  const double own[2] = {mean_of(0), mean_of(1)};
  ASSERT_NE(own[0], own[1]) << "batch statistics are per replica";
  model.evaluate(data);
  EXPECT_EQ(mean_of(0), own[0]);
  EXPECT_EQ(mean_of(1), own[1]);
  const auto merged = model.modules().merged_buffers();
  for (const auto& [name, value] : merged) {
    if (name == "bn.running_mean") {
      EXPECT_FLOAT_EQ(value.item<float>(), (own[0] + own[1]) / 2);
    } else if (name == "bn.num_batches_tracked") {
      EXPECT_EQ(value.item<int64_t>(), 2);
    }
  }
  const auto x = torch::zeros({1, 1, 2, 2});
  const auto before = model.predict(x);
  const auto path = std::filesystem::path(::testing::TempDir()) / "tutti_merged.safetensors";
  model.save(path);
  model.load(path);
  EXPECT_EQ(mean_of(0), mean_of(1));
  EXPECT_TRUE(torch::equal(model.predict(x), before));
  std::filesystem::remove(path);
}

struct TableNet : torch::nn::Module {
  TableNet() {
    user = register_module("user", nn::SparseEmbedding({.name = "user", .width = 2}));
    scale = register_parameter("scale", torch::ones({1}));
  }
  at::Tensor forward(const at::Tensor& keys) { return scale * user(keys).sum(-1, true); }
  nn::SparseEmbedding user{nullptr};
  at::Tensor scale;
};

TEST(ModelSave, SaysWhichTablesItHasNot) {
  const auto path = std::filesystem::path(::testing::TempDir()) / "tutti_tables.safetensors";
  Model model(strategy_of("one_device", 1), [] { return std::make_shared<TableNet>(); });
  ::testing::internal::CaptureStderr();
  model.save(path);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("tutti_tables.safetensors has no rows of embedding table \"user\""));
  std::filesystem::remove(path);
  ::testing::internal::CaptureStderr();
  small_model(strategy_of("one_device", 1)).save(path);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace tutti
