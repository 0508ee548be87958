/// Census: which columns each of many samples has, and of what kind.
///
/// Thread rule: add() by any thread; the rest after that.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace tutti::data::detail {

/// A value of a sample as read_contents() found it.
struct Value {
  std::string column;
  std::string kind;          ///< "int64 []"; empty: is compared with no other
  std::string damage = {};   ///< why it cannot be read; empty: it can
  bool bytes_alone = false;  ///< nothing is known of what its bytes should be
};

class Census {
 public:
  explicit Census(int64_t rows) : kinds_of_row_(static_cast<size_t>(rows), -1) {}

  void add(int64_t row, const std::vector<Value>& values);

  /// tell(row, what) for each sample that lacks what more than half have, or has it of another kind
  /// than most.
  void for_each_odd(const std::function<void(int64_t row, std::string what)>& tell) const;

  /// "caption (24), mp4 (3)": columns of bytes alone, and of how many samples; empty: none.
  std::string bytes_alone() const;
  /// "txt (3)": columns of half of the samples or fewer; empty: none.
  std::string rare() const;

 private:
  using Kinds = std::vector<std::pair<std::string, std::string>>;  // columns, and their kinds

  std::map<std::string, std::map<std::string, int64_t>> counts() const;
  int64_t rows_known() const;

  std::mutex mutex_;
  std::map<Kinds, int32_t> all_kinds_;  // few of them: most samples are alike
  std::vector<int32_t> kinds_of_row_;   // -1: a sample of which nothing could be read
  std::map<std::string, int64_t> bytes_alone_;
};

}  // namespace tutti::data::detail
