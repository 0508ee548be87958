/// Measurements as programs of their own, one after another, so that each starts the same; and what
/// stands beside every result.
/// Thread rule: the main thread alone.
#pragma once

#include <filesystem>
#include <string>

#include "tutti/base/json.h"
#include "tutti/cli/bench/step.h"

namespace tutti::cli {

/// This program's file.
std::filesystem::path own_program();

/// The first line of `output` that has a JSON object, as that object. Error when there is none.
Json json_in(const std::string& output);

/// Runs `PROGRAM bench step` with these flags as a process of its own; its JSON.
Json run_step(const std::filesystem::path& program, const StepFlags& flags);

/// commit of the checkout that this program is in, machine, cores, compiler, torch: what a result
/// means nothing without.
OrderedJson surroundings();

}  // namespace tutti::cli
