#include "tutti/cli/train/device_flags.h"

#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/base/host.h"
#include "tutti/cli/arguments.h"
#include "tutti/cli/checks.h"
#include "tutti/queues/config.h"

namespace tutti::cli {

void add_device_flags(Command& command, DeviceFlags& flags) {
  command
      .add("--device", "WHERE", &flags.device, device_words(),
           "Where replicas compute: cpu, cuda (every GPU), cuda:0,1 (these), cuda:0x2 (two "
           "replicas on one), cpu,cuda:0 (one on each), auto (every GPU, or the CPU where "
           "there is none)")
      .also = {"--gpus"};
  command.add("--plugin", "NAME", &flags.plugin, some_name(),
              "Of --strategy tpu: the plugin of PJRT that compiles, and has the devices: tpu, cpu "
              "(a rehearsal; `tools/setup --pjrt` fetches it), cuda, or a path (default: what "
              "TUTTI_PLUGIN says, else tpu)");
  command.add("--memory-limit", "MIB", &flags.memory_limit_mib, whole_number(1, int64_t{1} << 30),
              "The most that tensors of a process take of each GPU (default: all)");
  command.flag("--deterministic", &flags.deterministic,
               "On GPUs: the same bits in every run, at some cost of speed");
}

void take_devices(const DeviceFlags& flags, StrategyOptions& options) {
  devices_from(flags.device);
  options.device = flags.device;
  options.plugin = flags.plugin;
  options.memory_limit_mib = flags.memory_limit_mib;
  options.deterministic = flags.deterministic;
}

bool several_devices(const DeviceFlags& flags) {
  return needs_gpus(flags.device) && devices_from(flags.device).size() > 1;
}

int replicas_of_host(const DeviceFlags& flags) {
  const auto devices = devices_from(flags.device);
  const bool cpu_alone = devices.size() == 1 && devices.front().kind == DeviceKind::cpu;
  return cpu_alone ? host_facts().usable_cores : static_cast<int>(devices.size());
}

void check_placement_on(const DeviceFlags& flags, int replicas, int workers) {
  place_replicas(devices_from(flags.device), workers > 1 ? 1 : replicas, 0, workers);
}

}  // namespace tutti::cli
