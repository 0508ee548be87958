/// Numbers in JSON that is read back: JSON has none that is not finite, and dump() writes null for
/// it, which is no number when it is read. What is only shown to people may stay null.
/// Thread rule: pure functions.
#pragma once

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tutti/base/json.h"

namespace tutti {

/// The number, or "nan", "inf", "-inf".
inline Json json_of(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

/// Each as json_of() has it.
inline Json json_of(const std::vector<double>& values) {
  Json list = Json::array();
  for (const double value : values) list.push_back(json_of(value));
  return list;
}

/// What json_of() wrote. Throws JsonError for anything else.
inline double double_from(const Json& json) {
  if (json == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (json == "inf") return std::numeric_limits<double>::infinity();
  if (json == "-inf") return -std::numeric_limits<double>::infinity();
  return json.get<double>();
}

/// A list of them. Throws as double_from(), and for what is no list.
inline std::vector<double> doubles_from(const Json& json) {
  std::vector<double> values;
  for (const Json& value : json.elements()) values.push_back(double_from(value));
  return values;
}

}  // namespace tutti
