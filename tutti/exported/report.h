/// What of a .pt2 file trains here, and why not: known before a step. `tutti inspect` shows it.
/// Thread rule: values, and pure functions.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tutti/pt2/program.h"

namespace tutti::exported {

struct OperatorCount {
  std::string name;  ///< "aten::conv2d", "higher_order.cond", "_operator.mul"
  int64_t count = 0;
};

/// A node that is not run: another namespace than aten, an operator that is not served (those that
/// reach files or memory by address, loops of higher order), one that this LibTorch does not have,
/// or arguments that are not of its schema.
struct NotServed {
  std::string name;    ///< as OperatorCount's
  std::string reason;  ///< "reads and writes files"
  std::string line;    ///< of Python; may be empty
};

struct Report {
  std::vector<OperatorCount> operators;  ///< the most frequent first; of graphs within it too
  std::vector<NotServed> not_served;     ///< in the order of the graph; empty: it trains
  /// Nodes that behave otherwise in training: "aten::dropout" and where. Empty: the same graph
  /// serves evaluation.
  std::vector<NotServed> differs_in_evaluation;
  int64_t trained_elements = 0, frozen_elements = 0;  ///< of parameters, tied ones once
  int64_t buffer_elements = 0;
};

Report report_of(const pt2::Program& program);

/// UsageError that lists what is not served, each with its reason and Python line, and the file.
void require_served(const Report& report, const std::filesystem::path& path);

}  // namespace tutti::exported
