/// Which algorithm for which collective, size and number of ranks: a table, built in, that
/// measurements can replace.
/// Thread rule: pure functions; load and save touch the file alone.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/comm/schedule/schedule.h"

namespace tutti {

/// fixed: sums follow the reduction shape. any: an algorithm may add in an order of its own, the
/// same on every rank and in every run, but another one.
enum class Order : uint8_t { fixed, any };
std::string_view name_of(Order order) noexcept;

/// What the choice depends on; the same on every rank.
struct Question {
  Collective collective = Collective::all_reduce;
  int64_t num_bytes = 0;  ///< of the vector, or of all parts together
  int ranks = 2;
  Order order = Order::fixed;
  bool partials = true;    ///< partial sums fit the element type: not for 16-bit floating types
  bool flat_shape = true;  ///< the reduction shape adds as flat(ranks) does
};

struct TableRow {
  Collective collective = Collective::all_reduce;
  Order order = Order::fixed;
  int max_ranks = 0;      ///< 0: any number
  int64_t max_bytes = 0;  ///< 0: any size
  Algorithm algorithm = Algorithm::direct;
  bool operator==(const TableRow&) const = default;
};

/// The first row that fits, and whose algorithm is possible, decides.
struct AlgorithmTable {
  std::vector<TableRow> rows;
  bool operator==(const AlgorithmTable&) const = default;
};

const AlgorithmTable& built_in_table();

/// Whether `algorithm` gives the right result for `question`.
bool is_possible(const Question& question, Algorithm algorithm) noexcept;

/// All that are possible, the one that is always so first: what a measurement compares.
std::vector<Algorithm> candidates(const Question& question);

/// The algorithm to use. Nothing to move: dissemination. Allocates nothing.
Algorithm choose(const Question& question, const AlgorithmTable& table) noexcept;

/// {"tutti_algorithms": 1, "rows": [{"collective": "all_reduce", "order": "fixed", "max_ranks": 4,
/// "max_bytes": 65536, "algorithm": "direct"}, ...]}; max_ranks and max_bytes may be left out.
/// Throws DataError with place, got and expected; unknown keys and names are errors.
AlgorithmTable parse_table(std::string_view json, std::string_view origin);
std::string to_json(const AlgorithmTable& table);

/// The same from and to a file; the file is replaced as a whole.
AlgorithmTable load_table(const std::filesystem::path& path);
void save_table(const AlgorithmTable& table, const std::filesystem::path& path);

}  // namespace tutti
