// Pipelines drawn by number, read inline, by threads and by processes, by any number of replicas,
// cut anywhere and gone on elsewhere: the bytes are those of the interpreter.

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/sha256.h"
#include "tutti/data/loader/registered.h"

#include "tests/support/pipeline_reading.h"
#include "tests/support/random_pipeline.h"
#include "tests/support/temp_folder.h"

namespace tutti::test {
namespace {

constexpr int64_t kPipelines = 25;  // of a group
constexpr int kGroups = TUTTI_TEST_PIPELINES / kPipelines;
constexpr int kMostWorkers = 4;
constexpr int kMostReplicas = 4;
constexpr int64_t kEpochs[] = {0, 1, 4};

// Arguments: the pipeline's number, and the folder of its cache.
const data::Registered kPipeline("random pipeline", [](const std::string& arguments) {
  const size_t space = arguments.find(' ');
  return dataset_of(random_pipeline(std::stoull(arguments.substr(0, space))),
                    arguments.substr(space + 1));
});

/// A way of reading, with its name.
struct Way {
  std::string name;
  Reader read;
};

Way by_loader(int workers, data::WorkerKind kind) {
  const bool threads = kind == data::WorkerKind::threads;
  return {fmt::format("{} {}", workers, threads ? "threads" : "processes"),
          read_by_loader({.workers = workers, .kind = kind})};
}

/// Processes cost a start each, so that a pipeline has one number of them; all with
/// TUTTI_TEST_EVERY_NUMBER_OF_PROCESSES.
std::vector<Way> ways_of(uint64_t number, bool sequential) {
  std::vector<Way> ways{{"inline", read_inline}};
  for (int workers = 0; workers <= kMostWorkers; ++workers)
    ways.push_back(by_loader(workers, data::WorkerKind::threads));
  const bool every = std::getenv("TUTTI_TEST_EVERY_NUMBER_OF_PROCESSES") != nullptr;
  const int one = 1 + static_cast<int>(number % kMostWorkers);
  for (int workers = 1; workers <= kMostWorkers && !sequential; ++workers)
    if (every || workers == one) ways.push_back(by_loader(workers, data::WorkerKind::processes));
  return ways;
}

std::string expected_bytes(const Pipeline& pipeline, uint64_t seed) {
  std::string bytes;
  for (int64_t epoch : kEpochs)
    for (const PlainBatch& batch : interpret(pipeline, seed, epoch)) append(bytes, batch);
  return bytes;
}

std::string bytes_read(const data::Dataset& dataset, const Reader& read, int world, uint64_t seed) {
  std::string bytes;
  for (int64_t epoch : kEpochs)
    bytes += read(dataset, world, {.epoch = epoch, .seed = seed}, 0, -1);
  return bytes;
}

/// Up to a batch of an epoch in one way, from there in another, in another world.
struct Cut {
  size_t epoch;  ///< of kEpochs
  int64_t step;
  int world, then;

  Cut(int64_t batches, std::mt19937_64& random)
      : epoch(random() % std::size(kEpochs)),
        step(static_cast<int64_t>(random() % static_cast<uint64_t>(batches + 1))),
        world(1 + static_cast<int>(random() % kMostReplicas)),
        then(1 + (world + static_cast<int>(random() % (kMostReplicas - 1))) % kMostReplicas) {}

  std::string bytes(const data::Dataset& first, const Reader& before, const data::Dataset& second,
                    const Reader& after, uint64_t seed) const {
    std::string all;
    for (size_t i = 0; i < std::size(kEpochs); ++i) {
      const data::EpochOptions number{.epoch = kEpochs[i], .seed = seed};
      if (i < epoch) all += before(first, world, number, 0, -1);
      if (i == epoch) all += before(first, world, number, 0, step);
      if (i == epoch) all += after(second, then, number, step, -1);
      if (i > epoch) all += after(second, then, number, 0, -1);
    }
    return all;
  }
};

/// Whether there was anything to read: some are refused, as they have to be, or have no samples.
bool gives_what_is_interpreted(uint64_t number) {
  const Pipeline pipeline = random_pipeline(number);
  SCOPED_TRACE(fmt::format("pipeline {}: {}", number, to_string(pipeline)));
  const TempFolder folder;
  const std::string arguments = fmt::format("{} {}", number, folder.path().string());
  try {
    const data::Dataset dataset = kPipeline(arguments);
    EXPECT_TRUE(pipeline.refused.empty()) << "not refused";
    if (!pipeline.refused.empty()) return false;
    const uint64_t seed = number * 77;
    const std::string bytes = expected_bytes(pipeline, seed);
    const std::string expected = sha256_hex(bytes);
    const std::vector<Way> ways = ways_of(number, dataset.sequential());
    for (const Way& way : ways)
      for (int world = 1; world <= kMostReplicas; ++world)
        EXPECT_EQ(sha256_hex(bytes_read(dataset, way.read, world, seed)), expected)
            << way.name << " for " << world << " replicas";
    if (number % 2 == 1) return !bytes.empty();
    std::mt19937_64 random(number);
    for (size_t before = 0; before < ways.size(); ++before) {
      const Way& after = ways[(before + 1 + random() % (ways.size() - 1)) % ways.size()];
      const Cut cut(dataset.num_batches(), random);
      const data::Dataset anew = kPipeline(arguments);
      EXPECT_EQ(sha256_hex(cut.bytes(dataset, ways[before].read, anew, after.read, seed)), expected)
          << ways[before].name << " for " << cut.world << " replicas up to step " << cut.step
          << " of epoch " << kEpochs[cut.epoch] << ", then " << after.name << " for " << cut.then;
    }
    return !bytes.empty();
  } catch (const UsageError& error) {
    EXPECT_FALSE(pipeline.refused.empty()) << error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what();
  }
  return false;
}

class RandomPipelines : public testing::TestWithParam<int> {};

TEST_P(RandomPipelines, GiveWhatTheInterpreterGives) {
  constexpr uint64_t kMost = 2 * kPipelines;  // most are worth drawing
  const uint64_t first = kMost * static_cast<uint64_t>(GetParam());
  int64_t read = 0;
  for (uint64_t i = 0; i < kMost && read < kPipelines && !HasFailure(); ++i)
    if (gives_what_is_interpreted(first + i)) ++read;
  EXPECT_EQ(read, kPipelines);
}

INSTANTIATE_TEST_SUITE_P(Group, RandomPipelines, testing::Range(0, kGroups));

}  // namespace
}  // namespace tutti::test
