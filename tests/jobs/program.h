/// The program `tutti`, as users run it, and the JSON that it writes.
#pragma once

#include <filesystem>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/support/command.h"
#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"

namespace tutti::test {

using nlohmann::json;

inline constexpr Millis kProgramLimit{240'000};

inline CommandResult tutti(const Words& words, const Words& environment = {}) {
  return run_command(Words{TUTTI_PROGRAM} + words, environment, kProgramLimit);
}

inline json json_in(const std::filesystem::path& file) { return json::parse(get_bytes(file)); }

/// Of a file with one JSON value a line.
inline std::vector<json> lines_of(const std::filesystem::path& file) {
  std::istringstream text(get_bytes(file));
  std::vector<json> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(json::parse(line));
  return lines;
}

inline std::string last_part(const std::string& log) {
  constexpr size_t kMost = 6'000;
  return log.size() <= kMost ? log : "..." + log.substr(log.size() - kMost);
}

/// Figures of a training that must succeed; `command` takes --json at its end.
inline json figures_of(const Words& command) {
  const TempFolder folder;
  const std::string file = folder / "figures.json";
  const auto result = run_command(command + Words{"--json", file}, {}, kProgramLimit);
  if (result.exit_code != 0)
    throw std::runtime_error(testing::PrintToString(command) + last_part(result.err) +
                             last_part(result.out));
  return json_in(file);
}

inline std::string sha_of(const json& figures) { return figures.at("weights_sha256"); }

}  // namespace tutti::test
