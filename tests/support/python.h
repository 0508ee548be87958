// Runs Python of the repository's virtual environment, to compare with the formats' own libraries.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <string>

#include "tests/support/temp_folder.h"

namespace tutti::test {

class Python {
 public:
  /// Looks for .venv/bin/python with `module` (tests run in the repository's root).
  explicit Python(const std::string& module) {
    if (!std::filesystem::exists(kProgram)) {
      why_not_ = "no .venv/bin/python";
    } else if (shell("import " + module).code != 0) {
      why_not_ = "no Python module " + module + " in .venv";
    }
  }

  /// Empty when Python can run, else what is missing.
  const std::string& why_not() const { return why_not_; }

  /// Runs a script; the test fails with its output when it does not end well.
  void run(const std::string& script) const {
    const Result result = shell(script);
    EXPECT_EQ(result.code, 0) << script << "\n" << result.output;
  }

 private:
  static constexpr const char* kProgram = ".venv/bin/python";

  struct Result {
    int code = -1;
    std::string output;
  };

  static Result shell(const std::string& script) {
    const TempFolder folder;
    put_bytes(folder / "script.py", script);
    Result result;
    const std::string command =
        std::string(kProgram) + " " + (folder / "script.py").string() + " 2>&1";
    FILE* pipe = ::popen(command.c_str(), "r");
    if (pipe == nullptr) return result;
    char buffer[512];
    while (std::fgets(buffer, sizeof buffer, pipe) != nullptr) result.output += buffer;
    result.code = ::pclose(pipe);
    return result;
  }

  std::string why_not_;
};

}  // namespace tutti::test
