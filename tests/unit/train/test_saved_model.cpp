// Models that come back without the program that made them, and answers of many threads.
#include <thread>

#include "tutti/base/file.h"
#include "tutti/nn/graph_json.h"
#include "tutti/train/model/predictor.h"
#include "tutti/train/model/saved_model.h"

#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/train/checkpointed.h"
#include "tests/unit/train/small_model.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;

at::Tensor some_pictures(int64_t count) {
  torch::manual_seed(3);
  return at::randn({count, 1, 2, 2});
}

TEST(SavedModel, ComesBackWithoutTheProgramThatMadeIt) {
  const TempFolder folder;
  Model model = checkpointed_model({});
  model.fit(samples(), {.verbose = 0});
  model.save(folder / "net.safetensors");
  EXPECT_THAT(folder.names(), UnorderedElementsAre("net.safetensors", "net.json"));
  const at::Tensor x = some_pictures(5), expected = model.predict(x);

  Model other = load_model(strategy_of("mirrored", 2), folder / "net.safetensors");
  EXPECT_EQ(other.weights_sha256(), model.weights_sha256());
  EXPECT_TRUE(at::equal(other.predict(x), expected));
  other.compile(adam_and_accuracy());
  other.fit(samples(), {.verbose = 0});
  EXPECT_NE(other.weights_sha256(), model.weights_sha256());

  const Predictor predictor = Predictor::load(folder / "net.safetensors");
  EXPECT_TRUE(at::equal(predictor.predict(x), expected));
}

TEST(SavedModel, IsFoundInAFolderOfCheckpointsAndOneOfThem) {
  const TempFolder folder;
  Model model = checkpointed_model({});
  model.fit(samples(),
            {.epochs = 2, .verbose = 0, .checkpoints = {.folder = folder / "checkpoints"}});
  const at::Tensor x = some_pictures(4), expected = model.predict(x);
  for (const fs::path& place :
       {folder.path(), folder / "checkpoints", find_saved_model(folder.path()).weights})
    EXPECT_TRUE(at::equal(Predictor::load(place).predict(x), expected)) << place;
  EXPECT_THAT(find_saved_model(folder.path()).weights.filename().string(), StartsWith("step-"));
}

TEST(SavedModel, GoesWithTheLastWeightsThatWereSaved) {
  const TempFolder folder;
  const fs::path file = folder / "net.safetensors";
  small_model(strategy_of("one_device", 1)).save(file);
  EXPECT_TRUE(fs::exists(folder / "net.json"));
  Model module(strategy_of("one_device", 1), [] { return torch::nn::Linear(4, 3); });
  module.save(file);
  EXPECT_FALSE(fs::exists(folder / "net.json")) << "it would be another model's";
  EXPECT_THAT(
      message_of<UsageError>([&] { find_saved_model(file); }),
      AllOf(HasSubstr("no graph is beside"), HasSubstr("net.json"), HasSubstr("model.json")));
}

TEST(SavedModel, LeavesFilesOfOthersAlone) {
  const TempFolder folder;
  put_bytes(folder / "net.json", "{\"mine\": 1}");
  small_model(strategy_of("one_device", 1)).save(folder / "net.safetensors");
  EXPECT_EQ(get_bytes(folder / "net.json"), "{\"mine\": 1}");
  EXPECT_THROW(Predictor::load(folder / "net.safetensors"), UsageError);
}

TEST(SavedModel, SaysWhatIsMissingOrDamaged) {
  const TempFolder folder;
  EXPECT_THAT(message_of<UsageError>([&] { find_saved_model(folder.path()); }),
              HasSubstr("no weights are there"));
  EXPECT_THAT(message_of<UsageError>([&] { find_saved_model(folder / "none"); }),
              HasSubstr("no weights are there"));
  Model model = small_model(strategy_of("one_device", 1));
  model.save(folder / "net.safetensors");
  std::string text = get_bytes(folder / "net.json");
  put_bytes(folder / "net.json", text.substr(0, text.size() / 2));
  EXPECT_THAT(message_of<DataError>([&] { Predictor::load(folder / "net.safetensors"); }),
              HasSubstr("net.json"));
  const auto input = nn::input({4});
  put_bytes(folder / "net.json",
            nn::graph_to_json({input, nn::linear(5).named("linear_1")(input)}));
  EXPECT_THAT(message_of<DataError>([&] { Predictor::load(folder / "net.safetensors"); }),
              HasSubstr("does not fit the model"));
}

TEST(Predictors, AnswerManyThreadsAtOnceAsOne) {
  const TempFolder folder;
  Model model = checkpointed_model({});
  model.save(folder / "net.safetensors");
  const Predictor predictor = Predictor::load(folder / "net.safetensors");
  constexpr int kThreads = 4, kCalls = 50;
  std::vector<at::Tensor> inputs, expected;
  for (int i = 0; i < kThreads; ++i) {
    inputs.push_back(at::randn({i + 1, 1, 2, 2}));
    expected.push_back(predictor.predict(inputs.back()));
  }
  std::vector<int> wrong(kThreads);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([&, i] {
      const Predictor own = predictor;
      const auto at = static_cast<size_t>(i);
      for (int call = 0; call < kCalls; ++call) {
        const at::Tensor got = own.predict(inputs[at]);
        wrong[at] += got.requires_grad() || !at::equal(got, expected[at]) ? 1 : 0;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, Each(0));
}

TEST(Predictors, RefuseWhatTheModelDoesNotTake) {
  const TempFolder folder;
  checkpointed_model({}).save(folder / "net.safetensors");
  const Predictor predictor = Predictor::load(folder / "net.safetensors");
  EXPECT_EQ(predictor.predict(at::zeros({0, 1, 2, 2})).sizes(), (std::vector<int64_t>{0, 3}));
  EXPECT_THAT(message_of<UsageError>([&] { predictor.predict(at::zeros({1, 2, 2})); }),
              HasSubstr("expected [batch, 1, 2, 2]"));
  EXPECT_THAT(
      message_of<UsageError>([&] { predictor.predict(at::zeros({1, 1, 2, 2}, at::kLong)); }),
      AllOf(HasSubstr("\"input\" is Long"), HasSubstr("expected Float")));
  EXPECT_THAT(message_of<UsageError>([&] { predictor.predict(at::Tensor()); }),
              HasSubstr("undefined"));
  EXPECT_THAT(message_of<UsageError>([&] { predictor.predict_all({}); }),
              HasSubstr("got 0 inputs"));
}

}  // namespace
}  // namespace tutti
