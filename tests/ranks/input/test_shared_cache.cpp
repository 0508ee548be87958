// Two workers of a host: each photo is decoded once, and lies in memory once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <fstream>
#include <numeric>

#include "tutti/data/sources/image_folder.h"
#include "tutti/data/transforms/transforms.h"
#include "tutti/train/model/model.h"

#include "tests/support/run_workers.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/data_transforms/photos.h"

namespace tutti {
namespace {

constexpr int kPhotos = 50;  // of each of two classes
// Of so many photos the workers make a digest before the first step, through the cache.
constexpr int kDigested = 64;
constexpr int64_t kSide = 400;

// KiB of memory that others may have mapped too, a page of n processes counted as 1/n.
int64_t shared_kib() {
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string word; file >> word;)
    if (int64_t kib = 0; word == "Pss_Shmem:" && file >> kib) return kib;
  throw Error("/proc/self/smaps_rollup: no Pss_Shmem");
}

RANK_PROGRAM(train_on_kept_photos) {
  const auto photos = data::image_folder(rank.arguments[0])
                          .map(data::transforms::decode())
                          .map(data::transforms::resize(data::transforms::Size(kSide)))
                          .cache()
                          .map(data::transforms::to_tensor())
                          .shuffle()
                          .batch(6);
  Model model(Strategy({.kind = "multi_worker", .replicas = 2, .threads_per_replica = 1}), [] {
    return torch::nn::Sequential(torch::nn::AvgPool2d(100), torch::nn::Flatten(),
                                 torch::nn::Linear(48, 2));
  });
  model.compile({.optimizer = optim::sgd(), .loss = losses::sparse_categorical_crossentropy()});
  const int64_t before = shared_kib();
  FitOptions options{.epochs = 3, .verbose = 0};
  options.loader = {.workers = 2};
  const History history = model.fit(photos, std::move(options));
  for (const data::StageReport& stage : history.input.stages)
    if (stage.name == "decode()") rank.mark(fmt::format("decoded {}", stage.samples));
  rank.mark(fmt::format("shared {}", shared_kib() - before));
  model.evaluate(photos);  // nobody ends before both have looked
}

int64_t sum_after(const std::string& log, const std::string& mark) {
  int64_t sum = 0;
  for (const std::string& number : test::lines_after(log, mark)) sum += std::stoll(number);
  return sum;
}

TEST(SharedCaches, WorkersOfAHostDecodeAndKeepEachPhotoOnce) {
  const test::TempFolder folder;
  for (const char* name : {"ants", "bees"}) {
    std::filesystem::create_directory(folder / name);
    for (int i = 0; i < kPhotos; ++i)
      test::put_bytes(folder.path() / name / fmt::format("{}.jpg", i), data::make_jpeg(40, 50 + i));
  }
  const auto outcome = test::run_workers(2, "train_on_kept_photos", {folder.path().string()});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.log;
  EXPECT_EQ(sum_after(outcome.log, "decoded "), 2 * kPhotos - kDigested) << outcome.log;
  const int64_t kib = 2 * kPhotos * 3 * kSide * kSide / 1024;
  EXPECT_GE(sum_after(outcome.log, "shared "), kib) << outcome.log;
  EXPECT_LT(sum_after(outcome.log, "shared "), 2 * kib) << "two copies\n" << outcome.log;
}

}  // namespace
}  // namespace tutti
