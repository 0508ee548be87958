#include <string>
#include <vector>

#include "tutti/base/crc32c.h"
#include "tutti/data/detail/tfrecord_frame.h"
#include "tutti/data/sources/detail/example.h"
#include "tutti/data/sources/detail/record_sources.h"
#include "tutti/data/sources/tfrecord.h"

#include "tests/support/expect.h"
#include "tests/unit/data/gzip_support.h"
#include "tests/unit/data_sources/record_samples.h"

namespace tutti::data {
namespace {

namespace fs = std::filesystem;
using detail::record_of;
using detail::tfrecord_source;

std::vector<Feature> all_features() {
  return {{.name = "x", .dtype = DType::float32, .shape = {2, 3}},
          {.name = "ids", .dtype = DType::int64, .shape = {kAnySize}},
          {.name = "text", .dtype = DType::uint8, .shape = {kAnySize}},
          {.name = "image", .dtype = DType::uint8, .shape = {kAnySize}},
          {.name = "sometimes", .dtype = DType::int64, .missing = int64_t{-1}},
          {.name = "label", .dtype = DType::int64}};
}

void expect_all_samples(const Source& source) {
  ASSERT_EQ(source.num_rows(), kRecords);
  for (int64_t i = 0; i < kRecords; ++i) {
    const Sample sample = source.read_row(i);
    EXPECT_EQ(sample.columns[0].shape(), (std::vector<int64_t>{2, 3}));
    EXPECT_EQ(elements<float>(sample.columns[0]), x_at(i));
    EXPECT_EQ(elements<int64_t>(sample.columns[1]), ids_at(i));
    EXPECT_EQ(text_of(sample.columns[2]), text_at(i));
    EXPECT_EQ(text_of(sample.columns[3]), image_at(i));
    EXPECT_THAT(elements<int64_t>(sample.columns[4]), ElementsAre(i % 5 == 0 ? -1 : i));
    EXPECT_THAT(elements<int64_t>(sample.columns[5]), ElementsAre(label_of(i)));
    EXPECT_EQ(sample.columns[5].shape().size(), 0u);
  }
}

TEST(Tfrecord, ReadsWhatTensorflowWrote) {
  const TempFolder folder;
  const auto source = tfrecord_source(copied(folder, "tf.tfrecord"), {.features = all_features()});
  expect_all_samples(*source);
  EXPECT_EQ(source->columns()[1].to_string(), "ids int64 [?]");
  // By the index that lies there now.
  EXPECT_THAT(folder.names(), ElementsAre("tf.tfrecord", "tf.tfrecord.tutti-index"));
  expect_all_samples(*tfrecord_source(folder / "tf.tfrecord", {.features = all_features()}));
}

TEST(Tfrecord, ReadsPackedFilesFromMemory) {
  const TempFolder folder;
  expect_all_samples(
      *tfrecord_source(copied(folder, "tf.tfrecord.gz"), {.features = all_features()}));
  EXPECT_THAT(folder.names(), ElementsAre("tf.tfrecord.gz"));
}

TEST(Tfrecord, BatchesColumnsOfFixedShape) {
  const TempFolder folder;
  const Dataset dataset =
      tfrecord(
          copied(folder, "tf.tfrecord"),
          {.features = {{.name = "x", .shape = {2, 3}}, {.name = "label", .dtype = DType::int64}}})
          .batch(10);
  const Batch batch = dataset.epoch({}).batch(1);
  EXPECT_EQ(batch.columns[0].to_string(), "float32 [10, 2, 3]");
  EXPECT_EQ(elements<int64_t>(batch.columns[1])[3], label_of(13));
}

TEST(Tfrecord, RecordsWithoutFeaturesAreBytes) {
  const TempFolder folder;
  put_bytes(folder / "a.tfrecord", record_of("one") + record_of("") + record_of("three"));
  put_bytes(folder / "b.tfrecord", "");
  put_bytes(folder / "c-00000-of-00001", record_of("four"));
  put_bytes(folder / "README", "no records");
  const auto source = tfrecord_source(folder.path(), {});
  ASSERT_EQ(source->num_rows(), 4);
  EXPECT_EQ(source->columns()[0].to_string(), "record uint8 [?]");
  std::vector<std::string> all;
  for (int64_t i = 0; i < 4; ++i) all.emplace_back(text_of(source->read_row(i).columns[0]));
  EXPECT_THAT(all, ElementsAre("one", "", "three", "four"));
  EXPECT_THAT(source->first_rows_of_files(), ElementsAre(0, 3, 3));
  EXPECT_THAT(source->where(2), HasSubstr("a.tfrecord, record 2 (byte 35)"));
  EXPECT_THAT(source->where(3), HasSubstr("c-00000-of-00001, record 0 (byte 0)"));
}

TEST(Tfrecord, FingerprintsSayFilesAndFeatures) {
  const TempFolder folder;
  put_bytes(folder / "a.tfrecord", record_of("one"));
  const std::string before = tfrecord_source(folder / "a.tfrecord", {})->fingerprint();
  EXPECT_EQ(before, tfrecord_source(folder / "a.tfrecord", {})->fingerprint());
  EXPECT_NE(before, tfrecord_source(folder / "a.tfrecord",
                                    {.features = {{.name = "x", .dtype = DType::int64}}})
                        ->fingerprint());
  put_bytes(folder / "a.tfrecord", record_of("other"));
  EXPECT_NE(before, tfrecord_source(folder / "a.tfrecord", {})->fingerprint());
}

TEST(Tfrecord, PathsArePatternsFoldersAndCounts) {
  const TempFolder folder;
  for (int i = 0; i < 12; ++i)
    put_bytes(folder / fmt::format("part-{:03d}.rec", i), record_of(std::to_string(i)));
  const auto rows = [&](const Paths& paths) { return tfrecord_source(paths, {})->num_rows(); };
  EXPECT_EQ(rows(folder / "part-*.rec"), 12);
  EXPECT_EQ(rows(folder / "part-*.rec"), 12) << "an index was taken for a file";
  EXPECT_EQ(rows(folder / "part-0[01]1.rec"), 2);
  EXPECT_EQ(rows(folder / "part-{009..011}.rec"), 3);
  EXPECT_EQ(rows({folder / "part-000.rec", folder / "part-000.rec"}), 2);
  EXPECT_THAT(message_of<UsageError>([&] { rows(folder.path()); }),
              AllOf(HasSubstr("*.tfrecord"), HasSubstr(folder.path().string())));
  EXPECT_THROW(rows(folder / "nothing-*.rec"), UsageError);
  EXPECT_THROW(rows(folder / "part-{011..009}.rec"), UsageError);
  EXPECT_THROW(rows(std::vector<fs::path>{}), UsageError);
  EXPECT_THROW(rows(folder / "nothing.rec"), DataError);
}

// Every byte changed and every length: an error or, in what no checksum covers, nothing else.
TEST(Tfrecord, EveryChangedByteIsFound) {
  const std::string whole = record_of("the first") + record_of("the second");
  for (size_t at = 0; at < whole.size(); ++at) {
    const TempFolder folder;
    put_bytes(folder / "a.tfrecord", whole);
    flip_byte(folder / "a.tfrecord", at);
    const auto read_all = [&] {
      const auto source = tfrecord_source(folder / "a.tfrecord", {});
      for (int64_t i = 0; i < source->num_rows(); ++i) source->read_row(i);
    };
    const std::string record = at < 25 ? "record 0 (byte 0)" : "record 1 (byte 25)";
    EXPECT_THAT(message_of<DataError>(read_all), HasSubstr(record)) << at;
    const auto found = verify_tfrecord(folder / "a.tfrecord");
    EXPECT_THAT(found, SizeIs(1));
    EXPECT_EQ(found.at(0).byte, at < 25 ? 0 : 25);
  }
  for (size_t bytes = 1; bytes < whole.size(); ++bytes) {
    const TempFolder folder;
    put_bytes(folder / "a.tfrecord", whole.substr(0, bytes));
    if (bytes == 25) continue;  // the end of a record: that is a file
    EXPECT_THAT(message_of<DataError>([&] { tfrecord(folder / "a.tfrecord"); }),
                HasSubstr("cut off"));
  }
}

TEST(Tfrecord, AFileOfAnotherKindSaysSo) {
  const TempFolder folder;
  put_bytes(folder / "a.tfrecord", std::string(100, 'x'));
  EXPECT_THAT(message_of<DataError>([&] { tfrecord(folder / "a.tfrecord"); }),
              AllOf(HasSubstr("no TFRecord file"), HasSubstr("a.tfrecord, record 0 (byte 0)")));
  put_bytes(folder / "a.tfrecord", "");
  EXPECT_THROW(tfrecord(folder / "a.tfrecord"), DataError);
  put_bytes(folder / "a.tfrecord", gzip(record_of("one")).substr(0, 20));
  EXPECT_THROW(tfrecord(folder / "a.tfrecord"), DataError);
  // 35615 is 0x8b1f: a first length that looks as gzip does.
  put_bytes(folder / "b.tfrecord", record_of(std::string(0x8b1f, 'x')));
  EXPECT_EQ(tfrecord(folder / "b.tfrecord").num_samples(), 1);
}

TEST(Tfrecord, AFileThatUnpacksToMuchIsRefused) {
  const TempFolder folder;
  const std::string zeros = gzip(std::string(1 << 20, '\0'));  // a thousandth
  std::string packed;
  for (int i = 0; i < 300; ++i) packed += zeros;
  put_bytes(folder / "a.tfrecord.gz", packed);
  EXPECT_THAT(message_of<DataError>([&] { tfrecord(folder / "a.tfrecord.gz"); }),
              AllOf(HasSubstr("a.tfrecord.gz: unpacks to"),
                    HasSubstr("expected at most 268435456, or 64 times"), HasSubstr("gunzip")));
}

// As TensorFlow's option ZLIB does it.
TEST(Tfrecord, ReadsWhatZlibPacked) {
  const TempFolder folder;
  std::string records;
  for (int i = 0; i < 50; ++i) records += record_of("record " + std::to_string(i));
  put_bytes(folder / "a.tfrecord", zlib(records));
  const auto source = tfrecord_source(folder / "a.tfrecord", {});
  ASSERT_EQ(source->num_rows(), 50);
  EXPECT_EQ(text_of(source->read_row(49).columns[0]), "record 49");
  EXPECT_THAT(verify_tfrecord(folder / "a.tfrecord"), IsEmpty());
  EXPECT_THAT(index_tfrecord(folder / "a.tfrecord").at(0).why, HasSubstr("packed by zlib"));
  put_bytes(folder / "a.tfrecord", zlib(records).substr(0, 60));
  EXPECT_THAT(verify_tfrecord(folder / "a.tfrecord"), SizeIs(1));
  // 376 is 0x178: a first length that looks as zlib does, sound or damaged.
  const std::string plain = record_of(std::string(0x178, 'x'));
  put_bytes(folder / "b.tfrecord", plain);
  EXPECT_EQ(tfrecord(folder / "b.tfrecord").num_samples(), 1);
  put_bytes(folder / "b.tfrecord", plain.substr(0, 8) + "...." + plain.substr(12));
  EXPECT_THAT(message_of<DataError>([&] { tfrecord(folder / "b.tfrecord"); }),
              HasSubstr("no TFRecord file"));
}

TEST(Tfrecord, AFileThatVanishesOrChangesIsNamed) {
  const TempFolder folder;
  put_bytes(folder / "a.tfrecord", record_of("one") + record_of("two"));
  const auto source = tfrecord_source(folder / "a.tfrecord", {});
  put_bytes(folder / "a.tfrecord", record_of("three") + record_of("four"));
  EXPECT_THAT(message_of<DataError>([&] { source->read_row(1); }),
              HasSubstr("a.tfrecord, record 1"));
  cut(folder / "a.tfrecord", 20);
  EXPECT_THAT(message_of<DataError>([&] { source->read_row(1); }), HasSubstr("has 20 bytes"));
  fs::remove(folder / "a.tfrecord");
  EXPECT_THAT(message_of<DataError>([&] { source->read_row(0); }), HasSubstr("a.tfrecord"));
}

// The fields of a message, by hand: unpacked lists, fields that nobody knows, a name twice.
std::string field(int number, int type, std::string_view payload) {
  std::string bytes(1, static_cast<char>(number << 3 | type));
  if (type == 2) bytes += static_cast<char>(payload.size());
  return bytes += payload;
}
std::string example_of(std::initializer_list<std::pair<std::string, std::string>> features) {
  std::string entries;
  for (const auto& [name, feature] : features)
    entries += field(1, 2, field(1, 2, name) + field(2, 2, feature));
  return field(1, 2, entries);
}

TEST(Example, ReadsListsPackedAndNot) {
  const std::string unpacked_ints = field(3, 2, field(1, 0, "\x05") + field(1, 0, "\x07"));
  const std::string mixed = field(3, 2, field(1, 2, "\x05\x06") + field(1, 0, "\x07"));
  const std::string half("\x00\x00\x00\x3f", 4);
  const std::string unpacked_floats = field(2, 2, field(1, 5, half) + field(1, 5, half));
  const detail::ExampleReader reader({{.name = "a", .dtype = DType::int64, .shape = {2}},
                                      {.name = "b", .dtype = DType::int64, .shape = {kAnySize}},
                                      {.name = "c", .dtype = DType::float32, .shape = {2, 1}}});
  const std::string unknown = field(9, 0, "\x01");
  const Sample sample =
      reader.read(unknown + example_of({{"a", field(3, 2, "")},  // replaced by the one that follows
                                        {"c", unpacked_floats},
                                        {"b", unknown + mixed},
                                        {"a", unpacked_ints}}));
  EXPECT_THAT(elements<int64_t>(sample.columns[0]), ElementsAre(5, 7));
  EXPECT_THAT(elements<int64_t>(sample.columns[1]), ElementsAre(5, 6, 7));
  EXPECT_THAT(elements<float>(sample.columns[2]), ElementsAre(0.5f, 0.5f));
}

TEST(Example, SaysWhichFeatureIsWrong) {
  const TempFolder folder;
  const fs::path file = copied(folder, "tf.tfrecord");
  const auto failure = [&](const Feature& feature) {
    return message_of<DataError>(
        [&] { tfrecord_source(file, {.features = {feature}})->read_row(5); });
  };
  EXPECT_THAT(
      failure({.name = "lable", .dtype = DType::int64}),
      AllOf(HasSubstr("record 5 (byte "), HasSubstr("no feature \"lable\""), HasSubstr("label")));
  EXPECT_THAT(failure({.name = "label"}), HasSubstr("a list of int64, expected float32"));
  EXPECT_THAT(failure({.name = "label", .dtype = DType::uint8, .shape = {kAnySize}}),
              HasSubstr("a list of int64, expected bytes"));
  EXPECT_THAT(failure({.name = "x", .shape = {7}}), HasSubstr("has 6 values, expected 7 of [7]"));
  EXPECT_THAT(failure({.name = "x", .shape = {kAnySize, 4}}), HasSubstr("a multiple of 4"));
  EXPECT_THAT(failure({.name = "image", .dtype = DType::uint8, .shape = {4, 4}}),
              HasSubstr("has 18 bytes, expected 16"));
  EXPECT_THAT(failure({.name = "sometimes", .dtype = DType::int64}), HasSubstr("missing"));
}

TEST(Example, FixedStringsAndWhatStandsForMissingOnes) {
  const detail::ExampleReader reader(
      {{.name = "pixels", .dtype = DType::uint8, .shape = {2, 2}},
       {.name = "f", .dtype = DType::float32, .shape = {2}, .missing = 0.5},
       {.name = "s", .dtype = DType::uint8, .shape = {kAnySize}, .missing = std::string("none")},
       {.name = "i", .dtype = DType::int64, .missing = int64_t{7}}});
  const Sample sample = reader.read(example_of({{"pixels", field(1, 2, field(1, 2, "abcd"))}}));
  EXPECT_EQ(sample.columns[0].to_string(), "uint8 [2, 2]");
  EXPECT_THAT(elements<float>(sample.columns[1]), ElementsAre(0.5f, 0.5f));
  EXPECT_EQ(text_of(sample.columns[2]), "none");
  EXPECT_THAT(elements<int64_t>(sample.columns[3]), ElementsAre(7));
}

TEST(Example, RefusesFeaturesThatMakeNoSense) {
  const auto failure = [](std::vector<Feature> features) {
    return message_of<UsageError>([&] { detail::ExampleReader{features}; });
  };
  EXPECT_THAT(failure({{.name = "a", .dtype = DType::int32}}), HasSubstr("int32"));
  EXPECT_THAT(failure({{.name = "a"}, {.name = "a"}}), HasSubstr("twice"));
  EXPECT_THAT(failure({{.name = "a", .shape = {2, kAnySize}}}), HasSubstr("only the first"));
  EXPECT_THAT(failure({{.name = "a", .shape = {-3}}}), HasSubstr("sizes >= 0"));
  EXPECT_THAT(failure({{.name = "a", .dtype = DType::uint8}}), HasSubstr("kAnySize"));
  EXPECT_THAT(failure({{.name = "a", .dtype = DType::int64, .missing = 0.5}}),
              HasSubstr("another kind"));
  EXPECT_THAT(failure({{.name = "a", .missing = std::string("x")}}), HasSubstr("another kind"));
}

TEST(Example, BytesThatAreNoneAreRefused) {
  const detail::ExampleReader reader({{.name = "a", .dtype = DType::int64}});
  for (const std::string bytes :
       {"x", "\x0a\xff", "\x0a\x05xxx", "\x08\x01", "\x0a\x02\x08\x01", "\xff\xff\xff\xff\xff"})
    EXPECT_THROW(reader.read(bytes), DataError);
  EXPECT_THROW(reader.read(example_of({{"a", field(3, 0, "\x01")}})), DataError);
  EXPECT_THROW(reader.read(example_of({{"a", field(3, 2, field(1, 5, "abcd"))}})), DataError);
}

TEST(Tfrecord, SaysWhatIsInAFile) {
  const TempFolder folder;
  std::vector<std::string> words;
  for (const Feature& f : tfrecord_features(copied(folder, "tf.tfrecord.gz")))
    words.push_back(Column{f.name, f.dtype, f.shape}.to_string());
  EXPECT_THAT(words, ElementsAre("ids int64 [?]", "image uint8 [?]", "label int64 []",
                                 "text uint8 [?]", "x float32 [6]"));
}

TEST(WriteTfrecord, ReadsBackAndVerifies) {
  const TempFolder folder;
  std::vector<WriteProgress> told;
  const Written written = write_tfrecord(
      folder / "out", written_columns(), written_samples(50),
      {.shard_bytes = 2000, .progress = [&](const WriteProgress& p) { told.push_back(p); }});
  EXPECT_EQ(written.samples, 50);
  EXPECT_GT(written.files.size(), 3u);
  EXPECT_EQ(told.back().shards, std::ssize(written.files));
  int64_t bytes = 0;
  for (const fs::path& file : written.files) {
    EXPECT_LE(fs::file_size(file), 2000u);
    bytes += static_cast<int64_t>(fs::file_size(file));
  }
  EXPECT_EQ(written.bytes, bytes);
  const auto features = features_of(written_columns());
  EXPECT_THAT(verify_tfrecord(folder / "out", features), IsEmpty());
  const auto source = tfrecord_source(folder / "out", {.features = features});
  ASSERT_EQ(source->num_rows(), 50);
  for (int64_t i = 0; i < 50; ++i)
    for (size_t c = 0; c < 4; ++c)
      EXPECT_TRUE(same(source->read_row(i).columns[c], written_sample(i).columns[c]));
}

TEST(WriteTfrecord, WidensIntegersAndRefusesWhatDoesNotFit) {
  const TempFolder folder;
  const auto once = [](Sample sample) {
    return [sample, given = false]() mutable -> std::optional<Sample> {
      if (given) return std::nullopt;
      given = true;
      return sample;
    };
  };
  const std::vector<Column> columns{
      {"b", DType::boolean, {}}, {"i", DType::int16, {2}}, {"u", DType::uint8, {}}};
  Array boolean = make_array(DType::boolean, {});
  *static_cast<bool*>(boolean.data()) = true;
  write_tfrecord(
      folder / "a", columns,
      once({{boolean, array_of(std::vector<int16_t>{-5, 300}, {2}), scalar(uint8_t{200})}}));
  const auto source = tfrecord_source(folder / "a", {.features = features_of(columns)});
  const Sample sample = source->read_row(0);
  EXPECT_THAT(elements<int64_t>(sample.columns[0]), ElementsAre(1));
  EXPECT_THAT(elements<int64_t>(sample.columns[1]), ElementsAre(-5, 300));
  EXPECT_THAT(elements<int64_t>(sample.columns[2]), ElementsAre(200));

  EXPECT_THROW(features_of({{"d", DType::float64, {}}}), UsageError);
  EXPECT_THROW(write_tfrecord(folder / "a", columns, once({})), UsageError) << "shards are there";
  EXPECT_THAT(
      message_of<DataError>([&] { write_tfrecord(folder / "b", columns, once({{boolean}})); }),
      HasSubstr("sample 0: got 1 columns, expected 3"));
  EXPECT_THAT(message_of<DataError>([&] {
                write_tfrecord(folder / "c", {{"i", DType::int64, {}}}, once({{scalar(0.5)}}));
              }),
              HasSubstr("column \"i\" is float64 [], expected i int64 []"));
}

}  // namespace
}  // namespace tutti::data
