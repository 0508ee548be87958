/// What each launcher's variables say, one function and one file a launcher; cluster_spec.cpp
/// chooses among them. Thread rule: pure functions.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/cluster/spec/cluster_spec.h"

namespace tutti::detail {

/// One launcher's word on who is in the job.
struct Claim {
  enum class Kind {
    launcher,   ///< numbers its workers itself, also where something else started it
    scheduler,  ///< may stand around a launcher
    given,      ///< written by hand or by an operator: has to agree with all others
  };
  ClusterSpec spec;  ///< num_workers is 0 when the launcher does not say
  Kind kind = Kind::launcher;
  std::string number_variable;  ///< "RANK": where spec.worker comes from
  std::string size_variable;    ///< "WORLD_SIZE"; "" when the launcher has none
};

// Nothing when their variables are not set. Each throws UsageError as cluster_spec().
std::optional<Claim> tutti_run_claim(const Variables& variables);
std::optional<Claim> torchrun_claim(const Variables& variables);
std::optional<Claim> tf_config_claim(const Variables& variables);
std::optional<Claim> open_mpi_claim(const Variables& variables);
std::optional<Claim> pmi_claim(const Variables& variables);
std::optional<Claim> slurm_claim(const Variables& variables);
std::optional<Claim> kubernetes_claim(const Variables& variables);
std::optional<Claim> pmix_claim(const Variables& variables);

/// The value of a variable; null when it is not set or empty.
const std::string* value_of(const Variables& variables, const std::string& name);

/// The first of several names that is set; "" when none is.
std::string first_set(const Variables& variables, const std::vector<std::string>& names);

/// A whole number from `low` on; nothing when the variable is not set.
std::optional<int> number_in(const Variables& variables, const std::string& name, int low = 0);

/// The same of a variable that has to be there, since `because` ("RANK") is.
int needed_number(const Variables& variables, const std::string& name, const std::string& because,
                  int low = 0);

/// A number with the variable from which it comes.
struct NamedNumber {
  std::string_view variable;
  int value = 0;
};

/// Throws UsageError unless number < size: "RANK=4 contradicts WORLD_SIZE=4: ...".
void require_below(const NamedNumber& number, const NamedNumber& size);

/// Throws UsageError unless number <= most.
void require_at_most(const NamedNumber& number, const NamedNumber& most);

/// Of a launcher that numbers its workers: this one and how many there are, as the claim's
/// variables say, then the same of its host, where those variables are set.
void read_numbers(const Variables& variables, Claim& claim, const std::string& local_number,
                  const std::string& local_size);

/// TUTTI_JOB when it is set, which names a job better than its launcher can; else `otherwise`.
std::string job_name(const Variables& variables, const std::string& otherwise);

/// When all workers are on this host and the job has a name they meet here, at a port made from it;
/// else a note says `otherwise`.
void meet_here_if_alone(ClusterSpec& spec, std::string otherwise);

/// A hash of bytes that stays the same between machines and versions.
uint64_t stable_hash(std::string_view bytes) noexcept;

/// Slurm's short form of names: "n[1-2],o[03-04,6]" to {"n1", "n2", "o03", "o04", "o6"}. Throws
/// UsageError naming `variable` when it is damaged or stands for more than 100,000 names.
std::vector<std::string> expand_node_list(std::string_view text, std::string_view variable);

/// Slurm's short form of counts: "3(x2),2" to {3, 3, 2}.
std::vector<int> expand_task_counts(std::string_view text, std::string_view variable);

}  // namespace tutti::detail
