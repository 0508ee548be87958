// torchrun, and RANK and WORLD_SIZE set by hand in its manner.
#include "tutti/base/error.h"
#include "tutti/cluster/spec/resolvers/detail/resolver.h"

namespace tutti::detail {
namespace {

void check_parts(const Variables& variables, const ClusterSpec& spec) {
  if (spec.local_worker) {
    require_at_most({"LOCAL_RANK", *spec.local_worker}, {"RANK", spec.worker});
  }
  const auto group = number_in(variables, "GROUP_RANK");
  const auto groups = number_in(variables, "GROUP_WORLD_SIZE", 1);
  if (group && groups) require_below({"GROUP_RANK", *group}, {"GROUP_WORLD_SIZE", *groups});
}

// torchrun's agent listens on MASTER_PORT itself, so its workers meet on another port there.
void read_rendezvous(const Variables& variables, bool agent_listens, ClusterSpec& spec) {
  const std::string* host = value_of(variables, "MASTER_ADDR");
  if (host == nullptr) {
    spec.notes.emplace_back("MASTER_ADDR is not set: give TUTTI_RENDEZVOUS=HOST:PORT");
    return;
  }
  const int master_port = needed_number(variables, "MASTER_PORT", "MASTER_ADDR", 1);
  require_at_most({"MASTER_PORT", master_port}, {"the highest port", 65535});
  const std::string text = HostPort{*host, static_cast<uint16_t>(master_port)}.text();
  const auto address = parse_host_port(text, "MASTER_ADDR and MASTER_PORT");
  if (!agent_listens) {
    spec.rendezvous = address;
    return;
  }
  spec.rendezvous = HostPort{address.host, derived_port(spec.job)};
  spec.notes.push_back(fmt::format("port {} is made from the job's id: torchrun itself uses {}",
                                   spec.rendezvous->port, master_port));
}

}  // namespace

std::optional<Claim> torchrun_claim(const Variables& variables) {
  const auto rank = number_in(variables, "RANK");
  const bool sized = value_of(variables, "WORLD_SIZE") != nullptr;
  const std::string sign = first_set(variables, {"TORCHELASTIC_RUN_ID", "MASTER_ADDR"});
  // Both names are common: one of them alone means nothing unless more of torchrun's are there.
  if (!rank && !sized) return std::nullopt;
  if ((!rank || !sized) && sign.empty()) return std::nullopt;

  Claim claim{.number_variable = "RANK", .size_variable = "WORLD_SIZE"};
  ClusterSpec& spec = claim.spec;
  read_numbers(variables, claim, "LOCAL_RANK", "LOCAL_WORLD_SIZE");
  check_parts(variables, spec);

  const std::string* run = value_of(variables, "TORCHELASTIC_RUN_ID");
  const std::string* port = value_of(variables, "MASTER_PORT");
  const auto restarts = number_in(variables, "TORCHELASTIC_RESTART_COUNT");
  claim.kind = run == nullptr ? Claim::Kind::given : Claim::Kind::launcher;
  spec.source = run == nullptr ? "RANK and WORLD_SIZE" : "torchrun";
  // The id of a run is "none" unless given: the port tells two such jobs apart.
  std::string job = fmt::format("torchrun-{}-{}", run == nullptr ? "none" : *run,
                                port == nullptr ? "none" : *port);
  if (restarts && *restarts > 0) job += fmt::format("-restart{}", *restarts);
  spec.job = job_name(variables, job);
  const std::string* store = value_of(variables, "TORCHELASTIC_USE_AGENT_STORE");
  read_rendezvous(variables, store != nullptr && *store != "False", spec);
  return claim;
}

}  // namespace tutti::detail
