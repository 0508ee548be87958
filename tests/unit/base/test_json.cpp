#include <gmock/gmock.h>

#include <string>

#include "tutti/base/json.h"

#include "tests/support/message_of.h"

namespace tutti {
namespace {

using nlohmann::json;
using test::message_of;
using testing::HasSubstr;

std::string nested(int depth) {
  return std::string(static_cast<size_t>(depth), '[') +
         std::string(static_cast<size_t>(depth), ']');
}

std::string json_refusal(const std::string& text, int most_depth = kMostJsonDepth) {
  return message_of<json::exception>([&] { parse_json(text, most_depth); });
}

TEST(ParseJson, ReadsWhatNlohmannReads) {
  const std::string text = R"({"b": [1, 2.5, "x"], "a": {"c": null, "d": true}})";
  EXPECT_EQ(parse_json(text), json::parse(text));
  EXPECT_EQ(parse_json<nlohmann::ordered_json>(text).begin().key(), "b");
  EXPECT_THAT(json_refusal("{\n  \"a\": }"), HasSubstr("line 2, column 8"));
}

TEST(ParseJson, StopsWhereItIsTooDeep) {
  EXPECT_EQ(parse_json(nested(kMostJsonDepth)).dump(), nested(kMostJsonDepth));
  EXPECT_THAT(json_refusal(nested(kMostJsonDepth + 1)), HasSubstr("line 1, column 257"));
  EXPECT_THAT(json_refusal("[1,\n [[2], {\"a\": [3]}]]", 3),
              HasSubstr("line 2, column 14: arrays and objects are nested deeper than 3"));
  for (const char* open : {"[", "{\"a\":", "[[],{\"b\":"}) {
    std::string deep;
    for (int i = 0; i < 100'000; ++i) deep += open;
    EXPECT_THAT(json_refusal(deep), HasSubstr("nested deeper than 256")) << open;
  }
}

TEST(ParseJson, CountsWhatIsOpenAlone) {
  std::string wide = "[0";
  for (int i = 0; i < 1000; ++i) wide += R"(,[{"a": "]]}}[[[["}], "\\\"[[[", "\\\\")";
  EXPECT_EQ(parse_json(wide + "]", 3).size(), 3001U);
  EXPECT_THAT(json_refusal(wide + "]", 2), HasSubstr("line 1, column 5"));
}

TEST(ParseJson, GivesEventsToWhoAsksForThem) {
  int objects = 0;
  parse_json("[{}, {\"a\": {}}]", 3, [&](int, json::parse_event_t event, json&) {
    objects += event == json::parse_event_t::object_end;
    return true;
  });
  EXPECT_EQ(objects, 3);
}

}  // namespace
}  // namespace tutti
