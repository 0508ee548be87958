#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "tutti/data/sources/detail/keyed_cache.h"
#include "tutti/data/sources/detail/record_index.h"

#include "tests/support/expect.h"
#include "tests/unit/data_sources/record_samples.h"

namespace tutti::data::detail {
namespace {

namespace fs = std::filesystem;

// Records are lines here; a counter says how many files were read.
struct Lines {
  std::shared_ptr<std::atomic<int>> scans = std::make_shared<std::atomic<int>>(0);

  IndexPlan plan(const fs::path& folder = {}) const {
    return {.format = "lines 1",
            .scan =
                [scans = scans](FileWindow& file) {
                  ++*scans;
                  RecordIndex index;
                  const std::string text(file.at(0, file.file_bytes()));
                  for (size_t begin = 0, end = 0; begin < text.size(); begin = end + 1) {
                    end = std::min(text.find('\n', begin), text.size());
                    if (text[begin] == '!')
                      throw DataError(file.path().filename().string() + " has a bad line");
                    index.add(static_cast<int64_t>(begin), static_cast<int64_t>(end - begin),
                              text.substr(begin, end - begin));
                  }
                  return index;
                },
            .files = local_files(),
            .folder = folder};
  }
};

TEST(RecordIndex, IsMadeOnceAndReadAgain) {
  const TempFolder folder;
  put_bytes(folder / "a.txt", "one\ntwo\n\nfour");
  const Lines lines;
  const RecordIndex made = indexed_files({folder / "a.txt"}, lines.plan())[0].index;
  EXPECT_EQ(made.size(), 4);
  EXPECT_EQ(made.name(1), "two");
  EXPECT_EQ(made.name(2), "");
  EXPECT_EQ(made.offsets[3], 9);
  EXPECT_EQ(indexed_files({folder / "a.txt"}, lines.plan())[0].index, made);
  EXPECT_EQ(*lines.scans, 1);
}

TEST(RecordIndex, OneOlderThanItsFileIsMadeAgain) {
  const TempFolder folder;
  const Lines lines;
  put_bytes(folder / "a.txt", "one\ntwo");
  indexed_files({folder / "a.txt"}, lines.plan());
  put_bytes(folder / "a.txt", "one\ntwo\nthree");
  testing::internal::CaptureStderr();
  EXPECT_EQ(indexed_files({folder / "a.txt"}, lines.plan())[0].index.size(), 3);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("a.txt.tutti-index: was made of 7 bytes"));
  // The same size, another time.
  put_bytes(folder / "a.txt", "ones\ntwo\nthre");
  fs::last_write_time(folder / "a.txt", fs::file_time_type::clock::now() + std::chrono::hours(1));
  EXPECT_EQ(indexed_files({folder / "a.txt"}, lines.plan())[0].index.name(0), "ones");
  EXPECT_EQ(*lines.scans, 3);
}

TEST(RecordIndex, ADamagedOneIsMadeAgain) {
  const TempFolder folder;
  const Lines lines;
  put_bytes(folder / "a.txt", "one\ntwo");
  const fs::path kept = folder / "a.txt.tutti-index";
  const RecordIndex made = indexed_files({folder / "a.txt"}, lines.plan())[0].index;
  const std::string whole = get_bytes(kept);
  int scans = 1;
  testing::internal::CaptureStderr();
  for (size_t at = 0; at < whole.size(); at += 5) {  // each costs two syncs of the disk
    flip_byte(kept, at);
    EXPECT_EQ(indexed_files({folder / "a.txt"}, lines.plan())[0].index, made);
    EXPECT_EQ(*lines.scans, ++scans) << "byte " << at;
    EXPECT_EQ(get_bytes(kept), whole);
    cut(kept, at);
    EXPECT_EQ(indexed_files({folder / "a.txt"}, lines.plan())[0].index, made);
    EXPECT_EQ(*lines.scans, ++scans) << "cut at " << at;
  }
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("it is made again"));
  IndexPlan other = lines.plan();
  other.format = "lines 2";
  indexed_files({folder / "a.txt"}, other);
  EXPECT_EQ(*lines.scans, scans + 1);
}

TEST(RecordIndex, LiesInAFolderOfItsOwnOrInMemory) {
  const TempFolder folder, other;
  const Lines lines;
  fs::create_directory(folder / "one");
  fs::create_directory(folder / "two");
  put_bytes(folder / "one/a.txt", "one");
  put_bytes(folder / "two/a.txt", "one\ntwo");
  const std::vector<fs::path> paths{folder / "one/a.txt", folder / "two/a.txt"};
  for (int run = 0; run < 2; ++run) {
    const auto files = indexed_files(paths, lines.plan(other.path()));
    EXPECT_EQ(files[0].index.size(), 1);
    EXPECT_EQ(files[1].index.size(), 2);
  }
  EXPECT_EQ(*lines.scans, 2);
  EXPECT_EQ(other.names().size(), 2u);
  testing::internal::CaptureStderr();
  const auto files = indexed_files(paths, lines.plan(other / "not there"));
  EXPECT_EQ(files[1].index.size(), 2);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("stay in memory"), HasSubstr("index_folder")));
}

TEST(RecordIndex, ManyFilesAtOnceAndTheFirstErrorOfThem) {
  const TempFolder folder;
  const Lines lines;
  std::vector<fs::path> paths;
  for (int i = 0; i < 40; ++i) {
    paths.push_back(folder / fmt::format("{:02d}", i));
    put_bytes(paths.back(), std::string(static_cast<size_t>(i), '\n'));
  }
  const auto files = indexed_files(paths, lines.plan());
  for (int64_t i = 0; i < 40; ++i) EXPECT_EQ(files[static_cast<size_t>(i)].index.size(), i);
  put_bytes(paths[31], "!");
  put_bytes(paths[13], "!");
  testing::internal::CaptureStderr();
  EXPECT_THAT(message_of<DataError>([&] { indexed_files(paths, lines.plan()); }),
              HasSubstr("13 has a bad line"));
  testing::internal::GetCapturedStderr();
}

// A checksum that is right does not make the content so.
TEST(RecordIndex, RecordsOutsideOfTheFileAreRefused) {
  const FileInfo info{.name = "a", .bytes = 100, .modified_ns = 5};
  FileInfo made_of;
  RecordIndex index;
  index.add(90, 10);
  EXPECT_EQ(decode_index(encode_index(index, info, "f"), "f", made_of), index);
  EXPECT_EQ(made_of.modified_ns, 5);
  for (const auto& [offset, bytes] : {std::pair(int64_t{90}, int64_t{11}),
                                      {101, 0},
                                      {-1, 5},
                                      {5, -1},
                                      {5, std::numeric_limits<int64_t>::max()}}) {
    RecordIndex bad;
    bad.add(offset, bytes);
    EXPECT_THROW(decode_index(encode_index(bad, info, "f"), "f", made_of), DataError);
  }
  RecordIndex names;
  names.add(0, 1, "one");
  names.add(0, 1, "two");
  names.name_ends = {5, 3};
  EXPECT_THROW(decode_index(encode_index(names, info, "f"), "f", made_of), DataError);
  EXPECT_EQ(decode_index(encode_index({}, info, "f"), "f", made_of), RecordIndex{});
}

TEST(KeyedCache, KeepsWhatFitsAndMakesEachOnceAtATime) {
  KeyedCache<int64_t> cache(30);
  std::atomic<int> made{0};
  const auto get = [&](int64_t key) {
    return *cache.get(key, [&] {
      ++made;
      return std::pair(std::make_shared<const int64_t>(key), int64_t{10});
    });
  };
  for (int64_t key : {1, 2, 3, 1, 2, 3}) EXPECT_EQ(get(key), key);
  EXPECT_EQ(made, 3);
  get(1);
  get(4);  // 2 is the one that was not used for longest
  for (int64_t key : {1, 3, 4}) get(key);
  EXPECT_EQ(made, 4);
  get(2);
  EXPECT_EQ(made, 5);

  KeyedCache<int64_t> tiny(1);
  const auto fails = [&] {
    tiny.get(0, []() -> std::pair<std::shared_ptr<const int64_t>, int64_t> {
      throw DataError("damaged");
    });
  };
  EXPECT_THROW(fails(), DataError);
  made = 0;
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int round = 0; round < 100; ++round)
        EXPECT_EQ(*tiny.get(0,
                            [&] {
                              ++made;
                              return std::pair(std::make_shared<const int64_t>(9), int64_t{50});
                            }),
                  9);
    });
  threads.clear();
  EXPECT_EQ(made, 1) << "the only one stays, larger than the limit";
}

}  // namespace
}  // namespace tutti::data::detail
