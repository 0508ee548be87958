#include "tutti/cluster/spec/tpu_resolver.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/typed.h"
#include "tutti/cluster/spec/resolvers/detail/resolver.h"

namespace tutti::cluster {
namespace {

constexpr const char* kName = "TPU_NAME";
constexpr const char* kHosts = "TPU_WORKER_HOSTNAMES";
constexpr const char* kWorker = "TPU_WORKER_ID";
constexpr const char* kType = "TPU_ACCELERATOR_TYPE";
constexpr const char* kSlices = "MEGASCALE_NUM_SLICES";
constexpr const char* kPlugin = "TUTTI_PLUGIN";

std::string text_of(const Variables& variables, const char* name) {
  const std::string* value = tutti::detail::value_of(variables, name);
  return value == nullptr ? "" : *value;
}

bool is_plugin(std::string_view name) {
  return name == "cpu" || name == "tpu" || name == "cuda" ||
         (name.find('/') != std::string_view::npos && name.find("://") == std::string_view::npos);
}

std::string plugin_of_this_machine(const Variables& variables) {
  const std::string plugin = text_of(variables, kPlugin);
  if (plugin.empty()) return "tpu";
  if (is_plugin(plugin)) return plugin;
  throw UsageError(fmt::format(
      "{}=\"{}\": expected cpu, tpu, cuda, or the path of a PJRT plugin, with a slash in it",
      kPlugin, plugin));
}

/// `source` begins the error: "TPU_NAME=\"x\"".
[[noreturn]] void elsewhere(std::string_view source, std::string_view tpu) {
  if (tpu.starts_with("grpc://"))
    throw UsageError(fmt::format(
        "{}: the address of a TPU that is driven over the network, as TensorFlow does; tutti runs "
        "on the TPU's own VMs: start it there, with \"local\"",
        source));
  throw UsageError(fmt::format(
      "{}: expected \"local\", or a plugin (cpu, tpu, cuda, or a path with a slash in it); a TPU "
      "by its name is looked up in Google's API, which is not asked here: start the program on the "
      "TPU's own VMs (gcloud compute tpus tpu-vm ssh {} --worker=all), with \"local\"",
      source, tpu));
}

std::vector<std::string> hosts_in(const std::string& list) {
  std::vector<std::string> hosts;
  if (list.empty()) return hosts;
  size_t begin = 0;
  while (begin <= list.size()) {
    const size_t end = std::min(list.find(',', begin), list.size());
    std::string host = list.substr(begin, end - begin);
    const auto is_space = [](unsigned char c) { return std::isspace(c) != 0; };
    host.erase(host.begin(), std::ranges::find_if_not(host, is_space));
    while (!host.empty() && is_space(static_cast<unsigned char>(host.back()))) host.pop_back();
    if (host.empty())
      throw UsageError(
          fmt::format("{}=\"{}\": host {} is empty; expected names of hosts with one comma between "
                      "two",
                      kHosts, list, hosts.size()));
    const auto same = std::ranges::find(hosts, host);
    if (same != hosts.end())
      throw UsageError(fmt::format("{}=\"{}\": \"{}\" is host {} and host {}; expected each once",
                                   kHosts, list, host, same - hosts.begin(), hosts.size()));
    hosts.push_back(std::move(host));
    begin = end + 1;
  }
  return hosts;
}

int worker_in(const Variables& variables, const std::vector<std::string>& hosts) {
  const auto worker = tutti::detail::number_in(variables, kWorker);
  if (!worker && hosts.size() > 1)
    throw UsageError(
        fmt::format("{} is not set, but {} names {} hosts: say which one this is, from 0 to {}",
                    kWorker, kHosts, hosts.size(), hosts.size() - 1));
  if (!worker) return 0;
  if (hosts.empty() && *worker > 0)
    throw UsageError(
        fmt::format("{}={}, but {} is not set: expected 0, or the names of all hosts, with commas "
                    "between them, in the order of their numbers",
                    kWorker, *worker, kHosts));
  if (!hosts.empty() && *worker >= static_cast<int>(hosts.size()))
    throw UsageError(
        fmt::format("{}={}, but {} names {} host{}: expected {}", kWorker, *worker, kHosts,
                    hosts.size(), hosts.size() == 1 ? "" : "s",
                    hosts.size() == 1 ? "0" : fmt::format("0 to {}", hosts.size() - 1)));
  return *worker;
}

/// How many hosts a slice may have.
struct Hosts {
  int least = 1, most = 1;
  std::string why;
};

/// Generations of which the number in the type's name is certain to mean this.
struct Generation {
  std::string_view name;
  int cores_a_chip;        ///< what is counted in the name: cores, or chips where it is 1
  bool four_chips_a_host;  ///< all hosts of a slice are such; else from 1 to 8
};
constexpr std::array<Generation, 6> kGenerations{{{"v2", 2, true},
                                                  {"v3", 2, true},
                                                  {"v4", 2, true},
                                                  {"v5p", 2, true},
                                                  {"v5litepod", 1, false},
                                                  {"v6e", 1, false}}};

/// Throws UsageError unless it reads like one; nothing for a generation that is not known.
std::optional<Hosts> hosts_of_type(const std::string& type) {
  const size_t dash = type.rfind('-');
  const std::string family = type.substr(0, dash);
  const auto count =
      dash == std::string::npos ? std::nullopt : number_in<int>(type.substr(dash + 1));
  const bool reads =
      count && *count > 0 && family.size() > 1 && std::ranges::all_of(family, [](unsigned char c) {
        return std::islower(c) != 0 || std::isdigit(c) != 0;
      });
  if (!reads)
    throw UsageError(fmt::format(
        "{}=\"{}\": expected a generation and a number, like v4-8 or v5litepod-16", kType, type));
  const auto known = std::ranges::find(kGenerations, family, &Generation::name);
  if (known == kGenerations.end()) return std::nullopt;
  const auto parts = [](int all, int size) { return (all - 1) / size + 1; };
  const int chips = parts(*count, known->cores_a_chip);
  if (known->four_chips_a_host) {
    const int hosts = parts(chips, 4);
    return Hosts{hosts, hosts,
                 fmt::format("{} core{}, {} a chip, 4 chips a host", *count, *count == 1 ? "" : "s",
                             known->cores_a_chip)};
  }
  return Hosts{parts(chips, 8), chips,
               fmt::format("{} chip{}, at most 8 a host", chips, chips == 1 ? "" : "s")};
}

void require_hosts(const Variables& variables, const std::string& type, size_t named) {
  const auto hosts = hosts_of_type(type);
  if (!hosts) return;
  const int got = named == 0 ? 1 : static_cast<int>(named);
  const bool is_part =
      !tutti::detail::first_set(variables, {"TPU_PROCESS_BOUNDS", "TPU_HOST_BOUNDS"}).empty();
  if (got <= hosts->most && (got >= hosts->least || is_part)) return;
  const std::string expected = hosts->least == hosts->most
                                   ? fmt::to_string(hosts->least)
                                   : fmt::format("{} to {}", hosts->least, hosts->most);
  const std::string said =
      named == 0 ? fmt::format("{} is not set", kHosts) : fmt::format("{} names {}", kHosts, named);
  throw UsageError(fmt::format(
      "{}={} has {} host{} ({}), but {}: name each of them, with commas between, in the order of "
      "{}{}",
      kType, type, expected, hosts->most == 1 ? "" : "s", hosts->why, said, kWorker,
      got < hosts->least ? ", or say in TPU_PROCESS_BOUNDS which part of it is used" : ""));
}

void require_one_slice(const Variables& variables) {
  const auto slices = tutti::detail::number_in(variables, kSlices, 1);
  if (slices && *slices > 1)
    throw UsageError(fmt::format(
        "{}={}: a training over several slices is not possible here; expected 1, or not set",
        kSlices, *slices));
}

}  // namespace

TpuResolver::TpuResolver(std::string_view tpu, const Variables& variables)
    : accelerator_type_(text_of(variables, kType)), hosts_(hosts_in(text_of(variables, kHosts))) {
  const std::string named = text_of(variables, kName);
  std::string wanted(tpu.empty() ? std::string_view(named) : tpu);
  // A VM, or a pod, of the TPU whose name that is.
  if (!hosts_.empty() && wanted == named && !is_plugin(named) && !named.starts_with("grpc://"))
    wanted = "local";
  if (wanted.empty() || wanted == "local")
    plugin_ = plugin_of_this_machine(variables);
  else if (is_plugin(wanted))
    plugin_ = wanted;
  else
    elsewhere(tpu.empty() ? fmt::format("{}=\"{}\"", kName, named) : fmt::format("TPU \"{}\"", tpu),
              wanted);
  worker_ = worker_in(variables, hosts_);
  if (!accelerator_type_.empty()) require_hosts(variables, accelerator_type_, hosts_.size());
  require_one_slice(variables);
}

std::string TpuResolver::to_string() const {
  std::string words = accelerator_type_.empty() ? "" : accelerator_type_ + " by ";
  words += fmt::format("plugin {}, worker {} of {}", plugin_, worker_, num_workers());
  if (!hosts_.empty()) words += fmt::format(" (host {})", hosts_[static_cast<size_t>(worker_)]);
  return words;
}

}  // namespace tutti::cluster
