#include "tutti/cluster/spec/cluster_spec.h"

#include <unistd.h>

#include <algorithm>
#include <array>

#include "tutti/base/error.h"
#include "tutti/cluster/spec/detail/environment.h"
#include "tutti/cluster/spec/resolvers/detail/resolver.h"
#include "tutti/net/token.h"

namespace tutti {
namespace {

using detail::Claim;

/// Every launcher whose variables are set, in the order in which they are taken.
std::vector<Claim> claims_in(const Variables& variables) {
  constexpr std::array kResolvers = {
      detail::tutti_run_claim,  detail::torchrun_claim, detail::tf_config_claim,
      detail::open_mpi_claim,   detail::pmi_claim,      detail::slurm_claim,
      detail::kubernetes_claim, detail::pmix_claim,
  };
  std::vector<Claim> claims;
  for (const auto resolver : kResolvers) {
    if (auto claim = resolver(variables)) claims.push_back(std::move(*claim));
  }
  return claims;
}

/// "RANK=1, WORLD_SIZE=4 (torchrun)".
std::string words(const Claim& claim) {
  const ClusterSpec& spec = claim.spec;
  if (spec.worker < 0) {
    return fmt::format("{} {} beside {} workers ({})", name_of(spec.kind), spec.task,
                       spec.num_workers, spec.source);
  }
  std::string text = fmt::format("{}={}", claim.number_variable, spec.worker);
  if (!claim.size_variable.empty()) {
    text += fmt::format(", {}={}", claim.size_variable, spec.num_workers);
  }
  return fmt::format("{} ({})", text, spec.source);
}

bool agree(const Claim& a, const Claim& b) {
  const int sizes[] = {a.spec.num_workers, b.spec.num_workers};
  return a.spec.worker == b.spec.worker && (sizes[0] == sizes[1] || sizes[0] == 0 || sizes[1] == 0);
}

/// Whether `outer` may say something else, since `inner` was started inside of it.
bool stands_inside(const Claim& inner, const Claim& outer) {
  if (inner.kind != Claim::Kind::launcher) return false;
  return outer.kind == Claim::Kind::scheduler || inner.spec.num_workers > outer.spec.num_workers;
}

/// Servers and evaluators of TF_CONFIG are processes that other launchers count as their own.
bool has_other_tasks(const Claim& claim) {
  return !claim.spec.servers.empty() || claim.spec.kind != TaskKind::worker;
}

void reconcile(Claim& taken, const Claim& other) {
  if (has_other_tasks(taken)) {
    taken.spec.notes.push_back(
        fmt::format("{} is not compared: it counts servers too", words(other)));
    return;
  }
  if (agree(taken, other) && !has_other_tasks(other)) {
    ClusterSpec& spec = taken.spec;
    if (spec.num_workers == 0) {
      spec.num_workers = other.spec.num_workers;
      taken.size_variable = other.size_variable;
    }
    if (!spec.rendezvous) spec.rendezvous = other.spec.rendezvous;
    if (!spec.local_worker) spec.local_worker = other.spec.local_worker;
    if (!spec.num_local_workers) spec.num_local_workers = other.spec.num_local_workers;
    if (spec.job.empty()) spec.job = other.spec.job;
    spec.notes.push_back(fmt::format("{} agrees", words(other)));
    return;
  }
  if (stands_inside(taken, other) && !has_other_tasks(other)) {
    taken.spec.notes.push_back(fmt::format("started inside {}", words(other)));
    return;
  }
  throw UsageError(
      fmt::format("{} contradicts {}\n  unset the variables of the launcher that did "
                  "not start this process",
                  words(taken), words(other)));
}

/// The size where the launcher does not say it (Kubernetes, PMIx).
void find_size(const Variables& variables, Claim& claim) {
  if (claim.spec.num_workers != 0) return;
  const auto size = detail::number_in(variables, detail::kNumWorkersVariable, 1);
  if (!size) {
    throw UsageError(fmt::format(
        "{}={} is set, but nothing says how many workers there are: set {} (1 for a process that "
        "works alone)",
        claim.number_variable, claim.spec.worker, detail::kNumWorkersVariable));
  }
  claim.size_variable = detail::kNumWorkersVariable;
  claim.spec.num_workers = *size;
  if (*size == 1 && claim.spec.worker != 0) {
    claim.spec.notes.push_back(fmt::format("{}=1: works alone, whatever {}={} counts",
                                           detail::kNumWorkersVariable, claim.number_variable,
                                           claim.spec.worker));
    claim.spec.worker = claim.spec.task = 0;
  }
  detail::require_below({claim.number_variable, claim.spec.worker},
                        {claim.size_variable, claim.spec.num_workers});
}

/// A number of workers that was given for a launcher which knows its own has to be the same.
void check_given_size(const Variables& variables, const Claim& claim) {
  const auto size = detail::number_in(variables, detail::kNumWorkersVariable, 1);
  if (!size || *size == claim.spec.num_workers) return;
  throw UsageError(
      fmt::format("{}={} contradicts {}", detail::kNumWorkersVariable, *size, words(claim)));
}

/// What may be given by hand for every launcher.
void read_given(const Variables& variables, ClusterSpec& spec) {
  if (const auto* place = detail::value_of(variables, detail::kRendezvousVariable)) {
    const HostPort given = parse_host_port(*place, detail::kRendezvousVariable);
    if (spec.rendezvous && *spec.rendezvous != given) {
      spec.notes.push_back(fmt::format("{}={} is taken instead of {}", detail::kRendezvousVariable,
                                       given.text(), spec.rendezvous->text()));
    }
    spec.rendezvous = given;
  }
  const auto* file = detail::value_of(variables, kTokenFileVariable);
  spec.token_file = file == nullptr ? "" : *file;
  spec.token_in_environment = detail::value_of(variables, kTokenVariable) != nullptr;
}

void append_tasks(std::string& text, const char* name, const std::vector<ClusterTask>& tasks) {
  for (const ClusterTask& task : tasks) {
    text += fmt::format("\n  {:<11} {} at {}", name, task.index, task.address.text());
  }
}

}  // namespace

Variables environment_variables() {
  Variables variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view line(*entry);
    const size_t equals = line.find('=');
    if (equals == std::string_view::npos || equals == 0) continue;
    variables.emplace(line.substr(0, equals), line.substr(equals + 1));
  }
  return variables;
}

std::string_view name_of(TaskKind kind) noexcept {
  constexpr std::string_view kNames[] = {"worker", "server", "evaluator"};
  return kNames[static_cast<size_t>(kind)];
}

uint16_t derived_port(std::string_view job) noexcept {
  constexpr uint64_t kFirst = 20'000;
  constexpr uint64_t kPorts = 10'000;
  return static_cast<uint16_t>(kFirst + detail::stable_hash(job) % kPorts);
}

std::optional<ClusterSpec> cluster_spec(const Variables& variables) {
  std::vector<Claim> claims = claims_in(variables);
  if (claims.empty()) {
    if (const auto* size = detail::value_of(variables, detail::kNumWorkersVariable)) {
      throw UsageError(
          fmt::format("{}={} is set, but nothing says which worker this is: start "
                      "workers with `tutti run`",
                      detail::kNumWorkersVariable, *size));
    }
    return std::nullopt;
  }
  Claim& taken = claims.front();
  for (size_t i = 1; i < claims.size(); ++i) reconcile(taken, claims[i]);
  find_size(variables, taken);
  if (taken.spec.worker >= 0) check_given_size(variables, taken);
  read_given(variables, taken.spec);
  return taken.spec;
}

bool on_one_host(const ClusterSpec& spec) {
  if (spec.num_local_workers == spec.num_workers) return true;
  if (spec.workers.empty()) return spec.rendezvous && spec.rendezvous->is_loopback();
  const HostPort& first = spec.workers.front().address;
  return std::ranges::all_of(spec.workers, [&](const ClusterTask& worker) {
    return worker.address.host == first.host ||
           (worker.address.is_loopback() && first.is_loopback());
  });
}

std::string to_string(const ClusterSpec& spec) {
  std::string text =
      spec.kind == TaskKind::worker
          ? fmt::format("worker {} of {}", spec.worker, spec.num_workers)
          : fmt::format("{} {} beside {} workers", name_of(spec.kind), spec.task, spec.num_workers);
  text += fmt::format(", as {} says", spec.source);
  const auto row = [&](const char* name, const std::string& value) {
    text += fmt::format("\n  {:<11} {}", name, value);
  };
  row("job", spec.job.empty() ? "without an id" : spec.job);
  if (spec.local_worker && spec.num_local_workers) {
    row("on its host", fmt::format("worker {} of {}", *spec.local_worker, *spec.num_local_workers));
  } else if (spec.local_worker) {
    row("on its host", fmt::format("worker {}", *spec.local_worker));
  }
  if (spec.rendezvous) row("rendezvous", spec.rendezvous->text());
  append_tasks(text, "worker", spec.workers);
  append_tasks(text, "server", spec.servers);
  append_tasks(text, "evaluator", spec.evaluators);
  if (!spec.token_file.empty()) row("token", "in the file " + spec.token_file);
  if (spec.token_in_environment) row("token", fmt::format("in {}", kTokenVariable));
  const bool given = !spec.token_file.empty() || spec.token_in_environment;
  if (spec.rendezvous && spec.num_workers > 1 && !given && on_one_host(spec))
    row("token", "none is needed: all are on one host, where they draw one");
  for (const std::string& note : spec.notes) row("note", note);
  return text;
}

}  // namespace tutti
