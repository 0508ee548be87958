/// Where the examples and the program are built.
#pragma once

#include <filesystem>
#include <string>

namespace tutti::test {

inline const std::filesystem::path kPrograms = TUTTI_PROGRAM_DIR;

inline std::string example(const std::string& name) { return (kPrograms / name).string(); }

}  // namespace tutti::test
