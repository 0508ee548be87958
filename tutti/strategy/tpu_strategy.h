/// TpuStrategy: replicas are the devices of a PJRT plugin, for which whole steps are compiled, as
/// tf.distribute's. A rehearsal on CPUs is the same program with plugin "cpu". Of several hosts
/// each has a process, started by a launcher.
///
///   tutti::cluster::TpuResolver resolver("local");
///   tutti::connect_to_cluster(resolver);
///   tutti::initialize_tpu_system(resolver);       // loads the plugin, says which devices it has
///   tutti::Model model(tutti::TpuStrategy(resolver), [] { return tutti::models::doodle_cnn(); });
///
/// docs/guide/tpu.md. Thread rule: that of Strategy.
#pragma once

#include "tutti/cluster/spec/tpu_resolver.h"
#include "tutti/pjrt/plugin.h"
#include "tutti/strategy/strategy.h"

namespace tutti {

/// Says on stderr what the resolver has found, and joins the job where it is of several processes.
/// UsageError where hosts and job contradict each other, or nothing says where hosts meet.
void connect_to_cluster(const cluster::TpuResolver& resolver);

/// Tries the plugin, and says on stderr which devices this process has. Throws what
/// pjrt::probe_plugin() does; without a plugin UsageError with the command that fetches it. Of
/// several processes it makes the client that the strategy takes: collective.
pjrt::PluginFacts initialize_tpu_system(const cluster::TpuResolver& resolver,
                                        Millis limit = Millis{60'000});

/// Strategy "tpu" with the resolver's plugin.
class TpuStrategy : public Strategy {
 public:
  /// `options`: kind and plugin are the resolver's. Throws as Strategy does.
  explicit TpuStrategy(const cluster::TpuResolver& resolver, StrategyOptions options = {});
};

}  // namespace tutti
