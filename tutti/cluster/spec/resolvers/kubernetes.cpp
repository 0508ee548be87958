// Kubernetes indexed jobs: the index comes from Kubernetes, the size and the address of pod 0 from
// the manifest (TUTTI_NUM_WORKERS, TUTTI_RENDEZVOUS), since no variable holds them.
#include "tutti/base/error.h"
#include "tutti/cluster/spec/detail/environment.h"
#include "tutti/cluster/spec/resolvers/detail/resolver.h"

namespace tutti::detail {

std::optional<Claim> kubernetes_claim(const Variables& variables) {
  const auto index = number_in(variables, "JOB_COMPLETION_INDEX");
  if (!index) return std::nullopt;
  Claim claim{.kind = Claim::Kind::scheduler, .number_variable = "JOB_COMPLETION_INDEX"};
  ClusterSpec& spec = claim.spec;
  spec.source = "Kubernetes";
  spec.worker = spec.task = *index;
  spec.num_workers = 0;
  // The host name of an indexed pod is NAME_OF_THE_JOB-INDEX.
  const std::string* host = value_of(variables, "HOSTNAME");
  const std::string tail = fmt::format("-{}", *index);
  std::string job;
  if (host != nullptr && host->size() > tail.size() && host->ends_with(tail)) {
    job = "k8s-" + host->substr(0, host->size() - tail.size());
  }
  spec.job = job_name(variables, job);
  spec.local_worker = 0;
  spec.num_local_workers = 1;
  if (value_of(variables, kRendezvousVariable) == nullptr) {
    spec.notes.emplace_back(
        "Kubernetes does not say where pod 0 is: set TUTTI_RENDEZVOUS to JOB-0.SERVICE:PORT with a "
        "headless service");
  }
  return claim;
}

}  // namespace tutti::detail
