// Connections that are none of the job's, while it trains.
#include "tests/jobs/parameter_server/strangers.h"

namespace tutti::test {
namespace {

constexpr const char* kOtherToken =
    "TUTTI_TOKEN="
    "ffffffff0b7c44d28e3a5f60718293a4b5c6d7e8f90a1b2c3d4e5f6071829300";

TEST(Strangers, DoNotDisturb) {
  const TempFolder folder;
  const std::string file = folder / "figures.json";
  const Words common = {"--replicas", "2", "--epochs", "1000", "--max-steps", "2000"};
  Job job(train_served(common + Words{"--servers", "2", "--json", file}), {kToken});
  const std::string service = job.word_after("view service at ");
  std::vector<FileDescriptor> open;
  const auto disturb_all = [&](uint64_t seed) {
    EXPECT_GE(disturb({job.pid(), job.pid_of("server 0"), job.pid_of("server 1")}, seed, open), 3);
  };
  job.wait_for("parameter_server: 2 replicas");  // servers listen by now
  disturb_all(1);
  const auto wrong = tutti({"ps", "--view-service", service, "--time-limit", "0.5"}, {kOtherToken});
  EXPECT_NE(wrong.exit_code, 0);
  EXPECT_THAT(wrong.err, AllOf(HasSubstr(service), HasSubstr("token")));
  EXPECT_THAT(
      tutti({"ps", "--number", "1", "--view-service", service}, {kToken}),
      Exits(2, Err(AllOf(HasSubstr("wants to be server 1"), HasSubstr("that is server 1")))));
  job.wait_for("epoch 1/");
  disturb_all(2);
  ASSERT_EQ(job.end(), 0) << last_part(job.log());
  const auto all = figures_in(file);
  EXPECT_EQ(all.at("updates"), 2000);
  EXPECT_EQ(sha_of(all), sha_of(figures_of(train_mlp({"--strategy", "mirrored"}) + common)));
}

}  // namespace
}  // namespace tutti::test
