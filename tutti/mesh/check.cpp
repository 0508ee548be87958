#include "tutti/mesh/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "tutti/base/error.h"

namespace tutti::mesh {
namespace {

std::string place(int rank, size_t index, const Action& action) {
  return fmt::format("rank {}, action {} ({})", rank, index + 1, to_string(action));
}

std::optional<std::string> fault_of_values(const Schedule& schedule, int rank) {
  const auto& actions = schedule.actions[static_cast<size_t>(rank)];
  for (size_t i = 0; i < actions.size(); ++i) {
    const Action& action = actions[i];
    const auto said = [&](const std::string& words) {
      return place(rank, i, action) + ": " + words;
    };
    if (action.chunk < 0 || action.chunk >= schedule.chunks)
      return said(fmt::format("there are {} chunks", schedule.chunks));
    if (action.microbatch < 0 || action.microbatch >= schedule.microbatches)
      return said(fmt::format("there are {} microbatches", schedule.microbatches));
    if (action.kind == Kind::weight && !schedule.split)
      return said("backward is not split in this schedule");
  }
  return std::nullopt;
}

// Of each chunk and kind the microbatches are 0, 1, 2 and so on: once each, and in order.
std::optional<std::string> fault_of_order(const Schedule& schedule, int rank) {
  const auto& actions = schedule.actions[static_cast<size_t>(rank)];
  std::vector<std::array<int, 3>> next(static_cast<size_t>(schedule.chunks));
  for (size_t i = 0; i < actions.size(); ++i) {
    const Action& action = actions[i];
    auto& done = next[static_cast<size_t>(action.chunk)];
    int& expected = done[static_cast<size_t>(action.kind)];
    if (action.microbatch < expected) return place(rank, i, action) + ": is there twice";
    if (action.microbatch > expected)
      return fmt::format("{}: {} {}.{} is missing before it", place(rank, i, action),
                         letter_of(action.kind), action.chunk, expected);
    const auto needed = static_cast<size_t>(action.kind) - 1;
    if (action.kind != Kind::forward && done[needed] <= action.microbatch)
      return fmt::format("{}: comes before {} {}.{}, which it needs", place(rank, i, action),
                         letter_of(static_cast<Kind>(needed)), action.chunk, action.microbatch);
    ++expected;
  }
  const int kinds = schedule.split ? 3 : 2;
  for (int chunk = 0; chunk < schedule.chunks; ++chunk)
    for (int kind = 0; kind < kinds; ++kind)
      if (const int done = next[static_cast<size_t>(chunk)][static_cast<size_t>(kind)];
          done < schedule.microbatches)
        return fmt::format("rank {}: {} {}.{} is missing at its end", rank,
                           letter_of(static_cast<Kind>(kind)), chunk, done);
  return std::nullopt;
}

// Lets ranks go on as far as they can; those that cannot wait for each other.
class Run {
 public:
  explicit Run(const Schedule& schedule)
      : schedule_(schedule),
        at_(schedule.actions.size()),
        done_(static_cast<size_t>(schedule.stages())) {}

  std::optional<std::string> circle() {
    for (bool moved = true; moved;) {
      moved = false;
      for (int rank = 0; rank < schedule_.ranks(); ++rank)
        for (; !ends(rank) && !waits_for(rank); ++at_[static_cast<size_t>(rank)], moved = true)
          ++done(next(rank).kind, stage(rank));
    }
    int rank = 0;
    while (rank < schedule_.ranks() && ends(rank)) ++rank;
    if (rank == schedule_.ranks()) return std::nullopt;
    std::string words = "ranks wait for each other:";
    for (std::vector<bool> seen(at_.size()); !seen[static_cast<size_t>(rank)];) {
      seen[static_cast<size_t>(rank)] = true;
      const Needed needed = *waits_for(rank);
      const int other = schedule_.rank_of(needed.stage);
      words += fmt::format(" rank {} at {} for {} {}.{} of rank {};", rank, to_string(next(rank)),
                           letter_of(needed.kind), schedule_.chunk_of(needed.stage),
                           next(rank).microbatch, other);
      rank = other;
    }
    words.pop_back();
    return words;
  }

 private:
  const std::vector<Action>& actions(int rank) const {
    return schedule_.actions[static_cast<size_t>(rank)];
  }
  bool ends(int rank) const { return at_[static_cast<size_t>(rank)] == actions(rank).size(); }
  const Action& next(int rank) const { return actions(rank)[at_[static_cast<size_t>(rank)]]; }
  int stage(int rank) const { return schedule_.stage_of(rank, next(rank).chunk); }
  int& done(Kind kind, int stage) {
    return done_[static_cast<size_t>(stage)][static_cast<size_t>(kind)];
  }
  std::optional<Needed> waits_for(int rank) {
    for (const Needed& needed : needs_of(schedule_, next(rank).kind, stage(rank)))
      if (done(needed.kind, needed.stage) <= next(rank).microbatch) return needed;
    return std::nullopt;
  }

  const Schedule& schedule_;
  std::vector<size_t> at_;                // by rank
  std::vector<std::array<int, 3>> done_;  // microbatches, by stage and kind
};

}  // namespace

std::vector<Needed> needs_of(const Schedule& schedule, Kind kind, int stage) {
  std::vector<Needed> needs;
  if (kind == Kind::forward) {
    if (stage > 0) needs.push_back({Kind::forward, stage - 1});
    return needs;
  }
  if (kind == Kind::weight) return {{Kind::backward, stage}};
  needs.push_back({Kind::forward, stage});
  if (stage + 1 < schedule.stages()) needs.push_back({Kind::backward, stage + 1});
  return needs;
}

std::optional<std::string> fault_of(const Schedule& schedule) {
  if (schedule.ranks() < 1) return "it has no ranks";
  for (int rank = 0; rank < schedule.ranks(); ++rank)
    if (auto fault = fault_of_values(schedule, rank)) return fault;
  for (int rank = 0; rank < schedule.ranks(); ++rank)
    if (auto fault = fault_of_order(schedule, rank)) return fault;
  return Run(schedule).circle();
}

void check(const Schedule& schedule) {
  if (const auto fault = fault_of(schedule))
    throw DataError(fmt::format("schedule {}: {}", schedule.name, *fault));
}

std::vector<int> peak_activations(const Schedule& schedule) {
  const Kind last = schedule.split ? Kind::weight : Kind::backward;
  std::vector<int> peaks;
  for (const auto& actions : schedule.actions) {
    int kept = 0;
    int peak = 0;
    for (const Action& action : actions) {
      if (action.kind == Kind::forward) peak = std::max(peak, ++kept);
      if (action.kind == last) --kept;
    }
    peaks.push_back(peak);
  }
  return peaks;
}

}  // namespace tutti::mesh
