// What a manifest may say: digests that are right say nothing about the numbers beside them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>

#include <nlohmann/json.hpp>

#include "tutti/base/error.h"
#include "tutti/base/sha256.h"

#include "tests/support/message_of.h"
#include "tests/unit/checkpoint/sound.h"

namespace tutti {
namespace {

using nlohmann::ordered_json;
using test::message_of;
using test::sound_manifest;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string signed_text(ordered_json json) {
  json.erase("sha256");
  json["sha256"] = sha256_hex(json.dump());
  return json.dump(1);
}

ordered_json sound_json() { return ordered_json::parse(sound_manifest().to_json()); }

std::string refusal(const ordered_json& json) {
  return message_of<DataError>(
      [&] { CheckpointManifest::from_json(signed_text(json), "c/step-1"); });
}

TEST(CheckpointManifest, IsReadAsItWasWritten) {
  CheckpointManifest manifest = sound_manifest();
  manifest.seed = UINT64_MAX;
  manifest.loss_scale = {65'536, 12, 0};
  manifest.shares = {{{20, {43, 21}}, {60, {1, data::kMostShare}}}};
  manifest.noise_scale = {-0.25, 12.5, 1};
  manifest.places = {{"parameters/a", "part-1-of-2.safetensors"}};
  const std::string text = manifest.to_json();
  const CheckpointManifest read = CheckpointManifest::from_json(text, "c");
  EXPECT_EQ(read.to_json(), text);
  EXPECT_EQ(read.seed, UINT64_MAX);
  EXPECT_EQ(read.lives, manifest.lives);
  EXPECT_EQ(read.shares, manifest.shares);
  EXPECT_EQ(sound_manifest().to_json().find("shares"), std::string::npos);
  EXPECT_EQ(read.noise_scale, manifest.noise_scale);
  EXPECT_EQ(read.files[1].name, "part-1-of-2.safetensors");
}

TEST(CheckpointManifest, WhatNoTrainingCanHaveBeenIsNamed) {
  const auto huge = int64_t{INT64_MAX};
  const std::vector<std::pair<const char*, ordered_json>> cases = {
      {"lives", 7},
      {"seed", 1e308},
      {"seed", -1},
      {"seed", "7"},
      {"step", -1},
      {"step", huge},
      {"step", 1.5},
      {"version", -5},
      {"version", huge},
      {"epoch", huge},
      {"epoch", -1},
      {"epoch", UINT64_MAX},
      {"step_in_epoch", huge},
      {"step_in_epoch", 5},
      {"steps_per_epoch", 0},
      {"global_batch", 0},
      {"accumulate", 0},
      {"num_samples", -30},
      {"first_epoch", 4},
      {"replicas", 0},
      {"replicas", -1},
      {"replicas", int64_t{1} << 40},
      {"workers", -1},
      {"workers", 0},
      {"workers", 3},
      {"threads_per_replica", -1},
      {"reduction_shape", "3"},
      {"reduction_shape", "999999+999999+999999"},
      {"reduction_shape", ""},
      {"samples_sha256", "x"},
      {"learning_rate", nullptr},
      {"images", 1e30},
      {"train_seconds", -1.0},
      {"columns", ordered_json::array()},
      {"columns", ordered_json::array({1})},
      {"ended", 1},
      {"noise_scale", ordered_json::array({1.0})},
      {"noise_scale", "1, 2, 3"},
      {"loss_scale", ordered_json::array({1.0})},
      {"loss_scale", ordered_json::array({0.0, 1.0, 1.0})},
      {"loss_scale", ordered_json::array({1e39, 1.0, 1.0})},
      {"loss_scale", ordered_json::array({2.0, 1.5, 1.0})},
      {"loss_scale", ordered_json::array({2.0, 1.0, 1e300})},
      {"shares", 7},
      {"shares", ordered_json::array({7})},
      {"shares", ordered_json::array({{{"step", -1}, {"shares", {1, 1}}}})},
      {"shares", ordered_json::array({{{"step", 3}, {"shares", {1, 1, 1}}}})},
      {"shares", ordered_json::array({{{"step", 3}, {"shares", {0, 1}}}})},
      {"shares", ordered_json::array({{{"step", 3}, {"shares", {1.5, 1}}}})},
      {"files", ordered_json::array()},
      {"files", 3},
      {"values", ordered_json::array({1})},
      {"places", {{"parameters/a", "../other"}}},
  };
  for (const auto& [field, value] : cases) {
    ordered_json json = sound_json();
    json[field] = value;
    EXPECT_THAT(refusal(json),
                AllOf(HasSubstr("checkpoint c/step-1: manifest.json: "), HasSubstr(field)))
        << value;
  }
}

// A name is one of the checkpoint's own, in the checkpoint's own folder.
TEST(CheckpointManifest, FilesDoNotLeaveTheFolder) {
  for (const char* name : {"../../x", "/etc/passwd", "part-0-of-3.safetensors", "", ".",
                           "part-1-of-2.safetensors", "sub/part-0-of-2.safetensors"}) {
    ordered_json json = sound_json();
    json["files"][0]["name"] = name;
    EXPECT_THAT(refusal(json), AllOf(HasSubstr(fmt::format("files: a name is {}", name)),
                                     HasSubstr("expected part-0-of-2.safetensors")));
  }
  ordered_json json = sound_json();
  json["files"][0]["bytes"] = -1;
  EXPECT_THAT(refusal(json), HasSubstr("bytes is -1"));
  json = sound_json();
  json["files"][1]["sha256"] = std::string(64, 'X');
  EXPECT_THAT(refusal(json), HasSubstr("sha256 of part-1-of-2.safetensors"));
}

// But what only some models and jobs have, and what the first checkpoints did not.
TEST(CheckpointManifest, EachFieldIsNeeded) {
  const ordered_json whole = sound_json();
  const std::set<std::string> not_needed{"sha256", "tables", "lives", "dense_kernel"};
  for (const auto& [field, value] : whole.items()) {
    ordered_json json = whole;
    json.erase(field);
    if (not_needed.contains(field)) continue;
    EXPECT_THAT(refusal(json), HasSubstr(field));
  }
}

TEST(CheckpointManifest, WhatWasChangedIsDamaged) {
  ordered_json json = sound_json();
  json["seed"] = 8;
  EXPECT_THAT(message_of<DataError>([&] { CheckpointManifest::from_json(json.dump(), "c"); }),
              AllOf(HasSubstr("sha256"), HasSubstr("was written")));
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("[]"), std::string("7"), std::string("\xff"),
        std::string(1 << 20, '['), R"({"format":)" + std::string(1 << 20, '[')})
    EXPECT_THAT(message_of<DataError>([&] { CheckpointManifest::from_json(text, "c"); }),
                HasSubstr("checkpoint c: manifest.json"));
}

}  // namespace
}  // namespace tutti
