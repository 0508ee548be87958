// Data of a user's own: what does not fit is said before `tutti train` and `tutti data` work.
#include "tests/jobs/command_line/user_data.h"
#include "tests/unit/wrong_words/refused.h"

namespace tutti::test {
namespace {

namespace fs = std::filesystem;

TEST(WrongData, DoesNotFitTheModelOrTheFlags) {
  const TempFolder folder;
  const std::string photos = folder / "photos", more_photos = folder / "more_photos",
                    flats = folder / "flats.csv", idx = folder / "train-images-idx3-ubyte",
                    text = folder / "words.txt", one = folder / "one.csv",
                    nothing = folder / "nothing", other = folder / "other_classes";
  put_photos(photos, 20);
  put_photos(more_photos, 6, 2);
  put_flats(flats, 300);
  put_idx(folder.path(), 100);
  put_bytes(text, "Once upon a time,\nthere was a text.\n");
  put_bytes(one, "a,b\n1,x\n2,x\n3,x\n");
  fs::create_directory(nothing);
  put_photos(other, 2);
  fs::rename(other + "/dark", other + "/dusky");
  expect_refused(
      {"train"},
      {{{"linear_regression", "--data", photos}, {"[3, 64, 64]", "there are", "resnet18"}},
       {{"resnet18", "--data", flats, "--target", "price"},
        {"[6]", "there are linear_regression, mlp, wide"}},
       {{"linear_regression", "--data", flats, "--target", "view"},
        {"predicts a number", "2 classes", "there are mlp, wide"}},
       {{"lenet", "--data", photos, "--image-size", "8"}, {"there are", "resnet18"}},
       {{"vit", "--data", photos, "--image-size", "64"}, {"7", "there are"}},
       {{"mlp", "--data", flats}, {"--target COLUMN", "rooms, area, view, price, dear"}},
       {{"mlp", "--data", flats, "--target", "prize"}, {"prize", "price"}},
       {{"mlp", "--data", one, "--target", "b"}, {"--target b", "\"x\" in all rows"}},
       {{"mlp", "--data", photos, "--target", "price"}, {"--target price", "tables"}},
       {{"mlp", "--data", photos, "--columns", "a,b"}, {"--columns a", "tables"}},
       {{"mlp", "--data", photos, "--without", "a,b"}, {"--without a", "tables"}},
       {{"mlp", "--data", idx, "--categorical", "price"}, {"--categorical price", "tables"}},
       {{"mlp", "--data", idx, "--missing", "-"}, {"--missing -", "tables"}},
       {{"mlp", "--data", flats, "--target", "price", "--without", "romms"},
        {"romms", "\"rooms\""}},
       {{"mlp", "--data", flats, "--target", "price", "--columns", "area,romms"},
        {"romms", "\"rooms\""}},
       {{"mlp", "--data", flats, "--target", "price", "--columns", "area,price"},
        {"\"price\"", "--columns", "is the target"}},
       {{"mlp", "--data", flats, "--target", "price", "--columns", "area", "--without", "area"},
        {"\"area\"", "--columns", "--without"}},
       {{"mlp", "--data", idx, "--image-size", "32"}, {"--image-size 32", "photos"}},
       {{"mlp", "--data", flats, "--target", "price", "--augment"}, {"--augment", "photos"}},
       {{"mlp", "--data", photos, "--image-size", "0"}, {"--image-size", "got \"0\""}},
       {{"mlp", "--data", text}, {"--data", "text", "text is for model gpt"}},
       {{"mlp", "--data", photos + "/dark/0.jpg"}, {"dark/0.jpg: unknown: one photo (jpg)"}},
       {{"mlp", "--data", nothing}, {"nothing", "expected"}},
       {{"mlp", "--data", photos, "--validation", flats}, {"flats.csv", "image_folder"}},
       {{"mlp", "--data", photos, "--validation", other}, {"dusky"}},
       {{"mlp", "--data", photos, "--validation", "not/there"}, {"not/there"}},
       {{"mlp", "--data", photos, "--validation", more_photos, "--validation-split", "0.2"},
        {"--validation-split with --validation"}},
       {{"mlp", "--data", photos, "--validation-split", "0.99"},
        {"0.99", "none is left to train on"}},
       {{"mlp", "--data", photos, "--validation-split", "1.5"}, {"--validation-split"}},
       {{"mlp", "--data", photos, "--batch-size", "128"}, {"--batch-size 128", "36"}},
       {{"mlp", "--data", flats, "--target", "price", "--metrics", "f1"},
        {"--metrics f1", "price is a number", "rmse"}},
       {{"mlp", "--data", flats, "--target", "view", "--metrics", "rmse"},
        {"--metrics rmse", "classes"}},
       {{"mlp", "--data", flats, "--target", "price", "--class-weight", "yes=2"},
        {"--class-weight", "price is a number"}},
       {{"mlp", "--data", flats, "--target", "price", "--early-stopping", "monitor=val_accuracy"},
        {"--early-stopping", "val_mean_absolute_error"}},
       {{"mlp", "--data", photos, "--workers", "many"}, {"--workers", "auto"}},
       {{"mlp", "--data", photos, "--workers", "257"}, {"--workers", "256"}},
       {{"mlp", "--data", photos, "--loader-memory", "0"}, {"--loader-memory"}},
       {{"mlp", "--data", photos, "--ahead", "0"}, {"--ahead"}},
       {{"mlp", "--data", photos, "--on-bad", "replce"}, {"did you mean \"replace\"?"}},
       {{"mlp", "--data", photos, "--on-bad", "replace:2"}, {"--on-bad", "0 to 1"}}});
}

std::string rhyme_in(const TempFolder& folder) {
  std::string rhyme;
  for (int i = 0; i < 60; ++i) rhyme += "one, two,\nbuckle my shoe é\n";
  put_bytes(folder / "rhyme.txt", rhyme);
  return folder / "rhyme.txt";
}

const Words kGpt = {"train", "gpt", "--layers", "1", "--features", "16", "--batch-size", "10"};

TEST(WrongData, Texts) {
  const TempFolder folder;
  const std::string rhyme = rhyme_in(folder);
  put_bytes(folder / "short.txt", "one, two");
  put_bytes(folder / "bytes.txt", "one, two \xFF three");
  std::string towns =
      "town,y\nParis,1\nOrl\xE9"
      "ans,2\n";
  for (int i = 0; i < 40; ++i) towns += "Paris,3\n";
  put_bytes(folder / "latin.csv", towns);
  put_bytes(folder / "utf16.csv", std::string("\xFF\xFE"
                                              "a\0,\0b\0",
                                              8));
  expect_refused(kGpt + Words{"--context", "12"},
                 {{{"--data", rhyme, "--heads", "3"},
                   {"3 heads do not divide 16 features; possible: 1, 2, 4, 8, 16"}},
                  {{"--data", folder / "short.txt", "--heads", "2"},
                   {"got 7 characters from 0 % to 90 %, expected 13 or more"}},
                  {{"--data", folder / "bytes.txt"}, {"got byte ff, which is no UTF-8"}},
                  {{"--data", folder / "missing.txt"}, {"missing.txt"}},
                  {{"--data", rhyme, "--heads", "2", "--class-weight", "o=2"},
                   {"class_weight needs labels, an integer a sample"}},
                  {{"--data", rhyme, "--image-size", "8"}, {"--image-size 8: is for photos"}},
                  {{"--data", rhyme, "--target", "x"}, {"--target x: is for tables and records"}}},
                 Before::words);
  expect_refused(kGpt + Words{"--data", rhyme, "--heads", "2"},
                 {{"--context 2000", {"expected 2001 or more"}}});
  expect_refused(
      {"train", "mlp"},
      {{{"--data", rhyme}, {"text is for model gpt"}},
       {{"--data", folder / "latin.csv", "--target", "y"},
        {"latin.csv, line 3, column \"town\": got byte e9", "in Latin-1 it is \"é\""}},
       {{"--data", folder / "utf16.csv", "--target", "a"}, {"utf16.csv", "text in UTF-16"}},
       {{"--data", kDoodles, "--heads", "2"}, {"--heads: is for model gpt; the model is mlp"}},
       {{"--data", kDoodles, "--context", "2"}, {"--context 2: is for text"}}});
}

void expect_trained(const Words& words) {
  const auto result = run_here(words);
  ASSERT_EQ(result.exit_code, 0) << result.err << result.out;
}

TEST(WrongData, TablesOfOtherColumnsThanTheWeights) {
  const TempFolder folder;
  std::string rows = "area,rooms,town,price\n", towns = rows;
  for (int i = 0; i < 40; ++i) {
    rows += fmt::format("{},{},{},{}\n", 40 + i, 1 + i % 4, i % 2 == 0 ? "Oslo" : "Bergen", 9 * i);
    towns += fmt::format("{},{},{},{}\n", 40 + i, 1 + i % 4, i % 2 == 0 ? "Oslo" : "Bodo", 9 * i);
  }
  put_bytes(folder / "rows.csv", rows);
  put_bytes(folder / "towns.csv", towns);
  const std::string run = folder / "run";
  const Words learns = {"train", "linear_regression", "--target", "price", "--threads", "1"};
  expect_trained(learns + Words{"--data", folder / "rows.csv", "--columns", "area,rooms,town",
                                "--max-steps", "2", "--out", run});
  const std::string from = "--from " + run + ": ";
  expect_refused(
      learns + Words{"--from", run},
      {{{"--data", folder / "rows.csv", "--columns", "rooms,area,town"},
        {from + "was trained on the columns area, rooms, town (2 words) for price; here they are "
                "rooms, area, town (2 words) for price"}},
       {{"--data", folder / "towns.csv"}, {from + "column \"town\" had the words Bergen, Oslo"}}});
}

TEST(WrongData, CannotBeWrittenByATextModel) {
  const TempFolder folder;
  const std::string rhyme = rhyme_in(folder), run = folder / "run";
  expect_trained(kGpt + Words{"--data", rhyme, "--context", "12", "--heads", "2", "--threads", "1",
                              "--max-steps", "2", "--out", run});
  std::string other(400, 'x');
  other += "yz";
  put_bytes(folder / "other.txt", other);
  expect_refused(kGpt + Words{"--context", "12", "--from", run},
                 {{{"--data", rhyme, "--heads", "4"}, {"--heads 2, here it is --heads 4"}},
                  {{"--data", folder / "other.txt", "--heads", "2"},
                   {"--from " + run + ": was trained on other characters", "here there are 3"}}});
  expect_refused({"generate", run},
                 {{{"--prompt", "one λ"}, {"--prompt, byte 4 (line 1): got the character \"λ\""}},
                  {{"--prompt", ""}, {"--prompt: is empty"}},
                  {"--temperature 0", {"--temperature"}},
                  {"--temperature -1", {"--temperature"}},
                  {"--top-k 19", {"--top-k 19: the text has 18 characters"}},
                  {"--top-k 0", {"--top-k"}},
                  {"--tokens -3", {"--tokens"}}});
  expect_refused({}, {{{"generate", folder / "nowhere"}, {"no weights are there"}},
                      {{"predict", "gpt", "--weights", run, rhyme}, {"tutti generate"}},
                      {{"evaluate", "mlp", "--data", rhyme, "--checkpoints", run},
                       {"MODEL mlp: the weights in"}}});
  fs::remove(fs::path(run) / "data.json");
  expect_refused({"generate", run}, {{{}, {"there is no data.json beside it"}}});
}

TEST(WrongData, PredictAndEvaluateNeedWhatTheTrainingSaid) {
  const TempFolder folder;
  const std::string flats = folder / "flats.csv", more_flats = folder / "more_flats.csv",
                    photos = folder / "photos", out = folder / "run", bare = folder / "bare",
                    nameless = folder / "nameless";
  put_flats(flats, 300);
  put_flats(more_flats, 40, 2);
  put_photos(photos, 20);
  expect_trained({"train", "mlp", "--data", flats, "--target", "price", "--batch-size", "30",
                  "--epochs", "1", "--threads", "1", "--out", out});
  fs::create_directory(bare);
  fs::copy_file(fs::path(out) / "model.safetensors", fs::path(bare) / "model.safetensors");
  fs::copy(out, nameless, fs::copy_options::recursive);
  std::string spec = get_bytes(fs::path(out) / "data.json");
  spec.replace(spec.find("\"mlp\""), 5, "\"\"");
  put_bytes(fs::path(nameless) / "data.json", spec);
  expect_refused({"predict"},
                 {{{"mlp", "--weights", out}, {"FILES"}},
                  {{"--weights", out}, {"FILES"}},
                  {{"mpl", more_flats, "--weights", out}, {"\"mpl\"; did you mean \"mlp\"?"}},
                  {{more_flats, "--weights", nameless},
                   {"MODEL: is missing", "the data.json beside", "does not say it"}},
                  {{"mlp", more_flats}, {"--weights"}},
                  {{"mlp", "--weights", folder / "none", more_flats}, {"no weights are there"}},
                  {{"mlp", "--weights", bare, more_flats}, {"no data.json"}},
                  {{"mlp", "--weights", out, more_flats, "--top", "2"}, {"a number is predicted"}},
                  {{"resnet18", "--weights", out, more_flats}, {"are of mlp"}}});
  expect_refused(
      {"evaluate"},
      {{{"wide", "--checkpoints", out, "--data", more_flats}, {"are of mlp"}},
       {{"mlp", "--checkpoints", bare, "--data", more_flats}, {"no data.json"}},
       {{"--checkpoints", bare, "--data", kDoodles}, {"MODEL: is missing", "no data.json beside"}},
       {{"--checkpoints", nameless, "--data", more_flats},
        {"MODEL: is missing", "does not say it"}},
       {{"mlp", "--checkpoints", out, "--data", photos}, {"trained on csv"}}});
}

TEST(WrongData, CannotBeConverted) {
  const TempFolder folder;
  const fs::path photos = folder / "photos";
  const std::string tar = folder / "photos.tar", mds = folder / "photos.mds";
  put_photos(photos, 20);
  put_bytes(folder / "text.txt", "Once upon a time,\nthere was a text.\n");
  put_bytes(folder / "short.csv", "a,b\n1,2\n3,4\n5\n");
  ASSERT_EQ(run_here({"data", "convert", photos, tar}).exit_code, 0);
  const auto names = folder.names();
  expect_refused({"data", "convert"},
                 {{{photos, folder / "out"}, {"--format"}},
                  {{photos, folder / "out", "--format", "mdss"}, {"mds"}},
                  {{photos, mds, "--shard-size", "x"}, {"--shard-size"}},
                  {{photos, mds, "--shard-size", "5G"}, {"--shard-size"}},
                  {{photos, photos / "out.mds"}, {"within it"}},
                  {{tar, tar, "--force"}, {"expected another folder"}},
                  {{folder / "text.txt", mds}, {"text"}},
                  {{folder / "short.csv", mds}, {"line 4"}},
                  {{folder / "not_there", mds}, {"not_there"}},
                  {{photos, folder / "no/folder/out.mds"}, {"out.mds"}}},
                 Before::words);
  EXPECT_EQ(folder.names(), names);
}

TEST(WrongData, CannotBeVerified) {
  const TempFolder folder;
  const std::string binary = folder / "binary", empty = folder / "empty";
  put_bytes(binary, std::string("\x89\0\1\2\3\4\5\6", 8));
  fs::create_directory(empty);
  expect_refused({"data"}, {{"verify not/there", {"tutti data: ", "not/there"}},
                            {{"verify", binary}, {"tutti data: ", binary}},
                            {{"verify", empty}, {"tutti data: ", empty}},
                            {{}, {"tutti data: "}}});
}

}  // namespace
}  // namespace tutti::test
