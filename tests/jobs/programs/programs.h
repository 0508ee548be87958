/// Small programs that train, written as users write them: their own data, modules and loops, with
/// nothing but what tutti/tutti.h gives.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "tutti/tutti.h"

namespace tutti::test {

/// What must be equal under all strategies, and that something was learnt.
struct Learnt {
  std::string weights;  ///< sha256
  double first = 0;     ///< loss of the first epoch
  double last = 0;      ///< and of the last one
};

/// folder  that all workers see, for files of the program's own
using Program = Learnt (*)(const Strategy& strategy, const std::filesystem::path& folder);

struct NamedProgram {
  std::string name;
  Program run;
  bool needs_shared_data = false;
  bool trains_often = false;  ///< several optimizers, one after the other or at once
};

/// By Model: compile and fit.
std::vector<NamedProgram> programs_that_fit();
/// By loops of their own.
std::vector<NamedProgram> programs_that_loop();

/// Several trainings, one after the other.
std::vector<NamedProgram> programs_that_train_often();

/// Larger data sets beside the checkout, which may be missing.
std::filesystem::path shared_data();

/// Of `model`, which `history` is of.
Learnt learnt(Model& model, const History& history);

/// One epoch of `step`, which gives the sum of a replica's losses; the mean over all samples.
double epoch_of(Strategy strategy, DistributedDataset& data, int64_t epoch,
                const std::function<double(ReplicaContext&, const DistributedBatch&)>& step);

/// Of an mlp that trains doodles for so many epochs of eight steps.
std::string weights_of_mlp(
    const Strategy& strategy, int64_t epochs, const std::function<void()>& after_epoch = [] {});

/// Doodles of the checkout, three classes: images [1, 28, 28] float32 and labels.
inline data::Dataset doodles(int64_t count) {
  return data::quickdraw("examples/data/quickdraw", {.split = "train"}).take(count);
}

}  // namespace tutti::test
