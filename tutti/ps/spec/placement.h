/// Which server holds what: variables, cut by rows where that is wanted, on servers.
///
/// Every worker computes the same placement from the same variables, so nobody has to be asked.
/// Semantics of partitioners and round robin are tf.distribute's. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/dtype.h"

namespace tutti::ps {

/// Of parameters that are pushed and pulled as one, in a job on one host: a piece costs its frames
/// and its wakes, some 70 us.
inline constexpr int64_t kPieceBytes = 4 << 20;
/// Over several: what a step pushes last, and needs first, is hidden by nothing, there and back.
inline constexpr int64_t kPieceBytesOverHosts = 1 << 20;

/// A dense variable, as it is registered.
struct Variable {
  std::string name;
  std::vector<int64_t> shape;  ///< axis 0 are its rows; a scalar has none
  DType dtype = DType::float32;

  int64_t num_elements() const;
  int64_t num_bytes() const;
  bool operator==(const Variable&) const = default;
};

/// Rows [begin, end) along axis 0.
struct RowRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t count() const noexcept { return end - begin; }
  bool operator==(const RowRange&) const = default;
};

/// `parts` ranges one behind the other; the first rows % parts of them are one row longer (13 rows
/// in 5 parts: 3, 3, 3, 2, 2). parts: 1 to rows.
std::vector<RowRange> split_rows(int64_t rows, int64_t parts);

/// Into how many parts variables are cut. Scalars and variables without rows stay whole, and no
/// part is empty.
class Partitioner {
 public:
  /// Every variable stays whole.
  Partitioner() = default;
  /// n parts, or one a row; place() refuses more parts than any variable has rows.
  static Partitioner fixed(int64_t parts);
  /// As many parts as keep each at `bytes` or more, `most` at most.
  static Partitioner min_part(int64_t bytes = 256 << 10, int64_t most = 1);
  /// As few parts as keep each at `bytes` or less, `most` at most. A row is never cut.
  static Partitioner max_part(int64_t bytes, std::optional<int64_t> most = {});

  int64_t parts_of(const Variable& variable) const;
  /// Throws UsageError for a fixed number of parts into which none of `variables` can be cut.
  void check(const std::vector<const Variable*>& variables) const;
  /// "whole", "fixed 4", "parts of 256.0 KiB or more, 8 at most".
  std::string words() const;
  /// What people type: "whole", "fixed:4", "min:256K:8", "max:4M". UsageError names `flag`.
  static Partitioner parse(std::string_view text, std::string_view flag);

 private:
  enum class Kind { whole, fixed, min_part, max_part };
  Kind kind_ = Kind::whole;
  int64_t bytes_ = 0;
  int64_t parts_ = 0;
};

/// A variable, or some rows of one, on a server.
struct Shard {
  int variable = 0;  ///< index into the variables
  std::string name;  ///< the variable's, or "name/part_2"
  RowRange rows;     ///< all of them where it is whole; {0, 1} for a scalar
  int64_t bytes = 0;
  int server = 0;
};

/// Variables whose name matches `pattern` (* any letters, ? one) go to `server`, whole.
struct NameRule {
  std::string pattern;
  int server = 0;
};

struct PlacementOptions {
  enum class How { round_robin, greedy };
  /// "round_robin" or "greedy". UsageError names `flag`.
  static How how_from(std::string_view text, std::string_view flag);

  int num_servers = 1;
  How how = How::greedy;    ///< round_robin: in the order of shards; greedy: largest first, to the
                            ///< server that then has least for its weight
  Partitioner partitioner;  ///< of those that no rule names
  std::vector<NameRule> rules;  ///< the first that matches counts
  std::vector<double> weights;  ///< greedy: of the servers, >= 0, not all 0; empty: equal
};

struct Placement {
  int num_servers = 1;
  std::vector<Shard> shards;  ///< by variable, then by row

  std::vector<int64_t> bytes_per_server() const;
  /// For people: a line a shard with rows, bytes and server, then bytes and share of each server.
  std::string to_table(const std::vector<Variable>& variables) const;
};

/// Throws UsageError: no servers; a rule or weight for a server that is not there; a rule that
/// matches nothing; two variables of one name; a fixed number of parts that no variable without a
/// rule can be cut into.
Placement place(const std::vector<Variable>& variables, const PlacementOptions& options);

/// Weights with which all hosts are equally busy when `workers` hosts also serve and `dedicated`
/// more do nothing else: first those of the workers' hosts, then those of the dedicated.
/// Jiang et al. 2020 (BytePS), OSDI'20, section 4: (n - k) / (n^2 + kn - 2k) for each of n workers,
/// 2 (n - 1) / (n^2 + kn - 2k) for each of k dedicated servers, k <= n. workers: 2 or more.
std::vector<double> balanced_weights(int workers, int dedicated);

/// The same by server: `each` on every one of `hosts` hosts with workers, then `dedicated` on hosts
/// of their own. {} where all are to have the same: all of one kind, or one host with workers,
/// whose servers cost no network. With more dedicated servers than hosts the others hold nothing.
std::vector<double> weights_of_servers(int hosts, int each, int dedicated);

}  // namespace tutti::ps
