// What a manifest may say: digests that are right say nothing about the numbers beside them.
#include <functional>
#include <set>
#include <string>

#include <nlohmann/json.hpp>

#include "tutti/base/sha256.h"

#include "tests/support/expect.h"
#include "tests/unit/checkpoint/sound.h"

namespace tutti {
namespace {

using nlohmann::ordered_json;

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
  manifest.kept["noise_scale"] = "[-0.25,12.5,1e-300]";
  manifest.places = {{"parameters/a", "part-1-of-2.safetensors"}};
  const std::string text = manifest.to_json();
  const CheckpointManifest read = CheckpointManifest::from_json(text, "c");
  EXPECT_EQ(read.to_json(), text);
  EXPECT_EQ(read.seed, UINT64_MAX);
  EXPECT_EQ(read.lives, manifest.lives);
  EXPECT_EQ(read.kept, manifest.kept);
  EXPECT_EQ(read.files[1].name, "part-1-of-2.safetensors");
}

// It knows no epochs, no samples and no History.
TEST(CheckpointManifest, OfALoopIsReadAsItWasWritten) {
  CheckpointManifest manifest;
  manifest.step = manifest.version = 7;
  manifest.strategy = "group";
  manifest.reduction_shape = "1";
  manifest.loop = {{"net", "module"}, {"step", "whole number"}};
  manifest.kept = {{"step", "7"}};
  manifest.files = {{"part-0-of-1.safetensors", 100, std::string(64, 'b')}};
  const CheckpointManifest read = CheckpointManifest::from_json(manifest.to_json(), "c");
  EXPECT_EQ(read.loop, manifest.loop);
  EXPECT_EQ(read.to_json(), manifest.to_json());
  manifest.loop.clear();
  EXPECT_THAT(
      message_of<DataError>([&] { CheckpointManifest::from_json(manifest.to_json(), "c"); }),
      HasSubstr("global_batch is 0"));
}

// What parts of a training keep had fields of its own.
TEST(CheckpointManifest, OfVersion1IsReadAsOneOfVersion2) {
  ordered_json old = sound_json();
  old["format"] = "tutti.checkpoint.1";
  old["callbacks"] = old.at("kept").at("callbacks");
  old.erase("kept");
  old["loss_scale"] = ordered_json::array();
  const auto kept = [&] { return CheckpointManifest::from_json(signed_text(old), "c").kept; };
  ordered_json shares{
      {"format", "tutti shares 1"}, {"replicas", 2}, {"changes", ordered_json::array()}};
  std::map<std::string, std::string> expected{{"callbacks", old.at("callbacks").dump()},
                                              {"shares", shares.dump()}};
  EXPECT_EQ(kept(), expected);

  old["loss_scale"] = {65'536.0, 12.0, 0.0};
  old["noise_scale"] = {-0.25, 12.5, 1.0};
  old["shares"] = {{{"step", 20}, {"shares", {43, 21}}}};
  expected["loss_scale"] = "[65536.0,12.0,0.0]";
  expected["noise_scale"] = "[-0.25,12.5,1.0]";
  shares["changes"] = old.at("shares");
  expected["shares"] = shares.dump();
  EXPECT_EQ(kept(), expected);
  for (const char* needed : {"callbacks", "loss_scale"}) {
    ordered_json without = old;
    without.erase(needed);
    EXPECT_THAT(refusal(without), HasSubstr(needed));
  }
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
      {"kept", 7},
      {"kept", ordered_json::array({"loss_scale"})},
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
