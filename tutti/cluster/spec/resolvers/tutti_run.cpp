// `tutti run`: TUTTI_WORKER of TUTTI_NUM_WORKERS. The rest (job, rendezvous, token) may be given by
// hand to workers of any launcher, so cluster_spec.cpp reads it.
#include "tutti/cluster/spec/detail/environment.h"
#include "tutti/cluster/spec/resolvers/detail/resolver.h"

namespace tutti::detail {

std::optional<Claim> tutti_run_claim(const Variables& variables) {
  const auto worker = number_in(variables, kWorkerVariable);
  // TUTTI_NUM_WORKERS alone is the size of a job whose launcher does not say it.
  if (!worker) return std::nullopt;
  Claim claim{.number_variable = kWorkerVariable, .size_variable = kNumWorkersVariable};
  ClusterSpec& spec = claim.spec;
  spec.source = "tutti run";
  spec.worker = spec.task = *worker;
  spec.num_workers = needed_number(variables, kNumWorkersVariable, kWorkerVariable, 1);
  require_below({kWorkerVariable, spec.worker}, {kNumWorkersVariable, spec.num_workers});
  spec.job = job_name(variables, "");
  spec.local_worker = number_in(variables, kLocalWorkerVariable);
  if (spec.local_worker) {
    require_at_most({kLocalWorkerVariable, *spec.local_worker}, {kWorkerVariable, spec.worker});
  }
  spec.num_local_workers = number_in(variables, kNumLocalWorkersVariable, 1);
  if (spec.local_worker && spec.num_local_workers) {
    require_below({kLocalWorkerVariable, *spec.local_worker},
                  {kNumLocalWorkersVariable, *spec.num_local_workers});
  }
  if (spec.num_local_workers) {
    require_at_most({kNumLocalWorkersVariable, *spec.num_local_workers},
                    {kNumWorkersVariable, spec.num_workers});
  }
  return claim;
}

}  // namespace tutti::detail
