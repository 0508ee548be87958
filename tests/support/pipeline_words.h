/// What pipelines of tests are written with: sources and functions whose values are small whole
/// numbers, so that each can be worked out by hand.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tutti/data/batch_transform.h"
#include "tutti/data/combine.h"
#include "tutti/data/dataset.h"
#include "tutti/data/generator.h"

namespace tutti::test {

/// A value of a sample, for those who know nothing of Array. Elements are in [0, kValues).
struct Cell {
  DType dtype = DType::uint8;
  std::vector<int64_t> shape;
  std::vector<int64_t> values;
  bool operator==(const Cell&) const = default;
};
using Cells = std::vector<Cell>;
inline constexpr int64_t kValues = 251;

Cells cells_of(const data::Sample& sample);
data::Sample sample_of(const Cells& cells);
/// Dtype, shape and bytes, as they lie in an Array.
void append(std::string& bytes, const Cell& cell);

// What row i of the sources is. Salt: two sources differ.
Cells number(int64_t i, int64_t salt);  ///< float32 [2], int64 []
Cells text(int64_t i, int64_t salt);    ///< uint8 [0 to 6], int64 []
Cells group(int64_t i, int64_t salt);   ///< uint8 [0 to 3, 2], int64 [as many]
Cells tick(int64_t i, int64_t salt,
           const data::GeneratorContext& context);  ///< int64 [], float32 [2]

data::Dataset numbers(int64_t n, int64_t salt);  ///< in arrays
data::Dataset records(int64_t n, int64_t salt);  ///< the same, read one by one, with a fingerprint
data::Dataset texts(int64_t n, int64_t salt);    ///< read one by one, with a fingerprint
data::Dataset groups(int64_t n, int64_t salt);   ///< likewise
data::Dataset ticks(int64_t n, int64_t salt);    ///< from a generator

// What stages do with a sample.
void multiply(Cells& cells, int64_t factor);
void shake(Cells& cells, int64_t most, data::Draw& draw);
bool keeps(const Cells& cells, int64_t rest);
std::vector<Cells> copies_of(const Cells& cells, int64_t salt);  ///< 0 to 2 of them
Cells blended(const Cells& own, const Cells& partner, bool alone, data::Draw& draw);

data::TransformHandle times(int64_t factor);  ///< named; in place where it may
data::TransformHandle jitter(int64_t most);   ///< named, draws
std::function<data::Sample(data::Sample)> times_by_lambda(int64_t factor);
std::function<data::Sample(data::Sample, data::Draw&)> jitter_by_lambda(int64_t most);
std::function<bool(const data::Sample&)> keep(int64_t rest);
std::function<std::vector<data::Sample>(data::Sample)> copies(int64_t salt);
data::BatchTransformHandle blend();  ///< of each with its partner

}  // namespace tutti::test
