/// ServedOptions: how parameter servers hold and update the parameters.
///
/// Without LibTorch. Thread rule: plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/net/address.h"
#include "tutti/net/credentials.h"
#include "tutti/ps/spec/lost_worker.h"
#include "tutti/ps/spec/placement.h"
#include "tutti/ps/spec/staleness.h"

namespace tutti {

struct ServedOptions {
  ps::Staleness staleness;  ///< 0: synchronous
  int drop_slowest = 0;     ///< synchronous: a step waits for all workers but so many
  /// Synchronous: what becomes of the job. With anything but end, workers meet at the servers alone
  /// (Strategy::reduce), so that none of them needs another.
  ps::OnLostWorker on_lost_worker = ps::OnLostWorker::end;
  bool scale_by_staleness = false;  ///< else: a gradient of staleness t counts 1 / t
  double delay_compensation = 0;    ///< else: lambda of DC-ASGD; 0: off
  bool stop_if_not_finite = true;   ///< else gradients that are not finite are left out, counted
  /// Synchronous, where no worker may be left out or lost: workers that share memory push one sum a
  /// host, and get parameters once; else each for itself.
  bool host_sums = true;
  ps::PlacementOptions placement{};  ///< num_servers is the job's
};

/// This worker's place in a job with parameter servers.
struct ServedPlace {
  int worker = 0;
  int num_workers = 1;
  int num_servers = 1;
  /// Of the servers, for the network's sake (ps::weights_of_servers); empty: equal.
  std::vector<double> server_weights = {};
  HostPort view_service;
  std::chrono::microseconds poll{0};      ///< ps::ClientOptions::poll
  int64_t piece_bytes = ps::kPieceBytes;  ///< pushed and pulled as one
  bool coordinated =
      false;  ///< worker 0 is a coordinator: a step that is over is in the parameters
};

}  // namespace tutti
