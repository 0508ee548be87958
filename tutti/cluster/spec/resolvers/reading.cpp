// Reading of numbers and names, and the words for what is wrong with them.

#include "tutti/base/error.h"
#include "tutti/base/typed.h"
#include "tutti/cluster/spec/detail/environment.h"
#include "tutti/cluster/spec/resolvers/detail/resolver.h"

namespace tutti::detail {

const std::string* value_of(const Variables& variables, const std::string& name) {
  const auto found = variables.find(name);
  return found == variables.end() || found->second.empty() ? nullptr : &found->second;
}

std::string first_set(const Variables& variables, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (value_of(variables, name) != nullptr) return name;
  }
  return "";
}

std::optional<int> number_in(const Variables& variables, const std::string& name, int low) {
  const std::string* text = value_of(variables, name);
  if (text == nullptr) return std::nullopt;
  const auto value = tutti::number_in<int>(*text);
  if (!value || *value < low) {
    throw UsageError(
        fmt::format("{}=\"{}\": expected a whole number from {} on", name, *text, low));
  }
  return value;
}

int needed_number(const Variables& variables, const std::string& name, const std::string& because,
                  int low) {
  const auto number = number_in(variables, name, low);
  if (number) return *number;
  const std::string* other = value_of(variables, because);
  throw UsageError(fmt::format("{} is not set, but {}={} is: set both or neither", name, because,
                               other == nullptr ? "" : *other));
}

void require_below(const NamedNumber& number, const NamedNumber& size) {
  if (number.value < size.value) return;
  throw UsageError(fmt::format("{}={} contradicts {}={}: numbers count from 0", number.variable,
                               number.value, size.variable, size.value));
}

void require_at_most(const NamedNumber& number, const NamedNumber& most) {
  if (number.value <= most.value) return;
  throw UsageError(fmt::format("{}={} contradicts {}={}: a part is larger than the whole",
                               number.variable, number.value, most.variable, most.value));
}

void read_numbers(const Variables& variables, Claim& claim, const std::string& local_number,
                  const std::string& local_size) {
  ClusterSpec& spec = claim.spec;
  const std::string &number = claim.number_variable, &size = claim.size_variable;
  spec.worker = spec.task = needed_number(variables, number, size);
  spec.num_workers = needed_number(variables, size, number, 1);
  require_below({number, spec.worker}, {size, spec.num_workers});
  spec.local_worker = number_in(variables, local_number);
  spec.num_local_workers = number_in(variables, local_size, 1);
  if (spec.local_worker && spec.num_local_workers)
    require_below({local_number, *spec.local_worker}, {local_size, *spec.num_local_workers});
  if (spec.num_local_workers)
    require_at_most({local_size, *spec.num_local_workers}, {size, spec.num_workers});
}

std::string job_name(const Variables& variables, const std::string& otherwise) {
  const std::string* given = value_of(variables, kJobVariable);
  return given == nullptr ? otherwise : *given;
}

void meet_here_if_alone(ClusterSpec& spec, std::string otherwise) {
  if (spec.num_local_workers != spec.num_workers || spec.job.empty()) {
    spec.notes.push_back(std::move(otherwise));
    return;
  }
  spec.rendezvous = HostPort{"127.0.0.1", derived_port(spec.job)};
  spec.notes.push_back(
      fmt::format("all workers are on this host: they meet at port {}, made from the job's id",
                  spec.rendezvous->port));
}

// FNV-1a, 64 bits: http://www.isthe.com/chongo/tech/comp/fnv/
uint64_t stable_hash(std::string_view bytes) noexcept {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char byte : bytes) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  return hash;
}

}  // namespace tutti::detail
