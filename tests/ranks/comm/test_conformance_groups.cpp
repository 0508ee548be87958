// Groups made by split, several at once, and random programs over random groups, on all engines.
#include <deque>
#include <numeric>

#include "tests/ranks/comm/conformance.h"

namespace tutti::test {
namespace {

TEST_P(Conformance, SplitOrdersByKeyThenByRank) {
  run_all_members(engines(), [&](Group group) {
    const int rank = group.rank(), size = group.size();
    // Everybody, the other way round.
    Group all = *group.split(7, -rank);
    EXPECT_EQ(all.size(), size);
    EXPECT_EQ(all.rank(), size - 1 - rank);
    EXPECT_EQ(all.reduction_shape(), ReductionShape::flat(size));
    // Every third rank is in none.
    std::optional<Group> some = group.split(rank % 3 == 2 ? -1 : rank % 3);
    EXPECT_EQ(some.has_value(), rank % 3 != 2);
    if (some) {
      EXPECT_EQ(some->rank(), rank / 3);
      std::vector<int32_t> ranks(static_cast<size_t>(some->size()));
      int32_t mine = rank;
      some->all_gather({&mine, 1, DType::int32}, span_of(std::span(ranks))).wait();
      for (int r = 0; r < some->size(); ++r) EXPECT_EQ(ranks[r], r * 3 + rank % 3);
    }
    EXPECT_EQ(group.split(rank)->size(), 1) << "each a group of its own";
  });
}

TEST_P(Conformance, SplitsOfSplitsOutliveTheirParents) {
  run_all_members(engines(), [&](Group world) {
    std::optional<Group> half = world.split(world.rank() % 2);
    std::optional<Group> quarter = half->split(half->rank() % 2);
    half.reset();
    {
      Group gone = std::move(world);
    }
    const auto n = quarter->size();
    std::vector<float> data(30'000, 1.f);
    quarter->all_reduce(span_of(std::span(data)), ReduceOp::sum).wait();
    EXPECT_EQ(data[29'999], static_cast<float>(n));
    quarter->barrier();
  });
}

TEST_P(Conformance, GroupsFailForThemselves) {
  if (ranks() < 2) return;
  run_all_members(engines(), [&](Group world) {
    Group sub = *world.split(0);
    Group other = *world.split(0);
    if (sub.rank() == 0) sub.abort("only this one");
    EXPECT_THROW(while (true) sub.barrier(), Error);
    other.barrier();
    world.barrier();
  });
}

// Rows and columns of a grid: every rank is in two groups, and works of both are in flight.
TEST_P(Conformance, CrossedGroupsWithWorkInFlightInBoth) {
  run_all_members(engines(), [&](Group world) {
    const int columns = 2, rank = world.rank();
    Group row = *world.split(rank / columns), column = *world.split(rank % columns);
    for (int64_t n : {5, 3'000, 60'000}) {
      std::vector<float> a(static_cast<size_t>(n), 1.f), b(static_cast<size_t>(n), 1.f);
      Work in_row = row.all_reduce(span_of(std::span(a)), ReduceOp::sum);
      Work in_column = column.all_reduce(span_of(std::span(b)), ReduceOp::sum);
      in_row.wait();
      in_column.wait();
      EXPECT_EQ(a.back(), static_cast<float>(row.size()));
      EXPECT_EQ(b.back(), static_cast<float>(column.size()));
    }
  });
}

TEST_P(Conformance, GroupsOnThreadsOfTheirOwn) {
  run_all_members(engines(), [&](Group world) {
    Group other = *world.split(0, world.rank());
    std::exception_ptr thrown;
    const auto work = [](Group& group) {
      for (int i = 0; i < 30; ++i) {
        std::vector<double> data(500, i);
        group.all_reduce_now(span_of(std::span(data)), ReduceOp::max);
        if (data[0] != i) throw Error("wrong maximum");
      }
    };
    std::thread second([&] {
      try {
        work(other);
      } catch (...) {
        thrown = std::current_exception();
      }
    });
    work(world);
    second.join();
    if (thrown) std::rethrow_exception(thrown);
  });
}

// A program that all ranks carry out: groups made by split, collectives and messages in them.
struct Step {
  enum Kind { split, collective, message, wait } kind = wait;
  size_t group = 0;
  Call call{};
  std::vector<int> colors, keys;  ///< split: of each member
  int from = 0, to = 0, tag = 0;  ///< message
  bool any_source = false;
  uint32_t seed = 0;
};

class Program {
 public:
  Program(int ranks, uint32_t seed) : random_(seed) {
    std::vector<int> world(static_cast<size_t>(ranks));
    std::iota(world.begin(), world.end(), 0);
    groups_ = {world};
    for (int i = 0; i < 14; ++i) add_step();
  }

  const std::vector<Step>& steps() const { return steps_; }
  const std::vector<int>& members(size_t group) const { return groups_[group]; }

 private:
  int64_t below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint32_t>(n)); }

  void add_step() {
    Step step{.group = static_cast<size_t>(below(static_cast<int64_t>(groups_.size()))),
              .seed = static_cast<uint32_t>(random_())};
    const auto size = static_cast<int>(groups_[step.group].size());
    const int64_t kind = below(10);
    if (kind == 0 && groups_.size() < 8) {
      add_split(step, size);
    } else if (kind < 6) {
      step.kind = Step::collective;
      step.call = some_call(size);
    } else if (kind < 9 && size > 1) {
      step.kind = Step::message;
      step.from = static_cast<int>(below(size));
      step.to = (step.from + 1 + static_cast<int>(below(size - 1))) % size;
      step.tag = static_cast<int>(steps_.size());  // of its own, so that any source is this one
      step.any_source = below(3) == 0;
      step.call = {.dtype = DType::uint8, .n = below(2) == 0 ? below(300) : below(150'000)};
    }
    steps_.push_back(step);
  }

  void add_split(Step& step, int size) {
    step.kind = Step::split;
    for (int r = 0; r < size; ++r) {
      step.colors.push_back(static_cast<int>(below(3)));
      step.keys.push_back(static_cast<int>(below(4)) - 2);
    }
    for (int color = 0; color < 3; ++color) {
      std::vector<int> members;
      for (int key = -2; key < 2; ++key)
        for (int r = 0; r < size; ++r)
          if (step.colors[r] == color && step.keys[r] == key)
            members.push_back(groups_[step.group][r]);
      groups_.push_back(members.empty() ? std::vector<int>{-1} : members);
    }
  }

  Call some_call(int size) {
    constexpr Collective kAll[] = {
        Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather,
        Collective::broadcast,  Collective::reduce,         Collective::scatter,
        Collective::gather,     Collective::all_to_all,     Collective::barrier};
    Call call{.collective = kAll[below(9)],
              .dtype = kAllDTypes[below(13)],
              .root = static_cast<int>(below(size)),
              .n = below(4) == 0 ? below(4'000) : below(60)};
    do call.op = kAllOps[below(11)];
    while (!is_defined(call.dtype, call.op));
    const bool parts =
        call.collective == Collective::reduce_scatter ||
        call.collective == Collective::all_gather || call.collective == Collective::scatter ||
        call.collective == Collective::gather || call.collective == Collective::all_to_all;
    if (!parts || below(2) == 0) return call;
    for (int s = 0; s < (call.collective == Collective::all_to_all ? size : 1); ++s) {
      call.counts.emplace_back();
      for (int r = 0; r < size; ++r)
        call.counts.back().push_back(below(3) == 0 ? 0 : below(call.n + 1));
    }
    return call;
  }

  std::mt19937 random_;
  std::vector<std::vector<int>> groups_;
  std::vector<Step> steps_;
};

// Carries out the part of one rank. buffers[step] holds those of the group's members in turn.
void carry_out(const Program& program, Group world, std::vector<std::vector<Buffers>>& buffers,
               uint32_t seed) {
  const int rank = world.rank();
  std::mt19937 random(seed * 31 + static_cast<uint32_t>(rank));
  std::vector<std::optional<Group>> groups = {world};
  // Operations advance in who waits in their group, so works are waited for in their order.
  std::deque<Work> works;
  for (size_t i = 0; i < program.steps().size(); ++i) {
    const Step& step = program.steps()[i];
    std::optional<Group> group = groups[step.group];
    const int me = group ? group->rank() : -1;
    if (step.kind == Step::split) {
      while (!works.empty()) works.front().wait(), works.pop_front();
      const size_t first = groups.size();
      groups.resize(first + 3);
      if (group) groups[first + step.colors[me]] = group->split(step.colors[me], step.keys[me]);
    } else if (step.kind == Step::collective && group) {
      if (step.call.collective == Collective::barrier)
        while (!works.empty()) works.front().wait(), works.pop_front();
      works.push_back(start(step.call, *group, buffers[i][me]));
    } else if (step.kind == Step::message && me == step.from) {
      works.push_back(
          group->send(span_of_bytes(buffers[i][me].input, DType::uint8), step.to, step.tag));
    } else if (step.kind == Step::message && me == step.to) {
      works.push_back(group->recv(span_of_bytes(buffers[i][me].output, DType::uint8),
                                  step.any_source ? kAnyRank : step.from, step.tag));
    }
    for (uint32_t waits = random() % 4; waits > 1 && !works.empty(); --waits)
      works.front().wait(), works.pop_front();
  }
  for (auto& work : works) work.wait();
}

TEST_P(Conformance, RandomProgramsGiveWhatTheOracleDoes) {
  const uint32_t programs = ranks() > 8 ? 10 : 200;
  const auto members = engines();
  for (uint32_t seed = 0; seed < programs; ++seed) {
    const Program program(ranks(), seed);
    std::vector<std::vector<Buffers>> before;
    for (const Step& step : program.steps()) {
      const auto size = static_cast<int>(program.members(step.group).size());
      before.push_back(step.kind == Step::collective ? make_all_buffers(step.call, size, step.seed)
                                                     : std::vector<Buffers>(size));
      if (step.kind != Step::message) continue;
      before.back()[step.from].input = ordinary_values(DType::uint8, step.call.n, step.seed, 0);
      before.back()[step.to].output.resize(static_cast<size_t>(step.call.n));
    }
    auto after = before;
    run_all_members(members, [&](Group world) { carry_out(program, world, after, seed); });
    for (size_t i = 0; i < before.size(); ++i) {
      const Step& step = program.steps()[i];
      if (program.members(step.group)[0] < 0) continue;
      const std::string what = fmt::format("program {}, step {}", seed, i);
      if (step.kind == Step::message)
        expect_same(DType::uint8, after[i][step.to].output, before[i][step.from].input, what);
      for (size_t r = 0; step.kind == Step::collective && r < before[i].size(); ++r)
        expect_same(step.call.dtype, after[i][r].output,
                    expected_output(step.call, before[i], static_cast<int>(r)),
                    what + ": " + words_of(step.call));
    }
    ASSERT_FALSE(HasFailure());
  }
}

}  // namespace
}  // namespace tutti::test
