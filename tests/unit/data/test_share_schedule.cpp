// Which shares replicas had from which step on: looked up, cut, written and read again.
#include <nlohmann/json.hpp>

#include "tutti/data/share_schedule.h"

#include "tests/support/expect.h"

namespace tutti::data {
namespace {

using nlohmann::ordered_json;

const ShareSchedule kTwo{{{20, {43, 21}}, {60, {40, 24}}}};

TEST(ShareSchedule, EachStepHasTheLastChangeBeforeIt) {
  EXPECT_THAT(kTwo.at(0), IsEmpty());
  EXPECT_THAT(kTwo.at(19), IsEmpty());
  EXPECT_THAT(kTwo.at(20), ElementsAre(43, 21));
  EXPECT_THAT(kTwo.at(59), ElementsAre(43, 21));
  EXPECT_THAT(kTwo.at(1'000'000), ElementsAre(40, 24));
  EXPECT_EQ(kTwo.next_change(0), 20);
  EXPECT_EQ(kTwo.next_change(20), 60);
  EXPECT_EQ(kTwo.next_change(60), -1);
  ShareSchedule begun = kTwo;
  begun.cut(60);
  EXPECT_EQ(begun, (ShareSchedule{{{20, {43, 21}}}}));
}

TEST(ShareSchedule, IsReadAsItWasWritten) {
  EXPECT_EQ(ShareSchedule::from_json(kTwo.to_json(2), 2, "s.json"), kTwo);
  EXPECT_EQ(ShareSchedule::from_json(ShareSchedule().to_json(3), 3, "s.json"), ShareSchedule());
}

std::string shares_refusal(const std::string& text, int replicas = 2) {
  return message_of<UsageError>([&] { ShareSchedule::from_json(text, replicas, "s.json"); });
}

TEST(ShareSchedule, WhatIsNoneIsNamed) {
  const auto with = [](auto change) {
    ordered_json json = ordered_json::parse(kTwo.to_json(2));
    change(json);
    return json.dump();
  };
  struct Case {
    std::string text;
    std::string says;
  };
  const Case cases[] = {
      {"", "cannot be read as JSON"},
      {"[1, 2]", "field format is not there"},
      {"[[[[[[[1]]]]]]]", "nested deeper than 4"},
      {with([](auto& j) { j["format"] = "tutti shares 2"; }), "expected \"tutti shares 1\""},
      {with([](auto& j) { j["replicas"] = 3; }), "replicas is 3, but here are 2"},
      {with([](auto& j) { j["replicas"] = -2; }), "replicas is -2, expected a whole number"},
      {with([](auto& j) { j.erase("changes"); }), "field changes is not there"},
      {with([](auto& j) { j["changes"] = 7; }), "changes is 7, expected a list"},
      {with([](auto& j) { j["changes"][0] = 7; }), "field step is not there"},
      {with([](auto& j) { j["changes"][0]["step"] = 1.5; }), "step is 1.5"},
      {with([](auto& j) { j["changes"][1]["step"] = 20; }), "expected steps that grow"},
      {with([](auto& j) { j["changes"][0]["shares"] = {1, 2, 3}; }), "expected 2, one a replica"},
      {with([](auto& j) { j["changes"][1]["shares"] = {64, 0}; }),
       "from step 60: that of replica 1 is 0, expected 1 to"},
      {with([](auto& j) { j["changes"][1]["shares"] = {1.5, 1}; }), "a share is 1.5"},
      {with([](auto& j) { j["changes"][1]["shares"] = {UINT64_MAX, 1}; }), "a share is 184467"},
      {with([](auto& j) { j["changes"][1]["shares"] = {kMostShare + 1, 1}; }), "expected 1 to"},
  };
  for (const Case& one : cases)
    EXPECT_THAT(shares_refusal(one.text),
                AllOf(HasSubstr("shares of s.json: "), HasSubstr(one.says)))
        << one.text;
  EXPECT_THAT(shares_refusal(kTwo.to_json(2), 3), HasSubstr("train with 2 replicas"));
}

}  // namespace
}  // namespace tutti::data
