#include "tutti/ps/spec/placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "tutti/base/error.h"
#include "tutti/base/host.h"
#include "tutti/base/typed.h"

namespace tutti::ps {
namespace {

// A scalar counts as one row.
int64_t rows_of(const Variable& variable) {
  return variable.shape.empty() ? 1 : variable.shape.front();
}

int64_t require_positive(std::string_view what, int64_t value) {
  if (value < 1) throw UsageError(fmt::format("{} is {}; expected 1 or more", what, value));
  return value;
}

// * stands for any letters, ? for one.
bool matches(std::string_view pattern, std::string_view name) {
  if (pattern.empty()) return name.empty();
  if (pattern.front() == '*') {
    for (size_t skip = 0; skip <= name.size(); ++skip)
      if (matches(pattern.substr(1), name.substr(skip))) return true;
    return false;
  }
  if (name.empty() || (pattern.front() != '?' && pattern.front() != name.front())) return false;
  return matches(pattern.substr(1), name.substr(1));
}

void check(const std::vector<Variable>& variables) {
  std::set<std::string> names;
  for (const Variable& variable : variables) {
    if (!names.insert(variable.name).second)
      throw UsageError(fmt::format("two variables are called \"{}\"", variable.name));
    for (int64_t length : variable.shape)
      if (length < 0)
        throw UsageError(
            fmt::format("variable \"{}\" has an axis of length {}", variable.name, length));
  }
}

void check(const std::vector<Variable>& variables, const PlacementOptions& options) {
  if (options.num_servers < 1)
    throw UsageError(fmt::format("{} servers; expected 1 or more", options.num_servers));
  for (const NameRule& rule : options.rules) {
    if (rule.server < 0 || rule.server >= options.num_servers)
      throw UsageError(fmt::format("placement rule \"{}\" names server {}; there are {}, from 0 on",
                                   rule.pattern, rule.server, options.num_servers));
    const bool used = std::ranges::any_of(
        variables, [&](const Variable& variable) { return matches(rule.pattern, variable.name); });
    if (!used)
      throw UsageError(fmt::format("placement rule \"{}\" matches none of {} variables",
                                   rule.pattern, variables.size()));
  }
  if (options.weights.empty()) return;
  if (std::ssize(options.weights) != options.num_servers)
    throw UsageError(
        fmt::format("{} weights for {} servers", options.weights.size(), options.num_servers));
  double sum = 0;
  for (double weight : options.weights) {
    if (!(weight >= 0 && std::isfinite(weight)))
      throw UsageError(
          fmt::format("a server's weight is {}; expected a finite number >= 0", weight));
    sum += weight;
  }
  if (sum == 0) throw UsageError("all servers' weights are 0");
}

/// Which server each shard without a rule gets.
class Chooser {
 public:
  explicit Chooser(const PlacementOptions& options)
      : options_(options), bytes_(static_cast<size_t>(options.num_servers)) {}

  void add(int server, int64_t bytes) { bytes_[static_cast<size_t>(server)] += bytes; }

  int next(int64_t bytes) {
    if (options_.how == PlacementOptions::How::round_robin)
      return static_cast<int>(turn_++ % options_.num_servers);
    int best = -1;
    double least = std::numeric_limits<double>::infinity();
    for (int s = 0; s < options_.num_servers; ++s) {
      const auto at = static_cast<size_t>(s);
      const double weight = options_.weights.empty() ? 1.0 : options_.weights[at];
      if (weight == 0) continue;
      const double load = static_cast<double>(bytes_[at] + bytes) / weight;
      if (load < least) {
        least = load;
        best = s;
      }
    }
    return best;
  }

 private:
  const PlacementOptions& options_;
  std::vector<int64_t> bytes_;
  int64_t turn_ = 0;
};

const NameRule* rule_for(const Variable& variable, const PlacementOptions& options) {
  const auto found = std::ranges::find_if(
      options.rules, [&](const NameRule& rule) { return matches(rule.pattern, variable.name); });
  return found == options.rules.end() ? nullptr : &*found;
}

void check_parts(const std::vector<Variable>& variables, const PlacementOptions& options) {
  std::vector<const Variable*> cut;
  for (const Variable& variable : variables)
    if (rule_for(variable, options) == nullptr) cut.push_back(&variable);
  options.partitioner.check(cut);
}

std::vector<Shard> cut(const Variable& variable, int index, int64_t parts) {
  const int64_t rows = rows_of(variable);
  if (parts == 1) return {{index, variable.name, {0, rows}, variable.num_bytes(), 0}};
  std::vector<Shard> shards;
  for (const RowRange& range : split_rows(rows, parts))
    shards.push_back({index, fmt::format("{}/part_{}", variable.name, shards.size()), range,
                      variable.num_bytes() / rows * range.count(), 0});
  return shards;
}

}  // namespace

int64_t Variable::num_elements() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

int64_t Variable::num_bytes() const { return num_elements() * size_of(dtype); }

std::vector<RowRange> split_rows(int64_t rows, int64_t parts) {
  if (parts < 1 || parts > rows)
    throw UsageError(fmt::format("{} rows in {} parts; expected 1 to {}", rows, parts, rows));
  std::vector<RowRange> ranges;
  int64_t begin = 0;
  for (int64_t i = 0; i < parts; ++i) {
    const int64_t end = begin + rows / parts + (i < rows % parts ? 1 : 0);
    ranges.push_back({begin, end});
    begin = end;
  }
  return ranges;
}

Partitioner Partitioner::fixed(int64_t parts) {
  Partitioner made;
  made.kind_ = Kind::fixed;
  made.parts_ = require_positive("the number of parts", parts);
  return made;
}

Partitioner Partitioner::min_part(int64_t bytes, int64_t most) {
  Partitioner made;
  made.kind_ = Kind::min_part;
  made.bytes_ = require_positive("the smallest part, in bytes,", bytes);
  made.parts_ = require_positive("the largest number of parts", most);
  return made;
}

Partitioner Partitioner::max_part(int64_t bytes, std::optional<int64_t> most) {
  Partitioner made;
  made.kind_ = Kind::max_part;
  made.bytes_ = require_positive("the largest part, in bytes,", bytes);
  made.parts_ = most ? require_positive("the largest number of parts", *most)
                     : std::numeric_limits<int64_t>::max();
  return made;
}

int64_t Partitioner::parts_of(const Variable& variable) const {
  const int64_t rows = rows_of(variable);
  const int64_t bytes = variable.num_bytes();
  if (kind_ == Kind::whole || variable.shape.empty() || bytes == 0) return 1;
  const int64_t row_bytes = bytes / rows;
  switch (kind_) {
    case Kind::fixed: return std::min(parts_, rows);
    case Kind::min_part: {
      const int64_t rows_each = (bytes_ + row_bytes - 1) / row_bytes;
      return std::clamp<int64_t>(rows / rows_each, 1, parts_);
    }
    case Kind::max_part: {
      const int64_t rows_each = std::max<int64_t>(1, bytes_ / row_bytes);
      return std::min((rows + rows_each - 1) / rows_each, parts_);
    }
    default: return 1;
  }
}

void Partitioner::check(const std::vector<const Variable*>& variables) const {
  if (kind_ != Kind::fixed || variables.empty()) return;
  const Variable& longest =
      **std::ranges::max_element(variables, {}, [](const auto* v) { return rows_of(*v); });
  if (parts_ > rows_of(longest))
    throw UsageError(
        fmt::format("no variable can be cut into {} parts: the one with most rows, \"{}\", has {}",
                    parts_, longest.name, rows_of(longest)));
}

Partitioner Partitioner::parse(std::string_view text, std::string_view flag) {
  const auto wrong = [&] {
    return UsageError(
        fmt::format("{} {}: expected whole, fixed:PARTS, min:BYTES:MOST or max:BYTES, as fixed:4 "
                    "or max:4M",
                    flag, text));
  };
  if (text == "whole") return {};
  const std::vector<std::string_view> parts = tutti::parts_of(text, ':');
  std::vector<int64_t> numbers;
  for (size_t i = 1; i < parts.size(); ++i) {
    const auto number = size_in(parts[i]);
    if (!number) throw wrong();
    numbers.push_back(*number);
  }
  try {
    if (parts[0] == "fixed" && numbers.size() == 1) return fixed(numbers[0]);
    if (parts[0] == "min" && numbers.size() == 2) return min_part(numbers[0], numbers[1]);
    if (parts[0] == "max" && numbers.size() == 1) return max_part(numbers[0]);
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("{} {}: {}", flag, text, error.what()));
  }
  throw wrong();
}

PlacementOptions::How PlacementOptions::how_from(std::string_view text, std::string_view flag) {
  if (text == "greedy") return How::greedy;
  if (text == "round_robin") return How::round_robin;
  throw UsageError(fmt::format("{} {}: expected greedy or round_robin", flag, text));
}

std::string Partitioner::words() const {
  switch (kind_) {
    case Kind::fixed: return fmt::format("fixed {}", parts_);
    case Kind::min_part:
      return fmt::format("parts of {} or more, {} at most", size_words(bytes_), parts_);
    case Kind::max_part: {
      const std::string most =
          parts_ == std::numeric_limits<int64_t>::max() ? "" : fmt::format(", {} at most", parts_);
      return fmt::format("parts of {} or less{}", size_words(bytes_), most);
    }
    default: return "whole";
  }
}

std::vector<int64_t> Placement::bytes_per_server() const {
  std::vector<int64_t> bytes(static_cast<size_t>(num_servers));
  for (const Shard& shard : shards) bytes[static_cast<size_t>(shard.server)] += shard.bytes;
  return bytes;
}

std::string Placement::to_table(const std::vector<Variable>& variables) const {
  size_t width = 8;
  for (const Shard& shard : shards) width = std::max(width, shard.name.size());
  std::string text =
      fmt::format("{:<{}}  {:>17}  {:>10}  server\n", "shard", width, "rows", "size");
  for (const Shard& shard : shards) {
    const bool whole = shard.name == variables[static_cast<size_t>(shard.variable)].name;
    const std::string rows =
        whole ? "all" : fmt::format("{} to {}", shard.rows.begin, shard.rows.end);
    text += fmt::format("{:<{}}  {:>17}  {:>10}  {}\n", shard.name, width, rows,
                        size_words(shard.bytes), shard.server);
  }
  const std::vector<int64_t> bytes = bytes_per_server();
  const int64_t all = std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
  for (size_t s = 0; s < bytes.size(); ++s) {
    const double share =
        all == 0 ? 0 : 100.0 * static_cast<double>(bytes[s]) / static_cast<double>(all);
    text += fmt::format("{:<{}}  {:>17}  {:>10}  {:.1f} %\n", fmt::format("server {}", s), width,
                        "", size_words(bytes[s]), share);
  }
  return text;
}

Placement place(const std::vector<Variable>& variables, const PlacementOptions& options) {
  check(variables);
  check(variables, options);
  check_parts(variables, options);
  Placement placement{.num_servers = options.num_servers};
  Chooser chooser(options);
  std::vector<size_t> open;  // shards that no rule names
  for (size_t v = 0; v < variables.size(); ++v) {
    const NameRule* rule = rule_for(variables[v], options);
    const int64_t parts = rule != nullptr ? 1 : options.partitioner.parts_of(variables[v]);
    for (Shard& shard : cut(variables[v], static_cast<int>(v), parts)) {
      if (rule != nullptr) {
        shard.server = rule->server;
        chooser.add(shard.server, shard.bytes);
      } else {
        open.push_back(placement.shards.size());
      }
      placement.shards.push_back(std::move(shard));
    }
  }
  if (options.how == PlacementOptions::How::greedy)
    std::ranges::stable_sort(open, [&](size_t a, size_t b) {
      return placement.shards[a].bytes > placement.shards[b].bytes;
    });
  for (const size_t number : open) {
    Shard& shard = placement.shards[number];
    shard.server = chooser.next(shard.bytes);
    chooser.add(shard.server, shard.bytes);
  }
  return placement;
}

std::vector<double> balanced_weights(int workers, int dedicated) {
  if (workers < 2 || dedicated < 0 || dedicated > workers)
    throw UsageError(fmt::format(
        "balanced weights for {} workers and {} dedicated servers; expected 2 workers or more, and "
        "0 to as many servers",
        workers, dedicated));
  const double n = workers;
  const double k = dedicated;
  const double all = n * n + k * n - 2 * k;
  std::vector<double> weights(static_cast<size_t>(workers), (n - k) / all);
  weights.insert(weights.end(), static_cast<size_t>(dedicated), 2 * (n - 1) / all);
  return weights;
}

std::vector<double> weights_of_servers(int hosts, int each, int dedicated) {
  if (hosts < 2 || each < 1 || dedicated < 1) return {};
  const auto by_host = balanced_weights(hosts, std::min(hosts, dedicated));
  std::vector<double> weights(static_cast<size_t>(hosts) * each, by_host.front() / each);
  const double apart = by_host.back() * std::min(hosts, dedicated) / dedicated;
  weights.insert(weights.end(), static_cast<size_t>(dedicated), apart);
  return weights;
}

}  // namespace tutti::ps
