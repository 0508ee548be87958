// callbacks::tensorboard: scalars of steps, the graph, histograms and pictures of weights.
#include <algorithm>
#include <filesystem>
#include <set>

#include "tutti/sync/tensors.h"
#include "tutti/train/model/tensorboard.h"

#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/observe/event_reader.h"
#include "tests/unit/train/small_model.h"

namespace tutti {
namespace {

using test::Message;
using test::TempFolder;

/// The events of a run's only file, the version left out.
std::vector<Message> events_in(const std::filesystem::path& folder) {
  std::vector<Message> events;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    for (const std::string& record : test::records_of(test::get_bytes(entry.path())))
      if (const Message event(record); !event.has(3)) events.push_back(event);
  return events;
}

/// (tag, step) of its summaries.
std::set<std::pair<std::string, int64_t>> tags_in(const std::filesystem::path& folder) {
  std::set<std::pair<std::string, int64_t>> tags;
  for (const Message& event : events_in(folder))
    if (event.has(5))
      tags.emplace(event.inner(5).inner(1).text(1),
                   event.has(2) ? static_cast<int64_t>(event.at<uint64_t>(2)) : 0);
  return tags;
}

std::vector<std::string> names_at(const std::filesystem::path& folder, int64_t step,
                                  const std::string& ending) {
  std::vector<std::string> names;
  for (const auto& [tag, at] : tags_in(folder))
    if (at == step && tag.ends_with(ending)) names.push_back(tag);
  return names;
}

TEST(TensorBoardCallback, HasScalarsOfEverySoManyUpdates) {
  const TempFolder folder;
  const auto run = [&](const char* name, int64_t update_freq) {
    Model model = small_model(strategy_of("mirrored", 2));
    model.fit(three_classes(20).batch(5),
              {.epochs = 2,
               .callbacks = {callbacks::tensorboard(
                   {.folder = folder / name, .update_freq = update_freq})},
               .verbose = 0});
    std::vector<int64_t> steps;
    for (const auto& [tag, step] : tags_in(folder / name / "train"))
      if (tag == "batch_loss") steps.push_back(step);
    EXPECT_THAT(names_at(folder / name / "train", 1, "loss"), Contains("epoch_loss"));
    return steps;
  };
  EXPECT_THAT(run("epochs", 0), IsEmpty());
  EXPECT_THAT(run("batches", 1), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
  EXPECT_THAT(run("thirds", 3), ElementsAre(3, 6));
  EXPECT_THAT(
      names_at(folder / "thirds" / "train", 3, ""),
      ElementsAre("batch_accuracy", "batch_learning_rate", "batch_loss", "batch_top_2_accuracy"));
}

TEST(TensorBoardCallback, HasTheGraphAndTheWeightsOfAModel) {
  const TempFolder folder;
  Model model = small_model(strategy_of("mirrored", 2));
  const auto board =
      callbacks::tensorboard(model, {.folder = folder / "run",
                                     .histogram_freq = 2,
                                     .write_images = true,
                                     .after_epoch = [](EventWriter& events, Training& training) {
                                       events.text("note", training.epoch(), "mine");
                                     }});
  model.fit(three_classes(20).batch(10), {.epochs = 3, .callbacks = {board}, .verbose = 0});
  const auto run = folder / "run" / "train";
  std::vector<std::string> histograms, images;
  for (const auto& [name, value] : unique_parameters(*model.modules().module(0))) {
    histograms.push_back(name + "/histogram");
    images.push_back(name + "/image");
  }
  std::ranges::sort(histograms);
  std::ranges::sort(images);
  EXPECT_EQ(histograms.size(), 4U);
  EXPECT_EQ(names_at(run, 1, "/histogram"), histograms);
  EXPECT_EQ(names_at(run, 1, "/image"), images);
  for (const int64_t epoch : {0, 2}) EXPECT_THAT(names_at(run, epoch, "/histogram"), IsEmpty());
  for (const int64_t epoch : {0, 1, 2})
    EXPECT_THAT(names_at(run, epoch, "note"), ElementsAre("note"));

  const auto events = events_in(run);
  const auto graph = std::ranges::find_if(events, [](const Message& one) { return one.has(4); });
  ASSERT_NE(graph, events.end());
  const Message last = graph->inner(4).inner(1);
  EXPECT_EQ(last.text(2), "linear");
  EXPECT_THAT(last.inner(5).inner(2).text(2), HasSubstr("linear("));
}

TEST(TensorBoardCallback, BoxesOfALayerThatIsAppliedTwiceAreUnlikeAllOthers) {
  const TempFolder folder;
  Model model(strategy_of("one_device", 1), [] {
    const auto input = nn::input({4});
    const auto twice = nn::linear(4).named("linear");
    return nn::Graph(input, nn::linear(3)(twice(twice(input))));  // named linear_1 by the graph
  });
  model.compile(adam_and_accuracy());
  model.fit(three_classes(20).batch(10),
            {.epochs = 1,
             .callbacks = {callbacks::tensorboard(model, {.folder = folder / "run"})},
             .verbose = 0});
  for (const Message& event : events_in(folder / "run" / "train"))
    if (event.has(4)) {
      const Message last = event.inner(4).inner(1);
      EXPECT_EQ(last.text(1), "linear_1");
      EXPECT_EQ(last.text(3), "linear_2");  // the second time
      return;
    }
  FAIL() << "no graph";
}

TEST(TensorBoardCallback, AHistogramIsOfTheWeightsAfterItsEpoch) {
  const TempFolder folder;
  Model model = small_model(strategy_of("one_device", 1));
  model.fit(three_classes(20).batch(10),
            {.epochs = 1,
             .callbacks = {callbacks::tensorboard(
                 model, {.folder = folder / "run", .histogram_freq = 1, .write_graph = false})},
             .verbose = 0});
  for (const Message& event : events_in(folder / "run" / "train")) {
    EXPECT_FALSE(event.has(4));
    const Message value = event.inner(5).inner(1);
    for (const auto& [name, parameter] : unique_parameters(*model.modules().module(0)))
      if (value.text(1) == name + "/histogram") {
        EXPECT_EQ(value.inner(5).at<double>(2), parameter.max().item<double>()) << name;
      }
  }
}

TEST(TensorBoardCallback, OptionsThatDoNotFitAreErrors) {
  const auto message = [](TensorBoardOptions options) {
    return message_of<UsageError>([&] { callbacks::tensorboard(std::move(options)); });
  };
  EXPECT_THAT(message({.folder = ""}), HasSubstr("folder is empty"));
  EXPECT_THAT(message({.folder = "x", .update_freq = -1}), HasSubstr("update_freq is -1"));
  EXPECT_THAT(message({.folder = "x", .histogram_freq = -1}), HasSubstr("histogram_freq is -1"));
  EXPECT_THAT(message({.folder = "x", .histogram_freq = 1}),
              HasSubstr("histogram_freq is of weights: give the model too"));
  EXPECT_THAT(message({.folder = "x", .write_images = true}), HasSubstr("write_images is of"));
  const Model model = small_model(strategy_of("one_device", 1));
  EXPECT_THAT(message_of<UsageError>(
                  [&] { callbacks::tensorboard(model, {.folder = "x", .write_images = true}); }),
              HasSubstr("set histogram_freq too"));
}

TEST(TensorBoardCallback, WeightsThatNoReplicaHasWholeAreRefused) {
  const TempFolder folder;
  Model model(Strategy({.kind = "mirrored", .replicas = 2, .shard = "parameters"}),
              [] { return small_graph(); });
  model.compile(adam_and_accuracy());
  const auto board = callbacks::tensorboard(model, {.folder = folder / "run", .histogram_freq = 1});
  EXPECT_THAT(message_of<Error>([&] {
                model.fit(three_classes(20).batch(10), {.callbacks = {board}, .verbose = 0});
              }),
              HasSubstr("no rank has all weights between two steps"));
}

}  // namespace
}  // namespace tutti
