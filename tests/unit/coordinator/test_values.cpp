// Values on their way: what arrives is what was sent, and no bytes whatever do harm.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "tutti/base/error.h"
#include "tutti/coordinator/detail/values.h"
#include "tutti/coordinator/remote.h"

#include "tests/support/message_of.h"

namespace tutti::coordinator {
namespace {

using test::message_of;
using testing::HasSubstr;

template <class T>
std::string bytes_of(const T& value) {
  ValueWriter writer;
  Codec<T>::write(writer, value);
  return writer.take();
}

template <class T>
T value_of(const std::string& bytes) {
  ValueReader reader(std::as_bytes(std::span(bytes)));
  T value = Codec<T>::read(reader);
  reader.end();
  return value;
}

template <class T>
void expect_arrives(const T& value) {
  EXPECT_EQ(value_of<T>(bytes_of(value)), value);
}

TEST(Values, ArriveAsTheyWere) {
  expect_arrives(true);
  expect_arrives<int8_t>(-7);
  expect_arrives<uint64_t>(~uint64_t{0});
  expect_arrives(std::numeric_limits<int64_t>::min());
  expect_arrives(0.1F);
  expect_arrives(-1e308);
  expect_arrives(std::string("a\0b", 3));
  expect_arrives(std::string());
  expect_arrives(std::vector<bool>{true, false});
  expect_arrives(std::vector<std::string>{"", "two"});
  expect_arrives(std::pair<std::string, int>{"x", 3});
  expect_arrives(std::tuple<int, std::vector<std::tuple<double>>, std::string>{1, {{2}, {3}}, "4"});
}

TEST(Values, ArraysKeepDtypeShapeAndBytes) {
  for (const DType dtype : {DType::boolean, DType::int64, DType::bfloat16, DType::float32}) {
    for (const std::vector<int64_t>& shape :
         std::vector<std::vector<int64_t>>{{}, {0}, {3, 0}, {2, 5}}) {
      const Array sent = Array::zeros(dtype, shape);
      for (int64_t i = 0; i < sent.num_bytes(); ++i)
        static_cast<uint8_t*>(sent.data())[i] = static_cast<uint8_t>(i + 1);
      const Array got = value_of<Array>(bytes_of(sent));
      EXPECT_EQ(got.to_string(), sent.to_string());
      EXPECT_EQ(reinterpret_cast<uintptr_t>(got.data()) % 64, 0U);
      EXPECT_EQ(std::string(static_cast<const char*>(got.data()), got.num_bytes()),
                std::string(static_cast<const char*>(sent.data()), sent.num_bytes()));
    }
  }
}

TEST(Values, OfAnotherKindAreNamed) {
  const std::string number = bytes_of(int64_t{3});
  EXPECT_THAT(message_of<Error>([&] { value_of<std::string>(number); }),
              HasSubstr("got a whole number, expected a string"));
  EXPECT_THAT(message_of<Error>([&] { value_of<int64_t>(number + "x"); }),
              HasSubstr("1 bytes are left"));
  EXPECT_THAT(
      message_of<Error>([&] { value_of<std::tuple<int>>(bytes_of(std::tuple<int, int>{1, 2})); }),
      HasSubstr("a tuple of 2, expected 1"));
}

// Bytes cut short, changed, or drawn at random: an Error or a value, and no more memory than bytes.
TEST(Values, NoBytesDoHarm) {
  using All = std::tuple<int, std::vector<std::string>, Array, double>;
  const std::string good = bytes_of(All{1, {"a", "bc"}, Array::zeros(DType::float32, {2, 3}), 4.0});
  std::mt19937 draw(7);
  for (int trial = 0; trial < 20'000; ++trial) {
    std::string bytes = good.substr(0, draw() % (good.size() + 1));
    for (unsigned changes = draw() % 4; changes > 0 && !bytes.empty(); --changes)
      bytes[draw() % bytes.size()] = static_cast<char>(draw());
    try {
      value_of<All>(bytes);
    } catch (const Error&) {
    }
  }
}

// What does not compile: a step that takes or gives what cannot travel, or captures.
static_assert(Sendable<std::vector<std::tuple<Array, std::string>>>);
static_assert(!Sendable<std::map<int, int>>);
static_assert(!Sendable<const char*>);
static_assert(!Sendable<std::vector<void*>>);
static_assert(Takable<const std::string&> && Takable<Array> && Takable<std::map<int, int>&>);
static_assert(!Takable<const std::map<int, int>&> && !Takable<std::map<int, int>>);
static_assert(Captureless<int (*)(int)>);
static_assert(Captureless<decltype([](int x) { return x; })>);
static_assert(!Captureless<decltype([x = 1] { return x; })>);
static_assert(!Captureless<int>);

}  // namespace
}  // namespace tutti::coordinator
