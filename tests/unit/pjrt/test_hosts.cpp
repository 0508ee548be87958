// Clients of several processes as one, by a plugin that makes such of that for CPUs: here each
// "process" is a thread with a client of its own.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <condition_variable>
#include <cstdlib>
#include <future>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>

#include "tutti/pjrt/client.h"

#include "tests/support/expect.h"
#include "tests/support/hlo_evaluate.h"
#include "tests/support/temp_folder.h"

namespace tutti {
namespace {

Deadline patience() { return Deadline(Millis{60'000}); }

class Values final : public KeyValues {
 public:
  void put(std::string_view key, std::string_view value) override {
    const std::lock_guard lock(mutex_);
    values_.emplace(key, value);
    changed_.notify_all();
  }
  std::string get(std::string_view key, const Deadline& deadline) override {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, deadline.at(), [&] { return values_.contains(std::string(key)); });
    return values_.at(std::string(key));
  }
  std::optional<std::string> try_get(std::string_view) override {
    require_all();
    return std::nullopt;
  }
  void require_all() override {
    const std::lock_guard lock(mutex_);
    if (lost_) throw PeerLost("rank 1 (host b, pid 77) was killed by SIGKILL");
  }
  void lose() {
    const std::lock_guard lock(mutex_);
    lost_ = true;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
  bool lost_ = false;
};

class PluginOfHosts : public test::Evaluated {
 protected:
  void SetUp() override {
    Evaluated::SetUp();
    if (IsSkipped()) return;
    ::setenv("PLUGIN_OF_HOSTS", test::cpu_plugin().c_str(), 1);
    ::setenv("PLUGIN_OF_HOSTS_FOLDER", folder_.path().c_str(), 1);
  }

  /// By process; `devices` in each. `job` tells clients of one test binary apart.
  std::vector<pjrt::Client> clients(std::vector<int> devices, int job) {
    std::vector<std::future<pjrt::Client>> made;
    for (size_t p = 0; p < devices.size(); ++p)
      made.push_back(std::async(std::launch::async, [&, p] {
        pjrt::Options options = pjrt::options_for(
            TUTTI_PLUGIN_OF_HOSTS, devices[p],
            {.process = static_cast<int>(p), .processes = static_cast<int>(devices.size())});
        options.emplace("job", int64_t{job});
        return pjrt::Client::open(TUTTI_PLUGIN_OF_HOSTS,
                                  {.options = std::move(options), .key_values = values_});
      }));
    std::vector<pjrt::Client> all;
    for (auto& one : made) all.push_back(one.get());
    return all;
  }

  TempFolder folder_;
  std::shared_ptr<Values> values_ = std::make_shared<Values>();
};

// x of each replica, and the sum of all.
std::string sum_over(int replicas) {
  std::vector<int> all(static_cast<size_t>(replicas));
  std::iota(all.begin(), all.end(), 0);
  return fmt::format(R"(
module @sum attributes {{mhlo.num_replicas = {0} : i32, mhlo.num_partitions = 1 : i32}} {{
  func.func public @main(%x: tensor<3xf32>) -> (tensor<3xf32>, tensor<3xf32>) {{
    %s = "stablehlo.all_reduce"(%x) <{{replica_groups = dense<[[{1}]]> : tensor<1x{0}xi64>}}> ({{
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %q = stablehlo.add %a, %b : tensor<f32>
        stablehlo.return %q : tensor<f32>
    }}) : (tensor<3xf32>) -> tensor<3xf32>
    return %x, %s : tensor<3xf32>, tensor<3xf32>
  }}
}})",
                     replicas, fmt::join(all, ", "));
}

/// What each replica of this process gets: its number times 100, and what is added.
std::vector<std::vector<float>> run(const pjrt::Client& client, int replicas, int first) {
  const auto program = client.compile(sum_over(replicas), {.replicas = replicas});
  std::vector<pjrt::Buffer> sent;
  std::vector<std::vector<const pjrt::Buffer*>> lists;
  for (int here = 0; here < program.replicas(); ++here)
    sent.push_back(client.to_device(
        test::array_of({3}, std::vector<float>{100.F * static_cast<float>(first + here), 1, 2}),
        here));
  for (const pjrt::Buffer& buffer : sent) lists.push_back({&buffer});
  const pjrt::Results results = program.run(lists);
  results.wait(patience());
  std::vector<std::vector<float>> all;
  for (const auto& outputs : results.outputs)
    for (const pjrt::Buffer& output : outputs)
      all.push_back(test::floats_of(output.to_host(patience())));
  return all;
}

TEST_F(PluginOfHosts, EachProcessHasItsDevicesOfOneClient) {
  const auto all = clients({2, 1}, 1);
  for (int p = 0; p < 2; ++p) {
    EXPECT_EQ(all[size_t(p)].process(), p);
    EXPECT_EQ(all[size_t(p)].num_devices(), p == 0 ? 2 : 1);
    std::vector<int> processes;
    for (const auto& device : all[size_t(p)].all_devices()) processes.push_back(device.process);
    EXPECT_THAT(processes, ElementsAre(0, 0, 1));
    for (const auto& device : all[size_t(p)].facts().devices) EXPECT_EQ(device.process, p);
  }
  EXPECT_THAT(message_of<UsageError>([&] { all[1].compile(sum_over(2), {.replicas = 2}); }),
              AllOf(HasSubstr("2 replicas on 1 devices"), HasSubstr("or the 3 of all processes")));
}

TEST_F(PluginOfHosts, AProgramOfAllAddsOverProcesses) {
  const auto all = clients({2, 1}, 2);
  for (int repeat = 0; repeat < 3; ++repeat) {
    auto other = std::async(std::launch::async, [&] { return run(all[1], 3, 2); });
    EXPECT_THAT(run(all[0], 3, 0), ElementsAre(ElementsAre(0, 1, 2), ElementsAre(300, 3, 6),
                                               ElementsAre(100, 1, 2), ElementsAre(300, 3, 6)));
    EXPECT_THAT(other.get(), ElementsAre(ElementsAre(200, 1, 2), ElementsAre(300, 3, 6)));
  }
}

TEST_F(PluginOfHosts, AProgramOfOneWaitsForNobody) {
  const auto all = clients({2, 2}, 3);
  EXPECT_THAT(run(all[1], 2, 0), ElementsAre(ElementsAre(0, 1, 2), ElementsAre(100, 2, 4),
                                             ElementsAre(100, 1, 2), ElementsAre(100, 2, 4)));
  EXPECT_EQ(run(all[1], 1, 0).size(), 2U);
}

TEST_F(PluginOfHosts, ALostProcessIsNamedByWhoeverNeedsIt) {
  const auto all = clients({1, 1}, 4);
  auto other = std::async(std::launch::async, [&] {
    std::this_thread::sleep_for(Millis{100});
    values_->lose();
  });
  EXPECT_THAT(message_of<PeerLost>([&] { run(all[0], 2, 0); }),
              HasSubstr("PJRT_LoadedExecutable_Execute: rank 1 (host b"));
}

/// A program of two replicas of a plugin that fails as FAKE_PLUGIN says, and what it takes.
struct FailingPlugin {
  FailingPlugin(const char* how, int64_t job, const std::shared_ptr<Values>& values) {
    ::setenv("FAKE_PLUGIN", how, 1);
    const auto client =
        pjrt::Client::open(TUTTI_FAKE_PLUGIN, {.options = {{"job", job}}, .key_values = values});
    program.emplace(client.compile("echo", {.replicas = 2}));
    for (const int device : {0, 1})
      sent.push_back(client.to_device(Array::zeros(DType::float32, {1}), device));
  }
  ~FailingPlugin() { ::unsetenv("FAKE_PLUGIN"); }
  FailingPlugin(const FailingPlugin&) = delete;

  pjrt::Results run(Millis limit) const { return program->run({{&sent[0]}, {&sent[1]}}, limit); }

  std::optional<pjrt::Program> program;
  std::vector<pjrt::Buffer> sent;
};

// A plugin that says nothing of it: its event never comes.
TEST_F(PluginOfHosts, ALostProcessIsNamedByWhoWaitsForAnEvent) {
  const FailingPlugin plugin("stuck", 5, values_);
  const auto results = plugin.run(Millis{20'000});
  EXPECT_THAT(message_of<Timeout>([&] { results.wait(Deadline(Millis{50})); }),
              HasSubstr("not done within 0.05 s"));
  values_->lose();
  EXPECT_THAT(message_of<PeerLost>([&] { results.wait(patience()); }),
              HasSubstr("device 1: rank 1 (host b"));
}

// It waits for the other process before it comes back, as some do.
TEST_F(PluginOfHosts, ALostProcessIsNamedWhereAPluginDoesNotComeBack) {
  const FailingPlugin plugin("deaf", 6, values_);
  EXPECT_THAT(message_of<Timeout>([&] { plugin.run(Millis{50}); }),
              HasSubstr("another process has not begun this program, within 0.05 s"));
  values_->lose();
  EXPECT_THAT(message_of<PeerLost>([&] { plugin.run(Millis{20'000}); }),
              HasSubstr("PJRT_LoadedExecutable_Execute: rank 1 (host b"));
}

}  // namespace
}  // namespace tutti
