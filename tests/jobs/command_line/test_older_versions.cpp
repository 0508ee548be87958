// What version 0.1.0 wrote (tests/data/from_0_1) is read whole, and gone on from: bit for bit as
// from what the present program writes of it.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <ostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tutti/base/folder_lock.h"
#include "tutti/checkpoint/checkpoint.h"
#include "tutti/checkpoint/folder.h"
#include "tutti/checkpoint/parts.h"

#include "tests/jobs/program.h"

namespace tutti::test {
namespace {

namespace fs = std::filesystem;

const fs::path kOld = "tests/data/from_0_1";

struct Old {
  const char* name;
  int64_t step;
  Words training;
  std::set<std::string> has;  ///< beginnings of names of tensors; fields that are not empty

  friend void PrintTo(const Old& old, std::ostream* out) { *out << old.name; }
};

// As the README of that folder has them, but for where they end.
const Old kTrainings[] = {
    {"table",
     17,
     words_of("linear_regression --data tests/data/from_0_1/homes.csv --target price"
              " --strategy mirrored --replicas 2 --batch-size 32 --epochs 3 --noise-scale"
              " --optimizer adam --checkpoint-every 5"),
     {"optimizer/exp_avg/", "generator/replica/1", "totals/1", "noise_scale", "given_shares"}},
    {"text",
     9,
     words_of("gpt --data tests/data/from_0_1/words.txt --strategy one_device --replicas 2"
              " --context 8 --layers 1 --heads 2 --features 8 --dropout 0.2 --batch-size 16"
              " --epochs 2 --loss-scaling initial=1024,growth_interval=4 --optimizer adamw"
              " --reduce-on-plateau patience=1 --early-stopping patience=5"),
     {"optimizer/exp_avg_sq/", "generator/0", "loss_scale", "callbacks"}},
    {"held_back",
     7,
     words_of("linear_regression --data tests/data/from_0_1/homes.csv --target price"
              " --strategy multi_worker --replicas 2 --batch-size 32 --epochs 3"
              " --reduction all_reduce --compression topk:0.5 --accumulate 2 --optimizer sgd"),
     {"compression/1/steps", "generator/1", "compression"}},
    {"residuals",
     5,
     words_of("gpt --data tests/data/from_0_1/words.txt --strategy multi_worker --replicas 2"
              " --context 8 --layers 1 --heads 2 --features 16 --batch-size 16 --epochs 1"
              " --reduction all_reduce --compression topk:0.5 --optimizer sgd"),
     {"compression/0/residual/", "compression/1/residual/"}}};

CommandResult train(const Words& training, const Words& more) {
  // The kernel is that of the checkpoints, whatever this processor would take.
  return tutti(Words{"train"} + training +
               Words{"--threads", "1", "--seed", "7", "--dense-kernel", "onednn"} + more);
}

std::string bytes_of(const Array& array) {
  return {static_cast<const char*>(array.data()), static_cast<size_t>(array.num_bytes())};
}

// Name and form, and bytes, of all that safetensors files in `folder` have.
std::map<std::string, std::string> tensors_in(const fs::path& folder) {
  std::map<std::string, std::string> tensors;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().extension() == ".safetensors")
      for (const auto& [name, array] : data::read_safetensors(entry.path()).arrays)
        tensors[name + " " + array.to_string()] = bytes_of(array);
  return tensors;
}

// Its manifest and tensors as this version reads them, written as this version does.
void write_anew(const fs::path& from, const fs::path& to) {
  const TrainingCheckpoint old(from);
  old.verify();
  const CheckpointTensors tensors = old.tensors();
  CheckpointManifest manifest = old.manifest();
  manifest.files.clear();
  const auto places = std::exchange(manifest.places, {});
  const auto lock = std::make_shared<FolderLock>(to, "a test");
  CheckpointPart part{.folder = to,
                      .step = manifest.step,
                      .workers = manifest.workers,
                      .lock = lock,
                      .lock_number = lock->number()};
  for (part.worker = manifest.workers; part.worker-- > 0;) {
    std::vector<data::NamedArray> arrays;
    part.tensors.clear();
    for (const auto& [name, array] : tensors)
      if (places.at(name) == old.manifest().files[static_cast<size_t>(part.worker)].name) {
        arrays.push_back({name, array});
        part.tensors.push_back(name);
      }
    const auto image = std::make_shared<data::SafetensorsImage>();
    const std::vector<Array> laid_out = image->lay_out(arrays);
    for (size_t i = 0; i < arrays.size(); ++i)
      std::memcpy(const_cast<void*>(laid_out[i].data()), arrays[i].array.data(),
                  static_cast<size_t>(arrays[i].array.num_bytes()));
    part.image = image;
    write_part(part);
  }
  part.worker = 0;
  complete_checkpoint(part, manifest, Deadline(kProgramLimit), {});
}

// What is the same whoever writes it: but the format, the files, and what parts of the training
// keep, which had fields of its own in version 1.
json facts_of(json manifest) {
  for (const char* key :
       {"format", "files", "sha256", "kept", "callbacks", "loss_scale", "noise_scale", "shares"})
    manifest.erase(key);
  return manifest;
}

// Of a manifest of either version, what is not empty.
json kept_in(const json& manifest) {
  const json& from = manifest.contains("kept") ? manifest.at("kept") : manifest;
  json kept;
  for (const char* name : {"callbacks", "loss_scale", "noise_scale"})
    if (from.contains(name) && !from.at(name).empty()) kept[name] = from.at(name);
  return kept;
}

class OlderVersions : public testing::TestWithParam<Old> {};

TEST_P(OlderVersions, AreReadWholeAndGoneOnFrom) {
  const Old& old = GetParam();
  const TempFolder folder;
  const std::string step = name_of_checkpoint(old.step);
  const fs::path theirs = folder / "theirs/checkpoints", ours = folder / "ours/checkpoints";
  fs::create_directories(folder / "theirs");
  fs::create_directories(folder / "ours");
  fs::copy(kOld / old.name, folder / "theirs", fs::copy_options::recursive);
  fs::copy(theirs / "data.json", folder / "ours/data.json");
  fs::create_directories(ours);
  fs::copy(theirs / "data.json", ours / "data.json");
  write_anew(theirs / step, ours);

  const json said = json_in(theirs / step / "manifest.json");
  const auto tensors = tensors_in(theirs / step);
  EXPECT_EQ(said.at("tutti_version"), "0.1.0");
  for (const std::string& begin : old.has)
    EXPECT_TRUE((said.contains(begin) && !said.at(begin).empty()) ||
                std::ranges::any_of(
                    tensors, [&](const auto& tensor) { return tensor.first.starts_with(begin); }))
        << "it is no test of " << begin;
  EXPECT_EQ(tensors_in(ours / step), tensors);
  const json written = json_in(ours / step / "manifest.json");
  EXPECT_EQ(facts_of(written), facts_of(said));
  EXPECT_EQ(kept_in(written), kept_in(said));

  std::vector<json> ends;
  for (const char* out : {"theirs", "ours"}) {
    const std::string end = folder / (out + std::string(".json"));
    ASSERT_THAT(train(old.training, {"--out", folder / out, "--resume", "--keep-checkpoints", "1",
                                     "--json", end}),
                Exits(0, Out(HasSubstr("goes on from " + step))));
    ends.push_back(json_in(end));
  }
  for (const char* same : {"weights_sha256", "train_loss", "val_loss"})
    EXPECT_EQ(ends[0].at(same), ends[1].at(same)) << same;
  EXPECT_GT(TrainingCheckpoint(trainings_in(theirs).back()).manifest().step, old.step);
}

INSTANTIATE_TEST_SUITE_P(Each, OlderVersions, testing::ValuesIn(kTrainings),
                         [](const auto& info) { return std::string(info.param.name); });

// Servers write what they go on from before they find that no step is left to do.
TEST(OlderSnapshots, AreReadWholeAndGoneOnFrom) {
  const TempFolder folder;
  const Words training = words_of(
      "linear_regression --data tests/data/from_0_1/homes.csv --target price"
      " --strategy parameter_server --replicas 2 --servers 2 --staleness 0 --batch-size 32"
      " --optimizer adam");
  const fs::path theirs = kOld / "snapshots", ours = folder / "ours";
  const auto anew = train(
      training, {"--epochs", "1", "--max-steps", "9", "--restore", theirs, "--snapshots", ours});
  EXPECT_THAT(anew.err, HasSubstr("was done before the snapshot")) << anew.out;
  const auto tensors = tensors_in(theirs / "cut-000001");
  EXPECT_THAT(tensors, Not(IsEmpty()));
  EXPECT_EQ(tensors_in(ours / "cut-000001"), tensors);

  std::vector<json> ends;
  for (const fs::path& from : {theirs, ours}) {
    const std::string end = folder / "end.json";
    ASSERT_THAT(train(training, {"--epochs", "3", "--restore", from, "--json", end}),
                Exits(0, Out(HasSubstr("going on from"))));
    ends.push_back(json_in(end));
  }
  EXPECT_EQ(ends[0].at("weights_sha256"), ends[1].at("weights_sha256"));
}

}  // namespace
}  // namespace tutti::test
