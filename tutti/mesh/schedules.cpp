// Who computes what when: the schedules of the papers.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/mesh/schedule.h"

namespace tutti::mesh {
namespace {

// Of one rank, counting: the n-th F of a chunk is of microbatch n, and so are B and W. Microbatches
// beyond the plan's are counted and left out: schedules whose steady state needs more than there
// are.
class Writer {
 public:
  Writer(int chunks, int microbatches)
      : microbatches_(microbatches), done_(static_cast<size_t>(chunks)) {}

  void add(Kind kind, int chunk) {
    const int microbatch = done(kind, chunk)++;
    if (microbatch < microbatches_) actions_.push_back({kind, chunk, microbatch});
  }
  void forward(int chunk) { add(Kind::forward, chunk); }
  void backward(int chunk) { add(Kind::backward, chunk); }
  void weight(int chunk) { add(Kind::weight, chunk); }
  /// Both parts of a backward.
  void whole(int chunk) {
    backward(chunk);
    weight(chunk);
  }
  /// Weights that were put off.
  void rest(int chunk) {
    while (done(Kind::weight, chunk) < done(Kind::backward, chunk)) weight(chunk);
  }
  int& done(Kind kind, int chunk) {
    return done_[static_cast<size_t>(chunk)][static_cast<size_t>(kind)];
  }
  std::vector<Action> take() { return std::move(actions_); }

 private:
  int microbatches_;
  std::vector<std::array<int, 3>> done_;
  std::vector<Action> actions_;
};

using WriteRank = std::function<void(Writer& writer, int rank)>;

Schedule written(Schedule schedule, const Plan& plan, const WriteRank& write) {
  if (plan.ranks < 1 || plan.microbatches < 1 || plan.chunks < 1)
    throw UsageError(
        fmt::format("schedule {}: {} ranks, {} microbatches, {} chunks; expected 1 or more of each",
                    schedule.name, plan.ranks, plan.microbatches, plan.chunks));
  schedule.microbatches = plan.microbatches;
  for (int rank = 0; rank < plan.ranks; ++rank) {
    Writer writer(schedule.chunks, plan.microbatches);
    write(writer, rank);
    schedule.actions.push_back(writer.take());
  }
  return schedule;
}

void require_chunks(const std::string& name, const Plan& plan, int chunks) {
  if (plan.chunks != 1 && plan.chunks != chunks)
    throw UsageError(
        fmt::format("schedule {}: has {} {} a rank, not {}; \"interleaved\" has any "
                    "number",
                    name, chunks, chunks == 1 ? "chunk" : "chunks", plan.chunks));
}

}  // namespace

Schedule gpipe(const Plan& plan) {
  require_chunks("gpipe", plan, 1);
  return written({.name = "gpipe"}, plan, [&](Writer& writer, int) {
    for (int i = 0; i < plan.microbatches; ++i) writer.forward(0);
    for (int i = 0; i < plan.microbatches; ++i) writer.backward(0);
  });
}

Schedule one_f_one_b(const Plan& plan) {
  require_chunks("1f1b", plan, 1);
  return written({.name = "1f1b"}, plan, [&](Writer& writer, int rank) {
    for (int i = 1; i < plan.ranks - rank; ++i) writer.forward(0);
    for (int i = 0; i < plan.microbatches; ++i) {
      writer.forward(0);
      writer.backward(0);
    }
  });
}

Schedule interleaved(const Plan& plan) {
  if (plan.ranks > 0 && plan.microbatches % plan.ranks != 0)
    throw UsageError(fmt::format(
        "schedule interleaved: {} microbatches do not divide by {} ranks; use {} or {}",
        plan.microbatches, plan.ranks, std::max(1, plan.microbatches / plan.ranks) * plan.ranks,
        (plan.microbatches / plan.ranks + 1) * plan.ranks));
  return written(
      {.name = "interleaved", .chunks = plan.chunks}, plan, [&](Writer& writer, int rank) {
        // Microbatches in groups of p go through chunk after chunk.
        const int all = plan.microbatches * plan.chunks;
        const auto chunk_of = [&](int number) { return number / plan.ranks % plan.chunks; };
        const int ahead =
            plan.chunks == 1
                ? plan.ranks - rank - 1
                : std::min(all, 2 * (plan.ranks - rank - 1) + (plan.chunks - 1) * plan.ranks);
        for (int i = 0; i < std::min(all, ahead); ++i) writer.forward(chunk_of(i));
        for (int i = 0; i < all; ++i) {
          if (i + ahead < all) writer.forward(chunk_of(i + ahead));
          writer.backward(plan.chunks - 1 - chunk_of(i));
        }
      });
}

Schedule zb_h1(const Plan& plan) {
  require_chunks("zb-h1", plan, 1);
  return written({.name = "zb-h1", .split = true}, plan, [&](Writer& writer, int rank) {
    for (int i = 0; i < plan.ranks - rank; ++i) writer.forward(0);
    for (int i = 0; i < plan.microbatches; ++i) {
      writer.backward(0);
      if (i >= rank) writer.weight(0);
      writer.forward(0);
    }
    writer.rest(0);
  });
}

Schedule zb_v(const Plan& plan) {
  require_chunks("zb-v", plan, 2);
  const Schedule empty{.name = "zb-v", .chunks = 2, .split = true, .placement = Placement::vee};
  return written(empty, plan, [&](Writer& writer, int rank) {
    const int behind = plan.ranks - rank;
    const int all = std::max(plan.microbatches, 2 * plan.ranks - 1);
    for (int i = 0; i < 2 * behind - 1; ++i) writer.forward(0);
    for (int i = 0; i < rank; ++i) {
      writer.forward(1);
      writer.forward(0);
    }
    for (int i = 0; i < behind; ++i) {
      writer.forward(1);
      writer.whole(1);
    }
    while (writer.done(Kind::forward, 1) < all) {
      if (writer.done(Kind::forward, 0) < all) writer.forward(0);
      writer.whole(0);
      writer.forward(1);
      writer.whole(1);
    }
    for (int i = 0; i < rank; ++i) {
      writer.backward(0);
      writer.backward(1);
    }
    for (int i = 0; i < behind; ++i) {
      writer.backward(0);
      writer.weight(0);
    }
    writer.rest(1);
    writer.rest(0);
  });
}

// DualPipe's two pipelines that meet, folded at the middle: chunk 0 goes there, chunk 1 comes back.
Schedule dualpipe_v(const Plan& plan) {
  require_chunks("dualpipe-v", plan, 2);
  const Schedule empty{
      .name = "dualpipe-v", .chunks = 2, .split = true, .placement = Placement::vee};
  return written(empty, plan, [&](Writer& writer, int rank) {
    const int behind = plan.ranks - rank - 1;
    const int all = std::max(plan.microbatches, 2 * plan.ranks);
    std::deque<int> late;  // chunks whose weights were put off
    const auto put_off = [&](int chunk) {
      writer.backward(chunk);
      late.push_back(chunk);
    };
    const auto weight = [&] {
      if (late.empty()) return;
      writer.weight(late.front());
      late.pop_front();
    };
    for (int i = 0; i < 2 * behind; ++i) writer.forward(0);
    for (int i = 0; i <= rank; ++i) {
      writer.forward(0);
      writer.forward(1);
    }
    for (int i = 0; i < behind; ++i) {
      put_off(1);
      weight();
      writer.forward(1);
    }
    for (int i = 0; i < all - 2 * plan.ranks + rank + 1; ++i) {
      writer.forward(0);
      writer.whole(1);
      writer.forward(1);
      writer.whole(0);
    }
    for (int i = 0; i < behind; ++i) {
      writer.whole(1);
      writer.forward(1);
      writer.whole(0);
    }
    // Of the last rank + 1 pairs of backwards, the second half puts its weights off.
    for (int i = 0; i < 2 * (rank + 1); ++i) {
      const int chunk = 1 - i % 2;
      if (i <= rank) {
        writer.whole(chunk);
      } else {
        put_off(chunk);
      }
    }
    for (int i = 0; i < behind; ++i) {
      weight();
      put_off(0);
    }
    while (!late.empty()) weight();
  });
}

}  // namespace tutti::mesh
