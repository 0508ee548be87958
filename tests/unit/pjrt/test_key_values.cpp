// A plugin of several processes asks for the values of its job: by callbacks through C.
#include <future>
#include <map>
#include <mutex>
#include <optional>

#include "tutti/cluster/rendezvous/job_links.h"
#include "tutti/pjrt/client.h"

#include "tests/support/expect.h"

namespace tutti {
namespace {

constexpr Millis kLimit{20'000};

/// How a client of `node` among `nodes` was made, in the plugin's words; or what was thrown.
std::string opened(int node, int nodes, std::shared_ptr<KeyValues> key_values,
                   int timeout_ms = 20'000, int job = 0) {
  try {
    return pjrt::Client::open(TUTTI_FAKE_PLUGIN,
                              {.options = {{"node_id", int64_t{node}},
                                           {"num_nodes", int64_t{nodes}},
                                           {"kv_timeout_ms", int64_t{timeout_ms}},
                                           {"job", int64_t{job}}},
                               .key_values = std::move(key_values)})
        .facts()
        .platform_version;
  } catch (const Error& error) {
    return error.what();
  }
}

/// Fails as it is told.
class Failing final : public KeyValues {
 public:
  explicit Failing(std::function<void()> fail) : fail_(std::move(fail)) {}
  void put(std::string_view, std::string_view) override { fail_(); }
  std::string get(std::string_view, const Deadline&) override { return ""; }
  std::optional<std::string> try_get(std::string_view) override { return std::nullopt; }

 private:
  const std::function<void()> fail_;
};

class PluginKeyValues : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!pjrt::available()) GTEST_SKIP() << "needs PJRT's header (tools/setup --pjrt)";
  }

  /// Worker `worker` of `workers` of one job, over loopback.
  std::unique_ptr<JobLinks> links(int worker, int workers) {
    auto made =
        std::make_unique<JobLinks>(JobPlace{.worker = worker,
                                            .num_workers = workers,
                                            .rendezvous = {"127.0.0.1", port_},
                                            .hosts_rendezvous = worker == 0,
                                            .name = "rank " + std::to_string(worker)},
                                   Credentials{.token = token_, .job = "job-1"}, Deadline(kLimit));
    if (worker == 0) port_ = made->listener()->address().port();
    return made;
  }

 private:
  const Token token_ = Token::random();
  uint16_t port_ = 0;
};

TEST_F(PluginKeyValues, ClientsOfAllProcessesMeetAtTheRendezvous) {
  constexpr int kNodes = 3;
  std::vector<std::unique_ptr<JobLinks>> all;
  for (int node = 0; node < kNodes; ++node) all.push_back(links(node, kNodes));
  std::vector<std::future<std::string>> made;
  for (int node = kNodes - 1; node >= 0; --node)
    made.push_back(std::async(std::launch::async, [&, node] {
      return opened(node, kNodes, all[static_cast<size_t>(node)]->key_values("plugin"));
    }));
  for (auto& one : made) EXPECT_EQ(one.get(), "v \"1\" 0 1 2");
}

TEST_F(PluginKeyValues, OneThatNeverComesIsNamedAtThePluginsLimit) {
  const auto zero = links(0, 2);
  EXPECT_THAT(opened(0, 2, zero->key_values("plugin"), 200, /*job=*/1),
              AllOf(HasSubstr("PJRT_Client_Create"), HasSubstr("code 4: "),
                    HasSubstr("value \"plugin/node 1\": nobody has put it within 200 ms")));
}

TEST_F(PluginKeyValues, WhatTheyThrowIsThePluginsError) {
  const auto with = [](int job, std::function<void()> fail) {
    return opened(0, 2, std::make_shared<Failing>(std::move(fail)), 200, job);
  };
  EXPECT_THAT(with(2, [] { throw PeerLost("rank 1 died"); }), HasSubstr("code 14: rank 1 died"));
  EXPECT_THAT(with(3, [] { throw UsageError("too large"); }), HasSubstr("code 3: too large"));
  EXPECT_THAT(with(4, [] { throw std::bad_alloc(); }), HasSubstr("code 13: std::bad_alloc"));
  EXPECT_THAT(with(5, [] { throw 7; }), HasSubstr("code 13: no exception of the standard"));
}

TEST_F(PluginKeyValues, WithoutAnyThePluginIsNotGivenCallbacks) {
  EXPECT_THAT(opened(0, 2, nullptr, 200, 6), HasSubstr("no key-value store was given"));
}

TEST_F(PluginKeyValues, ThoseOfAJobThatIsOverAreLost) {
  auto zero = links(0, 1);
  const auto values = zero->key_values("plugin");
  zero.reset();
  EXPECT_THAT(opened(0, 2, values, 200, 7),
              AllOf(HasSubstr("code 14: "), HasSubstr("has left the job")));
}

}  // namespace
}  // namespace tutti
