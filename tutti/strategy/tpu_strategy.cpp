#include "tutti/strategy/tpu_strategy.h"

#include <fmt/format.h>

#include <cstdio>

#include "tutti/cluster/join/join.h"
#include "tutti/strategy/membership/detail/worlds.h"

namespace tutti {
namespace {

StrategyOptions options_of(const cluster::TpuResolver& resolver, StrategyOptions options) {
  options.kind = "tpu";
  options.plugin = resolver.plugin();
  return options;
}

}  // namespace

void connect_to_cluster(const cluster::TpuResolver& resolver) {
  fmt::print(stderr, "{}\n", resolver.to_string());
  if (detail::processes_of({}, resolver) > 1) join();
}

pjrt::PluginFacts initialize_tpu_system(const cluster::TpuResolver& resolver, Millis limit) {
  const StrategyOptions options{.kind = "tpu", .time_limit = limit, .plugin = resolver.plugin()};
  pjrt::PluginFacts facts =
      detail::processes_of(options, resolver) > 1
          ? detail::open_plugin(options, resolver).facts()
          : pjrt::probe_plugin(pjrt::find_plugin(resolver.plugin()),
                               pjrt::options_for(resolver.plugin(), 1), limit);
  fmt::print(stderr, "{}\n", pjrt::words_of(facts));
  for (const pjrt::DeviceFacts& device : facts.devices)
    fmt::print(stderr, "  {} ({})\n", device.words, device.kind);
  return facts;
}

TpuStrategy::TpuStrategy(const cluster::TpuResolver& resolver, StrategyOptions options)
    : Strategy(options_of(resolver, std::move(options))) {}

}  // namespace tutti
