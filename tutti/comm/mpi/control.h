/// What members of a group tell each other beside their data: that they fail, and that they leave.
///
/// Thread rule: as the engine, one thread; tell_failure() and tell_leaving() from any.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/comm/engine/engine.h"
#include "tutti/comm/mpi/process.h"

namespace tutti::detail::mpi {

/// One message of the control communicator; the same build runs on every rank.
struct ControlMessage {
  enum Kind : uint32_t { left, failed } kind = left;
  FailureKind failure = FailureKind::aborted;
  uint64_t collectives = 0;  ///< left: how many it announced
  uint64_t messages = 0;     ///< left: how many it sent to the receiver of this
  char text[2024] = "";      ///< failed
};

/// A communicator for each use, so that collectives, messages and failures never meet.
struct GroupComms {
  MPI_Comm collectives = MPI_COMM_NULL;
  MPI_Comm messages = MPI_COMM_NULL;
  MPI_Comm control = MPI_COMM_NULL;
};

/// Takes `collectives` over and adds the other two. Collective; blocks inside MPI, so every member
/// must be known to have come.
GroupComms complete_comms(MPI_Comm collectives);

class Control {
 public:
  Control(MpiProcess& process, MPI_Comm comm);

  /// Takes what has come.
  void poll();

  struct Failure {
    int by = 0;
    FailureKind kind = FailureKind::aborted;
    std::string text;
  };
  const std::optional<Failure>& failure() const noexcept { return failure_; }
  /// What a rank said when it left; null while it is here.
  const ControlMessage* leaving(int rank) const noexcept {
    return left_[rank] ? &*left_[rank] : nullptr;
  }
  bool all_have_left() const noexcept { return absent_ + 1 == static_cast<int>(left_.size()); }

  void tell_failure(FailureKind kind, const std::string& text) const;
  /// `messages`: how many were sent to each rank.
  void tell_leaving(uint64_t collectives, const std::vector<uint64_t>& messages) const;

 private:
  void receive_next();
  void push(Requests sends, std::shared_ptr<void> memory) const;

  MpiProcess& process_;
  MPI_Comm comm_;
  int rank_ = 0;
  std::vector<std::optional<ControlMessage>> left_;
  int absent_ = 0;
  std::optional<Failure> failure_;
  std::shared_ptr<ControlMessage> incoming_ = std::make_shared<ControlMessage>();
  Requests receive_;
};

}  // namespace tutti::detail::mpi
