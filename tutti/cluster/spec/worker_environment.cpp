#include "tutti/cluster/spec/worker_environment.h"

#include <fcntl.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/typed.h"
#include "tutti/cluster/spec/detail/environment.h"

namespace tutti {
namespace {

int number_in(const char* variable) {
  const char* text = std::getenv(variable);
  const auto value = tutti::number_in<int>(text);
  if (!value || *value < 0) {
    throw UsageError(fmt::format("{}=\"{}\": expected a number from 0 on, as `tutti run` sets it",
                                 variable, text));
  }
  return *value;
}

int descriptor_in(const char* variable) {
  const int fd = number_in(variable);
  // Programs that this one starts are not workers of the job: they do not inherit it.
  if (fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
    throw UsageError(fmt::format(
        "{}={}: {}. Only programs that `tutti run` starts itself are workers; unset {} for others",
        variable, fd, errno_words(errno), detail::kWorkerVariable));
  }
  return fd;
}

}  // namespace

std::optional<WorkerEnvironment> worker_environment() {
  using namespace detail;
  std::vector<std::string> there;
  std::vector<std::string> missing;
  for (const char* variable :
       {kWorkerVariable, kNumWorkersVariable, kJobVariable, kLifelineVariable}) {
    (std::getenv(variable) != nullptr ? there : missing).emplace_back(variable);
  }
  if (std::getenv(kWorkerVariable) == nullptr && std::getenv(kNumWorkersVariable) == nullptr) {
    return std::nullopt;
  }
  if (!missing.empty()) {
    throw UsageError(fmt::format("{} set, but {} not: start workers with `tutti run`",
                                 fmt::join(there, ", "), fmt::join(missing, ", ")));
  }
  WorkerEnvironment found;
  found.worker = number_in(kWorkerVariable);
  found.num_workers = number_in(kNumWorkersVariable);
  found.job = std::getenv(kJobVariable);
  if (found.worker >= found.num_workers) {
    throw UsageError(fmt::format("{}={} contradicts {}={}: workers count from 0", kWorkerVariable,
                                 found.worker, kNumWorkersVariable, found.num_workers));
  }
  found.lifeline_fd = descriptor_in(kLifelineVariable);
  if (std::getenv(kStepsVariable) != nullptr) found.steps_fd = descriptor_in(kStepsVariable);
  if (std::getenv(kLocalWorkerVariable) != nullptr)
    found.local_worker = number_in(kLocalWorkerVariable);
  // Workers of several nodes meet at a rendezvous instead.
  if (found.num_workers > 1 && std::getenv(kRendezvousVariable) == nullptr) {
    if (std::getenv(kSegmentVariable) == nullptr) {
      throw UsageError(fmt::format("{}={}, but {} is not set: start workers with `tutti run`",
                                   kNumWorkersVariable, found.num_workers, kSegmentVariable));
    }
    found.segment_fd = descriptor_in(kSegmentVariable);
  }
  return found;
}

}  // namespace tutti
