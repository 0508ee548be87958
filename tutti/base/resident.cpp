#include "tutti/base/resident.h"

#include <fstream>
#include <string>

namespace tutti {
namespace {

int64_t status_bytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(field + ':')) return 1024 * std::stoll(line.substr(field.size() + 1));
  return 0;
}

}  // namespace

int64_t resident_bytes() { return status_bytes("VmRSS"); }
int64_t peak_resident_bytes() { return status_bytes("VmHWM"); }
void forget_peak_resident() { std::ofstream("/proc/self/clear_refs") << 5; }

}  // namespace tutti
