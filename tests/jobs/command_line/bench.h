/// `tutti bench` and the lines that it writes.
#pragma once

#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/support/command.h"
#include "tests/support/temp_folder.h"

namespace tutti::test {

using Words = std::vector<std::string>;

inline CommandResult bench(Words words, const std::vector<std::string>& environment = {}) {
  words.insert(words.begin(), {TUTTI_PROGRAM, "bench"});
  return run_command(words, environment, Millis{280'000});
}

inline std::vector<nlohmann::json> lines_of(const std::filesystem::path& file) {
  std::istringstream text(get_bytes(file));
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

}  // namespace tutti::test
