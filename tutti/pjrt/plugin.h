/// Plugins of PJRT: shared libraries that compile StableHLO for an accelerator and run it there.
///
/// A plugin is somebody else's code, which may hang or crash when it is loaded (that for TPUs asks
/// a metadata server for over a minute where there is no TPU): probe_plugin() loads it in a process
/// of its own, so that what becomes of it there is one error here. docs/design/pjrt.md.
/// Thread rule: any thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tutti/base/deadline.h"

namespace tutti::pjrt {

/// Whether this build has PJRT: its header was there when it was configured.
bool available() noexcept;

/// The shared library of a plugin.
///
/// name  "cpu", "tpu", "cuda": that of the package of pip that brings it, in `site_packages` (the
///       first folder that has it counts), or a path, which has a slash in it
///
/// UsageError where it is not: the command that fetches it, and where was looked.
std::string find_plugin(std::string_view name, const std::vector<std::string>& site_packages);

/// The same in PYTHONPATH's folders, .venv beside the current folder and VIRTUAL_ENV's.
std::string find_plugin(std::string_view name);

/// What a plugin is told when its client is made. Names are the plugin's own.
using Options = std::map<std::string, std::variant<int64_t, std::string, bool>>;

/// This process among those that make one client together.
struct ProcessPlace {
  int process = 0;    ///< 0-based
  int processes = 1;  ///< 1: alone
};

/// What plugin `name` is told to show so many devices of this process: the one for CPUs has as many
/// as it is asked for, others what is there. Of several processes also which this is, node_id of
/// num_nodes; that for TPUs reads variables of its own.
Options options_for(std::string_view name, int devices, const ProcessPlace& place = {});

struct DeviceFacts {
  int id = 0;         ///< unique in the job
  int process = 0;    ///< whose device it is, 0-based
  std::string kind;   ///< "cpu", "TPU v4"
  std::string words;  ///< as the plugin writes it: "TFRT_CPU_0"
};

struct PluginFacts {
  std::string path;
  int api_major = 0, api_minor = 0;
  std::string platform;              ///< "cpu", "tpu", "cuda"
  std::string platform_version;      ///< in the plugin's words
  std::vector<DeviceFacts> devices;  ///< of this process, in the plugin's order
};

/// Oldest and newest minor version of the interface (major version 0) that are spoken here.
constexpr int kOldestApi = 40;

/// "PJRT plugin xla_cpu_pjrt.so (API 0.81): cpu, 2 devices".
std::string words_of(const PluginFacts& facts);

/// What a plugin says of itself and of its devices, asked in a process of its own.
///
/// Throws UsageError for a file that is no plugin, or one of another version of the interface (got,
/// range), Timeout that names plugin and function where it has not answered within `limit`, Error
/// where it crashed (with the signal) or refused (its words).
PluginFacts probe_plugin(const std::string& path, const Options& options, Millis limit);

}  // namespace tutti::pjrt
