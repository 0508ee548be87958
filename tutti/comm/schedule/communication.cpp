#include "tutti/comm/schedule/communication.h"

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/suggest.h"

namespace tutti {
namespace {

constexpr int64_t kLeastPack = 64, kMostPack = 1 << 30;  // bytes

// Those that ring and tree choose come first; the rest decides of what they cannot do.
AlgorithmTable with_algorithm(const std::string& name, const AlgorithmTable& table) {
  const bool ring = name == "ring";
  AlgorithmTable whole;
  const auto add = [&](Collective collective, Algorithm algorithm) {
    for (const Order order : {Order::fixed, Order::any})
      whole.rows.push_back({.collective = collective, .order = order, .algorithm = algorithm});
  };
  add(Collective::all_reduce, ring ? Algorithm::ring : Algorithm::tree);
  if (!ring) add(Collective::reduce, Algorithm::tree);
  whole.rows.insert(whole.rows.end(), table.rows.begin(), table.rows.end());
  return whole;
}

}  // namespace

const std::vector<std::string>& communication_names() {
  static const std::vector<std::string> names = {"auto", "ring", "tree", "shm",
                                                 "tcp",  "hier", "mpi",  "nccl"};
  return names;
}

void check_communication(const CommunicationOptions& options) {
  const auto& names = communication_names();
  if (std::find(names.begin(), names.end(), options.implementation) == names.end())
    throw UsageError(fmt::format(
        "--communication {}: {}", options.implementation,
        unknown_message("implementation of communication", options.implementation, names)));
  if (options.implementation == "ring" && options.order == Order::fixed)
    throw UsageError(
        "--communication ring with --sum-order fixed: a ring adds in an order of its own; expected "
        "--sum-order any, or tree, tcp or auto, which add in the fixed order");
  if (options.bytes_per_pack != 0 &&
      (options.bytes_per_pack < kLeastPack || options.bytes_per_pack > kMostPack))
    throw UsageError(fmt::format("bytes_per_pack is {}; expected {} to {}, or 0: as fits",
                                 options.bytes_per_pack, kLeastPack, kMostPack));
  if (options.timeout < Millis{0})
    throw UsageError(
        fmt::format("the timeout of communication is {} ms; expected 1 or more, or 0: "
                    "the time limit of the strategy",
                    options.timeout.count()));
}

CommunicationPlan plan_of(const CommunicationOptions& options, const AlgorithmTable& table) {
  const std::string& name = options.implementation;
  const bool by_algorithm = name == "ring" || name == "tree";
  return {.engine = by_algorithm ? "tcp" : name,
          .algorithm = by_algorithm ? name : "",
          .order = options.order.value_or(name == "ring" ? Order::any : Order::fixed),
          .table = by_algorithm ? with_algorithm(name, table) : table};
}

std::string sentence_of(const CommunicationFacts& facts) {
  return fmt::format("{}{}, since {}; sums in {} order",
                     facts.engine == "none" ? "nothing is exchanged" : "engine " + facts.engine,
                     facts.algorithm.empty() ? "" : ", all-reduces by " + facts.algorithm,
                     facts.why, facts.order == Order::fixed ? "the fixed" : "any");
}

}  // namespace tutti
