/// TpuResolver: which TPU a program is to run on, and which worker of it this machine is.
///
///   tutti::cluster::TpuResolver resolver("local");     // this machine's, as on a TPU's own VM
///   auto plugin = pjrt::find_plugin(resolver.plugin());
///
/// Read from the variables that Google's VMs and Kubernetes set: TPU_NAME, TPU_WORKER_HOSTNAMES,
/// TPU_WORKER_ID, TPU_ACCELERATOR_TYPE. Nothing is asked over the network, as tf.distribute's
/// TPUClusterResolver does for a TPU by name: a program runs on the TPU's own machines.
/// docs/guide/tpu.md says what is made of each.
///
/// Thread rule: pure, except for environment_variables().
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tutti/cluster/spec/cluster_spec.h"

namespace tutti::cluster {

class TpuResolver {
 public:
  /// tpu  "local": this machine's, by the plugin that TUTTI_PLUGIN names, else "tpu"; "": what
  ///      TPU_NAME says, else "local"; "cpu", "cuda", "tpu" or a path, with a slash in it: that
  ///      plugin, a rehearsal where there is no TPU
  ///
  /// UsageError names the variable, what was got and expected, and what to try: a TPU that is
  /// elsewhere, a worker that is none of the hosts, hosts that are empty or twice there, an
  /// accelerator type that is none, or that has another number of hosts for certain.
  explicit TpuResolver(std::string_view tpu = "",
                       const Variables& variables = environment_variables());

  /// What pjrt::find_plugin() takes: "tpu", "cpu", "cuda" or a path.
  const std::string& plugin() const noexcept { return plugin_; }
  /// "v4-8", "v5litepod-16"; "" where nothing says it.
  const std::string& accelerator_type() const noexcept { return accelerator_type_; }

  int worker() const noexcept { return worker_; }  ///< this host's number among them, 0-based
  int num_workers() const noexcept { return hosts_.empty() ? 1 : static_cast<int>(hosts_.size()); }
  /// Names or addresses in the order of workers; empty where nothing says them, which is one.
  const std::vector<std::string>& hosts() const noexcept { return hosts_; }

  /// "v4-32 by plugin tpu, worker 1 of 4 (host b)".
  std::string to_string() const;

 private:
  std::string plugin_, accelerator_type_;
  std::vector<std::string> hosts_;
  int worker_ = 0;
};

}  // namespace tutti::cluster
