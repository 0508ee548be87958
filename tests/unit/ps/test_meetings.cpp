#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "tutti/base/error.h"
#include "tutti/ps/meetings.h"

namespace tutti::ps {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Bytes bytes_of(const std::string& text) { return Bytes::copy_of(std::as_bytes(std::span(text))); }

std::map<int, std::string> texts_of(const std::map<int, Bytes>& values) {
  std::map<int, std::string> texts;
  for (const auto& [worker, value] : values)
    texts[worker] = {reinterpret_cast<const char*>(value.span.data()), value.span.size()};
  return texts;
}

using Texts = std::map<int, std::string>;

TEST(Meetings, EndWhenAllWhoAreHereHaveBroughtSomething) {
  Meetings meetings;
  EXPECT_THAT(meetings.end_if_all({0, 1}), IsEmpty());
  meetings.bring(1, 1, bytes_of("b"));
  EXPECT_TRUE(meetings.waits(1));
  EXPECT_FALSE(meetings.waits(0));
  EXPECT_THAT(meetings.end_if_all({0, 1}), IsEmpty());
  meetings.bring(0, 1, bytes_of("a"));
  EXPECT_THAT(meetings.end_if_all({0, 1}), ElementsAre(0, 1));
  EXPECT_EQ(texts_of(meetings.last()), (Texts{{0, "a"}, {1, "b"}}));
  EXPECT_EQ(meetings.num_over(), 1);
  EXPECT_FALSE(meetings.anybody_waits());
}

TEST(Meetings, WhoIsLostIsNotWaitedForAndCountsIfItHadCome) {
  Meetings meetings;
  meetings.bring(2, 1, bytes_of("c"));
  meetings.bring(0, 1, bytes_of("a"));
  EXPECT_THAT(meetings.end_if_all({0}), ElementsAre(0, 2));
  EXPECT_EQ(texts_of(meetings.last()), (Texts{{0, "a"}, {2, "c"}}));
  // Without anybody there is none to end.
  EXPECT_THAT(meetings.end_if_all({}), IsEmpty());
}

TEST(Meetings, WhatComesTwiceCountsOnce) {
  Meetings meetings;
  meetings.bring(0, 1, bytes_of("a"));
  meetings.bring(0, 1, bytes_of("other"));
  meetings.end_if_all({0});
  meetings.bring(0, 1, bytes_of("late"));
  EXPECT_EQ(texts_of(meetings.last()), (Texts{{0, "a"}}));
  EXPECT_FALSE(meetings.waits(0)) << "that one is over";
  EXPECT_EQ(meetings.objection(0, 1), "") << "asked again";
  EXPECT_EQ(meetings.objection(0, 2), "");
}

TEST(Meetings, WhoComesToAnotherIsRefused) {
  Meetings meetings;
  EXPECT_THAT(meetings.objection(0, 2), HasSubstr("worker 0 comes to meeting 2; 0 are over"));
  EXPECT_THAT(meetings.objection(0, 0), HasSubstr("meeting 0"));
  meetings.bring(0, 1, bytes_of("a"));
  meetings.end_if_all({0});
  EXPECT_THAT(meetings.objection(1, 1), HasSubstr("meeting 1")) << "it was not part of it";
}

TEST(Meetings, GoOnWhereOthersWere) {
  Meetings first;
  first.bring(0, 1, bytes_of("a"));
  first.end_if_all({0});
  first.bring(1, 2, bytes_of("b"));
  Meetings second;
  second.restore(first.num_over(), first.last(), first.next());
  second.bring(0, 2, bytes_of("c"));
  EXPECT_THAT(second.end_if_all({0, 1}), ElementsAre(0, 1));
  EXPECT_EQ(texts_of(second.last()), (Texts{{0, "c"}, {1, "b"}}));
  EXPECT_EQ(second.num_over(), 2);
}

TEST(Meetings, ValuesTravelAsOneMessage) {
  const std::map<int, Bytes> values{{0, bytes_of("abc")}, {3, bytes_of("")}, {7, bytes_of("d")}};
  Message message;
  pack(values, message);
  EXPECT_EQ(texts_of(unpack(message)), texts_of(values));
  Message empty;
  pack({}, empty);
  EXPECT_TRUE(unpack(empty).empty());
}

TEST(Meetings, MessagesThatAreNoneAreRefused) {
  Message message;
  pack({{0, bytes_of("abc")}}, message);
  for (const char* const text :
       {"", "[", "[[0]]", "[[0,4]]", "[[0,2]]", "[[0,-1]]", "[[\"a\",3]]"}) {
    message.text = text;
    EXPECT_THROW(unpack(message), Error) << text;
  }
}

}  // namespace
}  // namespace tutti::ps
