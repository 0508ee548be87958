#include "tutti/cluster/exit_code.h"

#include <cstdio>

#include "tutti/base/error.h"
#include "tutti/cluster/join.h"

namespace tutti {
namespace {

int code_of(const std::exception& error) {
  if (const auto* end = dynamic_cast<const Interrupted*>(&error)) return 128 + end->signal();
  const bool usage = dynamic_cast<const UsageError*>(&error) != nullptr ||
                     dynamic_cast<const DataError*>(&error) != nullptr;
  return usage ? 2 : 1;
}

}  // namespace

int report_ending(const std::string& place, const std::exception& error) {
  report_failure(error);
  std::fflush(stdout);
  std::fprintf(stderr, "%s: %s\n", place.c_str(), plain_words(error.what()).c_str());
  return code_of(error);
}

}  // namespace tutti
