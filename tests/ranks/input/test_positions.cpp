// A training that is cut at a checkpoint and goes on with other replicas and loader workers reads
// what one that was never cut reads, whatever its dataset is made of.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <mutex>

#include "tutti/base/error.h"
#include "tutti/base/sha256.h"
#include "tutti/checkpoint/checkpoint.h"
#include "tutti/checkpoint/folder.h"
#include "tutti/data/combine.h"
#include "tutti/data/loader/registered.h"
#include "tutti/data/transforms/mix.h"
#include "tutti/train/model/model.h"

#include "tests/support/temp_folder.h"

namespace tutti {
namespace {

using data::Dataset;
using data::Draw;
using data::Sample;

// x float32 [2] = (i, 0), y int64 [] = i % 3.
Dataset pairs(int64_t n) {
  std::vector<float> x;
  std::vector<int64_t> y;
  for (int64_t i = 0; i < n; ++i) {
    x.insert(x.end(), {static_cast<float>(i), 0});
    y.push_back(i % 3);
  }
  return data::from_arrays(
      {data::array_of(std::move(x), {n, 2}), data::array_of(std::move(y), {n})});
}

Dataset noisy(const Dataset& dataset) {
  return dataset.map(
      [](Sample sample, Draw& draw) {
        Array x = data::make_array(DType::float32, sample.columns[0].shape());
        std::ranges::copy(sample.columns[0].as<float>(), x.as<float>().begin());
        for (float& value : x.as<float>()) value += draw.uniform();
        sample.columns[0] = x;
        return sample;
      },
      {.name = "noisy", .columns = dataset.columns()});
}

// Of one to four rows, as its number says.
Dataset ragged(const Dataset& dataset) {
  return dataset.map(
      [](Sample sample) {
        const auto number = sample.columns[0].as<float>()[0];
        const int64_t rows = 1 + static_cast<int64_t>(number) % 4;
        sample.columns[0] = data::array_of(std::vector<float>(2 * rows, number), {rows, 2});
        return sample;
      },
      {.name = "ragged",
       .columns = {{"x", DType::float32, {data::kAnySize, 2}}, {"y", DType::int64, {}}}});
}

bool is_kept(const Sample& sample) {
  return static_cast<int64_t>(sample.columns[0].as<float>()[0]) % 5 != 0;
}

// Batches of 6, all of them: equal parts for one, two and three replicas.
const data::Registered kDataset("position", [](const std::string& name) {
  if (name == "filter, cache, mixup")
    return noisy(pairs(64).filter(is_kept).cache())
        .shuffle()
        .batch(6, true)
        .map(data::transforms::mixup(3));
  if (name == "weighted")
    return noisy(data::weighted({{pairs(20).shuffle(), 1}, {pairs(90).skip(20).shuffle(), 2}}))
        .batch(6, true);
  if (name == "window") return noisy(pairs(80).shuffle().window(3, {.shift = 2})).batch(6, true);
  return ragged(pairs(80).filter(is_kept))
      .shuffle()
      .bucket_by_length({.boundaries = {3}, .batches = {6, 6}, .pad = {.drop_remainder = true}});
});

/// The rows that a model was given, by step; a replica adds those of its own, step by step.
class Seen {
 public:
  using Part = std::vector<std::vector<std::string>>;

  std::shared_ptr<Part> new_part() {
    const std::scoped_lock lock(mutex_);
    return parts_.emplace_back(std::make_shared<Part>());
  }
  /// Of each step one sum of all its rows, whichever replica had them.
  std::vector<std::string> steps() const {
    std::vector<std::string> sums;
    for (size_t step = 0; step < parts_.at(0)->size(); ++step) {
      std::vector<std::string> rows;
      for (const auto& part : parts_)
        if (step < part->size())
          rows.insert(rows.end(), part->at(step).begin(), part->at(step).end());
      std::ranges::sort(rows);
      const std::string sum = sha256_hex(fmt::format("{}", fmt::join(rows, "")));
      sums.push_back(fmt::format("{} rows {}", rows.size(), sum.substr(0, 16)));
    }
    return sums;
  }

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<Part>> parts_;
};

struct Watched : torch::nn::Module {
  explicit Watched(Seen& seen) : part(seen.new_part()) {
    weight = register_parameter("weight", torch::ones({1}));
  }
  at::Tensor forward(const at::Tensor& x) {
    auto& rows = part->emplace_back();
    for (int64_t row = 0; row < x.size(0); ++row) {
      const at::Tensor one = x[row].contiguous();
      rows.emplace_back(static_cast<const char*>(one.data_ptr()), one.nbytes());
    }
    return (x * weight).flatten(1).sum(1, true);
  }
  std::shared_ptr<Seen::Part> part;
  at::Tensor weight;
};

struct Setting {
  int replicas = 2;
  data::LoaderOptions loader{.workers = 0};
};

const Setting kStraight{};

/// What the steps of a training saw, two epochs from a checkpoint on where there is one; `cut`: the
/// step after which it ends in an error, -1 for none.
std::vector<std::string> trained(const std::string& dataset, const Setting& setting, int64_t cut,
                                 const std::filesystem::path& folder) {
  Seen seen;
  const Strategy strategy({.kind = setting.replicas == 1 ? "one_device" : "mirrored",
                           .replicas = setting.replicas,
                           .threads_per_replica = 1,
                           .seed = 7});
  Model model(strategy, [&] { return Watched(seen); });
  model.compile(
      {.optimizer = optim::sgd(), .loss = Loss("mean", [](const at::Tensor& y, const at::Tensor&) {
                                    return y.flatten(1).mean(1);
                                  })});
  FitOptions options{.epochs = 2, .verbose = 0};
  options.loader = setting.loader;
  options.checkpoints = {.folder = folder, .every_steps = 2, .resume = true};
  options.callbacks = {callbacks::lambda("cut", {.on_step_end = [cut](Training& training) {
                                           if (training.step() == cut) throw Error("cut");
                                         }})};
  if (cut < 0) {
    model.fit(kDataset(dataset), std::move(options));
    return seen.steps();
  }
  EXPECT_THROW(model.fit(kDataset(dataset), std::move(options)), Error);
  std::vector<std::string> steps = seen.steps();
  // What follows the last checkpoint is trained again.
  const auto last = TrainingCheckpoint(trainings_in(folder).back()).manifest().step;
  EXPECT_LT(last, cut);
  steps.resize(static_cast<size_t>(last));
  return steps;
}

class Positions : public testing::TestWithParam<const char*> {};

TEST_P(Positions, GoOnWithOtherReplicasAndWorkers) {
  using data::WorkerKind;
  const struct {
    Setting before, after;
  } cases[] = {
      {{2, {.workers = 2}}, {3, {.workers = 2, .kind = WorkerKind::processes}}},
      {{3, {.workers = 1, .kind = WorkerKind::processes}}, {1, {.workers = 0}}},
      {{1, {.workers = 4}}, {2, {.workers = 3, .kind = WorkerKind::processes}}},
      {{1, {.workers = 2, .kind = WorkerKind::processes}}, {3, {}}},
  };
  const test::TempFolder straight;
  const auto whole = trained(GetParam(), kStraight, -1, straight.path());
  ASSERT_GE(whole.size(), 10u);
  auto step = static_cast<int64_t>(whole.size()) - 2;  // of the second epoch, then earlier ones
  for (const auto& [before, after] : cases) {
    const test::TempFolder folder;
    auto steps = trained(GetParam(), before, step, folder.path());
    const auto rest = trained(GetParam(), after, -1, folder.path());
    steps.insert(steps.end(), rest.begin(), rest.end());
    EXPECT_EQ(steps, whole) << before.replicas << " replicas, then " << after.replicas
                            << ", after step " << step;
    step -= 2;
  }
}

INSTANTIATE_TEST_SUITE_P(Of, Positions,
                         testing::Values("filter, cache, mixup", "weighted", "window", "buckets"));

}  // namespace
}  // namespace tutti
