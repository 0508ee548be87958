// Orders of one partition: rounds, late and wrong gradients, workers that leave, and copies.
#include <gmock/gmock.h>

#include <cmath>

#include "tutti/base/error.h"

#include "tests/support/message_of.h"
#include "tests/unit/ps/small_job.h"

namespace tutti::ps::testing {
namespace {

using ::testing::HasSubstr;
using tutti::test::message_of;

float value(const PartitionState& state, int piece = 0) {
  return first_of(state.piece(piece).parameters());
}

TEST(PartitionState, TheFirstOfNCountAndTheLateAreDropped) {
  Spec spec = small_spec(3, Staleness(0));
  spec.drop_slowest = 1;
  PartitionState state = begun(spec);
  EXPECT_TRUE(state.apply(push(spec, 2, 1, 0, {2})).empty());
  const auto through = state.apply(push(spec, 0, 1, 0, {4}));
  ASSERT_EQ(through.size(), 2U);
  EXPECT_EQ(through[0].worker, 0);
  EXPECT_EQ(through[1].flags, 0U);
  EXPECT_EQ(value(state), -(2 + 4) * 1.5F);  // scaled up to three
  const auto late = state.apply(push(spec, 1, 1, 0, {100}));
  ASSERT_EQ(late.size(), 1U);
  EXPECT_EQ(late[0].flags, Message::dropped);
  EXPECT_EQ(value(state), -9);
  EXPECT_EQ(state.counts().dropped, 1);
  EXPECT_EQ(state.counts().updates, 1);
  EXPECT_EQ(state.counts().pushes, 3);
}

TEST(PartitionState, StaleGradientsCountLess) {
  Spec spec = small_spec(2, Staleness::unbounded());
  spec.scale_by_staleness = true;
  PartitionState state = begun(spec);
  for (int i = 0; i < 4; ++i) state.apply(push(spec, 0, i + 1, i, {0}));
  state.apply(push(spec, 1, 1, 0, {8}));  // computed on version 0
  EXPECT_EQ(value(state), -2);
  EXPECT_EQ(state.counts().staleness.most(), 4);
  EXPECT_EQ(state.counts().updates, 5);
}

TEST(PartitionState, CompensatesAlsoInACopyAndForARepeatedPull) {
  Spec spec = small_spec(2, Staleness::unbounded());
  spec.delay_compensation = 0.5;
  PartitionState state = begun(spec, 10);
  state.apply(pull(1, 0));
  state.apply(push(spec, 0, 1, 0, {4}));  // never pulled: as it is
  EXPECT_EQ(value(state), 6);
  state.apply(pull(1, 0));  // asked again: it is told the same
  EXPECT_EQ(first_of(state.values_for(1, 0).first), 10);
  EXPECT_EQ(state.values_for(1, 0).second, 0);
  PartitionState copy = copy_of(state);
  for (PartitionState* each : {&state, &copy}) {
    each->apply(push(spec, 1, 1, 0, {3}));
    EXPECT_EQ(value(*each), 6 - (3 + 0.5F * 9 * (6 - 10)));
  }
  state.apply(pull(1, 1));
  EXPECT_EQ(first_of(state.values_for(1, 0).first), value(state));
}

TEST(PartitionState, WorkersThatAreGoneKeepNoParameters) {
  Spec spec = small_spec(2, Staleness::unbounded());
  spec.delay_compensation = 0.5;
  PartitionState state = begun(spec, 10);
  state.apply(pull(1, 0));
  state.apply(leave(1));
  state.apply(pull(1, 1));
  const auto chunks = chunks_of(state);
  for (const Message& chunk : chunks) EXPECT_THAT(chunk.text, Not(HasSubstr("\"pulled\"")));
}

// It counts its steps from 0, and holds nobody up for those of the worker before it.
TEST(PartitionState, AWorkerThatComesAgainBeginsWhereTheSlowestIs) {
  const Spec spec = small_spec(2, Staleness(1));
  PartitionState state = begun(spec);
  for (int64_t step = 0; step < 5; ++step)
    for (int worker = 0; worker < 2; ++worker) state.apply(push(spec, worker, step + 1, step, {1}));
  state.apply(leave(1));
  state.apply(hello(spec, 1));
  PartitionState copy = copy_of(state);
  for (PartitionState* each : {&state, &copy}) {
    EXPECT_EQ(each->step_of_job(1, 0), 5);
    EXPECT_EQ(each->step_of_job(0, 5), 5);
    each->apply(push(spec, 0, 6, 5, {1}));
    EXPECT_FALSE(each->may_pull(0, 7));
    EXPECT_EQ(each->waits_for(0, 7), std::vector<int>{1});
    each->apply(push(spec, 1, 6, 0, {1}));
    EXPECT_TRUE(each->may_pull(0, 7)) << "its first step counts";
  }
}

TEST(PartitionState, ARoundGoesOnWithoutTheOneThatIsNotFinite) {
  const Spec spec = small_spec(3, Staleness(0));
  PartitionState state = begun(spec);
  state.apply(push(spec, 0, 1, 0, {1}));
  state.apply(push(spec, 1, 1, 0, {0, std::nanf("")}));
  const auto through = state.apply(push(spec, 2, 1, 0, {2}));
  ASSERT_EQ(through.size(), 3U);
  for (const Settled& push : through) {
    EXPECT_EQ(push.flags, push.worker == 1 ? Message::not_finite : 0U);
    EXPECT_EQ(push.text, push.worker == 1 ? "w" : "");
  }
  EXPECT_EQ(value(state), -3);
  EXPECT_EQ(state.counts().not_finite, 1);
  for (int w = 0; w < 3; ++w) state.apply(push(spec, w, 2, 1, {INFINITY}));
  EXPECT_EQ(value(state), -3);
  EXPECT_TRUE(state.may_pull(0, 2));  // nobody waits for ever
}

TEST(PartitionState, AloneWhatIsNotFiniteChangesNothing) {
  const Spec spec = small_spec(1, Staleness(2));
  PartitionState state = begun(spec);
  const auto through = state.apply(push(spec, 0, 1, 0, {INFINITY}));
  ASSERT_EQ(through.size(), 1U);
  EXPECT_EQ(through[0].flags, Message::not_finite);
  EXPECT_EQ(value(state), 0);
  EXPECT_TRUE(state.may_pull(0, 3));  // its step counts for the bound
}

TEST(PartitionState, ALeaverIsWaitedForInNoPieceWhereTheOthersGoOn) {
  Spec spec = two_pieces(3, Staleness(0));
  spec.on_lost_worker = OnLostWorker::go_on;
  PartitionState state = begun(spec);
  for (int w = 0; w < 3; ++w)
    if (w != 1) state.apply(push(spec, w, 1, 0, {1}, 1));
  for (int w = 0; w < 3; ++w)
    if (w != 0) state.apply(push(spec, w, w == 1 ? 1 : 2, 0, {1}, 0));
  EXPECT_EQ(state.waits_for(1, 1), std::vector<int>{1});
  const auto through = state.apply(leave(1));
  EXPECT_EQ(through.size(), 2U);   // piece 1, of 0 and 2; piece 0 waits for 0
  EXPECT_EQ(value(state, 1), -3);  // scaled up to three
  EXPECT_EQ(state.counts().updates, 0);
  EXPECT_EQ(state.apply(push(spec, 0, 2, 0, {1}, 0)).size(), 3U);
  EXPECT_EQ(value(state, 0), -3);  // what it had pushed counts
  EXPECT_EQ(state.counts().updates, 1);
}

// Else pieces would be of a step that the job never made, and a cut would take them for it.
TEST(PartitionState, AStepWithoutThePartOfOneThatHasLeftIsNone) {
  for (const OnLostWorker policy : {OnLostWorker::end, OnLostWorker::wait}) {
    Spec spec = two_pieces(3, Staleness(0));
    spec.on_lost_worker = policy;
    PartitionState state = begun(spec);
    for (int w = 0; w < 3; ++w) state.apply(push(spec, w, 1, 0, {1}, 0));
    state.apply(push(spec, 0, 2, 0, {1}, 1));
    EXPECT_TRUE(state.pushed_in_vain().empty());
    EXPECT_TRUE(state.apply(leave(1)).empty());
    PartitionState copy = copy_of(state);
    for (PartitionState* each : {&state, &copy}) {
      EXPECT_TRUE(each->apply(push(spec, 2, 2, 0, {1}, 1)).empty());
      EXPECT_EQ(value(*each, 0), -3);
      EXPECT_EQ(value(*each, 1), 0);
      EXPECT_EQ(each->counts().updates, 0);
      EXPECT_EQ(each->waits_for(1, 1), std::vector<int>{1});
      std::vector<int> workers;
      for (const PartitionState::Vain& vain : each->pushed_in_vain()) {
        workers.push_back(vain.worker);
        EXPECT_EQ(vain.without, 1);
        EXPECT_EQ(vain.step, 0);
      }
      EXPECT_EQ(workers, (std::vector<int>{0, 2}));
    }
  }
}

// It would push what it computes of pieces of two steps.
TEST(PartitionState, WhoHasLeftInAStepComesBackOnlyWhereItIsWaitedFor) {
  for (const OnLostWorker policy : {OnLostWorker::end, OnLostWorker::go_on, OnLostWorker::wait}) {
    Spec spec = two_pieces(2, Staleness(0));
    spec.on_lost_worker = policy;
    PartitionState state = begun(spec);
    state.apply(leave(1));
    EXPECT_EQ(state.objection(hello(spec, 1)), "") << "it had pushed nothing";
    state.apply(hello(spec, 1));
    state.apply(push(spec, 1, 1, 0, {1}, 0));
    EXPECT_EQ(state.objection(hello(spec, 1)), "") << "its connection was broken";
    state.apply(leave(1));
    const bool ends = policy == OnLostWorker::end;
    EXPECT_THAT(state.objection(hello(spec, 1)),
                ends ? HasSubstr("worker 1 has left before") : HasSubstr(""));
    EXPECT_EQ(state.objection(hello(spec, 1)).empty(), !ends);
    state.apply(hello(spec, 1));
    EXPECT_EQ(state.is_here(1), !ends);
  }
}

// Workers send the pieces of a step in orders of their own.
TEST(PartitionState, AStepIsCountedOnceWhateverCameLast) {
  const Spec spec = two_pieces(2, Staleness(0));
  PartitionState state = begun(spec);
  for (int64_t step = 0; step < 3; ++step)
    for (int i = 0; i < 2; ++i)
      for (int w = 0; w < 2; ++w) {
        Message order = push(spec, w, 2 * step + i + 1, step, {1}, w == 0 ? i : 1 - i);
        if (i == 0) order.flags = 0;
        state.apply(order);
      }
  EXPECT_EQ(state.counts().updates, 3);
  EXPECT_EQ(state.counts().staleness.count(), 3);
}

TEST(PartitionState, WhatWasLeftOutIsToldAgainAlsoByACopy) {
  Spec spec = small_spec(2, Staleness::unbounded());
  spec.stop_if_not_finite = false;
  PartitionState state = begun(spec);
  const Message bad = push(spec, 1, 1, 0, {NAN});
  state.apply(bad);
  state.apply(push(spec, 1, 2, 1, {1}));
  const PartitionState copy = copy_of(state);
  for (const PartitionState* told : {&std::as_const(state), &copy}) {
    const Settled again = told->settled_again(bad);
    EXPECT_EQ(again.flags, Message::not_finite);
    EXPECT_EQ(again.text, "w");
    EXPECT_EQ(told->settled_again(push(spec, 1, 2, 1, {1})).flags, 0U);
  }
}

TEST(PartitionState, NamesBothThatDisagreeAndWhoseRankIsTaken) {
  const Spec spec = small_spec(3, Staleness(0));
  PartitionState state(0, Compute::plain());
  state.apply(hello(spec, 2));
  Spec other = spec;
  other.rule = optim::adam();
  const auto name = [](int worker) { return fmt::format("worker {} (host h)", worker); };
  EXPECT_THAT(state.objection(hello(other, 1), name),
              HasSubstr("worker 1 (host h) does not train what worker 2 (host h) does: "));
  EXPECT_THAT(copy_of(state).objection(hello(other, 1)), HasSubstr("what worker 2 does"));
  PartitionState round = begun(spec);
  round.apply(push(spec, 0, 1, 0, {1}));
  Message same = push(spec, 1, 1, 0, {1});
  EXPECT_EQ(round.objection(same), "");
  same.parts[0].rank = 0;
  EXPECT_THAT(round.objection(same), HasSubstr("worker 0 has pushed a part of the same rank"));
}

TEST(PartitionState, RepeatedOrdersOfAPushCountOnce) {
  const Spec spec = small_spec(1, Staleness::unbounded());
  PartitionState state = begun(spec);
  EXPECT_EQ(state.apply(push(spec, 0, 1, 0, {1})).size(), 1U);
  EXPECT_TRUE(state.apply(push(spec, 0, 1, 0, {1})).empty());
  EXPECT_EQ(value(state), -1);
  EXPECT_EQ(state.counts().pushes, 1);
}

TEST(PartitionState, CopiesInTheMiddleGoOnBitForBit) {
  for (const optim::Rule& rule : {optim::adam(), optim::ftrl()})
    for (const Staleness staleness : {Staleness(0), Staleness(1), Staleness::unbounded()}) {
      Spec spec = two_pieces(3, staleness, rule);
      if (!staleness.synchronous()) spec.delay_compensation = 0.1;
      PartitionState state = begun(spec, 0.3F);
      std::vector<Message> orders;
      for (int64_t step = 0; step < 3; ++step)
        for (int piece = 0; piece < 2; ++piece)
          for (int w = 0; w < 3; ++w) {
            orders.push_back(pull(w, step, piece));
            orders.push_back(push(spec, w, 2 * step + piece + 1, step,
                                  {std::sin(static_cast<float>(w + 1)), 1.0F / (w + 3)}, piece));
          }
      orders.insert(orders.begin() + 20, leave(1));
      orders.push_back(hello(spec, 1));
      for (size_t cut = 0; cut <= orders.size(); ++cut) {
        PartitionState one = begun(spec, 0.3F);
        for (size_t i = 0; i < cut; ++i) one.apply(orders[i]);
        PartitionState other = copy_of(one);
        EXPECT_EQ(all_of(other), all_of(one));
        for (int w = 0; w < 3; ++w) EXPECT_EQ(other.last_sequence(w), one.last_sequence(w));
        for (size_t i = cut; i < orders.size(); ++i) {
          const auto a = one.apply(orders[i]);
          EXPECT_EQ(a.size(), other.apply(orders[i]).size());
        }
        ASSERT_EQ(all_of(other), all_of(one)) << "cut at " << cut;
      }
    }
}

TEST(PartitionState, CopiesBeforeTheFirstValuesKnowWhatIsMissing) {
  const Spec spec = two_pieces(2, Staleness(0));
  PartitionState state(0, Compute::plain());
  EXPECT_FALSE(copy_of(state).registered());
  state.apply(hello(spec, 0));
  state.apply(assign(spec, 0, {1}));
  PartitionState copy = copy_of(state);
  EXPECT_FALSE(copy.assigned());
  copy.apply(assign(spec, 0, {7}));  // the first counts
  copy.apply(assign(spec, 1, {2}));
  EXPECT_TRUE(copy.assigned());
  EXPECT_EQ(value(copy, 0), 1);
  EXPECT_EQ(value(copy, 1), 2);
}

TEST(PartitionState, ObjectsToWhatCannotBe) {
  const Spec spec = small_spec(2, Staleness(0), optim::ftrl());
  PartitionState fresh(0, Compute::plain());
  EXPECT_THAT(fresh.objection(pull(0, 0)), HasSubstr("no worker has registered"));
  EXPECT_THAT(fresh.objection({.kind = Message::Kind::hello, .worker = 0, .text = "?"}),
              HasSubstr("cannot be read"));
  EXPECT_THAT(fresh.objection(hello(spec, 2)), HasSubstr("worker 2 of 2"));
  fresh.apply(hello(spec, 0));
  EXPECT_THAT(fresh.objection(push(spec, 0, 1, 0, {1})), HasSubstr("push 1 of piece 0"));
  const PartitionState state = begun(spec);
  Spec other = spec;
  other.variables[0].shape = {2, 2};
  EXPECT_THAT(state.objection(hello(other, 1)),
              AllOf(HasSubstr("worker 1"), HasSubstr("[2, 2], not \"w\" float32 [4]")));
  const auto objection = [&](const std::function<void(Message&)>& change) {
    Message message = push(spec, 0, 1, 0, {1});
    change(message);
    return state.objection(message);
  };
  constexpr auto kLeast = std::numeric_limits<int64_t>::min();
  constexpr auto kMost = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(objection([](Message&) {}), "");
  EXPECT_THAT(objection([](Message& m) { m.piece = 1; }), HasSubstr("piece 1 is not in"));
  EXPECT_THAT(objection([](Message& m) { m.piece = -1; }), HasSubstr("piece -1 is not in"));
  EXPECT_THAT(objection([](Message& m) { m.worker = 2; }), HasSubstr("worker 2 of 2"));
  EXPECT_THAT(objection([&](Message& m) { m.step = kLeast; }), HasSubstr("is in step"));
  EXPECT_THAT(objection([&](Message& m) { m.step = kMost; }), HasSubstr("is in step"));
  EXPECT_THAT(objection([](Message& m) { m.step = 1; }), HasSubstr("step 0 is not over"));
  EXPECT_THAT(objection([](Message& m) { m.sequence = 0; }), HasSubstr("push 0"));
  EXPECT_THAT(objection([&](Message& m) { m.version = kLeast; }), HasSubstr("version"));
  EXPECT_THAT(objection([](Message& m) { m.learning_rate = 0; }), HasSubstr("ftrl"));
  EXPECT_THAT(objection([](Message& m) { m.learning_rate = NAN; }), HasSubstr("learning_rate"));
  EXPECT_THAT(objection([](Message& m) { m.parts.clear(); }), HasSubstr("64 bytes for 0 parts"));
  EXPECT_THAT(objection([](Message& m) { m.parts[0].rank = 2; }), HasSubstr("rank 2 of 2"));
  EXPECT_THAT(objection([](Message& m) { m.parts[0].rank = -1; }), HasSubstr("rank -1 of 2"));
  EXPECT_THAT(objection([](Message& m) { m.parts[0].used = {1, 1}; }), HasSubstr("2 marks"));
  EXPECT_THAT(objection([](Message& m) { m.payload = {}; }), HasSubstr("0 bytes for 1 parts"));
}

TEST(PartitionState, ChunksThatAreNoneAreErrors) {
  const Spec spec = small_spec(1, Staleness(0));
  const auto chunks = chunks_of(begun(spec));
  const auto fails = [&](PartitionState state, Message chunk) {
    chunk.kind = Message::Kind::chunk;
    return message_of<Error>([&] { state.take(chunk); });
  };
  const auto fresh = [] { return PartitionState(0, Compute::plain()); };
  EXPECT_THAT(fails(fresh(), {.text = "?"}), HasSubstr("cannot be read"));
  for (size_t i = 1; i < chunks.size(); ++i)
    EXPECT_THAT(fails(fresh(), chunks[i]), HasSubstr("before the first"));
  EXPECT_THAT(fails(begun(spec), chunks[0]), HasSubstr("again"));
  EXPECT_THAT(fails(begun(spec), {.text = R"({"what":"dance"})"}), HasSubstr("dance"));
  EXPECT_THAT(fails(begun(spec), {.text = R"({"what":"memory","piece":7})"}),
              HasSubstr("piece 7 is not in"));
  EXPECT_THAT(message_of<Error>([&] { begun(spec).apply(chunks[0]); }), HasSubstr("no order"));
}

TEST(PartitionCounts, ComeBackFromTheirText) {
  PartitionCounts counts{.pushes = 7, .updates = 3, .dropped = 2, .not_finite = 1};
  counts.staleness.add(0, 2);
  counts.staleness.add(5);
  EXPECT_EQ(to_text(counts_from(to_text(counts))), to_text(counts));
  EXPECT_EQ(counts_from(to_text(counts)).staleness.most(), 5);
  EXPECT_THAT(message_of<Error>([] { counts_from("[1,2]"); }), HasSubstr("cannot be read"));
}

}  // namespace
}  // namespace tutti::ps::testing
