#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tutti/base/error.h"
#include "tutti/ps/partition/meetings.h"

namespace tutti::ps {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Session = Meetings::Session;
using Texts = std::map<int, std::string>;

constexpr Session kFirst{.step = 4, .number = 1};
constexpr Session kSecond{.step = 4, .number = 2};
constexpr Session kLater{.step = 5, .number = 1};

Bytes bytes_of(const std::string& text) { return Bytes::copy_of(std::as_bytes(std::span(text))); }

Texts texts_of(const Brought& values) {
  Texts texts;
  for (const auto& [worker, value] : values)
    texts[worker] = {reinterpret_cast<const char*>(value.span.data()), value.span.size()};
  return texts;
}

Texts texts_at(const Meetings& meetings, const Session& session) {
  const Brought* const values = meetings.values(session);
  return values == nullptr ? Texts{{-1, "none"}} : texts_of(*values);
}

TEST(Meetings, EndWhenAllWhoAreHereHaveBroughtSomething) {
  Meetings meetings;
  EXPECT_THAT(meetings.end({0, 1}), IsEmpty());
  meetings.bring(1, kFirst, bytes_of("b"));
  EXPECT_TRUE(meetings.has_brought(1, kFirst));
  EXPECT_THAT(meetings.waits_for(kFirst, {0, 1}), ElementsAre(0));
  EXPECT_THAT(meetings.end({0, 1}), IsEmpty());
  EXPECT_EQ(meetings.values(kFirst), nullptr);
  meetings.bring(0, kFirst, bytes_of("a"));
  EXPECT_THAT(meetings.end({0, 1}), ElementsAre(kFirst));
  EXPECT_EQ(texts_at(meetings, kFirst), (Texts{{0, "a"}, {1, "b"}}));
}

TEST(Meetings, WhoIsLostIsNotWaitedForAndCountsIfItHadCome) {
  Meetings meetings;
  meetings.bring(2, kFirst, bytes_of("c"));
  meetings.bring(0, kFirst, bytes_of("a"));
  EXPECT_THAT(meetings.end({0, 1}), IsEmpty());
  EXPECT_THAT(meetings.end({0}), ElementsAre(kFirst));
  EXPECT_EQ(texts_at(meetings, kFirst), (Texts{{0, "a"}, {2, "c"}}));
}

TEST(Meetings, WhatComesTwiceOrTooLateDoesNotCount) {
  Meetings meetings;
  meetings.bring(0, kFirst, bytes_of("a"));
  meetings.bring(0, kFirst, bytes_of("other"));
  meetings.end({0});
  meetings.bring(1, kFirst, bytes_of("late"));
  EXPECT_EQ(texts_at(meetings, kFirst), (Texts{{0, "a"}}));
  EXPECT_THAT(meetings.end({0, 1}), IsEmpty()) << "the late one opens nothing";
}

TEST(Meetings, WhoComesAgainIsWaitedForFromItsFirstStepOn) {
  Meetings meetings;
  meetings.bring(0, kFirst, bytes_of("a"));
  meetings.begins(1, kFirst.step);
  EXPECT_THAT(meetings.end({0, 1}), ElementsAre(kFirst));
  meetings.bring(0, kLater, bytes_of("b"));
  EXPECT_THAT(meetings.end({0, 1}), IsEmpty());
  meetings.bring(1, kLater, bytes_of("c"));
  EXPECT_THAT(meetings.end({0, 1}), ElementsAre(kLater));
  EXPECT_EQ(texts_at(meetings, kLater), (Texts{{0, "b"}, {1, "c"}}));
}

TEST(Meetings, WhoComesAgainMayComeToWhatDoesNotWaitForIt) {
  Meetings meetings;
  meetings.begins(1, kFirst.step);
  meetings.bring(1, kFirst, bytes_of("c"));
  EXPECT_THAT(meetings.end({0, 1}), IsEmpty());
  meetings.bring(0, kFirst, bytes_of("a"));
  EXPECT_THAT(meetings.end({0, 1}), ElementsAre(kFirst));
  EXPECT_EQ(texts_at(meetings, kFirst), (Texts{{0, "a"}, {1, "c"}}));
}

TEST(Meetings, ThoseOfTheNewestStepAreKnown) {
  Meetings meetings;
  for (const Session& session : {kFirst, kSecond}) {
    meetings.bring(0, session, bytes_of("a"));
    meetings.end({0});
  }
  EXPECT_NE(meetings.values(kFirst), nullptr);
  EXPECT_EQ(meetings.objection(kFirst), "");
  EXPECT_EQ(meetings.objection(kLater), "");
  meetings.bring(0, kLater, bytes_of("a"));
  meetings.end({0});
  EXPECT_EQ(meetings.values(kFirst), nullptr);
  EXPECT_THAT(meetings.objection(kFirst), HasSubstr("meeting 1 after 4 steps is over"));
}

TEST(Meetings, LargeValuesAreKeptForTheLastAlone) {
  Meetings meetings;
  const std::string large(40 << 20, 'x');
  for (const Session& session : {kFirst, kSecond}) {
    meetings.bring(0, session, bytes_of(large));
    meetings.end({0});
  }
  EXPECT_EQ(meetings.values(kFirst), nullptr);
  EXPECT_NE(meetings.values(kSecond), nullptr);
}

TEST(Meetings, GoOnWhereOthersWere) {
  Meetings first;
  first.begins(2, 5);
  first.bring(0, kFirst, bytes_of("a"));
  first.end({0});
  first.bring(1, kLater, bytes_of("b"));
  Meetings second;
  for (const auto& [text, payload] : first.chunks()) second.take(text, payload);
  EXPECT_EQ(second.chunks().size(), first.chunks().size());
  EXPECT_EQ(texts_at(second, kFirst), (Texts{{0, "a"}}));
  second.bring(0, kLater, bytes_of("c"));
  EXPECT_THAT(second.end({0, 1, 2}), ElementsAre(kLater));
  EXPECT_EQ(texts_at(second, kLater), (Texts{{0, "c"}, {1, "b"}}));
  EXPECT_THAT(second.objection(kFirst), HasSubstr("is over"));
}

TEST(Meetings, ValuesTravelAsOneMessage) {
  const Brought values{{0, bytes_of("abc")}, {3, bytes_of("")}, {7, bytes_of("d")}};
  const auto [text, payload] = packed(values);
  EXPECT_EQ(texts_of(unpacked(text, payload)), texts_of(values));
  const auto [nothing, none] = packed({});
  EXPECT_TRUE(unpacked(nothing, none).empty());
}

TEST(Meetings, WhatIsNoMeetingIsRefused) {
  const auto [right, payload] = packed({{0, bytes_of("abc")}});
  for (const char* const text : {"", "[", "[[0]]", "[[0,4]]", "[[0,2]]", "[[0,-1]]", "[[\"a\",3]]"})
    EXPECT_THROW(unpacked(text, payload), Error) << text;
  Meetings meetings;
  for (const char* const text : {"", "[1,2,3]", "[true]", "[true,1,2,\"[[0,4]]\"]"})
    EXPECT_THROW(meetings.take(text, payload), Error) << text;
}

}  // namespace
}  // namespace tutti::ps
