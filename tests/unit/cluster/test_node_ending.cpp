// How a job has ended on several nodes: stories of endings, with what all make of them.
#include <csignal>

#include "tutti/cluster/launch/detail/node_ending.h"
#include "tutti/cluster/launch/restarts.h"

#include "tests/support/expect.h"

namespace tutti::detail {
namespace {

constexpr NodeEnding kDone{};

NodeEnding failed(int worker, const std::string& error_class, int64_t step) {
  return {.exit_code = 1,
          .root_cause = fmt::format("rank {} exited with code 1", worker),
          .worker = worker,
          .own = true,
          .error_class = error_class,
          .training = 1,
          .step = step};
}

/// Of a node that only heard of it.
NodeEnding heard() {
  return {.exit_code = 1, .root_cause = "rank 1 exited with code 1", .worker = 1};
}

LaunchResult result_of(const NodeEnding& own) {
  LaunchResult result{.exit_code = own.exit_code,
                      .root_cause = own.root_cause,
                      .root_worker = own.worker,
                      .signal = own.signal};
  if (own.own)
    result.workers = {{.worker = own.worker,
                       .exit_code = 1,
                       .error_class = own.error_class,
                       .training = own.training,
                       .step = own.step}};
  return result;
}

struct EndingStory {
  const char* name;
  std::vector<NodeEnding> nodes;
  const char* words;  // of Restarts, on every node
};

TEST(NodeEndings, AllNodesDecideAlike) {
  const NodeEnding told_to_end{.exit_code = 143, .signal = SIGTERM};
  const EndingStory stories[] = {
      {"success", {kDone, kDone}, ""},
      {"one of node 1",
       {heard(), failed(1, "Error", 7)},
       "that was in step 7; the whole job is started again (1 of 3) in 1 s"},
      {"two at once: the lower one",
       {failed(0, "Error", 4), failed(1, "Error", 7)},
       "that was in step 4; the whole job is started again (1 of 3) in 1 s"},
      {"who only follows is no cause",
       {failed(0, "PeerLost", 8), failed(1, "Error", 7)},
       "that was in step 7; the whole job is started again (1 of 3) in 1 s"},
      {"unless nobody else is",
       {failed(0, "PeerLost", 8), heard()},
       "that was in step 8; the whole job is started again (1 of 3) in 1 s"},
      {"bad input there is bad input here", {heard(), failed(1, "DataError", 0)}, ""},
      {"a signal to one is one to all", {heard(), told_to_end}, ""},
      {"nobody has seen it end",
       {heard(), heard()},
       "the whole job is started again (1 of 3) in 1 s"},
      {"nor has its own node, where all went well",
       {heard(), kDone},
       "the whole job is started again (1 of 3) in 1 s"},
      {"one had ended before it heard",
       {kDone, failed(1, "Error", 7)},
       "that was in step 7; the whole job is started again (1 of 3) in 1 s"},
  };
  for (const EndingStory& story : stories) {
    bool fails = false;
    for (const NodeEnding& ending : story.nodes) fails = fails || ending.exit_code != 0;
    for (int node = 0; node < 2; ++node) {
      LaunchResult result = result_of(story.nodes[static_cast<size_t>(node)]);
      std::vector<NodeEnding> all = story.nodes;
      all[1].node = 1;
      std::swap(all[0], all[1]);  // as they come
      take_over(result, all, node);
      EXPECT_EQ(Restarts(3).after(result).words, story.words) << story.name << ", node " << node;
      EXPECT_EQ(result.exit_code != 0, fails) << story.name << ", node " << node;
    }
  }
}

TEST(NodeEndings, ANodeThatDoesNotTellIsNotStartedAgain) {
  LaunchResult result = result_of(failed(0, "Error", 4));
  take_over(result, {}, 0, "node 1 is gone");
  const Restarts::Verdict verdict = Restarts(3).after(result);
  EXPECT_FALSE(verdict.again);
  EXPECT_EQ(verdict.words, "the job is not started again: node 1 is gone");
}

TEST(NodeEndings, TravelAsText) {
  NodeEnding ending = failed(3, "Timeout", 41);
  ending.root_cause = "rank 3 \"said\"\n  two lines, and \xff";
  const NodeEnding back = decode_ending(encode(ending));
  EXPECT_THAT(back.root_cause, HasSubstr("rank 3 \"said\"\n  two lines"));
  EXPECT_EQ(back.worker, 3);
  EXPECT_EQ(back.error_class, "Timeout");
  EXPECT_EQ(back.training, 1);
  EXPECT_EQ(back.step, 41);
  for (const char* text : {"", "[]", "[1,2]", "{}", "[1,2,3,4,5,6,7,8,9]", "["})
    EXPECT_THROW(decode_ending(text), Error) << text;
}

}  // namespace
}  // namespace tutti::detail
