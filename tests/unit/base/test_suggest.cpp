#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tutti/base/suggest.h"

namespace tutti {
namespace {

const std::vector<std::string> kOptimizers = {"sgd", "adam", "adamw"};
const std::vector<std::string> kFlags = {"--replicas", "--reduction-shape", "--batch-size",
                                         "--seed"};

TEST(Suggest, FindsTheNearestWord) {
  struct Case {
    const char* word;
    const std::vector<std::string>& known;
    const char* expected;
  };
  const Case cases[] = {
      {"adm", kOptimizers, "adam"},
      {"adam", kOptimizers, "adam"},
      {"adamv", kOptimizers, "adam"},  // as near to adamw: the first wins
      {"sdg", kOptimizers, "sgd"},     // a swap is one mistake
      {"ADAM", kOptimizers, "adam"},
      {"lamb", kOptimizers, ""},
      {"", kOptimizers, ""},
      {"--replica", kFlags, "--replicas"},
      {"--batch_size", kFlags, "--batch-size"},
      {"--batchsize", kFlags, "--batch-size"},
      {"--reduction-sahpe", kFlags, "--reduction-shape"},
      {"--learning-rate", kFlags, ""},
  };
  for (const Case& c : cases) EXPECT_EQ(nearest(c.word, c.known), c.expected) << c.word;
}

TEST(Suggest, KnowsShortForms) {
  const std::vector<std::string> known = {"loss", "val_loss", "val_accuracy", "val_kind_accuracy"};
  EXPECT_EQ(nearest("val_acc", known), "val_accuracy");
  EXPECT_EQ(nearest("val_kind_acc", known), "val_kind_accuracy");

  EXPECT_EQ(nearest("acc_val", known), "");  // parts come in their order
  EXPECT_EQ(nearest("va", known), "");       // two letters are no short form
}

TEST(Suggest, CountsEdits) {
  EXPECT_EQ(edits_between("replica", "replicas"), 1U);
  EXPECT_EQ(edits_between("Batch_Size", "batch-size"), 0U);
  EXPECT_EQ(edits_between("sahpe", "shape"), 1U);
  EXPECT_EQ(edits_between("", "abc"), 3U);
}

TEST(Suggest, SaysNothingWithoutKnownWordsOrForHugeOnes) {
  EXPECT_EQ(nearest("adam", {}), "");
  const std::string huge(100'000, 'a');
  const std::vector<std::string> known = {huge};
  EXPECT_EQ(nearest(huge, known), "");
}

TEST(Suggest, NamesThatLookTheSameAreToldApart) {
  const std::vector<std::string> composed = {"tea", "caf\u00e9", "Stra\u017ee"};
  EXPECT_EQ(
      unknown_message("class", "cafe\u0301", composed),
      "unknown class \"cafe\u0301\"; \"caf\u00e9\" looks the same and is other bytes: accents "
      "stand in their letters (NFC) there, behind them (NFD) here; write both alike. Known: "
      "tea, caf\u00e9, Stra\u017ee");
  const std::vector<std::string> apart = {"Straz\u030ce"};
  EXPECT_EQ(
      look_alike("Stra\u017ee", apart),
      "\"Straz\u030ce\" looks the same and is other bytes: accents stand behind their letters "
      "(NFD) there, in them (NFC) here; write both alike");
  for (const char* other : {"cafe", "caf\u00e8", "cafe\u0300", "caf\xe9", "caf\u00e9", "tea", ""})
    EXPECT_EQ(look_alike(other, composed), "") << other;
}

TEST(Suggest, MessageNamesTheWordTheNearestAndAllKnown) {
  EXPECT_EQ(unknown_message("optimizer", "adm", kOptimizers),
            "unknown optimizer \"adm\"; did you mean \"adam\"? Known: sgd, adam, adamw");
  EXPECT_EQ(unknown_message("optimizer", "lamb", kOptimizers),
            "unknown optimizer \"lamb\". Known: sgd, adam, adamw");
  EXPECT_EQ(unknown_message("optimizer", "lamb", {}), "unknown optimizer \"lamb\"");
}

}  // namespace
}  // namespace tutti
