// Rows of embedding tables on a server: what is refused, what a step of all workers does, copies;
// and the batches of a worker.
#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <functional>

#include "tutti/base/error.h"
#include "tutti/ps/values/sparse_batch.h"

#include "tests/support/message_of.h"
#include "tests/unit/ps/small_job.h"

namespace tutti::ps::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using tutti::test::message_of;

Spec sparse_spec(int workers, Staleness staleness, int partitions = 1) {
  Spec spec = small_spec(workers, staleness);
  spec.variables.clear();
  spec.pieces.clear();
  spec.num_partitions = partitions;
  spec.tables = {{.name = "user", .width = 2, .initializer = ZeroRows{}},
                 {.name = "item", .width = 1, .dtype = DType::float64, .initializer = ZeroRows{}}};
  return spec;
}

Bytes payload_of(const std::vector<uint64_t>& keys, const std::vector<float>& values = {}) {
  std::vector<std::byte> bytes(keys.size() * 8 + values.size() * 4);
  std::memcpy(bytes.data(), keys.data(), keys.size() * 8);
  if (!values.empty())
    std::memcpy(bytes.data() + keys.size() * 8, values.data(), values.size() * 4);
  return Bytes::copy_of(bytes);
}

Message sparse_push(int worker, int64_t sequence, int64_t step, Bytes payload) {
  return {.kind = Message::Kind::sparse_push,
          .worker = worker,
          .piece = 0,
          .sequence = sequence,
          .step = step,
          .learning_rate = 1,
          .parts = {},
          .payload = std::move(payload)};
}

float row(const PartitionState& state, uint64_t key) {
  return first_of(state.tables().rows(0, {&key, 1}));
}

TEST(SparseShard, RefusesWhatCannotBe) {
  const Spec spec = sparse_spec(2, Staleness(0), 2);
  const uint64_t here = 2;
  ASSERT_EQ(server_of_key(here, 2), 1);
  PartitionState other(1, Compute::plain());
  const Message good = sparse_push(0, 1, 0, payload_of({here}, {1, 2}));
  EXPECT_THAT(other.objection(good), HasSubstr("no worker has registered"));
  other.apply(hello(spec, 0));
  EXPECT_EQ(other.objection(good), "");
  const auto objection = [&](const std::function<void(Message&)>& spoil) {
    Message message = good;
    spoil(message);
    return other.objection(message);
  };
  using M = Message;
  EXPECT_THAT(objection([](M& m) { m.piece = 2; }), HasSubstr("embedding table 2 of 2"));
  EXPECT_THAT(objection([](M& m) { m.piece = -1; }), HasSubstr("embedding table -1 of 2"));
  EXPECT_THAT(objection([](M& m) { m.worker = 2; }), HasSubstr("worker 2 of 2"));
  EXPECT_THAT(objection([](M& m) { m.step = -1; }), HasSubstr("step -1"));
  EXPECT_THAT(objection([](M& m) { m.step = 1; }), HasSubstr("step 0 is not over"));
  EXPECT_THAT(objection([](M& m) { m.sequence = 0; }), HasSubstr("push 0 of table 0"));
  EXPECT_THAT(objection([](M& m) { m.version = -1; }), HasSubstr("version -1"));
  EXPECT_THAT(objection([](M& m) { m.learning_rate = NAN; }), HasSubstr("learning_rate"));
  EXPECT_THAT(objection([&](M& m) { m.payload = payload_of({here}, {1}); }),
              HasSubstr("\"user\": 12 bytes; expected 16 a key"));
  EXPECT_THAT(objection([&](M& m) { m.payload = payload_of({here, here}, {1, 2, 3, 4}); }),
              HasSubstr("key 2 comes twice"));
  other.apply(hello(spec, 1));
  uint64_t foreign = 0;
  while (server_of_key(foreign, 2) == 1) ++foreign;
  EXPECT_THAT(objection([&](M& m) { m.payload = payload_of({foreign}, {1, 2}); }),
              HasSubstr("is not of partition 1"));
  Message pull = good;
  pull.kind = Message::Kind::sparse_pull;
  pull.payload = payload_of({here, here});
  EXPECT_EQ(other.objection(pull), "") << "a key may be read twice";
}

TEST(SparseShard, AsksOfPullsThatTheyFitIntoAFrame) {
  Spec spec = sparse_spec(1, Staleness(0));
  spec.tables[0].width = SparseTableSpec::kMostWidth;
  PartitionState state(0, Compute::plain());
  state.apply(hello(spec, 0));
  Message pull{.kind = Message::Kind::sparse_pull, .worker = 0, .sequence = 1};
  pull.payload = payload_of(std::vector<uint64_t>(256, 3));
  EXPECT_EQ(state.objection(pull), "");
  pull.payload = payload_of(std::vector<uint64_t>(257, 3));
  EXPECT_THAT(state.objection(pull), HasSubstr("257 rows of 4194304 bytes at once"));
  pull.payload = Bytes::copy_of(std::vector<std::byte>(9));
  EXPECT_THAT(state.objection(pull), HasSubstr("expected 8 a key"));
  pull.payload = {};
  pull.sequence = 0;
  EXPECT_THAT(state.objection(pull), HasSubstr("number 0"));
}

TEST(SparseShard, AStepIsOneUpdateInTheOrderOfTheWorkers) {
  const Spec spec = sparse_spec(3, Staleness(0));
  PartitionState state = begun(spec);
  // In another order 1 would be lost beside 1e8.
  const std::vector<float> gradients[] = {{1e8F, 0}, {-1e8F, 0}, {1, 0}};
  int settled = 0;
  for (const int worker : {2, 0, 1}) {
    EXPECT_FALSE(state.may_pull_rows(0, 1));
    settled += static_cast<int>(
        state.apply(sparse_push(worker, 1, 0, payload_of({4}, gradients[worker]))).size());
  }
  EXPECT_EQ(settled, 3);
  EXPECT_EQ(row(state, 4), -1);
  EXPECT_TRUE(state.may_pull_rows(0, 1));
  EXPECT_FALSE(state.may_pull_rows(1, 1)) << "a table waits for its own pushes";
  EXPECT_THAT(state.waits_for_rows(1, 1), ElementsAre(0, 1, 2));
  // Again, as after a break: nothing changes.
  EXPECT_TRUE(state.apply(sparse_push(0, 1, 0, payload_of({4}, {5, 5}))).empty());
  EXPECT_EQ(row(state, 4), -1);
}

TEST(SparseShard, WhoLeavesIsNotWaitedForWhereTheOthersGoOn) {
  Spec spec = sparse_spec(2, Staleness(0));
  spec.on_lost_worker = OnLostWorker::go_on;
  PartitionState state = begun(spec);
  state.apply(sparse_push(0, 1, 0, payload_of({4}, {1, 1})));
  PartitionState copy = copy_of(state);
  EXPECT_EQ(all_of(copy), all_of(state));
  for (PartitionState* each : {&state, &copy}) {
    EXPECT_TRUE(each->in_round(sparse_push(0, 1, 0, {})));
    EXPECT_EQ(each->apply(leave(1)).size(), 1U);
    EXPECT_EQ(row(*each, 4), -2) << "scaled up to both";
  }
  EXPECT_EQ(all_of(copy), all_of(state));
}

TEST(SparseShard, AStepWithoutTheRowsOfOneThatHasLeftIsNone) {
  const Spec spec = sparse_spec(2, Staleness(0));
  PartitionState state = begun(spec);
  state.apply(sparse_push(0, 1, 0, payload_of({4}, {1, 1})));
  EXPECT_TRUE(state.apply(leave(1)).empty());
  EXPECT_EQ(row(state, 4), 0);
  ASSERT_EQ(state.pushed_in_vain().size(), 1U);
  EXPECT_EQ(state.pushed_in_vain()[0].without, 1);
}

TEST(SparseShard, GradientsThatAreNotFiniteAreLeftOut) {
  for (const Staleness staleness : {Staleness(0), Staleness::unbounded()}) {
    PartitionState state = begun(sparse_spec(1, staleness));
    const auto settled = state.apply(sparse_push(0, 1, 0, payload_of({4}, {1, INFINITY})));
    ASSERT_EQ(settled.size(), 1U);
    EXPECT_EQ(settled[0].flags, Message::not_finite);
    EXPECT_EQ(settled[0].text, "user");
    EXPECT_EQ(state.counts().not_finite, 1);
    EXPECT_EQ(state.counts().sparse_rows, 0);
  }
}

TEST(SparseShard, ChunksThatAreNoneAreErrors) {
  const Spec spec = sparse_spec(1, Staleness(0));
  const auto fails = [&](const std::string& text, int64_t bytes) {
    SparseShard shard(spec, 0, Compute::plain());
    return message_of<Error>(
        [&] { shard.take(text, Bytes::copy_of(std::vector<std::byte>(bytes))); });
  };
  EXPECT_THAT(fails("[2,1]", 64), HasSubstr("table 2 of 2"));
  EXPECT_THAT(fails("[0,1]", 63), HasSubstr("63 bytes; expected 64 a row"));
  EXPECT_THAT(fails("[0,-1]", 64), HasSubstr("-1 rows"));
  EXPECT_THAT(fails("[0,1]", 64), HasSubstr("count 0"));
  EXPECT_THAT(fails("?", 64), HasSubstr("cannot be read"));
  EXPECT_THAT(fails("[0]", 64), HasSubstr("cannot be read"));
}

TEST(SparseBatch, KeysOnceAndGradientsAddedUp) {
  const SparseTableSpec table{.name = "t", .width = 2};
  const std::vector<uint64_t> keys = {8, 3, 8, 5, 8};
  const SparseBatch batch(keys, table, 1);
  EXPECT_THAT(batch.keys(0), ElementsAre(8, 3, 5));
  const std::vector<float> gradients = {1e8F, 1, 2, 2, -1e8F, 3, 4, 4, 1, 5};
  std::vector<std::byte> payload(batch.payload_bytes(0));
  batch.gather(0, reinterpret_cast<const std::byte*>(gradients.data()), payload.data());
  std::vector<float> sums(6);
  std::memcpy(sums.data(), payload.data() + 24, 24);
  EXPECT_THAT(sums, ElementsAre(1, 9, 2, 2, 4, 4));
  std::vector<float> rows(10);
  batch.spread(0, Bytes::copy_of(std::as_bytes(std::span(sums))),
               reinterpret_cast<std::byte*>(rows.data()));
  EXPECT_THAT(rows, ElementsAre(1, 9, 2, 2, 1, 9, 4, 4, 1, 9));
  const SparseBatch none({}, table, 3);
  EXPECT_EQ(none.payload_bytes(2), 0);
  EXPECT_EQ(none.num_keys(), 0);
}

TEST(SparseBatch, EveryPartitionHasItsKeys) {
  std::vector<uint64_t> keys;
  for (uint64_t i = 0; i < 100; ++i) keys.push_back(i % 70);
  const SparseBatch batch(keys, {.name = "t", .width = 1}, 3);
  size_t all = 0;
  for (int part = 0; part < 3; ++part) {
    for (const uint64_t key : batch.keys(part)) EXPECT_EQ(server_of_key(key, 3), part);
    EXPECT_EQ(batch.payload_of_keys(part).size(), std::ssize(batch.keys(part)) * 8);
    all += batch.keys(part).size();
  }
  EXPECT_EQ(all, 70U);
}

}  // namespace
}  // namespace tutti::ps::testing
