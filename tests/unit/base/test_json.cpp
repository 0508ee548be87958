#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tutti/base/json.h"

#include "tests/support/expect.h"

namespace tutti {
namespace {

std::string nested(int depth) {
  return std::string(static_cast<size_t>(depth), '[') +
         std::string(static_cast<size_t>(depth), ']');
}

std::string json_refusal(const std::string& text, int most_depth = kMostJsonDepth) {
  return message_of<JsonError>([&] { parse_json(text, most_depth); });
}

// Numbers of each kind and at the ends of their ranges, escapes, keys in no order and twice.
const std::vector<std::string> kTexts = {
    R"({"b": [1, 2.5, "x"], "a": {"c": null, "d": true}})",
    R"([0, -0, -1, 9223372036854775807, -9223372036854775808, 18446744073709551615, 1e30])",
    R"([0.0, -0.0, 0.1, 1e-300, 1.7976931348623157e308, 5e-324, 123456789.123, 1E2])",
    R"(["", "\u00e9\u20ac\ud83d\ude00", "\\\"\/\b\f\n\r\t\u0001", "\u007f"])",
    R"({"z": 1, "a": 2, "m": 3, "z": [4], "a": {}, "": 0})",
    R"([[], {}, [[]], [{}], {"a": [], "b": {}}, null, false])",
    "7",
    "\"alone\"",
    "null"};

TEST(Json, IsReadAndWrittenAsNlohmannDoes) {
  for (const std::string& text : kTexts)
    for (const int indent : {-1, 0, 1, 4}) {
      EXPECT_EQ(dump_json(parse_json(text), indent), nlohmann::json::parse(text).dump(indent));
      const auto ordered = nlohmann::ordered_json::parse(text);
      EXPECT_EQ(dump_json(parse_json<OrderedJson>(text), indent), ordered.dump(indent));
      EXPECT_EQ(dump_json(OrderedJson(parse_json(text)), indent),
                nlohmann::json::parse(text).dump(indent));
      EXPECT_EQ(dump_json(Json(parse_json<OrderedJson>(text)), indent),
                nlohmann::json::parse(text).dump(indent));
      EXPECT_EQ(dump_json_lossy(parse_json<OrderedJson>(text), indent, true),
                ordered.dump(indent, ' ', true));
    }
}

TEST(Json, IsMadeAsNlohmannMakesIt) {
  const std::map<std::string, std::vector<int>> map{{"y", {1, 2}}, {"x", {}}};
  const auto made = [&]<class J>(J) {
    J json = {{"n", 1u},
              {"i", -1},
              {"f", 0.25F},
              {"t", "text"},
              {"b", true},
              {"none", nullptr},
              {"map", map},
              {"pair", std::pair("k", 2)},
              {"list", J::array({"a", 1})},
              {"nan", std::nan("")}};
    json["later"]["deep"] = J{1, "a", J::object()};
    json["grown"].push_back(J{{"a", std::vector<bool>{true, false}}});
    json["i"] = json["n"];
    json.erase("b");
    return json;
  };
  EXPECT_EQ(made(Json()).dump(), made(nlohmann::json()).dump());
  EXPECT_EQ(made(OrderedJson()).dump(1), made(nlohmann::ordered_json()).dump(1));
}

TEST(Json, GivesWhatItHolds) {
  const Json json =
      parse_json(R"({"i": -7, "u": 7, "f": 7.5, "t": "x", "l": [1, 2], "o": {"a": 3}})");
  EXPECT_EQ(json.at("i").get<int>(), -7);
  EXPECT_EQ(json.at("f").get<int64_t>(), 7);
  EXPECT_EQ(json.at("u").get<double>(), 7.0);
  EXPECT_EQ(Json(9007199791611905).get<float>(), 9007200328482816.0F);  // rounded once
  EXPECT_EQ(json.at("l").get<std::vector<int>>(), (std::vector{1, 2}));
  EXPECT_EQ((json.at("l").get<std::pair<int, int>>()), std::pair(1, 2));
  EXPECT_EQ((json.at("o").get<std::map<std::string, int>>()),
            (std::map<std::string, int>{{"a", 3}}));
  const std::string text = json["t"];
  EXPECT_EQ(text, "x");
  EXPECT_EQ(json.value("u", 1), 7);
  EXPECT_EQ(json.value("none", "else"), "else");
  std::vector<std::string> keys;
  for (const auto& [key, value] : json.items()) keys.push_back(key);
  EXPECT_THAT(keys, ElementsAre("f", "i", "l", "o", "t", "u"));
  EXPECT_EQ(json.find("none"), json.end());
  EXPECT_EQ(json.find("o").key(), "o");
}

TEST(Json, ComparesTextsAndNumbersByTheirValue) {
  EXPECT_EQ(Json("text"), std::string_view("text"));
  EXPECT_EQ(Json(std::string_view("text")), "text");
  EXPECT_EQ(Json(7), 7u);
  EXPECT_EQ(Json(7u), 7.0);
  EXPECT_FALSE(Json(-1) == Json(std::numeric_limits<uint64_t>::max()));
  EXPECT_FALSE(Json(1) == Json(true));
  EXPECT_FALSE(Json(nullptr) == Json(0));
  EXPECT_EQ(Json({{"b", 1}, {"a", 2}}), Json({{"a", 2}, {"b", 1}}));
  EXPECT_FALSE(OrderedJson({{"b", 1}, {"a", 2}}) == OrderedJson({{"a", 2}, {"b", 1}}));
}

TEST(Json, SaysWhatItIsNot) {
  const Json json = parse_json(R"({"t": "x", "l": [1], "huge": 1e300, "yes": true})");
  const auto refusal = [](auto&& use) { return message_of<JsonError>(use); };
  EXPECT_EQ(refusal([&] { json.at("none"); }), "key 'none' not found");
  EXPECT_EQ(refusal([&] { json.at("l").at(1); }), "array index 1 is out of range");
  EXPECT_EQ(refusal([&] { json.at("t").get<int>(); }), "type must be number, but is string");
  EXPECT_EQ(refusal([&] { json.at("yes").get<int>(); }), "type must be number, but is boolean");
  EXPECT_EQ(refusal([&] { json.at("l").get<std::string>(); }), "type must be string, but is array");
  EXPECT_EQ(refusal([&] { json.at("l").at("a"); }), "type must be object, but is array");
  using Map = std::map<std::string, int>;
  EXPECT_EQ(refusal([&] { Json().get<Map>(); }), "type must be object, but is null");
  EXPECT_THAT(refusal([&] { json.at("huge").get<int64_t>(); }), HasSubstr("no whole number"));
  EXPECT_THAT(refusal([&] {
                for (const Json& each : json.at("t")) static_cast<void>(each);
              }),
              HasSubstr("must be array"));
  EXPECT_THAT(refusal([&] { dump_json(Json("\xff")); }), HasSubstr("invalid UTF-8 byte"));
  EXPECT_EQ(dump_json_lossy(Json("\xff")), "\"\xEF\xBF\xBD\"");
}

TEST(ParseJson, SaysWhereItIsNone) {
  EXPECT_THAT(json_refusal("{\n  \"a\": }"), HasSubstr("line 2, column 8"));
  try {
    parse_json("[1, x]");
    ADD_FAILURE();
  } catch (const JsonSyntaxError& error) {
    EXPECT_EQ(error.byte, 5u);
  }
}

TEST(ParseJson, ANumberThatNoTypeHoldsIsNoErrorOfSyntax) {
  try {
    parse_json("[1e999]");
    ADD_FAILURE();
  } catch (const JsonSyntaxError& error) {
    ADD_FAILURE() << error.what();
  } catch (const JsonError& error) {
    EXPECT_THAT(error.what(), HasSubstr("1e999"));
  }
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

TEST(ParseJson, KeepsTheObjectsThatAreWanted) {
  std::vector<int> depths;
  const Json kept = parse_json("[{}, {\"a\": {\"b\": 1}, \"c\": 2}]", 3, [&](int depth, Json&) {
    depths.push_back(depth);
    return depth != 2;
  });
  EXPECT_THAT(depths, ElementsAre(1, 2, 1));
  EXPECT_EQ(kept.dump(), R"([{},{"c":2}])");
}

TEST(ParseJson, TakesAKeyOnceWhereThatIsAsked) {
  const std::string twice = R"({"x": {"b": 1, "a": 2, "b": 3}})";
  EXPECT_EQ(parse_json(twice).at("x").at("b"), 3);
  EXPECT_EQ(message_of<JsonError>([&] { parse_json_once(twice); }), "key \"b\" is there twice");
  EXPECT_EQ(parse_json_once(R"({"x": {"x": 1}})").size(), 1u);
}

}  // namespace
}  // namespace tutti
