/// What every test says: GoogleTest, GoogleMock's matchers by their names alone, the errors of the
/// library and what an action throws. What stands in tests/support needs no test:: in namespaces of
/// the library.
#pragma once

#include <gmock/gmock.h>

#include <string>
#include <utility>

#include "tutti/base/error.h"

namespace tutti {
namespace test {

/// What `action` throws as an E; "" where it throws nothing.
template <class E, class Action>
std::string refusal_of(Action&& action) {
  try {
    action();
  } catch (const E& error) {
    return error.what();
  }
  return {};
}

/// The same; the test fails when it throws nothing.
template <class E, class Action>
std::string message_of(Action&& action) {
  std::string message = refusal_of<E>(std::forward<Action>(action));
  if (message.empty()) ADD_FAILURE() << "nothing was thrown";
  return message;
}

}  // namespace test

using namespace test;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::DoubleNear;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Le;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::Pair;
using ::testing::SizeIs;
using ::testing::StartsWith;
using ::testing::Throws;
using ::testing::ThrowsMessage;
using ::testing::UnorderedElementsAre;

}  // namespace tutti
