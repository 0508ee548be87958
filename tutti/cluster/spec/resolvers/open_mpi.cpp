// Open MPI's mpirun. Its variables do not name the host of rank 0.
#include "tutti/base/error.h"
#include "tutti/cluster/spec/resolvers/detail/resolver.h"

namespace tutti::detail {

std::optional<Claim> open_mpi_claim(const Variables& variables) {
  const auto rank = number_in(variables, "OMPI_COMM_WORLD_RANK");
  if (!rank) return std::nullopt;
  Claim claim{.number_variable = "OMPI_COMM_WORLD_RANK", .size_variable = "OMPI_COMM_WORLD_SIZE"};
  ClusterSpec& spec = claim.spec;
  spec.source = "Open MPI";
  spec.mpi = true;
  spec.worker = spec.task = *rank;
  spec.num_workers = needed_number(variables, claim.size_variable, claim.number_variable, 1);
  require_below({claim.number_variable, spec.worker}, {claim.size_variable, spec.num_workers});
  spec.local_worker = number_in(variables, "OMPI_COMM_WORLD_LOCAL_RANK");
  spec.num_local_workers = number_in(variables, "OMPI_COMM_WORLD_LOCAL_SIZE", 1);
  if (spec.local_worker && spec.num_local_workers) {
    require_below({"OMPI_COMM_WORLD_LOCAL_RANK", *spec.local_worker},
                  {"OMPI_COMM_WORLD_LOCAL_SIZE", *spec.num_local_workers});
  }
  if (spec.num_local_workers) {
    require_at_most({"OMPI_COMM_WORLD_LOCAL_SIZE", *spec.num_local_workers},
                    {claim.size_variable, spec.num_workers});
  }

  const std::string id = first_set(variables, {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"});
  spec.job = job_name(variables, id.empty() ? "" : "mpi-" + *value_of(variables, id));
  meet_here_if_alone(
      spec,
      "Open MPI does not say where rank 0 is: give mpirun -x TUTTI_RENDEZVOUS=HOST:PORT, or use "
      "engine mpi");
  return claim;
}

}  // namespace tutti::detail
