#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/strategy/choice/launched.h"
#include "tutti/strategy/strategy.h"

#include "tests/support/message_of.h"

namespace tutti {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using Words = std::vector<std::string>;

struct Taken {
  StrategyOptions options;
  Words rest;  // what the program is left with
};

Taken take(const Words& words) {
  Words all = {"program"};
  all.insert(all.end(), words.begin(), words.end());
  std::vector<char*> argv;
  for (std::string& word : all) argv.push_back(word.data());
  argv.push_back(nullptr);
  int argc = static_cast<int>(all.size());
  Taken taken{take_strategy_flags(argc, argv.data()), {}};
  for (int i = 1; i < argc; ++i) taken.rest.emplace_back(argv[i]);
  return taken;
}

std::string why_not(const Words& words) {
  return test::message_of<UsageError>([&] { take(words); });
}

TEST(StrategyFlags, AreTakenOutAndOthersStay) {
  const Taken taken = take({"data", "--strategy", "parameter_server", "--replicas=4", "--mine", "7",
                            "--scale-by-staleness", "last"});
  EXPECT_THAT(taken.rest, ElementsAre("data", "--mine", "7", "last"));
  EXPECT_EQ(taken.options.kind, "parameter_server");
  EXPECT_EQ(taken.options.replicas, 4);
  EXPECT_TRUE(taken.options.served.scale_by_staleness);
}

TEST(StrategyFlags, SayWhereReplicasCompute) {
  EXPECT_EQ(take({}).options.device, "cpu");
  EXPECT_EQ(take({}).options.memory_limit_mib, 0);
  const auto options = take({"--device", "cuda:0x2,1", "--memory-limit=4096"}).options;
  EXPECT_EQ(options.device, "cuda:0x2,1");
  EXPECT_EQ(options.memory_limit_mib, 4096);
  EXPECT_THAT(why_not({"--memory-limit", "0"}),
              HasSubstr("--memory-limit 0: expected a number, 1"));
  EXPECT_THAT(why_not({"--devices", "cuda"}), HasSubstr("did you mean --device?"));
  EXPECT_FALSE(options.deterministic);
  const Taken taken = take({"--deterministic", "mine"});
  EXPECT_TRUE(taken.options.deterministic);
  EXPECT_THAT(taken.rest, ElementsAre("mine"));
  EXPECT_THAT(why_not({"--determinstic"}), HasSubstr("did you mean --deterministic?"));
}

TEST(StrategyFlags, SayInWhichOrderNcclAdds) {
  EXPECT_EQ(take({}).options.sum_order, Order::any);
  EXPECT_EQ(take({"--sum-order", "any"}).options.sum_order, Order::any);
  EXPECT_EQ(take({"--sum-order=fixed"}).options.sum_order, Order::fixed);
  EXPECT_THAT(why_not({"--sum-order", "ring"}), HasSubstr("expected any or fixed"));
  testing::internal::CaptureStderr();
  EXPECT_EQ(take({"--sum-order", "shape"}).options.sum_order, Order::fixed);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("--sum-order fixed now"));
}

TEST(StrategyFlags, SayByWhatReplicasCommunicate) {
  const auto of = [](std::vector<std::string> words) {
    return take(std::move(words)).options.communication;
  };
  EXPECT_EQ(of({}).implementation, "auto");
  EXPECT_FALSE(of({}).order);
  EXPECT_EQ(of({"--communication", "ring"}).implementation, "ring");
  EXPECT_EQ(of({"--communication=shm", "--sum-order", "any"}).order, Order::any);
  EXPECT_THAT(
      why_not({"--communication", "rign"}),
      HasSubstr("--communication rign: unknown implementation of communication \"rign\"; "
                "did you mean \"ring\"? Known: auto, ring, tree, shm, tcp, hier, mpi, nccl"));
}

TEST(StrategyFlags, SayHowOftenReplicasMeet) {
  EXPECT_FALSE(take({}).options.local);
  const auto local = take({"--outer-nesterov", "--local-steps", "50", "--outer-momentum", "0.9",
                           "--outer-learning-rate=0.7", "--local-start", "10"})
                         .options.local;
  ASSERT_TRUE(local);
  EXPECT_EQ(local->every, 50);
  EXPECT_EQ(local->start_step, 10);
  EXPECT_EQ(local->outer.learning_rate, 0.7);
  EXPECT_EQ(local->outer.momentum, 0.9);
  EXPECT_TRUE(local->outer.nesterov);
  EXPECT_FALSE(take({"--outer-momentum", "0.9"}).options.local) << "which is refused later";
}

TEST(StrategyFlags, CommunicationIsResolvedWithTheRest) {
  using namespace std::chrono_literals;
  const Strategy strategy({.kind = "mirrored",
                           .replicas = 2,
                           .communication = {.bytes_per_pack = 4096, .timeout = 7s}});
  EXPECT_EQ(strategy.options().time_limit, 7s);
  EXPECT_EQ(strategy.world().time_limit, 7s);
  EXPECT_EQ(strategy.world().piece_bytes, 4096);
  const CommunicationFacts& facts = strategy.options().communication.chosen;
  EXPECT_EQ(facts.engine, "shm");
  EXPECT_EQ(sentence_of(facts),
            "engine shm, since all 2 replicas are threads of one process; sums in the fixed order");
  EXPECT_EQ(Strategy().options().communication.chosen.engine, "none");
  const auto words = [](const StrategyOptions& options) {
    return test::message_of<UsageError>([&] { const Strategy other(options); });
  };
  EXPECT_THAT(words({.kind = "mirrored", .communication = {.bytes_per_pack = 8}}),
              HasSubstr("bytes_per_pack is 8; expected 64 to"));
  EXPECT_THAT(
      words({.kind = "multi_worker", .communication = {.bytes_per_pack = 64}, .piece_bytes = 64}),
      HasSubstr("give one of them"));
  EXPECT_THAT(words({.kind = "mirrored", .communication = {.timeout = Millis{-1}}}),
              HasSubstr("timeout of communication is -1 ms"));
}

TEST(StrategyFlags, SayWhatAddsBetweenHosts) {
  EXPECT_EQ(take({}).options.engine, "nccl");
  EXPECT_EQ(take({"--engine", "hier"}).options.engine, "hier");
  EXPECT_THAT(why_not({"--engine", "tcp"}), HasSubstr("expected nccl or hier"));
  const auto words = [](const StrategyOptions& options) {
    return test::message_of<UsageError>([&] { const Strategy strategy(options); });
  };
  EXPECT_THAT(words({.engine = "ring"}), HasSubstr("engine ring: expected nccl or hier"));
}

TEST(StrategyFlags, SayWhatServersDo) {
  const ServedOptions served =
      take({"--staleness", "4", "--delay-compensation", "0.5", "--placement", "round_robin",
            "--partition", "max:4M", "--host-sums", "off", "--drop-slowest", "1",
            "--on-lost-worker", "wait"})
          .options.served;
  EXPECT_EQ(served.staleness.text(), "4");
  EXPECT_EQ(served.delay_compensation, 0.5);
  EXPECT_EQ(served.placement.how, ps::PlacementOptions::How::round_robin);
  EXPECT_EQ(served.placement.partitioner.words(), ps::Partitioner::max_part(4 << 20).words());
  EXPECT_FALSE(served.host_sums);
  EXPECT_EQ(served.drop_slowest, 1);
  EXPECT_EQ(served.on_lost_worker, ps::OnLostWorker::wait);
  EXPECT_FALSE(served.scale_by_staleness);
}

TEST(StrategyFlags, WrongOnesAreNamed) {
  EXPECT_THAT(why_not({"--replicas", "two"}), HasSubstr("--replicas two: expected a number, 1"));
  EXPECT_THAT(why_not({"--shares", "2,,1"}), HasSubstr("--shares"));
  EXPECT_THAT(why_not({"--seed"}), HasSubstr("--seed needs a value"));
  EXPECT_THAT(why_not({"--placement", "best"}),
              HasSubstr("--placement best: expected greedy or round_robin"));
  EXPECT_THAT(why_not({"--partition", "min:4K"}),
              AllOf(HasSubstr("--partition min:4K: expected"), HasSubstr("min:BYTES:MOST")));
  EXPECT_THAT(why_not({"--host-sums", "maybe"}), HasSubstr("expected on or off"));
}

TEST(StrategyFlags, ThatAreNearlyOursAreRefused) {
  const std::pair<const char*, const char*> cases[] = {
      {"--replica", "--replicas"},       {"--Replicas", "--replicas"},
      {"-replicas", "--replicas"},       {"--replica=2", "--replicas"},
      {"--stratgy", "--strategy"},       {"--thread", "--threads"},
      {"--time_limit", "--time-limit"},  {"--on-lost-wroker", "--on-lost-worker"},
      {"--compresion", "--compression"}, {"--scale-by-stalenes", "--scale-by-staleness"},
      {"--strategi", "--strategy"},      {"--replicat", "--replicas"},
      {"--threadz", "--threads"},        {"--reductiom", "--reduction"},
  };
  for (const auto& [word, meant] : cases)
    EXPECT_THAT(why_not({"--mine", "1", word, "2"}),
                HasSubstr(std::string("; did you mean ") + meant + "?"))
        << word;
}

TEST(StrategyFlags, OfServersThatTheLauncherStartsAreRefused) {
  for (const std::string_view name : kFlagsOfServers)
    EXPECT_THAT(why_not({std::string(name), "2", "--strategy", "parameter_server"}),
                AllOf(HasSubstr(std::string(name) + ": servers are the launcher's: tutti run"),
                      HasSubstr("comes after \"--\"")));
  EXPECT_THAT(why_not({"--servers=2"}), HasSubstr("tutti run --servers S"));
  EXPECT_EQ(take({"--", "--servers", "2"}).rest, (Words{"--", "--servers", "2"}));
  // A program has these for itself, where there are no servers.
  const Words own = {"--restore", "weights", "--restarts=3"};
  EXPECT_EQ(take(own).rest, own);
}

TEST(StrategyFlags, ThatDoNothingAreRefusedByTheStrategy) {
  const auto words = [](const Words& typed) {
    return test::message_of<UsageError>([&] { const Strategy strategy(take(typed).options); });
  };
  EXPECT_THAT(words({"--staleness", "0"}), HasSubstr("--staleness 0 under one_device: "));
  EXPECT_THAT(words({"--engine=nccl", "--strategy", "mirrored", "--replicas", "2"}),
              HasSubstr("--engine nccl under mirrored: "));
}

TEST(StrategyFlags, ATimeLimitBeyondAllIsRefused) {
  const auto options = take({"--time-limit", "9223372036854775807"}).options;
  EXPECT_THAT(test::message_of<UsageError>([&] { check_options(options, 1); }),
              HasSubstr("time limit in ms is "));
  for (const char* none : {"nan", "inf"})
    EXPECT_THAT(why_not({"--delay-compensation", none}), HasSubstr("expected a number, 0 or more"));
}

TEST(StrategyFlags, OfTheProgramsOwnThatAreNotNearStay) {
  const Words own = {"--speed", "3",  "--time",  "5",        "--host",   "h",  "--batch-size",
                     "8",       "-r", "--place", "--epochs", "replicas", "-2", "--learning-rate",
                     "--shared"};
  EXPECT_EQ(take(own).rest, own);
  const Words after = {"--", "--replica", "2", "--replicas", "3"};
  EXPECT_EQ(take(after).rest, after);  // words after -- are the program's
  EXPECT_EQ(take(after).options.replicas, 0);
}

}  // namespace
}  // namespace tutti
