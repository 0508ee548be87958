// One server that follows an order of updates: what waits for its turn, and that whatever is not in
// the order is said at once, to everybody.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>

#include "tutti/ps/server/server_state.h"

#include "tests/unit/ps/small_job.h"

namespace tutti::ps::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Kind = Message::Kind;
using Record = OrderRecord::Kind;

View view_with(int64_t number, int comings_of_1) {
  View view{.number = number};
  view.partitions = {{0, -1, -1, 1}};
  view.servers = {{"server 0", "", true, ""}};
  for (int i = 0; i < 2; ++i) view.workers.push_back({fmt::format("worker {}", i), "", true, ""});
  view.workers[0].comings = 1;
  view.workers[1].comings = comings_of_1;
  return view;
}

Spec spec_of_two() { return small_spec(2, Staleness::unbounded()); }

// Server 0 alone, two workers and the values there.
struct Replaying {
  explicit Replaying(const std::vector<OrderRecord>& records)
      : Replaying(ServerState::Ordering{
            .replay = std::make_shared<const UpdateOrder>(UpdateOrder{
                .spec = to_text(spec_of_two()), .asked = "", .partitions = {records}})}) {}
  explicit Replaying(ServerState::Ordering ordering)
      : spec(spec_of_two()),
        state(
            0, Compute::plain(),
            [this](Peer to, const Message& message) { said[to.number].push_back(message); }, {},
            std::move(ordering)) {
    see(1, 1);
    for (int worker = 0; worker < 2; ++worker) {
      state.on_connected(worker_peer(worker));
      hear(hello(spec, worker));
    }
    hear(assign(spec, 0, {0}));
    said.clear();
  }
  void see(int64_t number, int comings_of_1) {
    now = number;
    state.on_view(view_with(number, comings_of_1));
  }
  void hear(Message message) {
    message.view = now;
    state.on_message(worker_peer(message.worker), std::move(message));
  }
  void look(int worker, int64_t number) {
    Message question = pull(worker, 0);
    question.sequence = number;
    hear(question);
  }
  // What it was refused last; "": nothing.
  std::string refused(int worker) {
    std::string words;
    for (const Message& message : said[worker])
      if (message.kind == Kind::refused) words = message.text;
    return words;
  }
  int count(int worker, Kind kind) {
    return static_cast<int>(std::ranges::count(said[worker], kind, &Message::kind));
  }

  int64_t now = 0;
  std::map<int, std::vector<Message>> said;
  const Spec spec;
  ServerState state;
};

TEST(ServerOrder, AQuestionThatIsNotInItIsSaidAtOnce) {
  Replaying server({{Record::look, 0, 0, 1}, {Record::push, 0, 0, 0}});
  server.look(0, 1);
  EXPECT_EQ(server.count(0, Kind::parameters), 1);
  EXPECT_EQ(server.refused(0), "");
  server.look(1, 1);
  for (const int worker : {0, 1})
    EXPECT_THAT(server.refused(worker),
                AllOf(HasSubstr("--replay-order, partition 0: worker 1 asks for piece 0"),
                      HasSubstr("no such question")));
}

// A later question of the same worker's may have taken its place; it may be lost before.
TEST(ServerOrder, AQuestionThatNobodyWaitedForIsNotMissed) {
  Replaying later({{Record::push, 0, 0, 0}, {Record::look, 1, 0, 2}});
  later.look(1, 1);
  EXPECT_EQ(later.refused(1), "");
  later.look(1, 2);
  EXPECT_EQ(later.count(1, Kind::parameters), 0);
  later.hear(push(later.spec, 0, 1, 0, {1}));
  EXPECT_EQ(later.count(1, Kind::parameters), 1);

  Replaying lost({{Record::push, 0, 0, 0}, {Record::leave, 1, 0, 0}});
  lost.look(1, 1);
  EXPECT_EQ(lost.refused(1), "");
  lost.hear(push(lost.spec, 0, 1, 0, {1}));
  EXPECT_THAT(lost.refused(1), HasSubstr("worker 1 is lost here"));
  lost.look(1, 1);
  EXPECT_EQ(lost.refused(0), "");
}

TEST(ServerOrder, AWorkerThatReallyDiesAndComesAgainIsSaidAtOnce) {
  Replaying server({{Record::push, 0, 0, 0}, {Record::push, 1, 0, 0}, {Record::push, 1, 0, 1}});
  server.hear(push(server.spec, 1, 1, 0, {1}));
  server.hear(hello(server.spec, 1));  // its connection was lost
  EXPECT_EQ(server.count(1, Kind::welcome), 1);
  server.see(2, 2);
  server.hear(hello(server.spec, 1));
  for (const int worker : {0, 1})
    EXPECT_THAT(server.refused(worker), HasSubstr("worker 1 has ended and come again"));
  server.said.clear();
  server.hear(push(server.spec, 0, 1, 0, {1}));
  EXPECT_THAT(server.refused(0), HasSubstr("worker 1 has ended and come again"));
}

TEST(ServerOrder, AWorkerThatComesAgainInTheOrderIsWelcome) {
  Replaying server({{Record::push, 0, 0, 0},
                    {Record::leave, 1, 0, 0},
                    {Record::comes, 1, 0, 0},
                    {Record::push, 1, 0, 0}});
  server.hear(push(server.spec, 0, 1, 0, {1}));
  EXPECT_THAT(server.refused(1), HasSubstr("worker 1 is lost here"));
  server.said.clear();
  server.see(2, 2);
  for (int times = 1; times <= 2; ++times) {  // again: its connection was lost
    server.hear(hello(server.spec, 1));
    EXPECT_EQ(server.count(1, Kind::welcome), times);
  }
  EXPECT_EQ(server.refused(1), "");
}

}  // namespace
}  // namespace tutti::ps::testing
