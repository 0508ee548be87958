/// Pipeline schedules: what each rank computes, in which order, when a model's stages lie on
/// several ranks and a batch comes in microbatches.
///
/// Data, not code: a list of actions a rank, which an executor carries out, check.h proves possible
/// and simulate.h times. A rank has one or more *chunks* of layers; a *stage* is a chunk's place in
/// the model. Nothing in a schedule says what is computed, only when, so that none changes a bit.
///
///   const Schedule schedule = zb_h1({.ranks = 4, .microbatches = 8});
///   check(schedule);
///   fmt::print("{:.1f} % idle\n", 100 * simulate(schedule, {}).bubble);
///
/// Thread rule: values; const functions from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::mesh {

enum class Kind : uint8_t {
  forward,   ///< F: the chunk's output of a microbatch
  backward,  ///< B: the gradient of its input; of its parameters too where backward is not split
  weight,    ///< W: the gradient of its parameters, from what B left
};
/// F, B, W.
char letter_of(Kind kind) noexcept;

struct Action {
  Kind kind = Kind::forward;
  int chunk = 0;       ///< of this rank
  int microbatch = 0;  ///< in [0, Schedule::microbatches)
  bool operator==(const Action&) const = default;
};
/// "F 1.3": microbatch 3 through chunk 1.
std::string to_string(const Action& action);

/// Where stages lie. Rank r of p has of chunk c the stage:
enum class Placement : uint8_t {
  loop,  ///< c p + r: each chunk begins on rank 0
  vee,   ///< c p + r in even chunks, c p + p - 1 - r in odd ones: there and back
};

struct Schedule {
  std::string name;
  int chunks = 1;
  int microbatches = 1;
  bool split = false;  ///< backward in two: B, then W
  Placement placement = Placement::loop;
  std::vector<std::vector<Action>> actions;  ///< by rank, in their order

  int ranks() const noexcept { return static_cast<int>(actions.size()); }
  int stages() const noexcept { return ranks() * chunks; }
  int stage_of(int rank, int chunk) const noexcept;
  int rank_of(int stage) const noexcept;
  int chunk_of(int stage) const noexcept { return stage / ranks(); }
};

struct Plan {
  int ranks = 1;         ///< >= 1
  int microbatches = 1;  ///< >= 1
  int chunks = 1;        ///< of a rank; interleaved alone has a choice
};

/// All forwards, then all backwards (Huang et al. 2019, arXiv 1811.06965). Keeps all microbatches.
Schedule gpipe(const Plan& plan);

/// After a beginning of p - r forwards one backward, one forward (Narayanan et al. 2019,
/// doi 10.1145/3341301.3359646). As long as gpipe; rank r keeps min(m, p - r) microbatches.
Schedule one_f_one_b(const Plan& plan);

/// one_f_one_b over `chunks` chunks of a rank (Narayanan et al. 2021, arXiv 2104.04473): less
/// bubble, more messages. Throws UsageError unless microbatches divide by ranks.
Schedule interleaved(const Plan& plan);

/// Backward split; rank r puts weights off by r microbatches, and fills the end with them (Qi et
/// al. 2023, arXiv 2401.10241). Each rank keeps at most p microbatches.
Schedule zb_h1(const Plan& plan);

/// Two chunks a rank there and back, backward split: where F, B and W take as long, no rank
/// waits once it has begun, from 2 p - 1 microbatches on (the same). Keeps 2 p halves.
Schedule zb_v(const Plan& plan);

/// Two chunks there and back, in pairs of a forward and a backward of different chunks, which an
/// executor can overlap (DeepSeek-AI 2024, arXiv 2412.19437, cut in half). Keeps 2 p + 1 halves.
Schedule dualpipe_v(const Plan& plan);

/// "gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe-v".
const std::vector<std::string>& schedule_names();
/// Throws UsageError for an unknown name, numbers below 1, more chunks than the schedule can have
/// (interleaved takes 2 where plan.chunks is 1), or microbatches it cannot take.
Schedule schedule_by_name(const std::string& name, const Plan& plan);

/// A line a rank, its actions with commas between: "F0,F1,B0,B1", "F0.1" with chunks (chunk, then
/// microbatch). Lines that begin with '#' are comments; "# placement: vee" and "# split" are read.
std::string to_csv(const Schedule& schedule);
/// Throws DataError with `name`, line and field for text that is none. check() comes after.
Schedule from_csv(std::string_view text, const std::string& name);

}  // namespace tutti::mesh
