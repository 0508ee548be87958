// What is kept: computed once, up to a limit; in files it outlives processes and damage.

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <thread>

#include "tutti/base/error.h"

#include "tests/support/full_disk.h"
#include "tests/support/message_of.h"
#include "tests/support/pipeline_words.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/data_pipeline/batches.h"

namespace tutti::data {
namespace {

namespace fs = std::filesystem;
using test::FullDisk;
using test::get_bytes;
using test::message_of;
using test::put_bytes;
using test::TempFolder;
using test::times;
using testing::HasSubstr;

constexpr int64_t kSampleBytes = 128;  // of one number: its shape and itself, a line each

std::vector<int64_t> up_to(int64_t n) {
  std::vector<int64_t> all(static_cast<size_t>(n));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

TEST(CacheInMemory, ComputesEachSampleOnce) {
  const auto source = counted_reads(200);
  const Dataset kept = Dataset(source).cache();
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&, i] {
      for (int64_t epoch = 0; epoch < 3; ++epoch)
        EXPECT_EQ(order_of(kept.shuffle().batch(7).unbatch(), {.epoch = epoch}),
                  order_of(counting(200).shuffle(), {.epoch = epoch}))
            << i;
    });
  threads.clear();
  EXPECT_EQ(source->num_reads(), 200);
  EXPECT_EQ(order_of(kept), up_to(200));  // handles share what is kept
  EXPECT_EQ(source->num_reads(), 200);
}

TEST(CacheInMemory, ComputesAnewWhatDoesNotFit) {
  const auto source = counted_reads(10);
  const Dataset kept = Dataset(source).cache(6 * kSampleBytes + 1);
  for (int epoch = 0; epoch < 3; ++epoch) EXPECT_EQ(order_of(kept), up_to(10));
  EXPECT_EQ(source->num_reads(), 6 + 3 * 4);
  for (const auto& [row, reads] : source->reads()) EXPECT_EQ(reads, row < 6 ? 1 : 3) << row;
  EXPECT_EQ(order_of(Dataset(source).cache(INT64_MAX)), up_to(10));
}

TEST(CacheInMemory, IsNotChangedByStagesBehindIt) {
  const Dataset kept = Dataset(counted_reads(20)).cache();
  const auto once = order_of(kept.map(times(3)));
  EXPECT_EQ(order_of(kept.map(times(3))), once);
  EXPECT_EQ(order_of(kept), up_to(20));
}

TEST(CacheInMemory, TriesAgainAfterAFailure) {
  const auto source = counted_reads(4);
  source->on_read = [fails = std::make_shared<bool>(true)](int64_t row) {
    if (row == 2 && std::exchange(*fails, false)) throw DataError("torn");
  };
  const Epoch epoch = Dataset(source).cache().map(times(1)).batch(4).epoch({});
  EXPECT_THAT(message_of<DataError>([&] { epoch.batch(0); }), HasSubstr("list 2"));
  EXPECT_EQ(numbers_in(epoch.batch(0)), (std::vector<int64_t>{1, 2, 3, 4}));
  EXPECT_EQ(source->reads().at(0), 1);
}

TEST(CacheInMemory, RefusesWhatDiffersByTheEpoch) {
  const Dataset drawn = counting(4).map([](Sample in, Draw&) { return in; }, {.name = "crop"});
  EXPECT_THAT(message_of<UsageError>([&] { drawn.cache(); }), HasSubstr("crop makes another one"));
  EXPECT_THROW(counting(4).shuffle().window(2).cache(), UsageError);
  EXPECT_THROW(zip({counting(4), counting(4).shuffle()}).cache(), UsageError);
  EXPECT_THROW(counting(4).cache(0), UsageError);
  EXPECT_THROW(counting(4).batch(2).cache(), UsageError);
}

/// The one folder of samples in a folder, and the one part in it.
fs::path only_entry(const fs::path& folder) {
  std::vector<fs::path> all;
  for (const auto& entry : fs::directory_iterator(folder)) all.push_back(entry.path());
  EXPECT_EQ(all.size(), 1u) << folder;
  return all.at(0);
}

/// Samples that a job with that folder computes, of 8.
int64_t computed_with(const fs::path& folder) {
  const auto source = counted_reads(8, "eight");
  EXPECT_EQ(order_of(Dataset(source).cache(folder)), up_to(8));
  return source->num_reads();
}

TEST(CacheInFiles, OutlivesTheJob) {
  const TempFolder folder;
  EXPECT_EQ(computed_with(folder / "deep/er"), 8);
  EXPECT_EQ(computed_with(folder / "deep/er"), 0);
}

TEST(CacheInFiles, IsFoundByNamesAndFingerprints) {
  const TempFolder folder;
  const auto computed = [&](const std::string& name, auto... transforms) {
    const auto source = counted_reads(8, name);
    Dataset dataset{source};
    ((dataset = dataset.map(transforms)), ...);
    order_of(dataset.cache(folder.path()));
    return source->num_reads();
  };
  EXPECT_EQ(computed("a"), 8);
  EXPECT_EQ(computed("b"), 8);
  EXPECT_EQ(computed("a", times(2)), 8);
  EXPECT_EQ(computed("a", times(3)), 8);
  EXPECT_EQ(computed("a", times(3), times(2)), 8);
  EXPECT_EQ(computed("a", times(3)), 0);
  EXPECT_EQ(folder.names().size(), 5u);
}

TEST(CacheInFiles, RefusesWhatHasNoName) {
  const TempFolder folder;
  const Dataset named(counted_reads(8, "eight"));
  EXPECT_THAT(message_of<UsageError>([&] { counting(4).cache(folder.path()); }),
              HasSubstr("an array"));
  EXPECT_THROW(named.map([](Sample in) { return in; }).cache(folder.path()), UsageError);
  EXPECT_THROW(named.window(2).cache(folder.path()), UsageError);
  put_bytes(folder / "file", "");
  EXPECT_THAT(message_of<UsageError>([&] { named.cache(folder / "file"); }),
              HasSubstr("cannot be made"));
}

TEST(CacheInFiles, GoesOnAfterAKilledWriter) {
  const TempFolder folder;
  computed_with(folder.path());
  const fs::path part = only_entry(only_entry(folder.path()));
  const std::string whole = get_bytes(part);
  const size_t record = whole.size() / 8;
  // Cut in each part of the last record: nothing of it, its head, its sample.
  for (size_t cut : {record, record - 1, record - 40, size_t{60}, size_t{1}}) {
    const TempFolder other;
    fs::create_directories(other / only_entry(folder.path()).filename().string());
    put_bytes(other / (only_entry(folder.path()).filename().string() + "/cut.samples"),
              whole.substr(0, whole.size() - cut));
    EXPECT_EQ(computed_with(other.path()), 1) << cut;
    EXPECT_EQ(computed_with(other.path()), 0) << cut;
  }
}

TEST(CacheInFiles, IgnoresDamagedBytes) {
  const TempFolder folder;
  computed_with(folder.path());
  const fs::path part = only_entry(only_entry(folder.path()));
  const std::string whole = get_bytes(part);
  const size_t record = whole.size() / 8;
  for (size_t place = 0; place < record; place += 9) {
    std::string damaged = whole;
    damaged[3 * record + place] ^= 0x20;
    put_bytes(part, damaged);
    for (const auto& entry : fs::directory_iterator(part.parent_path()))
      if (entry.path() != part) fs::remove(entry.path());
    // Where the head is damaged, what follows in that file is not trusted either.
    constexpr size_t kHead = 24;  // and its checksum
    EXPECT_EQ(computed_with(folder.path()), place < kHead ? 5 : 1) << place;
    EXPECT_EQ(computed_with(folder.path()), 0) << place;
  }
  put_bytes(part.parent_path() / "junk.samples", std::string(1000, 'x'));
  put_bytes(part.parent_path() / "empty.samples", "");
  EXPECT_EQ(computed_with(folder.path()), 0);
}

/// The first sample of a part, of which the size is said to be `size`, with the checksum that fits.
std::string with_size(std::string part, int64_t size) {
  constexpr size_t kId = 8, kChecksum = 24, kSample = 32;
  std::memcpy(&part[kSample], &size, sizeof size);
  uLong sum = crc32_z(0, reinterpret_cast<const Bytef*>(&part[kId]), kChecksum - kId);
  sum = crc32_z(sum, reinterpret_cast<const Bytef*>(&part[kSample]), kSampleBytes);
  const uint64_t checksum = sum;
  std::memcpy(&part[kChecksum], &checksum, sizeof checksum);
  return part;
}

// Whoever may write into the folder can make a sum that fits: sizes are held against the bytes.
TEST(CacheInFiles, ARecordThatReachesBeyondItsBytesDoesNotCount) {
  const TempFolder folder;
  computed_with(folder.path());
  const fs::path part = only_entry(only_entry(folder.path()));
  const std::string whole = get_bytes(part);
  ASSERT_EQ(whole, with_size(whole, 1));  // the sum is the right one
  for (const int64_t size : {int64_t{0}, int64_t{2}, int64_t{9}, int64_t{1} << 20, int64_t{1} << 60,
                             (int64_t{1} << 61) + 1, int64_t{-1}, INT64_MAX, INT64_MIN}) {
    put_bytes(part, with_size(whole, size));
    for (const auto& entry : fs::directory_iterator(part.parent_path()))
      if (entry.path() != part) fs::remove(entry.path());
    EXPECT_EQ(computed_with(folder.path()), 1) << size;
    EXPECT_EQ(computed_with(folder.path()), 0) << size;
  }
}

TEST(CacheInFiles, APipeAmongThePartsIsNotWaitedFor) {
  const TempFolder folder;
  computed_with(folder.path());
  ASSERT_EQ(::mkfifo((only_entry(folder.path()) / "a.samples").c_str(), 0600), 0);
  EXPECT_EQ(computed_with(folder.path()), 0);
}

TEST(CacheInFiles, ServesTwoJobsAtOnce) {
  const TempFolder folder;
  const auto read = [&](int64_t first) {
    const Dataset kept = Dataset(counted_reads(64, "many")).cache(folder.path());
    for (int64_t epoch = first; epoch < first + 3; ++epoch)
      if (order_of(kept.shuffle(), {.epoch = epoch}) !=
          order_of(counting(64).shuffle(), {.epoch = epoch}))
        return false;
    return true;
  };
  const pid_t other = ::fork();
  if (other == 0) ::_exit(read(10) ? 0 : 1);
  EXPECT_TRUE(read(0));
  int status = 0;
  ASSERT_EQ(::waitpid(other, &status, 0), other);
  EXPECT_EQ(status, 0);
  const auto source = counted_reads(64, "many");
  EXPECT_EQ(order_of(Dataset(source).cache(folder.path())), up_to(64));
  EXPECT_EQ(source->num_reads(), 0);
}

TEST(CacheInFiles, SaysThatTheDiskIsFullAndGoesOn) {
  const TempFolder folder;
  const auto source = counted_reads(8, "eight");
  const Dataset kept = Dataset(source).cache(folder.path());
  testing::internal::CaptureStderr();
  {
    const FullDisk full(3 * (kSampleBytes + 32) + 5);
    for (int epoch = 0; epoch < 2; ++epoch) EXPECT_EQ(order_of(kept), up_to(8));
  }
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("nothing more is kept there, each sample is computed anew"));
  EXPECT_EQ(said.find("computed anew"), said.rfind("computed anew"));  // once
  EXPECT_EQ(source->num_reads(), 8 + 5);
  // The half record is gone: the three before it are found.
  EXPECT_EQ(computed_with(folder.path()), 5);
}

}  // namespace
}  // namespace tutti::data
