// Who waits for whom, beyond one group: a rank that keeps this one waiting may itself wait in
// another group of the same root, and whoever is at the end of that chain is the one to name.
#include <fmt/format.h>

#include "tutti/comm/shm/shm_engine.h"

namespace tutti::detail {

ShmSegment::State& ShmEngine::root() const noexcept {
  return state_.root == nullptr ? state_ : *state_.root;
}

// kAnyRank: for nobody in particular. After an error it stays said: those who wait for this rank
// may come to their own limits before they hear of it.
void ShmEngine::say_waiting_for(int rank) noexcept {
  const int32_t word = rank < 0 ? 0 : root_ranks_[rank] + 1;
  root().block(root_ranks_[rank_]).member.waits_for.store(word, std::memory_order_relaxed);
}

// The last of the chain that begins with `rank`, as a rank of the root; `rank` itself where that
// waits for nobody, and where the chain comes back to this rank.
int ShmEngine::end_of_waits(int rank) const noexcept {
  int end = root_ranks_[rank];
  for (int i = 0; i < root().facts().size; ++i) {
    const MemberLine& member = root().block(end).member;
    const int next = member.waits_for.load(std::memory_order_relaxed) - 1;
    if (next < 0 || is_stopped(member)) return end;
    if (next == root_ranks_[rank_]) break;
    end = next;
  }
  return root_ranks_[rank];
}

// ", and it waits for rank 2 of 4 (pid 4622), which is stopped"; "" where it waits for nobody.
std::string ShmEngine::awaited_words(int rank) const {
  const int end = end_of_waits(rank);
  if (end == root_ranks_[rank]) return "";
  const MemberLine& member = root().block(end).member;
  const ShmOptions& options = root().options;
  const int size = options.job_ranks > 0 ? options.job_ranks : root().facts().size;
  std::string words =
      fmt::format(", and it waits for rank {} of {}", options.first_rank + end, size);
  if (!all_threads_) words += fmt::format(" (pid {})", member.pid.load(std::memory_order_relaxed));
  return words + (is_stopped(member) ? ", which is stopped" : "");
}

}  // namespace tutti::detail
