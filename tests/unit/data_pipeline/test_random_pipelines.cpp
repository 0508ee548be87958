// Pipelines drawn by number, read by any number of replicas, cut anywhere and gone on elsewhere:
// the bytes are those of the interpreter.

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <string>

#include "tutti/base/error.h"
#include "tutti/base/sha256.h"

#include "tests/support/pipeline_reading.h"
#include "tests/support/random_pipeline.h"
#include "tests/support/temp_folder.h"

namespace tutti::test {
namespace {

constexpr int64_t kPipelines = 500;
constexpr int64_t kEpochs[] = {0, 1, 4};

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

/// Up to a batch of an epoch by one dataset, from there by another in another world.
std::string bytes_of_two(const data::Dataset& first, const data::Dataset& second,
                         const Reader& read, uint64_t seed, std::mt19937_64& random) {
  const auto cut_epoch = random() % std::size(kEpochs);
  const auto batches = static_cast<uint64_t>(first.num_batches());
  const auto cut = static_cast<int64_t>(random() % (batches + 1));
  const int world = 1 + static_cast<int>(random() % 4);
  const int then = 1 + (world + static_cast<int>(random() % 3)) % 4;
  std::string bytes;
  for (size_t i = 0; i < std::size(kEpochs); ++i) {
    const data::EpochOptions epoch{.epoch = kEpochs[i], .seed = seed};
    if (i < cut_epoch) bytes += read(first, world, epoch, 0, -1);
    if (i == cut_epoch) bytes += read(first, world, epoch, 0, cut);
    if (i == cut_epoch) bytes += read(second, then, epoch, cut, -1);
    if (i > cut_epoch) bytes += read(second, then, epoch, 0, -1);
  }
  return bytes;
}

/// Whether there was anything to read: some are refused, as they have to be, or have no samples.
bool gives_what_is_interpreted(uint64_t number, const Reader& read) {
  const Pipeline pipeline = random_pipeline(number);
  SCOPED_TRACE(fmt::format("pipeline {}: {}", number, to_string(pipeline)));
  const TempFolder folder;
  try {
    const data::Dataset dataset = dataset_of(pipeline, folder.path());
    EXPECT_TRUE(pipeline.refused.empty()) << "not refused";
    if (!pipeline.refused.empty()) return false;
    const uint64_t seed = number * 77;
    const std::string bytes = expected_bytes(pipeline, seed);
    const std::string expected = sha256_hex(bytes);
    for (int world = 1; world <= 4; ++world)
      EXPECT_EQ(sha256_hex(bytes_read(dataset, read, world, seed)), expected) << world;
    if (number % 2 == 1) return !bytes.empty();
    std::mt19937_64 random(number);
    const data::Dataset anew = dataset_of(pipeline, folder.path());
    EXPECT_EQ(sha256_hex(bytes_of_two(dataset, anew, read, seed, random)), expected) << "cut";
    return !bytes.empty();
  } catch (const UsageError& error) {
    EXPECT_FALSE(pipeline.refused.empty()) << error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what();
  }
  return false;
}

TEST(RandomPipelines, GiveWhatTheInterpreterGives) {
  uint64_t number = 0;
  for (int64_t read = 0; read < kPipelines && !HasFailure(); ++number)
    if (gives_what_is_interpreted(number, read_inline)) ++read;
  EXPECT_LT(number, uint64_t{2 * kPipelines});  // most are worth drawing
}

}  // namespace
}  // namespace tutti::test
