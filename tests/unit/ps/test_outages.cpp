#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tutti/ps/view/outages.h"

namespace tutti::ps {
namespace {

constexpr TimePoint kStart{};

View view_of(int num_servers) {
  View view;
  for (int i = 0; i < num_servers; ++i)
    view.servers.push_back(
        {.name = fmt::format("server {}", i), .address = "", .alive = true, .ending = ""});
  return view;
}

TEST(Outages, AServerThatTookOverIsNamedWithTheTimeSinceTheLoss) {
  Outages outages;
  EXPECT_EQ(outages.on_welcome(0, 1, kStart), "") << "the first";
  EXPECT_TRUE(outages.on_closed(1, "closed", kStart + Millis{10}));
  EXPECT_FALSE(outages.on_closed(1, "refused", kStart + Millis{60})) << "it is known";
  EXPECT_EQ(outages.on_welcome(0, 2, kStart + Millis{35}),
            "partition 0: server 2 took over from server 1 after 0.025 s");
  EXPECT_EQ(outages.on_welcome(0, 2, kStart + Millis{40}), "");
}

TEST(Outages, AConnectionThatBrokeIsNoLoss) {
  Outages outages;
  outages.on_welcome(0, 1, kStart);
  outages.on_closed(1, "closed", kStart + Millis{10});
  EXPECT_EQ(outages.on_welcome(0, 1, kStart + Millis{20}), "");
  EXPECT_TRUE(outages.on_closed(1, "closed", kStart + Millis{30})) << "the next is news again";
}

TEST(Outages, ASilentServerIsLostSinceItsLastWord) {
  Outages outages;
  View view = view_of(3);
  outages.on_welcome(1, 1, kStart);
  outages.on_word(1, kStart + Millis{100});
  outages.on_word(2, kStart + Millis{500});
  outages.on_view(view);
  view.servers[1].alive = false;
  outages.on_view(view);
  EXPECT_EQ(outages.on_welcome(1, 2, kStart + Millis{1'100}),
            "partition 1: server 2 took over from server 1 after 1.000 s");
}

TEST(Outages, WordsNameWhomItDoesNotReach) {
  Outages outages;
  const View view = view_of(2);
  EXPECT_EQ(outages.words(view), "");
  outages.on_closed(1, "connection refused", kStart);
  EXPECT_EQ(outages.words(view), "\n  server 1: connection refused");
  outages.on_connected(1);
  EXPECT_EQ(outages.words(view), "");
}

}  // namespace
}  // namespace tutti::ps
