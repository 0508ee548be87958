/// What `bench scale` and `bench compare` share: measurements as programs of their own, one after
/// another, so that each starts the same; and what stands beside every result.
/// Thread rule: the main thread alone.
#pragma once

#include <filesystem>
#include <string>

#include <nlohmann/json.hpp>

#include "tutti/cli/bench/step.h"

namespace tutti::cli {

/// This program's file.
std::filesystem::path own_program();

/// The checkout that holds bench/peer, seen from this program's folder and from the working one.
/// UsageError when there is none.
std::filesystem::path checkout();

/// The name of a file in the temporary folder that is not there yet; what somebody puts there is
/// gone with this object.
class ScratchFile {
 public:
  ScratchFile();
  ~ScratchFile();
  ScratchFile(const ScratchFile&) = delete;
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

/// The first line of `output` that has a JSON object, as that object. Error when there is none.
nlohmann::json json_in(const std::string& output);

/// Runs `tutti bench step` with these flags as a process of its own; its JSON.
nlohmann::json run_step(const StepFlags& flags);

/// commit, machine, cores, compiler, torch: what a result means nothing without.
nlohmann::ordered_json surroundings();

}  // namespace tutti::cli
