/// Groups whose members are threads of this process, over connections as between hosts.
/// Thread rule: any thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tutti/comm/engine/engine.h"
#include "tutti/comm/tcp/tcp.h"
#include "tutti/observe/recorder.h"

namespace tutti::cli {

/// What every wait of a job that is shown endures.
inline constexpr Millis kShowLimit{30'000};

/// Engines of one group of `size` (2 or more), in rank order, over socket pairs. `options.key`
/// names the group in events.
std::vector<std::shared_ptr<Engine>> local_tcp_members(int size, const TcpOptions& options);

struct RecordedSum {
  std::vector<Recorded> events;  ///< but those of no bytes, and of what touches memory first
  bool correct = false;          ///< every rank has the sum, every element of it
};

/// One all_reduce of `bytes` of float32 over all `engines`, a thread each; `prefixes` as
/// Recorder's.
RecordedSum record_all_reduce(const std::vector<std::shared_ptr<Engine>>& engines, int64_t bytes,
                              std::vector<std::string> prefixes);

}  // namespace tutti::cli
