// Models that come back without the program that made them, and answers of many threads.
#include <thread>

#include "tutti/base/file.h"
#include "tutti/checkpoint/folder.h"
#include "tutti/exported/module.h"
#include "tutti/nn/graph_json.h"
#include "tutti/nn/lambda.h"
#include "tutti/train/model/predictor.h"
#include "tutti/train/model/saved_model.h"
#include "tutti/train/model/weights_found.h"

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

TEST(SavedModel, HasNoGraphWhereALayerIsAFunctionOfTheProgram) {
  const TempFolder folder;
  const fs::path file = folder / "net.safetensors";
  small_model(strategy_of("one_device", 1)).save(file);
  const auto input = nn::input({4});
  const auto twice =
      nn::lambda("twice", {3}, [](at::TensorList in) { return in[0] * 2; }).named("own");
  const nn::Graph graph(input, twice(nn::linear(3)(input)));
  Model model(strategy_of("one_device", 1), [&] { return graph; });
  testing::internal::CaptureStderr();
  model.save(file);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("net.json is not written"), HasSubstr("layer \"own\""),
                    HasSubstr("(twice)"), HasSubstr("of another model, is removed")));
  EXPECT_THAT(folder.names(), UnorderedElementsAre("net.safetensors"));
  testing::internal::CaptureStderr();
  model.save(file);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "") << "once a file";
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

const fs::path kNets = "tests/tables/exported";

/// A network of Python with weights that are not its file's, as `tutti train --out` leaves it.
struct ExportedRun {
  FromExport network = from_export(kNets / "cnn.pt2", {.eval = kNets / "cnn.eval.pt2"});
  Model model{strategy_of("one_device", 1), network};

  explicit ExportedRun(const fs::path& folder) {
    {
      const at::NoGradGuard no_grad;
      for (at::Tensor& parameter : model.modules().module(0)->parameters()) parameter.mul_(1.25);
    }
    model.save(folder / "model.safetensors");
    fs::copy_file(kNets / "cnn.pt2", folder / "model.pt2");
    fs::copy_file(kNets / "cnn.eval.pt2", folder / "model.eval.pt2");
  }
};

TEST(Predictors, OfANetworkOfPythonAnswerManyThreadsAsItsGraphOfEvaluation) {
  const TempFolder folder;
  ExportedRun run(folder.path());
  const Predictor predictor = Predictor::load(folder.path());
  constexpr int kThreads = 4, kCalls = 50;
  std::vector<at::Tensor> inputs, expected;
  for (int i = 0; i < kThreads; ++i) {
    inputs.push_back(at::randn({i + 1, 3, 8, 8}));
    expected.push_back(run.model.predict(inputs.back()));
  }
  std::vector<int> wrong(kThreads);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([&, i] {
      const auto at = static_cast<size_t>(i);
      for (int call = 0; call < kCalls; ++call) {
        const at::Tensor got = predictor.predict(inputs[at]);
        wrong[at] += got.requires_grad() || !at::equal(got, expected[at]) ? 1 : 0;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, Each(0));
  EXPECT_THAT(predictor.input_names(), ElementsAre("x"));
  EXPECT_THAT(predictor.output_names(), ElementsAre("output"));
  EXPECT_THROW(predictor.graph(), UsageError);
}

TEST(Predictors, OfANetworkOfPythonTakeFilesByNameToo) {
  const TempFolder folder;
  ExportedRun run(folder.path());
  const at::Tensor x = at::randn({3, 3, 8, 8}), expected = run.model.predict(x);
  const auto answer = [&](const Predictor& predictor) { return predictor.predict(x); };
  EXPECT_TRUE(at::equal(answer(Predictor::load(run.network, folder.path())), expected));
  EXPECT_TRUE(
      at::equal(load_model(strategy_of("mirrored", 2), folder.path()).predict(x), expected));
  const auto untrained = run.network();
  untrained->eval();
  const at::NoGradGuard no_grad;
  const at::Tensor before = untrained->forward(x);
  EXPECT_FALSE(at::equal(before, expected));
  EXPECT_TRUE(at::equal(answer(Predictor::load(run.network)), before));
  EXPECT_TRUE(at::equal(answer(Predictor::load(kNets / "cnn.eval.pt2")), before));
}

TEST(Predictors, OfANetworkOfPythonAreOfGraphsWhoseCallsAreIndependent) {
  EXPECT_THAT(message_of<UsageError>([] { Predictor::load(kNets / "cnn.pt2"); }),
              HasSubstr("evaluation needs the graph of module.eval()"));
  const fs::path control = kNets / "control.pt2";
  EXPECT_THAT(
      message_of<UsageError>([&] { Predictor::load(from_export(control, {.eval = control})); }),
      HasSubstr("an answer would depend on those before it"));
  const Predictor predictor = Predictor::load(kNets / "cnn.eval.pt2");
  EXPECT_THAT(message_of<UsageError>([&] { predictor.predict(at::zeros({1, 3, 8, 9})); }),
              HasSubstr("the model was exported for"));
  EXPECT_THAT(message_of<UsageError>([&] { predictor.predict_all({}); }), HasSubstr("got 0"));
}

TEST(SavedModel, OfARunThatWentOnItIsWhatWasWrittenLast) {
  const TempFolder folder;
  Model model = checkpointed_model({});
  model.fit(samples(),
            {.epochs = 2, .verbose = 0, .checkpoints = {.folder = folder / "checkpoints"}});
  const auto weights = [&] { return find_saved_model(folder.path()).weights.filename().string(); };
  const auto newest = weights_in(folder.path()).back();
  EXPECT_EQ(weights(), newest.path.filename());
  const fs::path end = folder / "model.safetensors";
  model.save(end);
  EXPECT_EQ(weights(), "model.safetensors");
  fs::last_write_time(end, newest.written - std::chrono::seconds(1));
  EXPECT_EQ(weights(), newest.path.filename());
  EXPECT_EQ(weights_in(folder.path()).size(), trainings_in(folder / "checkpoints").size() + 1);
  fs::last_write_time(end, newest.written);
  EXPECT_EQ(weights(), "model.safetensors") << "as one that was written in the same tick";
}

TEST(SavedModel, ItIsTheEndOfAJobWhoseServersWriteTheirLastSnapshotBehindIt) {
  const TempFolder folder;
  const fs::path end = folder / "model.safetensors", cut = folder / "cut-000003";
  small_model(strategy_of("one_device", 1)).save(end);
  fs::create_directory(cut);
  put_bytes(cut / "manifest.json", "{}");
  fs::last_write_time(cut / "manifest.json", fs::last_write_time(end) + std::chrono::seconds(1));
  const auto found = weights_in(folder.path());
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found.front().path, cut);
  EXPECT_EQ(found.back().path, end);
  EXPECT_TRUE(found.back().is_end);
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
