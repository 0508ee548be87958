// PMI (MPICH's and Intel's mpiexec, srun --mpi=pmi2) and PMIx, which says a rank and no size.
#include "tutti/cluster/spec/resolvers/detail/resolver.h"

namespace tutti::detail {

std::optional<Claim> pmi_claim(const Variables& variables) {
  if (value_of(variables, "PMI_RANK") == nullptr) return std::nullopt;
  Claim claim{.number_variable = "PMI_RANK", .size_variable = "PMI_SIZE"};
  ClusterSpec& spec = claim.spec;
  spec.source = "PMI";
  // Slurm speaks PMI to any program, and an MPI library that does not speak it ends the process.
  spec.mpi = value_of(variables, "SLURM_JOB_ID") == nullptr;
  read_numbers(variables, claim, "MPI_LOCALRANKID", "MPI_LOCALNRANKS");
  const std::string* id = value_of(variables, "PMI_JOBID");
  spec.job = job_name(variables, id == nullptr ? "" : "pmi-" + *id);
  meet_here_if_alone(
      spec,
      "PMI does not say where rank 0 is: set TUTTI_RENDEZVOUS=HOST:PORT and TUTTI_JOB for all "
      "ranks, or use engine mpi");
  return claim;
}

std::optional<Claim> pmix_claim(const Variables& variables) {
  const auto rank = number_in(variables, "PMIX_RANK");
  if (!rank) return std::nullopt;
  Claim claim{.kind = Claim::Kind::scheduler, .number_variable = "PMIX_RANK"};
  ClusterSpec& spec = claim.spec;
  spec.source = "PMIx";
  spec.worker = spec.task = *rank;
  spec.num_workers = 0;
  const std::string* id = value_of(variables, "PMIX_NAMESPACE");
  spec.job = job_name(variables, id == nullptr ? "" : "pmix-" + *id);
  return claim;
}

}  // namespace tutti::detail
