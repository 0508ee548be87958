/// Call: one c10d operation on its way through an engine. Knows nothing of LibTorch.
#pragma once

#include <exception>
#include <memory>
#include <vector>

#include "tutti/comm/engine/engine.h"
#include "tutti/comm/flight/flight_log.h"

namespace tutti::python {

/// An operation of one stage or several: a sparse all-reduce, say, first gathers sizes.
///
/// A Lane gives the stages to its engine one after another and finishes the call once.
/// Thread rule: the lane calls next_stage() under its lock, and finish() outside it, once.
class Call {
 public:
  Call() = default;
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  virtual ~Call() = default;

  /// Whether the engine may begin. Asked again and again, under the lane's lock, so it waits for
  /// nothing; what it throws fails the group.
  virtual bool ready() { return true; }

  /// What the engine does next: collectives alone, or messages alone.
  std::vector<Operation> operations;
  bool is_message = false;
  CallPlace called_at;  ///< for the flight record
  /// More than one stage: later collectives of the group start only when this call is done, so that
  /// every rank gives its engine the same order.
  bool has_stages = false;

  /// After a stage: puts the next one into `operations` and returns true; false when all is done.
  virtual bool next_stage() { return false; }

  /// The end: results are in place, or `failure` says why not. Runs callbacks of the program, which
  /// may submit and wait.
  virtual void finish(std::exception_ptr failure) noexcept = 0;
};

using CallPointer = std::shared_ptr<Call>;

/// A call that is over, to be finished by whoever holds no lock.
struct Ended {
  CallPointer call;
  std::exception_ptr failure;

  void finish() noexcept { call->finish(std::move(failure)); }
};

}  // namespace tutti::python
