// The tensors of a checkpoint against its manifest.
#include <cmath>
#include <functional>
#include <limits>

#include "tests/support/expect.h"
#include "tests/unit/checkpoint/sound.h"

namespace tutti {
namespace {

std::string refusal(const CheckpointTensors& tensors) {
  return message_of<DataError>([&] { require_sound_state(sound_manifest(), tensors, "c/step-1"); });
}

TEST(CheckpointState, OfATrainingIsSound) {
  EXPECT_NO_THROW(require_sound_state(sound_manifest(), sound_tensors(), "c"));
  // Without what not every training has; and where nothing has been measured yet.
  CheckpointTensors few = sound_tensors();
  std::erase_if(few, [](const auto& entry) {
    return entry.first.starts_with("kept/") || entry.first.starts_with("compression/") ||
           entry.first.starts_with("optimizer/") || entry.first.starts_with("buffers/");
  });
  few["history"] = array_with<double>({}, {0, 2});
  EXPECT_NO_THROW(require_sound_state(sound_manifest(), few, "c"));
  // A loss that is no number is one that trainings go on with.
  few["totals/1"] = array_with<double>({16, 0, std::nan(""), 3, 1}, {5});
  EXPECT_NO_THROW(require_sound_state(sound_manifest(), few, "c"));
}

TEST(CheckpointState, WhatIsNotAsItMustBeIsNamed) {
  const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  const std::vector<std::tuple<const char*, Array, const char*>> cases = {
      {"history", Array::zeros(DType::float64, {6, 0}), "float64 [epochs, 2]"},
      {"history", Array::zeros(DType::float64, {0, 3}), "float64 [epochs, 2]"},
      {"history", Array::zeros(DType::float32, {2, 2}), "float64 [epochs, 2]"},
      {"history", Array::zeros(DType::float64, {4}), "float64 [epochs, 2]"},
      {"history", Array::zeros(DType::float64, {4, 2}), "3 at most"},
      {"totals/0", Array::zeros(DType::float64, {1}), "float64 [numbers]"},
      {"totals/0", Array::zeros(DType::float64, {7, 1}), "float64 [numbers]"},
      {"totals/0", Array::zeros(DType::int64, {7}), "float64 [numbers]"},
      {"totals/1", array_with<double>({nan, 0}, {2}), "nan samples"},
      {"totals/1", array_with<double>({-1, 0}, {2}), "-1 samples"},
      {"totals/1", array_with<double>({1e300, 0}, {2}), "samples"},
      {"totals/1", array_with<double>({8, 15}, {2}), "signal 15"},
      {"totals/2", Array::zeros(DType::float64, {7}), "one of 2 replicas"},
      {"totals/00", Array::zeros(DType::float64, {7}), "checkpoint.md"},
      {"totals/-1", Array::zeros(DType::float64, {7}), "checkpoint.md"},
      {"totals/1/x", Array::zeros(DType::float64, {7}), "one of 2 replicas"},
      {"optimizer/scalars", array_with<double>({nan, 0, 0, 0, 0}, {1, 5}), "a finite number"},
      {"optimizer/scalars", array_with<double>({0, inf, 0, 0, 0}, {1, 5}), "a finite number"},
      {"optimizer/scalars", array_with<double>({0, 0, 0, 0, -1}, {1, 5}), "a number of updates"},
      {"optimizer/scalars", array_with<double>({0, 0, 0, 0, 1e19}, {1, 5}), "a number of updates"},
      {"optimizer/scalars", Array::zeros(DType::float64, {1, 4}), "float64 [parameters, 5]"},
      {"optimizer/scalars", Array::zeros(DType::float64, {5}), "float64 [parameters, 5]"},
      {"optimizer/scalars", Array::zeros(DType::float32, {1, 5}), "float64 [parameters, 5]"},
      {"generator/0", Array::zeros(DType::uint8, {0}), "uint8 [bytes]"},
      {"generator/1", Array::zeros(DType::float32, {5}), "uint8 [bytes]"},
      {"generator/2", Array::zeros(DType::uint8, {5}), "one of 2 replicas or workers"},
      {"generator/replica/1", Array::zeros(DType::uint8, {5, 2}), "uint8 [bytes]"},
      {"generator/replica/2", Array::zeros(DType::uint8, {5}), "one of 2 replicas"},
      {"generator/device/1", Array::zeros(DType::uint8, {5, 2}), "uint8 [bytes]"},
      {"generator/device/2", Array::zeros(DType::uint8, {5}), "one of 2 replicas"},
      {"compression/0/steps", array_with<int64_t>({-1}, {}), "a number of steps"},
      {"compression/1/steps", array_with<int64_t>({INT64_MAX}, {}), "a number of steps"},
      {"compression/1/steps", Array::zeros(DType::int64, {2}), "int64 []"},
      {"compression/2/residual/x", Array::zeros(DType::float32, {2}), "one of 2 replicas"},
      {"buffers/1/norm.mean", Array::zeros(DType::float32, {1}), "float32 [2]"},
      {"buffers/1/norm.mean", Array::zeros(DType::float64, {2}), "float32 [2]"},
      {"buffers/1/more", Array::zeros(DType::float32, {2}), "2 buffers"},
      {"buffers/0/more", Array::zeros(DType::float32, {2}), "none"},
      {"buffers/2/norm.mean", Array::zeros(DType::float32, {2}), "one of 2 replicas"},
      {"kept/buffers/1/norm.mean", Array::zeros(DType::float32, {3}), "float32 [2]"},
      {"kept/parameters/linear.weight", Array::zeros(DType::float32, {6}), "float32 [6]"},
      {"kept/parameters/other", Array::zeros(DType::float32, {6}), "parameters/other"},
      {"tables/0/", Array::zeros(DType::uint64, {2}), "checkpoint.md"},
      {"tables/1/keys", Array::zeros(DType::uint64, {2}), "checkpoint.md"},
      {"weights", Array::zeros(DType::float32, {6}), "checkpoint.md"},
      {"parameters/", Array::zeros(DType::float32, {6}), "checkpoint.md"},
      {"", Array::zeros(DType::float32, {6}), "checkpoint.md"},
  };
  for (const auto& [name, array, words] : cases) {
    CheckpointTensors tensors = sound_tensors();
    tensors[name] = array;
    EXPECT_THAT(refusal(tensors), AllOf(HasSubstr("checkpoint c/step-1"), HasSubstr(words)))
        << name << " " << array.to_string();
  }
}

TEST(CheckpointState, WhatIsMissingIsNamed) {
  for (const char* name :
       {"history", "totals/1", "generator/0", "generator/replica/1", "buffers/1/norm.mean",
        "kept/buffers/0/norm.mean", "kept/parameters/linear.weight"}) {
    CheckpointTensors tensors = sound_tensors();
    tensors.erase(name);
    EXPECT_THAT(refusal(tensors), HasSubstr("tensor \"")) << name;
  }
}

// A loop of one's own has none of what is of epochs, and what it has is under its names.
TEST(CheckpointState, OfALoopIsSound) {
  CheckpointManifest manifest = sound_manifest();
  manifest.loop = {{"net", "module"}, {"adam", "optimizer adam"}, {"sums", "numbers"}};
  const auto scalars = [](double count) {
    return array_with<double>({0.01, 0.5, 0.25, 1, count}, {1, 5});
  };
  CheckpointTensors tensors;
  for (int rank = 0; rank < 2; ++rank) {
    tensors[detail::generator_name(rank)] = array_with<uint8_t>({4, 5}, {2});
    tensors[detail::buffer_name(rank, "net/norm.mean")] = array_with<float>({1, 2}, {2});
    tensors[detail::own_name(rank, "sums")] = array_with<double>({1.5}, {});
  }
  tensors["parameters/net/weight"] = array_with<float>({1, 2}, {2});
  tensors["optimizer/adam/scalars"] = scalars(14);
  tensors["values/mean"] = array_with<float>({1}, {});
  EXPECT_NO_THROW(require_sound_state(manifest, tensors, "c"));
  const auto said = [&](const std::string& name, const Array& array) {
    CheckpointTensors other = tensors;
    other[name] = array;
    return message_of<DataError>([&] { require_sound_state(manifest, other, "c"); });
  };
  EXPECT_THAT(said("optimizer/adam/scalars", scalars(-1)), HasSubstr("a number of updates"));
  EXPECT_THAT(said("own/1/more", array_with<double>({1}, {})), HasSubstr("2 own"));
  EXPECT_THAT(said("own/2/sums", array_with<double>({1}, {})), HasSubstr("one of 2 replicas"));
  EXPECT_THAT(said("other", array_with<double>({1}, {})), HasSubstr("checkpoint.md"));
  tensors.erase("generator/1");
  EXPECT_THAT(message_of<DataError>([&] { require_sound_state(manifest, tensors, "c"); }),
              HasSubstr("generator/1"));
  // fit() knows no such names.
  EXPECT_THAT(refusal({{"values/mean", array_with<float>({1}, {})}}), HasSubstr("values/mean"));
}

// Before anything is as large as what it says.
TEST(CheckpointState, OfAsManyReplicasAsItSays) {
  CheckpointManifest manifest = sound_manifest();
  manifest.replicas = 1'000'000;
  manifest.reduction_shape = "1000000";
  EXPECT_THAT(message_of<DataError>([&] { require_sound_state(manifest, sound_tensors(), "c"); }),
              HasSubstr("totals/2"));
}

}  // namespace
}  // namespace tutti
