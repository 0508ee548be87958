// Records in the command line: `tutti data convert`, `index` and `verify`, and trainings on them.
#include <chrono>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tutti/data/detail/tfrecord_frame.h"
#include "tutti/data/sources/mds.h"
#include "tutti/data/sources/open_records.h"
#include "tutti/data/sources/tfrecord.h"

#include "tests/jobs/command_line/user_data.h"
#include "tests/jobs/program.h"

namespace tutti::test {
namespace {

namespace fs = std::filesystem;

CommandResult convert(const Words& words) { return tutti(Words{"data", "convert"} + words); }

void converted(const Words& words) {
  const auto result = convert(words);
  EXPECT_EQ(result.exit_code, 0) << testing::PrintToString(words) << result.err << result.out;
}

// Names and bytes of all files in a folder, without indexes.
std::vector<std::pair<std::string, std::string>> content_of(const fs::path& folder) {
  std::set<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().extension() != ".tutti-index") paths.insert(entry.path());
  std::vector<std::pair<std::string, std::string>> content;
  for (const fs::path& path : paths) content.emplace_back(path.filename(), get_bytes(path));
  return content;
}

// Row i of a dataset, each column as bytes, by name.
std::map<std::string, std::string> row_of(const data::Dataset& dataset, int64_t i) {
  const data::Batch batch = dataset.padded_batch(1).epoch({}).batch(i);
  std::map<std::string, std::string> row;
  for (size_t c = 0; c < batch.columns.size(); ++c) {
    const Array& array = batch.columns[c];
    row[dataset.columns()[c].name] = {static_cast<const char*>(array.data()),
                                      static_cast<size_t>(array.num_bytes())};
  }
  return row;
}

class Records : public testing::Test {
 protected:
  Records() { put_photos(photos_, 20); }

  const TempFolder folder_;
  const fs::path photos_ = folder_ / "photos";
  const std::string tar_ = folder_ / "photos.tar", tfrecord_ = folder_ / "photos.tfrecord",
                    mds_ = folder_ / "photos.mds";
};

TEST_F(Records, PhotosGoThroughEveryFormatAndComeBackTheSame) {
  ASSERT_THAT(convert({photos_, tar_, "--shard-size", "20K"}),
              Exits(0, Out(AllOf(HasSubstr("2 classes (dark, light)"),
                                 HasSubstr("columns: jpg uint8 [?] (of x), cls int64 [] (of y)"),
                                 HasSubstr("webdataset, 40 samples in ")))));
  EXPECT_GT(content_of(tar_).size(), 3u);
  EXPECT_EQ(get_bytes(fs::path(tar_) / "cls.labels.txt"), "dark\nlight\n");
  converted({tar_, tfrecord_});
  EXPECT_EQ(get_bytes(fs::path(tfrecord_) / "label.labels.txt"), "dark\nlight\n");
  converted({tfrecord_, mds_});
  converted({mds_, folder_ / "again", "--format", "webdataset", "--shard-size", "20K"});
  EXPECT_EQ(content_of(folder_ / "again"), content_of(tar_));
  converted({mds_, folder_ / "again.tfrecord"});
  EXPECT_EQ(content_of(folder_ / "again.tfrecord"), content_of(tfrecord_));
  EXPECT_EQ(get_bytes(photos_ / "light/19.jpg"),
            row_of(data::open_records(tfrecord_), 31).at("image"));  // of 0, 1, 10, ..., 19, 2
  EXPECT_EQ(folder_.names(), (std::set<std::string>{"photos", "photos.tar", "photos.tfrecord",
                                                    "photos.mds", "again", "again.tfrecord"}));
}

TEST_F(Records, TablesAndJsonLinesKeepTheirColumns) {
  put_bytes(folder_ / "rows.csv", "n,size,View\n1,0.5,sea\n-2,,yard\n");
  put_bytes(
      folder_ / "rows.jsonl",
      "{\"n\": 1, \"ids\": [1, 2], \"text\": \"a\"}\n{\"n\": 2, \"ids\": [3, 4, 5], \"text\": "
      "\"\xc3\xa9\"}\n");
  for (const char* from : {"rows.csv", "rows.jsonl"}) {
    const std::string tfrecord = folder_ / (std::string(from) + ".tfrecord"),
                      mds = folder_ / (std::string(from) + ".mds"),
                      tar = folder_ / (std::string(from) + ".tar"),
                      back = folder_ / (std::string(from) + ".back.mds");
    converted({folder_ / from, mds});
    converted({mds, tar});
    converted({tar, back});
    for (const int64_t row : {0, 1})
      for (const auto& [name, value] : row_of(data::open_records(mds), row)) {
        std::string lower = name;
        lower[0] = static_cast<char>(std::tolower(lower[0]));
        EXPECT_EQ(row_of(data::open_records(back), row).at(lower), value) << from << name;
      }
    converted({folder_ / from, tfrecord});
    converted({tfrecord, folder_ / (std::string(from) + ".again.tar")});
  }
  const auto row = row_of(data::open_records(folder_ / "rows.csv.tfrecord"), 1);
  EXPECT_EQ(row.at("View"), "yard");
  EXPECT_EQ(row.at("n"), std::string("\xfe\xff\xff\xff\xff\xff\xff\xff", 8));
}

TEST_F(Records, NothingIsReplacedUnaskedAndNothingHalfStays) {
  converted({photos_, mds_});
  const auto before = content_of(mds_);
  EXPECT_THAT(convert({photos_, mds_}),
              Exits(2, Err(AllOf(HasSubstr(mds_), HasSubstr("--force")))));
  fs::remove_all(photos_ / "light");
  put_photos(folder_ / "more", 3);
  converted({folder_ / "more", mds_, "--force"});
  EXPECT_EQ(data::open_records(mds_).num_samples(), 6);
  put_bytes(fs::path(mds_) / "thesis.txt", "years of work");
  EXPECT_THAT(convert({folder_ / "more", mds_, "--force"}), Exits(2, Err(HasSubstr("thesis.txt"))));

  converted({folder_ / "more", tfrecord_});
  const auto shard = fs::path(tfrecord_) / "shard-00000.tfrecord";
  std::string bytes = get_bytes(shard);
  bytes[bytes.size() - 10] ^= 1;  // of the last record's data
  put_bytes(shard, bytes);
  const auto names = folder_.names();
  EXPECT_THAT(convert({tfrecord_, tar_}),
              Exits(2, Err(AllOf(HasSubstr("shard-00000.tfrecord, record 5"), HasSubstr("checksum"),
                                 Not(HasSubstr("of batch"))))));
  EXPECT_EQ(folder_.names(), names);
}

TEST_F(Records, IndexesAreMadeOnceAndSaidToBeOlder) {
  converted({photos_, tar_, "--shard-size", "20K"});
  const auto index = [&](const Words& more) { return tutti(Words{"data", "index"} + more); };
  const auto first = fs::path(tar_) / "shard-00000.tar";
  auto result = index({tar_, "--check"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, AllOf(HasSubstr("shard-00000.tar: no index"), HasSubstr("to be made")));
  EXPECT_FALSE(fs::exists(first.string() + ".tutti-index"));
  result = index({tar_});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("shard-00000.tar: made, "));
  EXPECT_TRUE(fs::exists(first.string() + ".tutti-index"));
  EXPECT_EQ(index({tar_, "--check"}).exit_code, 0);

  fs::last_write_time(first, fs::last_write_time(first) + std::chrono::seconds(5));
  result = index({tar_, "--check"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, AllOf(HasSubstr("shard-00000.tar: older: "), HasSubstr("1 to be made"),
                                HasSubstr("shard-00001.tar: up to date")));
  EXPECT_THAT(index({tar_}).out, HasSubstr("1 made"));

  put_bytes(first, get_bytes(first).substr(0, 3000));
  result = index({tar_});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, AllOf(HasSubstr("shard-00000.tar: damaged: "), HasSubstr("cut off"),
                                HasSubstr("1 damaged")));

  put_flats(folder_ / "flats.csv", 10);
  converted({photos_, mds_});
  for (const std::string& path : {mds_, (folder_ / "flats.csv").string()}) {
    EXPECT_THAT(index({path}), Exits(0, Out(HasSubstr("needs no index file"))));
  }
  EXPECT_EQ(index({folder_ / "not_there"}).exit_code, 2);
}

TEST_F(Records, VerifyNamesWhatIsDamagedAndWhere) {
  const auto verify = [](const std::string& path) { return tutti({"data", "verify", path}); };
  converted({photos_, tar_});
  converted({photos_, tfrecord_});
  converted({photos_, mds_});
  for (const std::string& path : {tar_, tfrecord_, mds_}) {
    const auto sound = verify(path);
    EXPECT_EQ(sound.exit_code, 0) << sound.err << sound.out;
    EXPECT_THAT(sound.out, HasSubstr("40 samples read, all sound")) << path;
  }

  const auto damage = [](const fs::path& path, size_t at) {
    std::string bytes = get_bytes(path);
    bytes.at(at) ^= 1;
    put_bytes(path, bytes);
  };
  const fs::path tar = fs::path(tar_) / "shard-00000.tar";
  const std::string whole_tar = get_bytes(tar);
  damage(fs::path(tfrecord_) / "shard-00000.tfrecord", 100);
  damage(fs::path(mds_) / "shard.00000.mds", fs::file_size(fs::path(mds_) / "shard.00000.mds") - 9);
  put_bytes(tar, whole_tar.substr(0, whole_tar.size() / 2));
  const std::pair<std::string, std::vector<const char*>> damaged[] = {
      {tfrecord_, {"shard-00000.tfrecord, record 0 (byte 0)", "checksum", "1 damaged"}},
      {mds_, {"shard.00000.mds", "sha256"}},
      {tar_, {"shard-00000.tar, byte ", "cut off", "1 damaged"}}};
  for (const auto& [path, answer] : damaged) {
    const auto result = verify(path);
    EXPECT_EQ(result.exit_code, 1) << path << result.err;
    for (const char* part : answer) EXPECT_THAT(result.out, HasSubstr(part)) << path;
  }

  // No checksum tells: the photo itself does.
  std::string broken = whole_tar;
  broken.replace(512, 200, std::string(200, 'x'));
  put_bytes(tar, broken);
  const auto result = verify(tar_);
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("sample \"000000000\""), HasSubstr("expected a JPEG"),
                                HasSubstr("40 samples read, 1 damaged")));

  // Records that are no Examples have checksums, too.
  const fs::path raw = folder_ / "raw.tfrecord";
  put_bytes(raw, data::detail::record_of("no Example"));
  const auto checksums = verify(raw);
  EXPECT_EQ(checksums.exit_code, 0) << checksums.out;
  EXPECT_THAT(checksums.out, AllOf(HasSubstr("checksums alone"), HasSubstr("all sound")));
}

TEST_F(Records, TrainTheSameWeightsAsTheirPhotosInFolders) {
  const std::string figures = folder_ / "figures.json", out = folder_ / "run";
  const auto weights_of = [&](const std::string& path, const Words& more = {}) {
    EXPECT_THAT(
        tutti(words_of("train mlp --image-size 8 --augment --seed 3 --batch-size 9 --epochs 1"
                       " --threads 1") +
              Words{"--data", path, "--json", figures} + more),
        Exits(0, Out(HasSubstr("2 classes; 36 samples to train on, 4 to test"))))
        << path;
    return sha_of(json_in(figures));
  };
  const std::string expected = weights_of(photos_);
  for (const std::string& path : {tar_, tfrecord_, mds_}) {
    converted({photos_, path});
    EXPECT_EQ(weights_of(path, {"--out", out + fs::path(path).extension().string()}), expected)
        << path;
  }
  const json spec = json_in(out + ".tar/data.json");
  EXPECT_EQ(spec.at("kind"), "webdataset");
  EXPECT_EQ(spec.at("classes"), (json{"dark", "light"}));

  // Whatever photos lie in, they are tested alike, and a row of a shard is predicted as its photo.
  std::set<std::string> losses;
  for (const std::string& path : {photos_.string(), tar_, tfrecord_, mds_}) {
    const auto tested = tutti({"evaluate", "mlp", "--data", path, "--checkpoints", out + ".tar",
                               "--threads", "1", "--json", figures});
    ASSERT_EQ(tested.exit_code, 0) << tested.err;
    losses.insert(json_in(figures).at("loss").dump());
  }
  EXPECT_EQ(losses.size(), 1u) << testing::PrintToString(losses);
  const std::string photo = photos_ / "dark/0.jpg";
  const auto said =
      tutti({"predict", "mlp", "--weights", out + ".mds", photo, tfrecord_, folder_ / "none"});
  EXPECT_EQ(said.exit_code, 1);
  EXPECT_THAT(said.err, HasSubstr((folder_ / "none").string()));
  const size_t end = said.out.find('\n');
  const std::string answer = said.out.substr(photo.size(), end - photo.size());
  EXPECT_THAT(said.out, AllOf(HasSubstr(photo + ": "), HasSubstr(tfrecord_ + ", row 1" + answer),
                              HasSubstr(tfrecord_ + ", row 40: ")));
  EXPECT_THAT(tutti({"data", "bench", mds_, "--image-size", "8", "--batch-size", "10"}),
              Exits(0, Out(HasSubstr("samples/s"))));
}

TEST_F(Records, WhichColumnIsTheLabelIsSaidOrAsked) {
  int64_t i = 0;
  const auto write = [&](const fs::path& folder, bool photo) {
    i = 0;
    data::write_mds(folder,
                    {{"picture", DType::uint8, {data::kAnySize}},
                     {"height", DType::int64, {}},
                     {"kind", DType::int64, {}}},
                    [&]() -> std::optional<data::Sample> {
                      if (i == 20) return std::nullopt;
                      const fs::path file = photos_ / "dark" / (std::to_string(i) + ".jpg");
                      return data::Sample{{data::bytes_of(photo ? get_bytes(file) : "no photo"),
                                           data::scalar(int64_t{30}), data::scalar(i++ % 3)}};
                    });
  };
  write(folder_ / "three", true);
  write(folder_ / "none", false);
  const auto train = [&](const std::string& name, const Words& more) {
    return tutti(words_of("train mlp --image-size 8 --batch-size 6 --max-steps 1") +
                 Words{"--data", folder_ / name} + more);
  };
  EXPECT_THAT(train("three", {}),
              Exits(2, Err(AllOf(HasSubstr("--target COLUMN"), HasSubstr("height, kind")))));
  EXPECT_THAT(train("three", {"--target", "kind"}),
              Exits(0, Out(HasSubstr("photos of picture, labels of kind, 3 classes"))));
  EXPECT_THAT(
      train("three", {"--target", "picture"}),
      Exits(2, Err(AllOf(HasSubstr("\"picture\" as the label"), HasSubstr("kind (a whole")))));
  EXPECT_THAT(train("none", {"--target", "kind"}),
              Exits(2, Err(AllOf(HasSubstr("no column holds photos"), HasSubstr("picture")))));
}

TEST(HelpOfData, HasExamples) {
  for (const char* command : {"verify", "bench", "index", "convert"}) {
    EXPECT_THAT(tutti({"data", command, "--help"}),
                Exits(0, Out(AllOf(HasSubstr("Examples:"),
                                   HasSubstr(std::string("tutti data ") + command)))));
  }
}

}  // namespace
}  // namespace tutti::test
