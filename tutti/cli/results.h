/// What commands print on standard output, and in files of JSON, of names that others have chosen:
/// files, columns, classes.
/// Thread rule: as that of the stream.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>

#include "tutti/base/json.h"
#include "tutti/base/printable.h"

namespace tutti::cli {

/// A line of results, printable() as errors and log lines are; flush_results() sees to it that it
/// has gone out.
template <class... Args>
void print_line(fmt::format_string<Args...> format, Args&&... args) {
  fmt::print("{}\n", printable(fmt::format(format, std::forward<Args>(args)...)));
}

/// `json` as text: bytes of names that are no UTF-8 become U+FFFD, one each.
inline std::string json_text(const OrderedJson& json, int indent = -1) {
  return dump_json_lossy(json, indent);
}

}  // namespace tutti::cli
