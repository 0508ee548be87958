/// Input pipelines drawn by number, and what they have to give.
///
///   const Pipeline pipeline = random_pipeline(7);
///   SCOPED_TRACE(to_string(pipeline));                   // as a user would write it
///   dataset_of(pipeline, folder).epoch({.epoch = 2, .seed = 5});
///   interpret(pipeline, 5, 2);                           // the batches of that epoch
///
/// The interpreter (pipeline_interpreter.cpp) makes whole lists of samples, stage by stage, and
/// shares with tutti/data the keys of random numbers alone: docs/design/sample_order.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/pipeline_words.h"

namespace tutti::test {

enum class Op {
  // Sources of n samples, salted by a.
  numbers,
  records,
  texts,
  groups,
  ticks,
  // Several datasets; a, b: cycle and block, samples of weighted().
  concatenate,
  interleave,
  weighted,
  zip,
  // What a sample is; a: factor, most, rest, salt. window(n, {.shift = a, .stride = b}).
  times,
  times_lambda,
  jitter,
  jitter_lambda,
  filter,
  flat_map,
  unbatch,
  window,
  // Which samples in which order; n: times, shards, samples; a: index, window.
  shuffle,
  repeat,
  shard,
  take,
  skip,
  // .cache(n), .cache(folder), .batch(n, flag).unbatch()
  cache,
  cache_files,
  regroup,
};

constexpr bool combines(Op op) { return op >= Op::concatenate && op <= Op::zip; }

struct Stage;
using StageHandle = std::shared_ptr<const Stage>;

struct Stage {
  Op op;
  int64_t n = 0;
  int64_t a = 0;
  int64_t b = 0;
  bool flag = true;                   ///< of shuffle: each_epoch
  std::optional<uint64_t> seed{};     ///< of shuffle
  std::vector<StageHandle> inputs{};  ///< none for sources, one for most
  std::vector<int64_t> weights{};     ///< of weighted
};

struct Batches {
  enum class Kind { plain, padded, buckets } kind = Kind::plain;
  int64_t size = 1;
  bool drop_remainder = false;
  int64_t pad_value = 0;
  std::vector<int64_t> pad_sizes{};
  std::vector<int64_t> boundaries{};
  std::vector<int64_t> sizes{};  ///< by bucket
  int64_t blends = 0;            ///< maps of whole batches
};

struct Pipeline {
  StageHandle stages;
  Batches batches;
  std::string refused{};  ///< why dataset_of() has to throw a UsageError; empty: it has not to
};

/// Of up to some hundred samples. One of twelve or so is refused.
Pipeline random_pipeline(uint64_t seed);

std::string to_string(const Pipeline& pipeline);

/// `folder` is what .cache(folder) gets.
data::Dataset dataset_of(const Pipeline& pipeline, const std::filesystem::path& folder);

/// A sample with what its random numbers are keyed by.
struct Item {
  Cells cells;
  int64_t id = 0;
  int64_t epoch = 0;
};
std::vector<Item> items_of(const Stage& stage, uint64_t seed, int64_t epoch);
/// Ids of the stage's samples are below that.
int64_t num_ids(const Stage& stage);
/// Of its columns, kAnySize where it varies.
std::vector<std::vector<int64_t>> shapes_of(const Stage& stage);

struct PlainBatch {
  int64_t size = 0;
  Cells columns;  ///< [size, ...]
};
std::vector<PlainBatch> interpret(const Pipeline& pipeline, uint64_t seed, int64_t epoch);

}  // namespace tutti::test
