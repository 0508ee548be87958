/// ModelLayout: how a model is dealt to the ranks of a mesh: which layers are cut into blocks,
/// where stages begin, and in which order stages compute microbatches.
///
///   namespace par = tutti::parallel;
///   tutti::Model model(strategy, make_graph, {.plan = {{"*.up", par::columns()}, {"*.down",
///   par::rows()}},
///                                             .cut = par::balanced(), .schedule = par::zb_h1()});
///
/// None of it changes a bit of what is trained, but for the number of blocks
/// (StrategyOptions::tensor_blocks). Thread rule: plain values.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tutti/mesh/schedule.h"
#include "tutti/parallel/stages/recompute.h"
#include "tutti/parallel/stages/stage.h"
#include "tutti/parallel/tensor/plan.h"

namespace tutti::data {
class Dataset;
}

namespace tutti::parallel {

/// Where stages begin.
struct Cut {
  std::vector<std::string> before{};  ///< layers that begin a stage, but the first; empty: balanced
};
/// So that no stage takes longer than it must: rank 0 times the layers, and decides for all.
inline Cut balanced() { return {}; }
/// Before each of these layers.
inline Cut before(std::vector<std::string> layers) { return {std::move(layers)}; }

/// A schedule for any number of ranks and microbatches (layout/schedule.h).
struct ScheduleChoice {
  std::string name = "1f1b";
  int chunks = 1;               ///< stages of a rank; those of zb_v and dualpipe_v are 2
  std::filesystem::path csv{};  ///< read from there instead (mesh::from_csv)

  /// Throws UsageError for numbers that it cannot take; DataError for a file with a fault.
  mesh::Schedule schedule(int ranks, int microbatches) const;
};
inline ScheduleChoice gpipe() { return {"gpipe"}; }
inline ScheduleChoice one_f_one_b() { return {"1f1b"}; }
inline ScheduleChoice interleaved(int chunks) { return {"interleaved", chunks}; }
inline ScheduleChoice zb_h1() { return {"zb-h1"}; }
inline ScheduleChoice zb_v() { return {"zb-v", 2}; }
inline ScheduleChoice dualpipe_v() { return {"dualpipe-v", 2}; }
/// The file is of one number of ranks and of microbatches.
inline ScheduleChoice from_csv(std::filesystem::path file, int chunks = 1) {
  return {"", chunks, std::move(file)};
}
/// "gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe-v", or a file's name that ends in
/// ".csv". UsageError for another, with the nearest.
ScheduleChoice schedule_choice(const std::string& name, int chunks = 0);

struct ModelLayout {
  Plan plan{};  ///< of a graph; empty: default_plan, where layers are cut at all
  Cut cut{};
  ScheduleChoice schedule{};
  Recompute recompute{};
  std::optional<Border> input{};  ///< of a Sequential: a sample
};

/// ModelLayout::input of what a dataset gives: its first column. Throws UsageError where rows of it
/// differ in shape.
Border sample_of(const data::Dataset& dataset);

}  // namespace tutti::parallel
