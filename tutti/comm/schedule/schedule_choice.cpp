#include "tutti/comm/schedule/schedule_choice.h"

#include <bit>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/json.h"
#include "tutti/base/suggest.h"

namespace tutti {
namespace {

constexpr int kTableVersion = 1;
constexpr int64_t kKiB = 1024;

bool is_all_reduce_possible(const Question& q, Algorithm algorithm) noexcept {
  const bool power = std::has_single_bit(static_cast<unsigned>(q.ranks));
  switch (algorithm) {
    case Algorithm::direct:
    case Algorithm::pairwise: return true;
    case Algorithm::doubling:
    case Algorithm::halving_doubling:
      return power && q.partials && (q.flat_shape || q.order == Order::any);
    case Algorithm::tree: return q.partials;
    case Algorithm::ring:
    case Algorithm::double_tree: return q.partials && q.order == Order::any;
    default: return false;
  }
}

template <class T>
T named(const std::string& word, std::string_view what, std::span<const T> all,
        const std::string& place) {
  std::vector<std::string> known;
  for (T one : all) {
    if (name_of(one) == word) return one;
    known.emplace_back(name_of(one));
  }
  throw DataError(place + ": " + unknown_message(what, word, known));
}

constexpr Order kOrders[] = {Order::fixed, Order::any};
constexpr Collective kCollectives[] = {
    Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather,
    Collective::broadcast,  Collective::barrier,        Collective::reduce,
    Collective::scatter,    Collective::gather,         Collective::all_to_all};

std::vector<Algorithm> all_algorithms() {
  std::vector<Algorithm> all;
  for (int i = 0; i < kNumAlgorithms; ++i) all.push_back(static_cast<Algorithm>(i));
  return all;
}

template <class T>
T number_at(const Json& value, const std::string& key, const std::string& place) {
  if (!value.is_number_integer() || value.get<int64_t>() < 0 ||
      value.get<int64_t>() > std::numeric_limits<T>::max())
    throw DataError(fmt::format("{}: {} is {}; expected a whole number, 0 or more", place, key,
                                dump_json(value)));
  return value.get<T>();
}

std::string text_at(const Json& value, const std::string& key, const std::string& place) {
  if (!value.is_string())
    throw DataError(fmt::format("{}: {} is {}; expected a name", place, key, dump_json(value)));
  return value.get<std::string>();
}

TableRow parse_row(const Json& json, const std::string& place) {
  static const std::vector<std::string> kKeys = {"collective", "order", "max_ranks", "max_bytes",
                                                 "algorithm"};
  if (!json.is_object()) throw DataError(fmt::format("{}: expected an object", place));
  for (const char* key : {"collective", "order", "algorithm"})
    if (!json.contains(key)) throw DataError(fmt::format("{}: \"{}\" is missing", place, key));
  TableRow row;
  const std::vector<Algorithm> algorithms = all_algorithms();
  for (const auto& [key, value] : json.items()) {
    if (key == "max_ranks") {
      row.max_ranks = number_at<int>(value, key, place);
    } else if (key == "max_bytes") {
      row.max_bytes = number_at<int64_t>(value, key, place);
    } else if (key == "collective") {
      row.collective =
          named(text_at(value, key, place), key, std::span<const Collective>(kCollectives), place);
    } else if (key == "order") {
      row.order = named(text_at(value, key, place), key, std::span<const Order>(kOrders), place);
    } else if (key == "algorithm") {
      row.algorithm =
          named(text_at(value, key, place), key, std::span<const Algorithm>(algorithms), place);
    } else {
      throw DataError(place + ": " + unknown_message("key", key, kKeys));
    }
  }
  return row;
}

// Cuts where the time of messages meets the time of bytes. Direct exchange costs one latency, sends
// n - 1 times the data and needs one message a peer; doubling log n latencies of the whole.
AlgorithmTable make_built_in() {
  using enum Collective;
  using enum Algorithm;
  AlgorithmTable table;
  const auto add = [&](Collective collective, Order order, int ranks, int64_t bytes,
                       Algorithm algorithm) {
    table.rows.push_back({collective, order, ranks, bytes, algorithm});
  };
  add(all_reduce, Order::any, 2, 16 * kKiB, direct);
  add(all_reduce, Order::any, 4, 4 * kKiB, direct);
  add(all_reduce, Order::any, 0, 16 * kKiB, doubling);
  add(all_reduce, Order::any, 0, 16 * kKiB, tree);
  add(all_reduce, Order::any, 0, 256 * kKiB, halving_doubling);
  add(all_reduce, Order::any, 8, 256 * kKiB, pairwise);
  add(all_reduce, Order::any, 0, 256 * kKiB, double_tree);
  add(all_reduce, Order::any, 4, 0, pairwise);
  add(all_reduce, Order::any, 0, 0, ring);
  add(all_reduce, Order::fixed, 2, 16 * kKiB, direct);
  add(all_reduce, Order::fixed, 4, 4 * kKiB, direct);
  add(all_reduce, Order::fixed, 0, 16 * kKiB, doubling);
  add(all_reduce, Order::fixed, 4, 512 * kKiB, halving_doubling);
  add(all_reduce, Order::fixed, 4, 0, pairwise);
  add(all_reduce, Order::fixed, 0, 0, halving_doubling);
  add(all_reduce, Order::fixed, 8, 4 * kKiB, direct);
  add(all_reduce, Order::fixed, 0, 4 * kKiB, tree);
  add(all_reduce, Order::fixed, 0, 0, pairwise);
  for (const Order order : kOrders) {
    add(reduce, order, 8, 4 * kKiB, direct);
    add(reduce, order, 0, 32 * kKiB, tree);
    add(reduce, order, 0, 0, pairwise);
    add(all_gather, order, 4, 64 * kKiB, direct);
    add(all_gather, order, 0, 64 * kKiB, doubling);
    add(all_gather, order, 16, 0, direct);
    add(all_gather, order, 0, 0, ring);
    add(broadcast, order, 2, 0, binomial);
    add(broadcast, order, 0, 64 * kKiB, binomial);
    add(broadcast, order, 0, 0, scatter_ring);
    add(scatter, order, 16, 0, direct);
    add(scatter, order, 0, 64 * kKiB, binomial);
    add(gather, order, 16, 0, direct);
    add(gather, order, 0, 64 * kKiB, binomial);
    add(all_to_all, order, 16, 0, direct);
    add(all_to_all, order, 0, 0, pairwise);
  }
  return table;
}

}  // namespace

std::string_view name_of(Order order) noexcept { return order == Order::fixed ? "fixed" : "any"; }

const AlgorithmTable& built_in_table() {
  static const AlgorithmTable table = make_built_in();
  return table;
}

bool is_possible(const Question& question, Algorithm algorithm) noexcept {
  using enum Algorithm;
  const bool power = std::has_single_bit(static_cast<unsigned>(question.ranks));
  switch (question.collective) {
    case Collective::all_reduce: return is_all_reduce_possible(question, algorithm);
    case Collective::reduce:
      return algorithm == direct || algorithm == pairwise ||
             (algorithm == tree && question.partials);
    case Collective::reduce_scatter: return algorithm == pairwise;
    case Collective::all_gather:
      return algorithm == direct || algorithm == ring || (algorithm == doubling && power);
    case Collective::broadcast: return algorithm == binomial || algorithm == scatter_ring;
    case Collective::scatter:
    case Collective::gather: return algorithm == direct || algorithm == binomial;
    case Collective::all_to_all: return algorithm == direct || algorithm == pairwise;
    case Collective::barrier: return algorithm == dissemination;
    default: return false;
  }
}

std::vector<Algorithm> candidates(const Question& question) {
  std::vector<Algorithm> all;
  for (const Algorithm algorithm : all_algorithms())
    if (is_possible(question, algorithm)) all.push_back(algorithm);
  return all;
}

Algorithm choose(const Question& question, const AlgorithmTable& table) noexcept {
  if (question.num_bytes == 0) return Algorithm::dissemination;
  for (const TableRow& row : table.rows) {
    if (row.collective != question.collective || row.order != question.order) continue;
    if (row.max_ranks != 0 && question.ranks > row.max_ranks) continue;
    if (row.max_bytes != 0 && question.num_bytes > row.max_bytes) continue;
    if (is_possible(question, row.algorithm)) return row.algorithm;
  }
  for (int i = 0; i < kNumAlgorithms; ++i)
    if (is_possible(question, static_cast<Algorithm>(i))) return static_cast<Algorithm>(i);
  return Algorithm::dissemination;
}

AlgorithmTable parse_table(std::string_view json, std::string_view origin) {
  static const std::vector<std::string> kKeys = {"tutti_algorithms", "rows"};
  const std::string place(origin);
  Json whole;
  try {
    whole = parse_json(json);
  } catch (const JsonError& error) {
    throw DataError(fmt::format("{}: not a table of algorithms: expected a JSON object: {}", place,
                                error.what()));
  }
  if (!whole.is_object())
    throw DataError(fmt::format("{}: not a table of algorithms: expected a JSON object", place));
  for (const auto& [key, value] : whole.items())
    if (key != kKeys[0] && key != kKeys[1])
      throw DataError(place + ": " + unknown_message("key", key, kKeys));
  if (whole.value(kKeys[0], Json()) != kTableVersion)
    throw DataError(fmt::format("{}: tutti_algorithms is {}; expected {}", place,
                                dump_json(whole.value(kKeys[0], Json())), kTableVersion));
  const Json rows = whole.value(kKeys[1], Json());
  if (!rows.is_array()) throw DataError(fmt::format("{}: rows: expected a list", place));
  AlgorithmTable table;
  for (size_t i = 0; i < rows.size(); ++i)
    table.rows.push_back(parse_row(rows[i], fmt::format("{}, row {}", place, i)));
  return table;
}

std::string to_json(const AlgorithmTable& table) {
  OrderedJson rows = OrderedJson::array();
  for (const TableRow& row : table.rows) {
    OrderedJson one = {{"collective", name_of(row.collective)}, {"order", name_of(row.order)}};
    if (row.max_ranks != 0) one["max_ranks"] = row.max_ranks;
    if (row.max_bytes != 0) one["max_bytes"] = row.max_bytes;
    one["algorithm"] = name_of(row.algorithm);
    rows.push_back(one);
  }
  return dump_json(OrderedJson{{"tutti_algorithms", kTableVersion}, {"rows", rows}}, 1) + "\n";
}

AlgorithmTable load_table(const std::filesystem::path& path) {
  const MappedFile file = map_file(path);
  return parse_table({reinterpret_cast<const char*>(file.bytes.data()), file.bytes.size()},
                     path.string());
}

void save_table(const AlgorithmTable& table, const std::filesystem::path& path) {
  write_file_atomically(path, to_json(table));
}

}  // namespace tutti
