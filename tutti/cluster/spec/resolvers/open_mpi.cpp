// Open MPI's mpirun. Its variables do not name the host of rank 0.
#include "tutti/cluster/spec/resolvers/detail/resolver.h"

namespace tutti::detail {

std::optional<Claim> open_mpi_claim(const Variables& variables) {
  if (value_of(variables, "OMPI_COMM_WORLD_RANK") == nullptr) return std::nullopt;
  Claim claim{.number_variable = "OMPI_COMM_WORLD_RANK", .size_variable = "OMPI_COMM_WORLD_SIZE"};
  ClusterSpec& spec = claim.spec;
  spec.source = "Open MPI";
  spec.mpi = true;
  read_numbers(variables, claim, "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE");
  const std::string id = first_set(variables, {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"});
  spec.job = job_name(variables, id.empty() ? "" : "mpi-" + *value_of(variables, id));
  meet_here_if_alone(
      spec,
      "Open MPI does not say where rank 0 is: give mpirun -x TUTTI_RENDEZVOUS=HOST:PORT, or use "
      "engine mpi");
  return claim;
}

}  // namespace tutti::detail
