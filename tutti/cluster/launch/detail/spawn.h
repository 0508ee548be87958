/// Starts one worker by fork and exec, safely in a process that has threads, finds programs and
/// makes ids. Thread rule: the thread that launches: a worker gets SIGKILL when this thread ends.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "tutti/base/file_descriptor.h"

namespace tutti::detail {

/// The path of a program: as given when it contains '/', else searched in PATH. Throws UsageError
/// when it is not there (a near name in the same folder is offered), not a file, not executable, or
/// a script whose first line ends in CR LF or names an interpreter that is not there.
std::string find_program(const std::string& name);

/// 16 hex digits, for what is to be told from all else: a job, a launch.
std::string random_id();

struct SpawnPlan {
  std::string path;
  std::vector<std::string> arguments;    ///< argv, the program's name first
  std::vector<std::string> environment;  ///< NAME=value, the whole environment
  int output = -1;                       ///< becomes stdout
  int errors = -1;                       ///< becomes stderr
  std::vector<int> inherited;            ///< stay open under their numbers
};

struct Spawned {
  pid_t pid = -1;
  FileDescriptor pidfd;  ///< readable once the process has ended
};

/// Starts it: stdin is /dev/null, a process group of its own, default signal handling, SIGKILL when
/// the launching thread dies. Throws UsageError when the kernel cannot execute the file.
Spawned spawn(const SpawnPlan& plan);

}  // namespace tutti::detail
