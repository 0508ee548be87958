#include "tutti/pjrt/plugin.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>

#include "tutti/base/error.h"
#include "tutti/pjrt/client.h"

namespace tutti::pjrt {
namespace {

/// Where a package of pip has its library, and the command that brings it.
struct Known {
  std::string_view name;
  std::vector<std::string_view> places;
  std::string_view cure;
};

const std::array<Known, 3>& known_plugins() {
  static const std::array<Known, 3> known{{
      {"cpu", {"xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so"}, "tools/setup --pjrt fetches it"},
      {"tpu", {"libtpu/libtpu.so"}, "pip install libtpu fetches it"},
      {"cuda",
       {"jax_plugins/xla_cuda13/xla_cuda_plugin.so", "jax_plugins/xla_cuda12/xla_cuda_plugin.so"},
       "pip install jax-cuda13-pjrt fetches it"},
  }};
  return known;
}

void add_site_packages(const std::filesystem::path& environment,
                       std::vector<std::string>& folders) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(environment / "lib", error))
    if (entry.path().filename().string().starts_with("python3"))
      folders.push_back(entry.path() / "site-packages");
}

std::vector<std::string> usual_site_packages() {
  std::vector<std::string> folders;
  if (const char* path = std::getenv("PYTHONPATH")) {
    std::string_view left = path;
    while (!left.empty()) {
      const size_t end = std::min(left.find(':'), left.size());
      if (end > 0) folders.emplace_back(left.substr(0, end));
      left.remove_prefix(std::min(end + 1, left.size()));
    }
  }
  if (const char* environment = std::getenv("VIRTUAL_ENV")) add_site_packages(environment, folders);
  add_site_packages(".venv", folders);
  return folders;
}

std::string existing(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_regular_file(path, error)) return path;
  throw UsageError(fmt::format("plugin {}: there is no such file", path));
}

}  // namespace

std::string find_plugin(std::string_view name, const std::vector<std::string>& site_packages) {
  if (name.find('/') != std::string_view::npos) return existing(std::string(name));
  const auto& all = known_plugins();
  const auto known = std::ranges::find(all, name, &Known::name);
  if (known == all.end())
    throw UsageError(fmt::format(
        "plugin \"{}\" is not known (known: cpu, tpu, cuda, or the path of a PJRT plugin)", name));
  for (const std::string& folder : site_packages)
    for (const std::string_view place : known->places) {
      const std::filesystem::path path = std::filesystem::path(folder) / place;
      std::error_code error;
      if (std::filesystem::is_regular_file(path, error)) return path;
    }
  throw UsageError(fmt::format(
      "plugin \"{}\" is not here: {}, or its path is given; looked in {}", name, known->cure,
      site_packages.empty() ? "no folder: neither .venv nor VIRTUAL_ENV"
                            : fmt::to_string(fmt::join(site_packages, ", "))));
}

std::string find_plugin(std::string_view name) { return find_plugin(name, usual_site_packages()); }

Options options_for(std::string_view name, int devices, const ProcessPlace& place) {
  Options options;
  if (name == "cpu" || name.find("xla_cpu_pjrt") != std::string_view::npos)
    options.emplace("cpu_device_count", int64_t{devices});
  if (place.processes > 1 && name != "tpu" && !name.ends_with("libtpu.so")) {
    options.emplace("node_id", int64_t{place.process});
    options.emplace("num_nodes", int64_t{place.processes});
  }
  return options;
}

std::string words_of(const ArrayType& type) {
  return fmt::format("{} [{}]", name_of(type.dtype), fmt::join(type.shape, ", "));
}

std::string words_of(const PluginFacts& facts) {
  return fmt::format("PJRT plugin {} (API {}.{}): {}, {} device{}",
                     std::filesystem::path(facts.path).filename().string(), facts.api_major,
                     facts.api_minor, facts.platform, facts.devices.size(),
                     facts.devices.size() == 1 ? "" : "s");
}

}  // namespace tutti::pjrt
