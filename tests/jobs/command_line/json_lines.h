/// Files of one JSON value a line.
#pragma once

#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/support/temp_folder.h"

namespace tutti::test {

inline std::vector<nlohmann::json> lines_of(const std::filesystem::path& file) {
  std::istringstream text(get_bytes(file));
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

}  // namespace tutti::test
