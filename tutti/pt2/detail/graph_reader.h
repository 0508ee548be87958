/// Reads a graph of a program. Thread rule: one thread at a time per object.
#pragma once

#include <set>
#include <string>

#include "tutti/base/json.h"
#include "tutti/pt2/program.h"

namespace tutti::pt2::detail {

class GraphReader {
 public:
  /// `place` is what errors begin with.
  GraphReader(std::string place, const ProgramLimits& limits)
      : place_(std::move(place)), limits_(limits) {}

  /// DataError for values that are used before they are made, or made twice, and beyond the limits.
  Graph read(const Json& json) { return graph_of(json, place_, 0); }

 private:
  /// Names that values of a graph have so far; a graph within it does not see them.
  struct Scope {
    std::set<std::string> names;
    int depth = 0;
    std::string place;
  };

  Graph graph_of(const Json& json, const std::string& place, int depth);
  Node node_of(const Json& json, Scope& scope);
  NodeOutput output_of(const Json& json, Scope& scope) const;
  Argument argument_of(const Json& json, const Scope& scope);
  Argument list_of(const std::string& kind, const Json& json, const Scope& scope);
  ValueName use(const Json& name, const Scope& scope) const;
  std::string define(const Json& name, Scope& scope) const;

  std::string place_;
  ProgramLimits limits_;
  size_t nodes_ = 0;
};

}  // namespace tutti::pt2::detail
