// Connections that are none of the job's, while it trains.
#include <sys/socket.h>

#include <map>
#include <set>

#include "tutti/net/connect.h"

#include "tests/jobs/parameter_server/served_job.h"

namespace tutti::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kToken =
    "TUTTI_TOKEN="
    "5e9f1d6a0b7c44d28e3a5f60718293a4b5c6d7e8f90a1b2c3d4e5f6071829304";
constexpr const char* kOtherToken =
    "TUTTI_TOKEN="
    "ffffffff0b7c44d28e3a5f60718293a4b5c6d7e8f90a1b2c3d4e5f6071829300";

// TCP ports of 127.0.0.1 at which a process listens.
std::vector<int> ports_of(pid_t pid) {
  std::map<std::string, int> listening;  // by inode
  std::ifstream table("/proc/net/tcp");
  std::string line;
  std::getline(table, line);
  while (std::getline(table, line)) {
    std::istringstream words(line);
    std::string number, local, remote, state, queues, timer, retries, user, timeout, inode;
    words >> number >> local >> remote >> state >> queues >> timer >> retries >> user >> timeout >>
        inode;
    if (state == "0A") listening[inode] = std::stoi(local.substr(local.find(':') + 1), nullptr, 16);
  }
  std::vector<int> ports;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (!target.starts_with("socket:[")) continue;
    const auto found = listening.find(target.substr(8, target.size() - 9));
    if (found != listening.end()) ports.push_back(found->second);
  }
  return ports;
}

// Sends noise of several lengths to that port, some of it cut off, some that stays open.
std::vector<FileDescriptor> disturb(int port, uint64_t seed) {
  std::vector<FileDescriptor> open;
  RandomStream random(random_key(seed, RandomPurpose::test, {static_cast<uint64_t>(port)}));
  for (const size_t length : {size_t{0}, size_t{1}, size_t{7}, size_t{100}, size_t{70'000}}) {
    FileDescriptor socket =
        connect_to(*Address::from_number("127.0.0.1", port), "the job", Deadline(Millis{5'000}));
    std::string noise(length, '\0');
    for (char& byte : noise) byte = static_cast<char>(random());
    send(socket.get(), noise.data(), noise.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (random() % 2 == 0) open.push_back(std::move(socket));
  }
  return open;
}

TEST(Strangers, DoNotDisturb) {
  const TempFolder folder;
  const std::string file = folder / "figures.json";
  const Words common = {"--replicas", "2", "--epochs", "1000", "--max-steps", "600"};
  Job job(train_served(joined(common, {"--servers", "2", "--json", file})), {kToken});
  const std::string service = job.word_after("view service at ");
  std::vector<FileDescriptor> open;
  const auto disturb_all = [&](uint64_t seed) {
    int ports = 0;
    for (const pid_t pid : {job.pid(), job.pid_of("server 0"), job.pid_of("server 1")})
      for (const int port : ports_of(pid)) {
        for (FileDescriptor& socket : disturb(port, seed)) open.push_back(std::move(socket));
        ++ports;
      }
    EXPECT_GE(ports, 3);
  };
  job.wait_for("parameter_server: 2 replicas");  // servers listen by now
  disturb_all(1);
  const auto wrong = run_command(
      {TUTTI_PROGRAM, "ps", "--view-service", service, "--time-limit", "0.5"}, {kOtherToken});
  EXPECT_NE(wrong.exit_code, 0);
  EXPECT_THAT(wrong.err, AllOf(HasSubstr(service), HasSubstr("token")));
  const auto taken =
      run_command({TUTTI_PROGRAM, "ps", "--number", "1", "--view-service", service}, {kToken});
  EXPECT_EQ(taken.exit_code, 2);
  EXPECT_THAT(taken.err, AllOf(HasSubstr("wants to be server 1"), HasSubstr("that is server 1")));
  job.wait_for("epoch 1/");
  disturb_all(2);
  ASSERT_EQ(job.end(), 0) << last_part(job.log());
  const auto all = figures_in(file);
  ASSERT_TRUE(all.is_object());
  EXPECT_EQ(all.at("updates"), 600);
  EXPECT_EQ(sha_of(all), sha_of(figures_of(joined(train_mlp({"--strategy", "mirrored"}), common))));
}

}  // namespace
}  // namespace tutti::test
