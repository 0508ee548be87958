/// connect(): from ranks that can only swap a few bytes to a Group over the engine that fits.
///
/// The ranks find out who shares a host, choose the engine (engine_choice.h), and build its
/// segments and links. The rendezvous of a job, a c10d store and MPI are such meeting places, so
/// all of them build groups in this one way. docs/design/engines.md.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "tutti/cluster/join/engine_choice.h"
#include "tutti/comm/group/group.h"
#include "tutti/comm/schedule/schedule_choice.h"
#include "tutti/net/listener.h"
#include "tutti/net/meeting_place.h"

namespace tutti {

/// What the groups of a process have in common.
struct ConnectBase {
  std::shared_ptr<Listener> listener;  ///< where the other hosts reach this process
  Token token;                         ///< proves on a host's own sockets who is of the job
  /// Hears of every engine that is made; may be empty. Thread rule: from any thread.
  std::function<void(const std::shared_ptr<Engine>&)> follow;
};

struct ConnectOptions {
  std::string engine = "auto";  ///< auto, shm, tcp, hier, mpi, nccl
  std::string name;             ///< of the group in flight records; the key unless given
  Order order = Order::fixed;   ///< any: tcp may add in an order of its own
  int streams = 1;              ///< data streams between two hosts' ranks; 1 to kMaxStreams
  bool pinned = false;          ///< every rank's thread is pinned to cores of its own: spin
  bool by_core = true;          ///< ranks of a host in the order of their cores, else as in `place`
  bool mpi_ranks = false;  ///< `place` numbers processes as the MPI launcher does: mpi can serve
  /// The CUDA device of this rank's buffers, for nccl; on no rank, or on all.
  std::optional<int> cuda_device{};
  AlgorithmTable table = built_in_table();
  EngineChoice* chosen = nullptr;  ///< is told which engine it is, and why
};

/// Collective over the ranks of `place`. `key` names the group: the same on all ranks, at most 100
/// printable letters, each used once in the life of the listener. Ranks are ordered by host, then
/// by core where processes are bound to some, then as in `place` (rank_order.h): Group::rank() may
/// differ from place.rank() where a launcher has spread neighbours. Logs the engine and why, once a
/// key.
///
/// Throws UsageError when the engine that was asked for cannot serve, Mismatch, PeerLost and
/// Timeout that name ranks. Thread rule: the calling thread becomes the group's.
Group connect(MeetingPlace& place, const std::string& key, const ConnectBase& base,
              const ConnectOptions& options, const Deadline& deadline);

}  // namespace tutti
