/// Measurements of a machine, as `tutti plan measure` writes them.
#pragma once

#include <fstream>
#include <string>

#include "tests/support/temp_folder.h"

namespace tutti::test {

/// One that a user might write by hand.
inline constexpr const char* kMachine = R"({"tutti_machine": 1, "name": "one", "model": "mlp",
  "parameters": 1000000, "bytes": 4000000, "largest_parameter": 40000,
  "compute": [{"batch": 8, "forward": 0.001, "backward": 0.002}], "jitter": [0.9, 1, 1.2],
  "update": 0.0005, "update_streams": 7, "input": 0, "cores": 2,
  "core_memory_rate": 1e10, "memory_rate": 2e10,
  "memory": 1000000000, "fixed_memory": 1e8, "sample_memory": 1e6,
  "shm": {"latency": 1e-6, "bytes_per_second": 1e10},
  "tcp": {"latency": 1e-5, "bytes_per_second": 1e9},
  "payload": 0.94, "compute_error": 0.03, "communication_error": 0.06})";

inline std::string machine_in(const TempFolder& folder) {
  std::ofstream(folder / "one.json") << kMachine;
  return folder / "one.json";
}

/// The same, with a link that somebody has written.
inline std::string linked_machine_in(const TempFolder& folder, const std::string& link) {
  std::string json = kMachine;
  json.insert(json.rfind('}'), ", \"link\": " + link);
  std::ofstream(folder / "linked.json") << json;
  return folder / "linked.json";
}

}  // namespace tutti::test
