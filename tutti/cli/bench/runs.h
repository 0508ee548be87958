/// What `bench scale` and `bench compare` share: measurements as programs of their own, one after
/// another, so that each starts the same; and what stands beside every result.
/// Thread rule: the main thread alone.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tutti/cli/bench/step.h"

namespace tutti::cli {

/// This program's file.
std::filesystem::path own_program();

/// The checkout that holds bench/peer, seen from this program's folder and from the working one.
/// Programs of it are run: it belongs to whom this program does, or to this user. UsageError when
/// there is none.
std::filesystem::path checkout();

/// `folder`, or the nearest above it, that holds bench/peer and belongs to one of these users;
/// empty: none.
std::filesystem::path checkout_above(std::filesystem::path folder,
                                     const std::vector<uint32_t>& owners);

/// The name of a file that is not there yet, in a new folder that is this user's alone: programs
/// are compiled to it, and run. What somebody puts there is gone with this object.
class ScratchFile {
 public:
  ScratchFile();
  ~ScratchFile();
  ScratchFile(const ScratchFile&) = delete;
  std::string path() const { return (folder_ / "file").string(); }

 private:
  std::filesystem::path folder_;
};

/// The first line of `output` that has a JSON object, as that object. Error when there is none.
nlohmann::json json_in(const std::string& output);

/// Runs `tutti bench step` with these flags as a process of its own; its JSON.
nlohmann::json run_step(const StepFlags& flags);

/// commit, machine, cores, compiler, torch: what a result means nothing without.
nlohmann::ordered_json surroundings();

}  // namespace tutti::cli
