#include "tutti/coordinator/build.h"

#include <fstream>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/sha256.h"

namespace tutti::coordinator {
namespace {

constexpr size_t kDigits = 16;
constexpr size_t kAtOnce = 1 << 20;

}  // namespace

std::string build_of_this_process() {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  std::vector<char> bytes(kAtOnce);
  Sha256 hash;
  while (file) {
    file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    hash.update(bytes.data(), static_cast<size_t>(file.gcount()));
  }
  if (!file.eof()) throw Error("the program of this process, /proc/self/exe, cannot be read");
  return hash.hex().substr(0, kDigits);
}

}  // namespace tutti::coordinator
