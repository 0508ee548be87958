/// What some updaters can and others cannot: the parts of an Updater, null where it has none.
/// Thread rule: that of Updater, where nothing else is said.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/optim/loss_scale.h"

namespace tutti {

class GradientMeter;
namespace ps {
class Client;
}
namespace detail {
class DeviceLossScale;
}

/// Devices find out by themselves which steps are left out, and no host waits for the answer.
class DeviceDecisions {
 public:
  /// From now on losses are multiplied by that; between steps.
  virtual void scale_losses(const optim::LossScale& scale) = 0;
  /// The scale that a replica's device keeps, by which steps are left out; null: losses are not
  /// scaled.
  virtual detail::DeviceLossScale* scale_of(int replica) const = 0;
  /// How many updates Vote::bad has left out, which no longer count in version(). Waits; between
  /// runs.
  virtual int64_t forget_left_out() = 0;

 protected:
  ~DeviceDecisions() = default;
};

/// Steps that a device makes again by itself (detail::CapturedSteps).
class StepCapture {
 public:
  virtual void begin_captures() = 0;  ///< from now on such steps may come
  /// Before each step then, however it is made: what the host decides of it goes to the device.
  virtual void before_step(int replica) = 0;
  /// The last step was captured; replayed() counts others like it.
  virtual void captured(int replica) = 0;
  virtual void replayed(int replica) = 0;

 protected:
  ~StepCapture() = default;
};

/// Up to when a replica takes part in what the others gather.
enum class Until : uint8_t {
  action_ends,  ///< of all who are here: who takes part for longer stays
  all_done,     ///< nobody needs anything more
  whole,        ///< the same, and then parameters are whole on all
};

/// Ranks that own slices, and gather what is not theirs when it is read.
class Gathers {
 public:
  /// In a run, from each replica's own thread: all_done before replicas of which some compute
  /// nothing meet otherwise than by Updater::step(), since those that still compute may need the
  /// others; action_ends after each action of a pipeline, whose ranks wait for each other too;
  /// whole at the end of Strategy::run.
  virtual void meet(int replica, Until until) = 0;
  /// A run's function threw on that replica, for whom nobody is to wait. Any thread; never throws.
  virtual void fail(int replica, const std::string& why) noexcept = 0;
  virtual void rethrow_failure()
      const = 0;  ///< throws what kept parameters from coming, if any did

 protected:
  ~Gathers() = default;
};

/// Parameters that are still on their way when step() returns, until an operator reads them.
class LateParameters {
 public:
  /// Returns when all that are on their way are there: for whoever reads them other than by
  /// operators. Each replica from its own thread, or one thread between runs. Throws what went
  /// wrong on the way.
  virtual void complete() = 0;
  virtual void refresh() = 0;                ///< gets the newest of all workers; between runs
  virtual void rethrow_failure() const = 0;  ///< throws what went wrong on the way, if anything did

 protected:
  ~LateParameters() = default;
};

/// Slices that can follow World::shares.
class MovableSlices {
 public:
  /// Shares are these from the next step on: slices of the fused step follow inside a host, where
  /// that moves nothing. No bit depends on it. Between steps.
  virtual void share_out(const std::vector<double>& shares) = 0;

 protected:
  ~MovableSlices() = default;
};

/// Parameters that are updated in memory of their own, and copied from there to the replicas.
class ParameterCopies {
 public:
  /// The replicas' have been written, with the same values on all: goes on from these. Between
  /// steps.
  virtual void take_over() = 0;

 protected:
  ~ParameterCopies() = default;
};

struct UpdaterParts {
  DeviceDecisions* on_device = nullptr;
  StepCapture* capture = nullptr;
  Gathers* gathers = nullptr;
  LateParameters* late = nullptr;
  MovableSlices* slices = nullptr;
  ParameterCopies* copies = nullptr;
  GradientMeter* meter = nullptr;  ///< measures the gradients of its updates
  ps::Client* client = nullptr;    ///< to the servers that have the parameters
};

}  // namespace tutti
