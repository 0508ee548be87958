/// Floors: the same work with nothing of an engine around it, measured beside it.
/// Thread rule: each member has its own and calls it from its own thread, all at the same time.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "tutti/cli/bench/exercise.h"
#include "tutti/comm/group/group.h"
#include "tutti/net/flag.h"
#include "tutti/net/mesh.h"

namespace tutti::cli {

/// Where members wait for each other outside the measured part: bare flags where they share memory,
/// else the group's barrier.
class Meeting {
 public:
  explicit Meeting(Group side);
  void meet();
  /// Nobody waits for this member any more: it has failed, and its groups say so.
  void give_up() noexcept;
  bool has_flags() const { return !lines_.empty(); }

 private:
  Group side_;
  SharedParts shared_;
  const WaitPolicy policy_;
  std::vector<FlagLine*> lines_;
  uint32_t meetings_ = 0;
};

class Floor {
 public:
  virtual ~Floor() = default;
  virtual std::string_view name() const noexcept = 0;
  virtual void run(const Exercise& exercise) = 0;
};

/// "plain loop": every rank reads the others' buffers where they lie, and adds its slice of all
/// (all_reduce: writes it to all) or copies what it gets, between two bare meetings. `buffers`: of
/// all ranks, in this process's memory.
std::unique_ptr<Floor> make_plain_loop(Meeting& meeting, int rank, std::vector<Buffers> buffers);

/// "raw stream": as many bytes as the collective has to send and receive, from each rank to the
/// next, in both directions at once, over one connection. `spin`: every rank has a core.
std::unique_ptr<Floor> make_raw_stream(Mesh mesh, const Buffers& mine, bool spin);

/// "flat tcp": the same collective in another group of the same ranks.
std::unique_ptr<Floor> make_other_group(Group group, const Buffers& mine, Millis limit);

}  // namespace tutti::cli
