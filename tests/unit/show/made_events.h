// Events as a job would have emitted them, written by hand.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "tutti/observe/recorder.h"

namespace tutti::test {

/// One that came at `when_us`, with fields that are whole numbers; `us` >= 0: how long it took.
inline Recorded made_event(std::string name, double when_us, double us,
                           const std::map<std::string, int64_t>& numbers) {
  Recorded event{.name = std::move(name), .when_us = when_us, .fields = {}};
  for (const auto& [field, number] : numbers) event.fields.emplace(field, number);
  if (us >= 0) event.fields.emplace("us", us);
  return event;
}

}  // namespace tutti::test
