#include "tutti/mesh/schedule.h"

#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/base/suggest.h"

namespace tutti::mesh {
char letter_of(Kind kind) noexcept { return "FBW"[static_cast<size_t>(kind)]; }

std::string to_string(const Action& action) {
  return fmt::format("{} {}.{}", letter_of(action.kind), action.chunk, action.microbatch);
}

int Schedule::stage_of(int rank, int chunk) const noexcept {
  const bool back = placement == Placement::vee && chunk % 2 == 1;
  return chunk * ranks() + (back ? ranks() - 1 - rank : rank);
}

int Schedule::rank_of(int stage) const noexcept {
  const int rank = stage % ranks();
  const bool back = placement == Placement::vee && chunk_of(stage) % 2 == 1;
  return back ? ranks() - 1 - rank : rank;
}

const std::vector<std::string>& schedule_names() {
  static const std::vector<std::string> names{"gpipe", "1f1b", "interleaved",
                                              "zb-h1", "zb-v", "dualpipe-v"};
  return names;
}

Schedule schedule_by_name(const std::string& name, const Plan& plan) {
  if (name == "gpipe") return gpipe(plan);
  if (name == "1f1b") return one_f_one_b(plan);
  if (name == "zb-h1") return zb_h1(plan);
  if (name == "zb-v") return zb_v(plan);
  if (name == "dualpipe-v") return dualpipe_v(plan);
  if (name != "interleaved") throw UsageError(unknown_message("schedule", name, schedule_names()));
  Plan with_chunks = plan;
  if (with_chunks.chunks == 1) with_chunks.chunks = 2;
  return interleaved(with_chunks);
}

}  // namespace tutti::mesh
