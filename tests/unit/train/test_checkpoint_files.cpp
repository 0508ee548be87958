// Checkpoints as files: what stays, what is damaged, and whatever else is wrong with one is said.
#include <torch/torch.h>

#include <algorithm>
#include <bit>
#include <fstream>
#include <functional>
#include <optional>
#include <thread>

#include "tutti/checkpoint/checkpoint.h"
#include "tutti/checkpoint/folder.h"
#include "tutti/checkpoint/parts.h"
#include "tutti/data/share_schedule.h"

#include "tests/support/expect.h"
#include "tests/support/failing_open.h"
#include "tests/support/full_disk.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/train/checkpointed.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;

fs::path part_of(const fs::path& checkpoint) { return checkpoint / "part-0-of-1.safetensors"; }

void flip_a_bit(const fs::path& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-3, std::ios::end);
  const char old = static_cast<char>(file.get());
  file.seekp(-3, std::ios::end);
  file.put(static_cast<char>(old ^ 1));
}

TEST(CheckpointFiles, OfADamagedOneTheOneBeforeIsUsed) {
  using Damage = void (*)(const fs::path&);
  const std::vector<Damage> damages = {
      [](const fs::path& c) { flip_a_bit(part_of(c)); },
      [](const fs::path& c) { fs::resize_file(part_of(c), fs::file_size(part_of(c)) - 1); },
      [](const fs::path& c) { fs::remove(part_of(c)); },
      [](const fs::path& c) { fs::resize_file(c / "manifest.json", 40); },
      [](const fs::path& c) { fs::remove(c / "manifest.json"); },
      [](const fs::path& c) {
        replace_in(c / "manifest.json", "\"replicas\": 2", "\"replicas\": 3");
      },
      [](const fs::path& c) { replace_in(c / "manifest.json", "\"epoch\": 3", "\"epoch\": 2"); },
      [](const fs::path& c) {
        fs::remove_all(c);
        fs::copy(c.parent_path() / "step-000000000011", c);
      },
  };
  for (size_t i = 0; i < damages.size(); ++i) {
    const TempFolder folder;
    train_into(folder.path());
    const auto all = trainings_in(folder.path());
    ASSERT_THAT(all, SizeIs(3));
    damages[i](all.back());
    testing::internal::CaptureStderr();
    EXPECT_EQ(resumed_in(folder.path()), straight({})) << i;
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_THAT(said, AllOf(HasSubstr("step-000000000012"), HasSubstr("the one before it is used")))
        << i;
    EXPECT_TRUE(fs::exists(folder.path() / "damaged-step-000000000012")) << i;
  }
}

TEST(CheckpointFiles, WithoutAWholeOneItIsAnError) {
  const TempFolder folder;
  train_into(folder.path());
  for (const auto& path : trainings_in(folder.path())) flip_a_bit(part_of(path));
  EXPECT_THAT(message_of<DataError>([&] { resumed_in(folder.path()); }),
              AllOf(HasSubstr("none of the 3 checkpoints"), HasSubstr("is whole")));
  // However often it is asked for, it does not begin anew; nor beside them.
  EXPECT_THAT(message_of<DataError>([&] { resumed_in(folder.path()); }),
              HasSubstr("none of the 3 checkpoints"));
  EXPECT_THAT(message_of<UsageError>([&] { train_into(folder.path()); }),
              HasSubstr("an earlier training has left 3 there"));
}

// ---- what is in them, with digests that are right ----

// Changes the manifest and the tensors of a checkpoint of one worker, and digests with them.
template <class Change>
void rewrite(const fs::path& checkpoint, Change change) {
  CheckpointManifest manifest = TrainingCheckpoint(checkpoint).manifest();
  data::Safetensors part = data::read_safetensors(part_of(checkpoint));
  change(manifest, part.arrays);
  Sha256 sha;
  data::write_safetensors(part_of(checkpoint), part.arrays, {}, &sha);
  manifest.files[0].bytes = static_cast<int64_t>(fs::file_size(part_of(checkpoint)));
  manifest.files[0].sha256 = sha.hex();
  manifest.places.clear();
  for (const auto& entry : part.arrays) manifest.places[entry.name] = manifest.files[0].name;
  put_bytes(checkpoint / "manifest.json", manifest.to_json());
}

using Arrays = std::vector<data::NamedArray>;

Array& array_in(Arrays& arrays, const std::string& name) {
  return std::ranges::find(arrays, name, &data::NamedArray::name)->array;
}

TEST(CheckpointFiles, WhatNoTrainingHasWrittenIsNotGoneOnFrom) {
  using Change = void (*)(CheckpointManifest&, Arrays&);
  const std::vector<std::pair<Change, const char*>> changes = {
      {[](auto&, Arrays& all) { array_in(all, "history") = Array::zeros(DType::float64, {6, 0}); },
       "history"},
      {[](auto&, Arrays& all) {
         auto& scalars = array_in(all, "optimizer/scalars");
         scalars = Array::zeros(DType::float64, scalars.shape());
         std::ranges::fill(scalars.as<double>(), std::bit_cast<double>(~uint64_t{0}));
       },
       "optimizer/scalars"},
      {[](CheckpointManifest& m, auto&) { m.epoch = INT64_MAX; }, "epoch"},
      {[](CheckpointManifest& m, auto&) { m.step_in_epoch = INT64_MAX; }, "step_in_epoch"},
      {[](CheckpointManifest& m, auto&) { m.workers = -1; }, "workers"},
      {[](auto&, Arrays& all) {
         array_in(all, "buffers/1/batch_norm2d_1.running_mean") = Array::zeros(DType::float32, {1});
       },
       "buffers/1/"},
  };
  for (const auto& [change, words] : changes) {
    const TempFolder folder;
    train_into(folder.path());
    rewrite(trainings_in(folder.path()).back(), change);
    testing::internal::CaptureStderr();
    EXPECT_EQ(resumed_in(folder.path()), straight({})) << words;
    EXPECT_THAT(testing::internal::GetCapturedStderr(),
                AllOf(HasSubstr(words), HasSubstr("the one before it is used")));
    EXPECT_TRUE(fs::exists(folder.path() / "damaged-step-000000000012")) << words;
  }
}

// What only the model knows: an error before the first step, and the checkpoint stays.
TEST(CheckpointFiles, StateThatDoesNotFitTheModelIsNamed) {
  using Change = void (*)(Arrays&);
  const std::vector<std::pair<Change, const char*>> changes = {
      {[](Arrays& all) { array_in(all, "totals/1") = Array::zeros(DType::float64, {99}); },
       "\"totals/1\": got 99 numbers, expected"},
      {[](Arrays& all) { array_in(all, "totals/0").as<double>(); }, ""},
      {[](Arrays& all) { array_in(all, "generator/0") = Array::zeros(DType::uint8, {7}); },
       "\"generator/0\" is no state of a generator"},
      {[](Arrays& all) {
         auto& scalars = array_in(all, "optimizer/scalars");
         scalars = Array::zeros(DType::float64, {scalars.shape()[0] + 1, 5});
       },
       "the state of the optimizer does not fit"},
      {[](Arrays& all) {
         std::erase_if(all, [](const auto& entry) {
           return entry.name.starts_with("optimizer/") && entry.name.ends_with(".bias");
         });
       },
       "the state of the optimizer does not fit"},
  };
  for (const auto& [change, words] : changes) {
    const TempFolder folder;
    train_into(folder.path());
    const fs::path newest = trainings_in(folder.path()).back();
    rewrite(newest, [&](auto&, Arrays& arrays) { change(arrays); });
    if (*words == 0) {
      EXPECT_EQ(resumed_in(folder.path()), straight({}));  // rewritten alone it is whole
      continue;
    }
    EXPECT_THAT(message_of<DataError>([&] { resumed_in(folder.path()); }),
                AllOf(HasSubstr(newest.string()), HasSubstr(words)));
    EXPECT_TRUE(fs::exists(newest)) << words;
  }
}

// What each part remembers only it knows; and a training has all parts of its checkpoint, no
// others.
TEST(CheckpointFiles, WordsThatAreNoneOfTheirPartAreNamed) {
  const TempFolder folder;
  const auto fit = [&](bool resume) {
    Model model(strategy_of("mirrored", 2), [] { return graph_with_state(); });
    CompileOptions how = adam_and_accuracy();
    how.loss_scaling = {.initial = 1024};
    how.measures = {.noise_scale = true};
    model.compile(how);
    model.fit(samples(), three_epochs({.folder = folder.path(), .resume = resume}));
  };
  fit(false);
  const fs::path newest = trainings_in(folder.path()).back();
  const auto sound = TrainingCheckpoint(newest).manifest();
  const std::string no_share = data::ShareSchedule{{{3, {0, 1}}}}.to_json(2);
  const struct {
    std::string part, words, refusal;
  } cases[] = {
      {"noise_scale", "[1.0]", "kept: noise_scale: [1.0], expected 3 finite numbers"},
      {"noise_scale", R"("1, 2, 3")", "expected 3 finite numbers"},
      {"loss_scale", "[1.0,null,0]", "kept: loss_scale: [1.0,null,0], expected 3 finite numbers"},
      {"loss_scale", "[0.0,1.0,1.0]", "the scale is 0, expected above 0"},
      {"loss_scale", "[1e39,1.0,1.0]", "the scale is 1e+39, expected above 0"},
      {"loss_scale", "[2.0,1.5,1.0]", "a number of steps is 1.5, expected a whole number"},
      {"loss_scale", "[2.0,1.0,1e300]", "a number of steps is 1e+300, expected a whole number"},
      {"callbacks", "[7]", "kept: callbacks: [7], expected a text for each"},
      {"shares", "7", "its field format is not there"},
      {"shares", no_share, "that of replica 0 is 0"},
      {"another_part", "7", "another part: true in the checkpoint, false here"},
      {"noise_scale", "", "noise scale: false in the checkpoint, true here"},
  };
  for (const auto& [part, words, refusal] : cases) {
    CheckpointManifest manifest = sound;
    manifest.kept[part] = words;
    if (words.empty()) manifest.kept.erase(part);
    put_bytes(newest / "manifest.json", manifest.to_json());
    EXPECT_THAT(message_of<Error>([&] { fit(true); }),
                AllOf(HasSubstr(newest.string()), HasSubstr(refusal)));
    EXPECT_TRUE(fs::exists(newest)) << refusal;
  }
}

TEST(CheckpointFiles, OfWrongShapesAreNotConvertedEither) {
  const TempFolder folder;
  train_into(folder.path());
  const fs::path newest = trainings_in(folder.path()).back();
  rewrite(newest, [](auto&, Arrays& all) {
    array_in(all, "buffers/1/batch_norm2d_1.running_mean") = Array::zeros(DType::float32, {1});
  });
  const TrainingCheckpoint checkpoint(newest);
  EXPECT_THAT(message_of<DataError>([&] { weights_of(checkpoint); }), HasSubstr("buffers/1/"));
}

// ---- a disk that fails ----

TEST(CheckpointFiles, OneThatCannotBeReadJustNowIsLeftAsItIs) {
  const TempFolder folder;
  train_into(folder.path());
  for (const char* file : {"manifest.json", "part-0-of-1.safetensors"})
    for (const int error : {EIO, ESTALE, EMFILE, EACCES}) {
      const FailingOpen failing(file, error);
      EXPECT_THAT(message_of<Error>([&] { resumed_in(folder.path()); }),
                  AllOf(HasSubstr("step-000000000012"), HasSubstr(errno_words(error))));
      EXPECT_GT(failing.failed(), 0);
    }
  EXPECT_THAT(damaged_trainings_in(folder.path()), IsEmpty());
  const FailingOpen once(part_of("").string(), ESTALE, 1);
  EXPECT_EQ(resumed_in(folder.path()), straight({}));
  EXPECT_EQ(once.failed(), 1);
}

// A folder that is taken for empty would be begun anew in.
TEST(CheckpointFiles, AFolderThatCannotBeListedJustNowIsNotBegunAnewIn) {
  const TempFolder folder;
  train_into(folder / "c");
  for (const int error : {EIO, EMFILE, EACCES}) {
    const FailingOpen failing(folder / "c", error);
    EXPECT_THAT(message_of<Error>([&] { resumed_in(folder / "c"); }),
                AllOf(HasSubstr((folder / "c").string()), HasSubstr(errno_words(error))));
    EXPECT_GT(failing.failed(), 0);
  }
  EXPECT_EQ(resumed_in(folder / "c"), straight({}));
}

// Worker 1's, which came to the disk when worker 0 had given that checkpoint up.
TEST(CheckpointFiles, PartsOfOneThatWasGivenUpDoNotStay) {
  const TempFolder folder;
  const auto lock = std::make_shared<FolderLock>(folder.path(), "checkpoints in");
  const auto write = [&](int64_t step, int worker) {
    write_part({.folder = folder.path(),
                .step = step,
                .worker = worker,
                .workers = 2,
                .image = std::make_shared<data::SafetensorsImage>(),
                .lock = lock,
                .lock_number = lock->number()});
  };
  write(3, 1);
  write(6, 1);
  write(6, 0);
  EXPECT_FALSE(fs::exists(folder / ".step-000000000003.partial"));
  EXPECT_TRUE(fs::exists(folder / ".step-000000000006.partial/part-0.json"));
  EXPECT_TRUE(fs::exists(folder / ".step-000000000006.partial/part-1.json"));
}

TEST(CheckpointFiles, OfALaterFormatAreLeftAlone) {
  const TempFolder folder;
  train_into(folder.path());
  const fs::path newest = trainings_in(folder.path()).back();
  replace_in(newest / "manifest.json", "tutti.checkpoint.2", "tutti.checkpoint.9");
  EXPECT_THAT(message_of<UsageError>([&] { resumed_in(folder.path()); }),
              AllOf(HasSubstr("tutti.checkpoint.9"), HasSubstr("another version")));
  EXPECT_TRUE(fs::exists(newest));
}

TEST(CheckpointFiles, AreTakenUpWhereNoDiskIsWaitedForBesideTheTraining) {
  const TempFolder folder;
  CheckpointOptions options{.folder = folder.path(), .every_steps = 1, .resume = true};
  options.disk_limit = Millis{0};
  EXPECT_EQ(straight({}, three_epochs(options)), straight({}));
}

// Of a training that is done; what is still being written would come after they are removed.
TEST(CheckpointFiles, AreNotRemovedAtTheEndWhileADiskHangs) {
  const TempFolder folder;
  CheckpointOptions options{.folder = folder.path(), .every_steps = 4, .remove_at_end = true};
  options.disk_limit = Millis{2'000};
  Model model = checkpointed_model({});
  const HangingOpen hangs(checkpoint_folder(folder.path()).partial(12).filename());
  const History history = model.fit(samples(), three_epochs(options));
  EXPECT_EQ(history.steps, 12);
  EXPECT_EQ(trainings_in(folder.path()).size(), 2U) << "of steps 4 and 8";
}

TEST(CheckpointFiles, WhatVerifyReadsIsAllThatWasWritten) {
  const TempFolder folder;
  train_into(folder.path());
  const TrainingCheckpoint checkpoint(trainings_in(folder.path()).back());
  EXPECT_NO_THROW(checkpoint.verify());
  flip_a_bit(part_of(checkpoint.path()));
  EXPECT_THAT(
      message_of<DataError>([&] { checkpoint.verify(); }),
      AllOf(HasSubstr("part-0-of-1.safetensors"), HasSubstr("sha256"), HasSubstr("written")));
}

TEST(CheckpointFiles, WeightsAreThoseThatSaveWouldWrite) {
  const TempFolder folder;
  Model model = checkpointed_model({.replicas = 3});
  model.fit(samples(), three_epochs({.folder = folder.path() / "c"}));
  Model other = checkpointed_model({.kind = "one_device", .replicas = 1});
  other.load(trainings_in(folder.path() / "c").back());
  EXPECT_EQ(other.weights_sha256(), model.weights_sha256());
}

TEST(CheckpointFiles, WhatADeadJobWasWritingGoes) {
  const TempFolder folder;
  const fs::path left = folder.path() / ".step-000000000003.partial";
  fs::create_directories(left);
  std::ofstream(left / "part-0.json") << "{}";
  train_into(folder.path());
  EXPECT_FALSE(fs::exists(left));
  EXPECT_EQ(resumed_in(folder.path()), straight({}));
}

TEST(CheckpointFiles, OnAFullDiskTheTrainingGoesOn) {
  const TempFolder folder;
  testing::internal::CaptureStderr();
  std::string sha256;
  std::vector<std::string> lost;
  {
    Model model = checkpointed_model({});
    const FullDisk full(1000);
    lost = model.fit(samples(), three_epochs({.folder = folder.path(), .every_steps = 1})).lost;
    sha256 = model.weights_sha256();
  }
  EXPECT_THAT(lost, ElementsAre(AllOf(HasSubstr("the last checkpoint in " + folder.path().string()),
                                      HasSubstr("of step 12, was not written"))));
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(sha256, straight({}).sha256);
  EXPECT_THAT(said, AllOf(HasSubstr("checkpoint step-000000000001"), HasSubstr("is not written"),
                          HasSubstr("the one before stays")));
  EXPECT_THAT(trainings_in(folder.path()), IsEmpty());
  for (const auto& entry : fs::directory_iterator(folder.path()))
    EXPECT_THAT(entry.path().filename().string(), AnyOf("lock", "model.json"));  // a small one
}

// The first batch, of which a checkpoint has the digest, has the sample.
TEST(CheckpointFiles, AreWrittenAndGoneOnFromWhereADamagedSampleIsReplaced) {
  const auto whole = pictures(30);
  const auto torn = [&](int64_t place) {
    const Array values = whole.batch(30).epoch({}).batch(0).columns[0];
    const float first = values.as<float>()[static_cast<size_t>(4 * place)];
    return whole
        .map([first](data::Sample sample) {
          if (sample.columns[0].as<float>()[0] == first) throw DataError("torn");
          return sample;
        })
        .batch(8);
  };
  const auto replacing = [](CheckpointOptions checkpoints = {}, int64_t max_steps = 0) {
    FitOptions options = three_epochs(std::move(checkpoints));
    options.max_steps = max_steps;
    options.loader.on_bad = data::replace({.at_most = 1});
    return options;
  };
  const auto trained = [](const data::Dataset& dataset, FitOptions options) {
    Model model = checkpointed_model({});
    model.fit(dataset, std::move(options));
    return model.weights_sha256();
  };
  const TempFolder folder;
  const CheckpointOptions checkpoints = {.folder = folder.path(), .every_steps = 5, .resume = true};
  trained(torn(3), replacing(checkpoints, 5));
  EXPECT_THAT(message_of<UsageError>([&] { trained(torn(4), replacing(checkpoints)); }),
              HasSubstr("samples from the first to the last, sha256"));
  EXPECT_EQ(trained(torn(3), replacing(checkpoints)), trained(torn(3), replacing()));
}

TEST(CheckpointFiles, AreWrittenWhereANumberThatIsNoneIsGoneOnFrom) {
  const TempFolder folder;
  Model model = checkpointed_model({.optimizer = optim::sgd({.learning_rate = 1e30})});
  FitOptions options = three_epochs({.folder = folder.path(), .every_steps = 1});
  options.on_nan = OnNan::go_on;
  model.fit(samples(), std::move(options));
  std::vector<int64_t> steps;
  for (const auto& path : trainings_in(folder.path()))
    steps.push_back(TrainingCheckpoint(path).manifest().step);
  EXPECT_THAT(steps, ElementsAre(10, 11, 12));
}

}  // namespace
}  // namespace tutti
