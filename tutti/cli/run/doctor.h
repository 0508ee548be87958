/// What `tutti doctor` looks at, and the pure decision of what is wrong.
/// Thread rule: the main thread alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tutti/base/host.h"
#include "tutti/cli/run/device_facts.h"
#include "tutti/cli/run/torch_facts.h"
#include "tutti/cluster/spec/cluster_spec.h"

namespace tutti::cli {

struct Examination {
  HostFacts host;
  TorchFacts torch;
  DeviceFacts devices;
  int64_t dev_shm_bytes = 0;
  int64_t descriptor_limit = 0;        ///< open files a process
  std::string kernel;                  ///< release
  std::vector<std::string> addresses;  ///< "eth0 10.0.0.7"
  std::vector<std::string> engines;    ///< built in
  bool memfd_works = true;
  bool pidfd_works = true;
  std::optional<ClusterSpec> cluster;  ///< the job, when a launcher's variables are set
  std::string cluster_error;           ///< what is wrong with them; "" nothing
  std::string environment_error;       ///< what is wrong with what a person has set
};

/// Looks at this machine.
Examination examine();

struct Problem {
  std::string what;
  std::string cure;
  bool fatal = false;  ///< tutti cannot work at all
};

/// What is wrong with a machine, most serious first. Pure.
std::vector<Problem> problems_of(const Examination& facts);

}  // namespace tutti::cli
