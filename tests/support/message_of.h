#pragma once

#include <gtest/gtest.h>

#include <string>

namespace tutti::test {

/// What `action` throws as an E; the test fails when it throws nothing.
template <class E, class Action>
std::string message_of(Action&& action) {
  try {
    action();
  } catch (const E& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

}  // namespace tutti::test
