// Servers, workers and their view service on several hosts: network namespaces joined by a bridge.
#include <sys/syscall.h>

#include <deque>
#include <optional>

#include "tests/jobs/parameter_server/strangers.h"
#include "tests/support/certificates.h"
#include "tests/support/hosts.h"

namespace tutti::test {
namespace {

using testing::Ge;

// How long the processes of a host may take to go after the launchers have ended.
constexpr Millis kGone{10'000};

class ServedHosts : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = TestHosts::why_not(); !why.empty()) GTEST_SKIP() << why;
    hosts_.emplace(3);
  }

  Words on(int host, const Words& words) const {
    return Words{"nsenter", "--net=" + hosts_->path(host)} + words;
  }
  // The launcher of one of two nodes, or of more, on the host of that number.
  Words node(int number, const Words& flags, const Words& program, int nodes = 2) const {
    return on(number, Words{TUTTI_PROGRAM, "run", "--nodes", std::to_string(nodes), "--node-rank",
                            std::to_string(number), "--rendezvous", hosts_->address(0) + ":29500"} +
                          flags + program);
  }

  std::optional<TestHosts> hosts_;
  const Words token_ = {"TUTTI_TOKEN=" + token_of_hosts()};
};

Words steps(const std::string& count) { return {"--epochs", "1000", "--max-steps", count}; }

void await_end_of(pid_t pid) {
  const FileDescriptor process(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  pollfd end{process.get(), POLLIN, 0};
  if (!process) return;  // it had gone before
  EXPECT_EQ(poll(&end, 1, 10'000), 1) << pid;
}

std::string mirrored(const std::string& count, const std::string& replicas = "2") {
  return sha_of(
      figures_of(train_mlp({"--strategy", "mirrored", "--replicas", replicas}) + steps(count)));
}

TEST_F(ServedHosts, TrainTheWeightsOfOneHost) {
  const TempFolder folder;
  const std::string file = folder / "figures.json";
  const Words train = train_served(steps("60") + Words{"--json", file});
  Job first(node(0, {"--servers", "1"}, train), token_);
  Job second(node(1, {"--servers", "1"}, train), token_);
  EXPECT_EQ(first.end(), 0) << last_part(first.log());
  EXPECT_EQ(second.end(), 0) << last_part(second.log());
  EXPECT_THAT(first.log(), HasSubstr("view service at " + hosts_->address(0) + ":"));
  EXPECT_THAT(second.log(), AllOf(HasSubstr("server 1 pid "), Not(HasSubstr("view service at"))));
  const auto all = figures_in(file);
  EXPECT_EQ(all.at("servers"), 2);
  EXPECT_EQ(all.at("updates"), 60);
  EXPECT_EQ(sha_of(all), mirrored("60"));
  EXPECT_THAT(hosts_->left_running(kGone), IsEmpty());
}

TEST_F(ServedHosts, WithTwoWorkersEachSendOneSum) {
  const TempFolder folder;
  const auto bytes_pushed = [&](const std::string& host_sums) {
    const std::string file = folder / (host_sums + ".json");
    const Words train = train_served(
        steps("40") + Words{"--host-sums", host_sums, "--partition", "max:64K", "--json", file});
    Job first(node(0, {"-n", "2", "--servers", "1"}, train), token_);
    Job second(node(1, {"-n", "2", "--servers", "1"}, train), token_);
    EXPECT_EQ(first.end(), 0) << last_part(first.log());
    EXPECT_EQ(second.end(), 0) << last_part(second.log());
    const auto all = figures_in(file);
    EXPECT_EQ(sha_of(all), mirrored("40", "4"));
    return all.at("bytes_pushed").get<double>();
  };
  // Of worker 0, which carries half of the pieces.
  EXPECT_NEAR(bytes_pushed("off") / bytes_pushed("on"), 2, 0.3);
}

TEST_F(ServedHosts, OneOfThemIsLostAndNoUpdateWithIt) {
  const TempFolder folder;
  const std::string file = folder / "figures.json";
  const Words train = train_served(steps("900") + Words{"--json", file});
  Job first(node(0, {"--servers", "1"}, train), token_);
  Job second(node(1, {"--servers", "1"}, train), token_);
  first.wait_for("epoch 1/");
  until_some_moment(11);
  second.send("server 1", SIGKILL);
  EXPECT_EQ(first.end(), 0) << last_part(first.log());
  EXPECT_EQ(second.end(), 0) << last_part(second.log());
  for (Job* job : {&first, &second})
    EXPECT_EQ(job->count("partition 1: server 0 took over from server 1 after"), 1) << job->log();
  const auto all = figures_in(file);
  EXPECT_EQ(all.at("updates"), 900);
  EXPECT_EQ(sha_of(all), mirrored("900"));
}

TEST_F(ServedHosts, ServersFromElsewhereAreStartedByTheLineThatIsPrinted) {
  const TempFolder folder;
  const std::string file = folder / "figures.json";
  Job job(on(0, Words{TUTTI_PROGRAM, "run", "-n", "2", "--servers", "1", "--servers-elsewhere", "2",
                      "--view-service", hosts_->address(0)} +
                    train_served(steps("60") + Words{"--json", file})),
          token_);
  const std::string where = job.word_after("\n  tutti ps --view-service ");
  EXPECT_THAT(where, HasSubstr(hosts_->address(0) + ":"));
  EXPECT_THAT(job.log(), AllOf(HasSubstr("waiting for 2 servers"), HasSubstr("TUTTI_TOKEN")));
  const Words line = {TUTTI_PROGRAM, "ps", "--view-service", where};
  Job one(on(1, line), token_);
  Job other(on(2, line), token_);
  ASSERT_EQ(job.end(), 0) << last_part(job.log());
  EXPECT_EQ(one.end(), 0) << one.log();
  EXPECT_EQ(other.end(), 0) << other.log();
  const auto all = figures_in(file);
  EXPECT_EQ(all.at("servers"), 3);
  EXPECT_EQ(sha_of(all), mirrored("60"));
}

TEST_F(ServedHosts, AreToldOfSmallerPiecesThanOneHost) {
  const Words says = {"sh", "-c", "echo pieces of $TUTTI_PIECE_BYTES bytes"};
  const auto told = [](const std::string& bytes) { return HasSubstr("pieces of " + bytes); };
  Job alone(on(2, Words{TUTTI_PROGRAM, "run", "-n", "1", "--servers", "1"} + says), token_);
  EXPECT_EQ(alone.end(), 0) << alone.log();
  EXPECT_THAT(alone.log(), told("4194304 bytes"));
  Job first(node(0, {"--servers", "1"}, says), token_);
  Job second(node(1, {"--servers", "1"}, says), token_);
  for (Job* job : {&first, &second}) {
    EXPECT_EQ(job->end(), 0) << job->log();
    EXPECT_THAT(job->log(), told("1048576 bytes"));
  }
}

// The view service and servers of a node are there for the workers of all.
TEST_F(ServedHosts, NodesStayUntilTheLastWorkerHasEnded) {
  const TempFolder folder;
  const std::string told = (folder.path() / "end").string();
  const Words wait = {"sh", "-c",
                      "[ $TUTTI_WORKER = 0 ] || while [ ! -e " + told + " ]; do sleep 0.05; done"};
  Job first(node(0, {"--servers", "1"}, wait), token_);
  Job second(node(1, {"--servers", "1"}, wait), token_);
  const std::string service = first.word_after("view service at ");
  const pid_t worker = first.pid_of("worker 0");
  second.wait_for("worker 1 pid");
  await_end_of(worker);
  EXPECT_THAT(
      run_command(on(2, {TUTTI_PROGRAM, "ps", "--number", "7", "--view-service", service}), token_),
      Exits(2, Err(HasSubstr("there are 2, from 0 on"))));
  std::ofstream(told) << "end";
  EXPECT_EQ(first.end(), 0) << first.log();
  EXPECT_EQ(second.end(), 0) << second.log();
}

class ServedHostsLosing : public ServedHosts, public testing::WithParamInterface<const char*> {};

TEST_P(ServedHostsLosing, LauncherOfNode0EndsTheJobEverywhere) {
  const Words train = train_served(steps("100000") + Words{"--staleness", GetParam()});
  Job first(node(0, {"--servers", "1"}, train), token_);
  Job second(node(1, {"--servers", "1"}, train), token_);
  first.wait_for("epoch 1/");
  first.send_launcher(SIGKILL);
  EXPECT_EQ(second.end(), 1) << last_part(second.log());
  EXPECT_THAT(second.log(), ContainsRegex("\ntutti run: the launcher of node 0, beside rank 0 .*"
                                          "closed the connection[^\n]*\n$"));
  EXPECT_THAT(hosts_->left_running(kGone), IsEmpty());
}

TEST_F(ServedHosts, ANodeIsLostWithItsServerAndWorker) {
  const TempFolder folder;
  const std::string file = folder / "figures.json";
  const Words train = train_served({"--epochs", "6", "--staleness", "inf", "--json", file});
  std::deque<Job> jobs;
  for (int i = 0; i < 3; ++i)
    jobs.emplace_back(node(i, {"--servers", "1", "--on-lost-worker", "continue"}, train, 3),
                      token_);
  jobs[0].wait_for("epoch 1/");
  until_some_moment(31);
  jobs[2].send_launcher(SIGKILL);
  EXPECT_EQ(jobs[2].end(), 128 + SIGKILL);
  for (const int left : {0, 1}) {
    EXPECT_EQ(jobs[left].end(Millis{60'000}), 1) << last_part(jobs[left].log());
    EXPECT_THAT(jobs[left].log(),
                AllOf(HasSubstr("partition 2: server 0 took over from server 2 after"),
                      ContainsRegex("\ntutti run: node 2 [^\n]* closed its connection[^\n]*\n$")));
  }
  const auto all = figures_in(file);
  // Of 42 samples each, and at most the one that node 2 had is trained again.
  EXPECT_THAT(all.at("updates").get<int>(), AllOf(Ge(6 * 596), Le(6 * 596 + 1)));
  EXPECT_GT(all.at("val_accuracy").get<double>(), 0.7);
  EXPECT_THAT(hosts_->left_running(kGone), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Jobs, ServedHostsLosing, testing::Values("0", "inf"),
                         [](const auto& info) { return std::string(info.param); });

TEST_F(ServedHosts, OtherNumbersOnAnotherNodeAreNamedOnBoth) {
  Job first(node(0, {"--servers", "1"}, {"true"}), token_);
  Job second(node(1, {"--servers", "2", "--no-backups"}, {"true"}), token_);
  for (Job* job : {&first, &second}) {
    EXPECT_EQ(job->end(), 2) << job->log();
    EXPECT_THAT(job->log(), AllOf(HasSubstr("node 0 was started with \"--servers 1\""),
                                  HasSubstr("node 1 with \"--servers 2 --no-backups\""),
                                  Not(HasSubstr("server 0 pid"))));
  }
}

TEST_F(ServedHosts, StrangersDoNotDisturb) {
  const TempFolder folder;
  const std::string file = folder / "figures.json";
  const Words train = train_served(steps("600") + Words{"--json", file});
  Job first(node(0, {"--servers", "1"}, train), token_);
  Job second(node(1, {"--servers", "1"}, train), token_);
  const std::string service = first.word_after("view service at ");
  first.wait_for("epoch 1/");
  std::vector<FileDescriptor> open;
  hosts_->on(2, [&] {
    const int ports = disturb({first.pid(), first.pid_of("server 0"), first.pid_of("worker 0"),
                               second.pid(), second.pid_of("server 1"), second.pid_of("worker 1")},
                              3, open);
    EXPECT_GE(ports, 6);
  });
  EXPECT_THAT(
      run_command(on(2, {TUTTI_PROGRAM, "ps", "--view-service", service, "--time-limit", "0.5"}),
                  {"TUTTI_TOKEN=" + wrong_token_of_hosts()}),
      Exits(1, Err(AllOf(HasSubstr(service), HasSubstr("token")))));
  EXPECT_EQ(first.end(), 0) << last_part(first.log());
  EXPECT_EQ(second.end(), 0) << last_part(second.log());
  EXPECT_THAT(first.log(), HasSubstr("refused a connection from " + hosts_->address(2)));
  EXPECT_EQ(sha_of(figures_in(file)), mirrored("600"));
}

TEST_F(ServedHosts, TalkThroughTls) {
  const TempFolder folder;
  const std::string file = folder / "figures.json";
  Authority("ours").issue(folder.path() / "tls", "job");
  const Words train = train_served(steps("60") + Words{"--json", file});
  const Words secret = token_ + Words{"TUTTI_TLS=" + (folder.path() / "tls").string()};
  const Words flags = {"--servers-elsewhere", "1", "--servers", "1"};
  Job first(node(0, flags, train), secret);
  const std::string where = first.word_after("\n  tutti ps --view-service ");
  EXPECT_THAT(first.log(), HasSubstr("TUTTI_TOKEN and TUTTI_TLS"));
  const Words line = {TUTTI_PROGRAM, "ps", "--view-service", where};
  EXPECT_THAT(run_command(on(2, line + Words{"--time-limit", "0.5"}), token_),
              Exits(1, Err(AllOf(HasSubstr(where), HasSubstr("TUTTI_TLS")))));
  Job server(on(2, line), secret);
  Job second(node(1, flags, train), secret);
  EXPECT_EQ(first.end(), 0) << last_part(first.log());
  EXPECT_EQ(second.end(), 0) << last_part(second.log());
  EXPECT_EQ(server.end(), 0) << server.log();
  EXPECT_EQ(sha_of(figures_in(file)), mirrored("60"));
}

}  // namespace
}  // namespace tutti::test
