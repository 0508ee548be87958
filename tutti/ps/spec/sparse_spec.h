/// What an embedding table is: its name, the width of its rows, what they begin as, when they go;
/// and which server has which key.
///
/// Thread rule: plain values and pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include "tutti/base/dtype.h"

namespace tutti::ps {

/// Which of `num_parts` servers holds a key: 0 to num_parts - 1, evenly spread also for keys that
/// follow a pattern. A pure function, part of what a checkpoint means. Throws UsageError for fewer
/// than one part.
int server_of_key(uint64_t key, int num_parts);

/// Initial rows of zeros.
struct ZeroRows {
  bool operator==(const ZeroRows&) const = default;
};

/// Independent elements in [low, high), both as the table's dtype has them.
struct UniformRows {
  double low = -0.05;
  double high = 0.05;  ///< > low
  bool operator==(const UniformRows&) const = default;
};

/// Independent elements, normal but for the tails: none is further than 6 std from the mean. Sums
/// of twelve uniform integers (Irwin 1927, doi:10.1093/biomet/19.3-4.225; Hall 1927,
/// doi:10.1093/biomet/19.3-4.240): no logarithm or sine, whose last bits differ between libraries.
struct NormalRows {
  double mean = 0.0;
  double std = 0.05;  ///< >= 0
  bool operator==(const NormalRows&) const = default;
};

/// What workers agree on when they register a table.
struct SparseTableSpec {
  using Initializer = std::variant<ZeroRows, UniformRows, NormalRows>;
  static constexpr int64_t kMostWidth = int64_t{1} << 20;
  /// Rows of a table. With the widest rows of three float64 elements each these are 2^56 bytes, so
  /// that no sum of bytes overflows.
  static constexpr int64_t kMostRows = int64_t{1} << 31;
  static constexpr int64_t kMostPushes = int64_t{1} << 60;

  std::string name;              ///< not empty; equal seeds give tables of two names other rows
  int64_t width = 0;             ///< elements of a row, 1 to kMostWidth
  DType dtype = DType::float32;  ///< of rows, gradients and states: float32 or float64
  Initializer initializer = UniformRows{};
  uint64_t seed = 0;
  int64_t most_rows =
      0;  ///< more are evicted: oldest first, of equal age the smaller key; 0: never
  int64_t idle_pushes = 0;  ///< a row of this age is evicted: 1 keeps the last push's; 0: never

  /// Throws UsageError naming table, field, what it is and what was expected.
  void validate() const;
  /// For messages: "embedding table "user": 64 float32 a row, uniform in [-0.05, 0.05), seed 7,
  /// at most 1000 rows, evicted after 50 idle pushes".
  std::string words() const;
  bool operator==(const SparseTableSpec&) const = default;
};

}  // namespace tutti::ps
