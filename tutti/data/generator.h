/// from_generator: samples that come one after another and no other way: a simulator, a socket.
///
///   auto data = from_generator(
///       [](const GeneratorContext& context) {
///         auto simulator = std::make_shared<Simulator>(context.seed + context.epoch);
///         return [simulator]() -> std::optional<Sample> { return simulator->next(); };
///       },
///       {.columns = {{.name = "x", .dtype = DType::float32, .shape = {4}}}, .num_samples =
///       10000});
///
/// Sequential. Every worker runs the generator from the epoch's beginning and keeps its part of
/// each batch, so that any number of workers trains the same samples; a generator that is slow is
/// worth data of each worker's own (Strategy::distribute_from_function). To go on in the middle of
/// an epoch it is run up to there, which the log says. Thread rule: a generator is called by one
/// thread at a time, in its order; those of two epochs may run at once.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tutti/data/dataset.h"

namespace tutti::data {

/// All that a generator's samples may depend on.
struct GeneratorContext {
  uint64_t seed = 0;  ///< of the training
  int64_t epoch = 0;  ///< 0-based; pass k of a repeat(n) in epoch e is e * n + k
};

/// Gives the next sample; none: that was the last.
using Generator = std::function<std::optional<Sample>()>;
using GeneratorFactory = std::function<Generator(const GeneratorContext&)>;

struct GeneratorOptions {
  std::vector<Column> columns{};  ///< what a sample holds; one or more
  int64_t num_samples = 0;        ///< in an epoch; what comes beyond is left, fewer are a DataError
  std::string name = "generator";
  std::vector<std::string> classes{};  ///< names by label, where there are any
};

/// Throws UsageError without columns or with num_samples below 0.
Dataset from_generator(GeneratorFactory factory, GeneratorOptions options);

}  // namespace tutti::data
