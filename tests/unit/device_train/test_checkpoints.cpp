// Checkpoints of replicas on devices: what the files are, and that trainings go on from them, on
// devices and on the CPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/checkpoint/folder.h"

#include "tests/support/message_of.h"
#include "tests/unit/device_train/device_model.h"

namespace tutti {
namespace {

class CheckpointsOnDevices : public test::FakeCudaTest {};

TEST_F(CheckpointsOnDevices, ATrainingThatWasCutOffHasTheBitsOfOneThatWasNot) {
  for (const DevicePlace& place : device_places()) {
    SCOPED_TRACE(words_of(place));
    test::in_all_orders(1, [&] {
      Model straight = model_at(place);
      const Trained expected = trained_of(straight, straight.fit(samples(), three_epochs()));
      const test::TempFolder folder;
      FitOptions options = three_epochs({.folder = folder / "checkpoints", .every_steps = 3});
      options.callbacks = cut_after(7);
      Model cut = model_at(place);
      EXPECT_THROW(cut.fit(samples(), options), Cut);
      Model resumed = model_at(place);
      const History history = resumed.fit(
          samples(),
          three_epochs({.folder = folder / "checkpoints", .every_steps = 3, .resume = true}));
      EXPECT_EQ(trained_of(resumed, history), expected);
    });
  }
}

// The largest second moments come with the checkpoint.
TEST_F(CheckpointsOnDevices, OfAmsgradGoOnWithWhatWasLargest) {
  for (const DevicePlace& place : device_places()) {
    SCOPED_TRACE(words_of(place));
    const auto compiled = [&place](bool amsgrad) {
      Model model = model_at(place);
      CompileOptions options = adam_and_accuracy();
      options.optimizer = optim::adam({.learning_rate = 0.01, .beta2 = 0.5, .amsgrad = amsgrad});
      model.compile(options);
      return model;
    };
    test::in_all_orders(1, [&] {
      Model straight = compiled(true), plain = compiled(false);
      const Trained expected = trained_of(straight, straight.fit(samples(), three_epochs()));
      EXPECT_NE(trained_of(plain, plain.fit(samples(), three_epochs())), expected);
      const test::TempFolder folder;
      FitOptions options = three_epochs({.folder = folder / "checkpoints", .every_steps = 3});
      options.callbacks = cut_after(7);
      Model cut = compiled(true);
      EXPECT_THROW(cut.fit(samples(), options), Cut);
      Model resumed = compiled(true);
      const History history = resumed.fit(
          samples(),
          three_epochs({.folder = folder / "checkpoints", .every_steps = 3, .resume = true}));
      EXPECT_EQ(trained_of(resumed, history), expected);
    });
  }
}

// Dropout of LibTorch draws from generators of the devices.
TEST_F(CheckpointsOnDevices, GoOnWithTheSameRandomNumbers) {
  for (const DevicePlace& place : device_places()) {
    SCOPED_TRACE(words_of(place));
    const auto dropped = [&] {
      torch::manual_seed(3);
      Model model(strategy_at(place), [] {
        return torch::nn::Sequential(torch::nn::Linear(4, 16), torch::nn::Dropout(0.5),
                                     torch::nn::Linear(16, 3));
      });
      model.compile({.optimizer = optim::adam({.learning_rate = 0.01}),
                     .loss = losses::sparse_categorical_crossentropy()});
      return model;
    };
    const auto samples = three_classes(90).batch(9);
    Model straight = dropped();
    straight.fit(samples, {.verbose = 0});
    Model cut = dropped();
    const test::TempFolder folder;
    FitOptions options{.verbose = 0, .checkpoints = {.folder = folder / "all", .every_steps = 3}};
    options.callbacks = cut_after(7);
    EXPECT_THROW(cut.fit(samples, options), Cut);
    Model resumed = dropped();
    options.callbacks.clear();
    options.checkpoints.resume = true;
    resumed.fit(samples, options);
    EXPECT_EQ(resumed.weights_sha256(), straight.weights_sha256());
  }
}

/// Names, dtypes and shapes of all tensors in the newest checkpoint.
std::vector<std::string> described(const std::filesystem::path& folder) {
  std::vector<std::string> lines;
  for (const auto& [name, array] : TrainingCheckpoint(trainings_in(folder).back()).tensors())
    lines.push_back(
        fmt::format("{} {} [{}]", name, name_of(array.dtype()), fmt::join(array.shape(), ", ")));
  return lines;
}

TEST_F(CheckpointsOnDevices, FilesHaveTheSameTensorsWhateverTheDevice) {
  const test::TempFolder folder;
  for (const std::string device : {"cpu", "cuda:0,1"}) {
    Model model = model_at({"mirrored", 2, device});
    model.fit(samples(), three_epochs({.folder = folder / device, .every_steps = 5}));
  }
  EXPECT_EQ(described(folder / "cuda:0,1"), described(folder / "cpu"));
}

TEST_F(CheckpointsOnDevices, GoOnOnTheCpuAndBack) {
  const test::TempFolder folder;
  const auto train = [&](const std::string& device, int64_t steps) {
    Model model = model_at({"mirrored", 2, device});
    FitOptions options =
        three_epochs({.folder = folder / "checkpoints", .every_steps = 2, .resume = true});
    options.callbacks = cut_after(steps);
    if (steps < 12)
      EXPECT_THROW(model.fit(samples(), options), Cut);
    else
      EXPECT_EQ(model.fit(samples(), three_epochs(options.checkpoints)).steps, 12);
  };
  train("cuda:0,1", 5);
  train("cpu", 9);
  train("cuda:0x2", 12);
}

// The copies are made on the devices' side while the next steps are queued.
TEST_F(CheckpointsOnDevices, AreOfTheirStep) {
  for (const DevicePlace& place : device_places()) {
    SCOPED_TRACE(words_of(place));
    test::in_all_orders(1, [&] {
      const test::TempFolder folder;
      Model model = model_at(place);
      model.fit(samples(),
                {.verbose = 0, .checkpoints = {.folder = folder / "all", .every_steps = 1}});
      const auto all = trainings_in(folder / "all");
      ASSERT_FALSE(all.empty());
      for (const auto& path : all) {
        const int64_t step = TrainingCheckpoint(path).manifest().step;
        Model straight = model_at(place);
        straight.fit(samples(), {.max_steps = step, .verbose = 0});
        Model loaded = model_at(place);
        loaded.load(path);
        EXPECT_EQ(loaded.weights_sha256(), straight.weights_sha256()) << step;
      }
    });
  }
}

TEST_F(CheckpointsOnDevices, KeptWeightsArePutBack) {
  for (const DevicePlace& place : device_places()) {
    Model model = model_at(place);
    std::string kept;
    const auto keeps = callbacks::lambda("keeps", {.on_epoch_end = [&](Training& training) {
                                           if (training.epoch() == 0) training.keep_weights();
                                           if (training.epoch() == 2) training.put_back_weights();
                                         }});
    FitOptions options = three_epochs();
    options.callbacks = {keeps};
    model.fit(samples(), options);
    Model once = model_at(place);
    FitOptions one = three_epochs();
    one.epochs = 1;
    once.fit(samples(), one);
    EXPECT_EQ(model.weights_sha256(), once.weights_sha256()) << words_of(place);
  }
}

}  // namespace
}  // namespace tutti
