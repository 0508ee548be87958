#include <gmock/gmock.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

#include "tutti/base/error.h"
#include "tutti/data/sources/detail/record_sources.h"
#include "tutti/data/sources/mds.h"
#include "tutti/extras/mds/detail/mds_format.h"

#include "tests/support/message_of.h"
#include "tests/unit/data_sources/record_samples.h"

namespace tutti::data {
namespace {

namespace fs = std::filesystem;
using namespace test;  // NOLINT(google-build-using-namespace): the oracle's names
using detail::mds_source;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const std::vector<std::string> kAllColumns = {"label", "small", "x",     "ids",  "text",
                                              "image", "facts", "score", "half", "digits"};

void expect_sample(const Sample& sample, int64_t i) {
  EXPECT_THAT(elements<int64_t>(sample.columns[0]), ElementsAre(label_of(i)));
  EXPECT_THAT(elements<int16_t>(sample.columns[1]), ElementsAre(-i));
  EXPECT_EQ(sample.columns[2].shape(), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(elements<float>(sample.columns[2]), x_at(i));
  EXPECT_EQ(elements<int64_t>(sample.columns[3]), ids_at(i, 1));
  EXPECT_EQ(text_of(sample.columns[4]), text_at(i));
  EXPECT_EQ(text_of(sample.columns[5]), image_at(i));
  EXPECT_EQ(text_of(sample.columns[6]), fmt::format("{{\"i\": {}}}", i));
  EXPECT_THAT(elements<float>(sample.columns[7]), ElementsAre(static_cast<float>(i) / 8));
  EXPECT_EQ(sample.columns[8].to_string(), "float16 []");
  EXPECT_THAT(elements<int64_t>(sample.columns[9]), ElementsAre(i * 1'000'000'000'000'000));
}

class MdsOf : public testing::TestWithParam<const char*> {};

TEST_P(MdsOf, ReadsWhatStreamingWrote) {
  const TempFolder folder;
  const auto source = mds_source(copied(folder, GetParam()), {.columns = kAllColumns});
  ASSERT_EQ(source->num_rows(), kRecords);
  EXPECT_EQ(source->columns()[2].to_string(), "x float32 [2, 3]");
  EXPECT_EQ(source->columns()[3].to_string(), "ids int64 [?]");
  for (int64_t i = kRecords - 1; i >= 0; --i) expect_sample(source->read_row(i), i);
  EXPECT_EQ(source->first_rows_of_files().size(), 5u);
  EXPECT_THAT(verify_mds(folder / GetParam()), IsEmpty());
}

// The smallest cache: each read of another shard unpacks it anew, from four threads at once.
TEST_P(MdsOf, ManyThreadsReadWithTheSmallestCache) {
  const TempFolder folder;
  const auto source =
      mds_source(copied(folder, GetParam()), {.columns = kAllColumns, .cache_bytes = 1});
  std::vector<std::jthread> threads;
  for (int64_t first = 0; first < 4; ++first)
    threads.emplace_back([&, first] {
      for (int64_t k = 0; k < 200; ++k) {
        const int64_t i = (first * 6 + k * 7) % kRecords;
        expect_sample(source->read_row(i), i);
      }
    });
}

INSTANTIATE_TEST_SUITE_P(Both, MdsOf, testing::Values("mds", "mds-zstd"));

TEST(Mds, ArraysWithoutDtypeAreAsTheFirst) {
  const TempFolder folder;
  const auto source = mds_source(copied(folder, "mds"), {.columns = {"any"}});
  EXPECT_EQ(source->columns()[0].to_string(), "any uint16 [?, ?]");
  for (int64_t i = 0; i < kRecords; ++i) {
    const Array any = source->read_row(i).columns[0];
    EXPECT_EQ(any.shape(), (std::vector<int64_t>{i % 3 + 1, i == 5 ? 300 : 2}));
    for (const uint16_t value : any.as<uint16_t>()) EXPECT_EQ(value, i);
  }
}

TEST(Mds, AllColumnsInTheOrderOfTheFile) {
  const TempFolder folder;
  const Dataset dataset = mds(copied(folder, "mds"));
  EXPECT_EQ(dataset.columns().size(), 11u);
  EXPECT_EQ(dataset.columns()[0].name, "any");
  EXPECT_THAT(message_of<UsageError>([&] { mds(folder / "mds", {.columns = {"lable"}}); }),
              AllOf(HasSubstr("unknown column \"lable\""), HasSubstr("did you mean \"label\"")));
}

TEST(Mds, AShardThatIsMissingOrCutIsNamedAtOnce) {
  const TempFolder folder;
  copied(folder, "mds");
  cut(folder / "mds/shard.00002.mds", 500);
  EXPECT_THAT(message_of<DataError>([&] { mds(folder / "mds"); }),
              AllOf(HasSubstr("shard.00002.mds"), HasSubstr("500 bytes, expected")));
  fs::remove(folder / "mds/shard.00001.mds");
  EXPECT_THAT(message_of<DataError>([&] { mds(folder / "mds"); }), HasSubstr("shard.00001.mds"));
  const auto found = verify_mds(folder / "mds");
  EXPECT_GE(found.size(), 2u);
  copied(folder, "mds-zstd");
  flip_byte(folder / "mds-zstd/shard.00000.mds.zstd", 60);
  const auto source = mds_source(folder / "mds-zstd", {.columns = {"label"}});
  EXPECT_THAT(message_of<DataError>([&] { source->read_row(0); }),
              HasSubstr("shard.00000.mds.zstd"));
  EXPECT_GE(verify_mds(folder / "mds-zstd").size(), 1u);
}

// A changed byte of data is found by the hashes, and by nothing else.
TEST(Mds, VerifyChecksHashesTablesAndValues) {
  const TempFolder folder;
  copied(folder, "mds");
  flip_byte(folder / "mds/shard.00000.mds", fs::file_size(folder / "mds/shard.00000.mds") - 1);
  auto found = verify_mds(folder / "mds");
  ASSERT_GE(found.size(), 2u);
  EXPECT_THAT(found[0].to_string(), AllOf(HasSubstr("shard.00000.mds"), HasSubstr("sha1")));
  EXPECT_THAT(found[1].to_string(), HasSubstr("sha256"));
  flip_byte(folder / "mds/shard.00001.mds", 9);  // of the table
  EXPECT_THAT(message_of<DataError>([&] { mds(folder / "mds"); }),
              AllOf(HasSubstr("shard.00001.mds"), HasSubstr("of the table (byte 8)")));
  found = verify_mds(folder / "mds");
  EXPECT_GE(found.size(), 5u);
}

TEST(Mds, IndexesThatMakeNoSenseAreRefused) {
  const TempFolder folder;
  copied(folder, "mds");
  const auto original = nlohmann::json::parse(get_bytes(folder / "mds/index.json"));
  const auto failure = [&](const std::function<void(nlohmann::json&)>& change) {
    nlohmann::json index = original;
    change(index);
    put_bytes(folder / "mds/index.json", index.dump());
    try {
      mds(folder / "mds");
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("nothing");
  };
  EXPECT_EQ(failure([](auto&) {}), "nothing");
  EXPECT_THAT(failure([](auto& index) { index["version"] = 3; }),
              AllOf(HasSubstr("index.json"), HasSubstr("version 3, expected 2")));
  EXPECT_THAT(failure([](auto& index) { index.erase("shards"); }), HasSubstr("no index of MDS"));
  EXPECT_THAT(failure([](auto& index) { index["shards"] = nlohmann::json::array(); }),
              HasSubstr("no shard"));
  const auto in_first = [&](const char* key, const nlohmann::json& value) {
    return failure([&](auto& index) { index["shards"][0][key] = value; });
  };
  EXPECT_THAT(in_first("format", "jsonl"), HasSubstr("format \"jsonl\""));
  EXPECT_THAT(in_first("samples", -1), HasSubstr("-1 samples"));
  EXPECT_THAT(in_first("samples", 5000), HasSubstr("expected"));
  EXPECT_THAT(in_first("samples", 2), HasSubstr("index.json says 2"));
  EXPECT_THAT(in_first("column_names", {"a"}), HasSubstr("1 names"));
  EXPECT_THAT(in_first("raw_data", {{"basename", "../../etc/passwd"}, {"bytes", 5}}),
              HasSubstr("outside"));
  EXPECT_THAT(failure([](auto& index) { index["shards"][0]["column_encodings"][0] = "pkl"; }),
              HasSubstr("\"pkl\", which is not read"));
  EXPECT_THAT(failure([](auto& index) { index["shards"][1]["column_names"][0] = "other"; }),
              HasSubstr("different columns"));
  put_bytes(folder / "mds/index.json", "{");
  EXPECT_THAT(message_of<DataError>([&] { mds(folder / "mds"); }), HasSubstr("index.json"));
  fs::remove(folder / "mds/index.json");
  EXPECT_THAT(message_of<DataError>([&] { mds(folder / "mds"); }), HasSubstr("index.json"));
}

// Before memory is taken: it may be more than there is, and of 2^63-1 one more was asked for.
TEST(Mds, ShardsThatClaimToUnpackToMuchAreRefused) {
  for (const char* compression : {"zstd", "gz"}) {
    const TempFolder folder;
    const fs::path place = copied(folder, "mds-zstd");
    auto index = nlohmann::json::parse(get_bytes(place / "index.json"));
    const auto refusal = [&](int64_t bytes) {
      for (auto& shard : index["shards"]) {
        shard["compression"] = compression;
        shard["raw_data"]["bytes"] = bytes;
      }
      put_bytes(place / "index.json", index.dump());
      EXPECT_GE(verify_mds(place).size(), 1u);
      return message_of<DataError>([&] { mds_source(place, {.columns = {"label"}})->read_row(0); });
    };
    EXPECT_THAT(refusal((int64_t{256} << 20) + 1), HasSubstr("expected at most 268435456"));
    EXPECT_THAT(refusal(UINT32_MAX), HasSubstr("unpacks to 4294967295 bytes or more"));
    EXPECT_THAT(refusal(INT64_MAX), HasSubstr("its offsets have 32 bits"));
  }
}

TEST(MdsFormat, EncodingsByName) {
  const auto words = [](const std::string& encoding) {
    const detail::MdsColumn column = detail::mds_column("c", encoding);
    return fmt::format("{} {} {}", column.dtype ? name_of(*column.dtype) : "?",
                       column.shape ? shape_words(*column.shape) : "?", column.bytes);
  };
  EXPECT_EQ(words("int"), "int64 ? 8");
  EXPECT_EQ(words("uint16"), "uint16 ? 2");
  EXPECT_EQ(words("jpeg:90"), "uint8 ? -1");
  EXPECT_EQ(words("str_float"), "float64 ? -1");
  EXPECT_EQ(words("ndarray"), "? ? -1");
  EXPECT_EQ(words("ndarray:int8"), "int8 ? -1");
  EXPECT_EQ(words("ndarray:float64:3,1"), "float64 [3, 1] 24");
  for (const std::string bad :
       {"pkl", "pil", "float8", "", "ndarray:float8", "ndarray:int8:", "ndarray:int8:0",
        "ndarray:int8:3,", "ndarray:int8:3;4", "ndarray:int64:4000000000,4000000000"})
    EXPECT_THROW(words(bad), Error) << bad;
}

TEST(MdsFormat, ValuesThatDoNotFitAreRefused) {
  const std::vector<detail::MdsColumn> columns{detail::mds_column("a", "int16"),
                                               detail::mds_column("b", "ndarray")};
  const std::string array = "\x08\x04\x03xyz";  // uint8, one size in one byte: 3
  const std::string sample = std::string("\x06\0\0\0", 4) + "\x05\x01" + array;
  const auto values = detail::split_mds_sample(columns, sample);
  EXPECT_THAT(elements<int16_t>(detail::decode_mds(columns[0], values[0])), ElementsAre(0x105));
  EXPECT_EQ(text_of(detail::decode_mds(columns[1], values[1])), "xyz");
  for (size_t bytes = 0; bytes < sample.size(); ++bytes)
    EXPECT_THROW(detail::split_mds_sample(columns, sample.substr(0, bytes)), DataError);
  EXPECT_THROW(detail::split_mds_sample(columns, sample + "x"), DataError);
  for (const std::string bad : {"", "\x08", "\x08\x04", "\x08\x04\x03xy", "\x07\x04\x03xyz",
                                "\x08\x07\xff\xff\xff\xff\xff\xff\xff\xff"})
    EXPECT_THROW(detail::decode_mds(columns[1], bad), DataError);
  EXPECT_THROW(detail::decode_mds(detail::mds_column("c", "str_int"), "12x"), DataError);
}

TEST(WriteMds, ReadsBackAndVerifies) {
  const TempFolder folder;
  auto columns = written_columns();
  columns.push_back({"ok", DType::boolean, {}});
  const auto sample = [](int64_t i) {
    Sample all = written_sample(i);
    all.columns.push_back(make_array(DType::boolean, {}));
    *static_cast<bool*>(all.columns.back().data()) = i % 3 == 0;
    return all;
  };
  int64_t next = 0;
  const Written written = write_mds(folder / "out", columns,
                                    [&]() -> std::optional<Sample> {
                                      if (next == 40) return std::nullopt;
                                      return sample(next++);
                                    },
                                    {.shard_bytes = 2000});
  EXPECT_EQ(written.samples, 40);
  EXPECT_GT(written.files.size(), 2u);
  for (const fs::path& file : written.files) EXPECT_LE(fs::file_size(file), 2000u);
  EXPECT_THAT(verify_mds(folder / "out"), IsEmpty());
  const auto source = mds_source(folder / "out", {});
  ASSERT_EQ(source->num_rows(), 40);
  for (int64_t i = 0; i < 40; ++i) {
    const Sample back = source->read_row(i);
    for (size_t c = 0; c < 4; ++c) EXPECT_TRUE(same(back.columns[c], sample(i).columns[c]));
    EXPECT_THAT(elements<uint8_t>(back.columns[4]), ElementsAre(i % 3 == 0));
  }
  EXPECT_THROW(write_mds(folder / "out", columns, [] { return std::nullopt; }), UsageError);
  EXPECT_THROW(write_mds(folder / "b", {{"b", DType::bfloat16, {}}}, [] { return std::nullopt; }),
               UsageError);
}

}  // namespace
}  // namespace tutti::data
