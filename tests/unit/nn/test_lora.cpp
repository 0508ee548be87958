// Which matrices get adapters, and what is refused: no tensors.
#include <limits>

#include "tutti/base/error.h"
#include "tutti/nn/lora.h"

#include "tests/support/expect.h"

namespace tutti::nn {
namespace {

const std::vector<LoraCandidate> kGpt = {
    {"token.weight", {17, 8}},        {"h.0.norm.weight", {8}},
    {"h.0.attn.qkv.weight", {24, 8}}, {"h.0.attn.qkv.bias", {24}},
    {"h.0.attn.out.weight", {8, 8}},  {"h.0.mlp.up.weight", {16, 8}},
    {"h.1.attn.in_proj", {24, 8}},    {"h.1.conv.weight", {4, 4, 3}},
    {"h.1.counts", {3, 3}, false},
};

std::string matrices(const std::vector<Lora>& loras) {
  std::string text;
  for (const LoraMatrix& one : lora_matrices(loras, kGpt, "net.pt2"))
    text += fmt::format("{} [{}, {}] {}/{}; ", one.name, one.out, one.in, one.lora.rank,
                        one.lora.scale());
  return text;
}

TEST(Lora, PatternsFitNamesOfParametersAndOfWhatHasThem) {
  const struct {
    std::vector<Lora> loras;
    std::string expected;
  } cases[] = {
      {{{.pattern = "*.attn.*", .rank = 2}},
       "h.0.attn.qkv.weight [24, 8] 2/1; h.0.attn.out.weight [8, 8] 2/1; h.1.attn.in_proj [24, 8] "
       "2/1; "},
      {{{.pattern = "h.0.attn.qkv", .rank = 8, .alpha = 2.0}},
       "h.0.attn.qkv.weight [24, 8] 8/0.25; "},
      {{{.pattern = "h.0", .rank = 1}},
       "h.0.attn.qkv.weight [24, 8] 1/1; h.0.attn.out.weight [8, 8] 1/1; h.0.mlp.up.weight [16, 8] "
       "1/1; "},
      {{{.pattern = "*.qkv", .rank = 4}, {.pattern = "h.0.attn", .rank = 2}},
       "h.0.attn.qkv.weight [24, 8] 4/1; h.0.attn.out.weight [8, 8] 2/1; "},
      {{{.pattern = "tok?n.*", .rank = 8}}, "token.weight [17, 8] 8/1; "},
  };
  for (const auto& [loras, expected] : cases) EXPECT_EQ(matrices(loras), expected);
}

TEST(Lora, WhatDoesNotFitIsRefusedByPlaceGotAndExpected) {
  const struct {
    std::vector<Lora> loras;
    std::string says;
  } cases[] = {
      {{{.pattern = "*.attention.*"}},
       "lora \"*.attention.*\": no parameter of net.pt2 has such a name; expected some of its 5 "
       "matrices: token.weight, h.0.attn.qkv.weight, "},
      {{{.pattern = "h.0.attn.qkb.weight"}}, "did you mean \"h.0.attn.qkv.weight\"?"},
      {{{.pattern = "*.norm"}},
       "lora \"*.norm\": of net.pt2 it fits h.0.norm.weight [8] and no matrix; expected weights of "
       "two sides"},
      {{{.pattern = "h.1.conv.*"}}, "it fits h.1.conv.weight [4, 4, 3] and no matrix"},
      {{{.pattern = "h.1.counts"}}, "it fits h.1.counts [3, 3] and no matrix"},
      {{{.pattern = "*.out", .rank = 0}},
       "lora \"*.out\": rank = 0 is out of range; expected 1 or"},
      {{{.pattern = "*.out", .rank = -1}}, "rank = -1 is out of range"},
      {{{.pattern = "*.attn", .rank = 9}},
       "rank = 9 is more than a side of h.0.attn.qkv.weight [24, 8]; expected 1 to 8"},
      {{{.pattern = "*.out", .rank = 1, .alpha = 0.0}},
       "alpha = 0 is out of range; expected a num"},
      {{{.pattern = "*.out", .rank = 1, .alpha = std::numeric_limits<double>::infinity()}},
       "alpha = inf is out of range"},
      {{{.pattern = ""}}, "lora \"\": is for no name; expected a pattern"},
      {{{.pattern = "*.attn", .rank = 2}, {.pattern = "*.qkv", .rank = 2}},
       "lora \"*.qkv\": all that it fits has adapters of an earlier pattern"},
  };
  for (const auto& [loras, says] : cases)
    EXPECT_THAT([&] { matrices(loras); }, ThrowsMessage<UsageError>(HasSubstr(says)));
  EXPECT_THAT([] { lora_matrices({{.pattern = "*"}}, {}, "net.pt2"); },
              ThrowsMessage<UsageError>(HasSubstr("net.pt2 has no matrix that could get")));
}

TEST(Lora, AdaptersHaveTheNamesOfPeft) {
  const LoraMatrix layer{"h.0.attn.qkv.weight", 24, 8, {.pattern = "*", .rank = 2}};
  EXPECT_EQ(layer.name_of_a(), "h.0.attn.qkv.lora_A.weight");
  EXPECT_EQ(layer.name_of_b(), "h.0.attn.qkv.lora_B.weight");
  EXPECT_EQ(layer.num_elements(), 2 * (24 + 8));
  const LoraMatrix own{"h.1.attn.in_proj", 24, 8, {.pattern = "*", .rank = 2}};
  EXPECT_EQ(own.name_of_a(), "h.1.attn.in_proj.lora_A");
  EXPECT_EQ(to_string(Lora{.pattern = "*.attn.*", .rank = 4}), "*.attn.*:rank=4,alpha=4");
}

}  // namespace
}  // namespace tutti::nn
