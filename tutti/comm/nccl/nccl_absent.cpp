// Compiled instead of the engine where CMake finds no CUDA toolkit or no NCCL.
#include "tutti/base/error.h"
#include "tutti/comm/nccl/nccl.h"

namespace tutti {

bool nccl_available() noexcept { return false; }

std::string nccl_version() { return ""; }

namespace {

[[noreturn]] void refuse() {
  throw UsageError(
      "engine \"nccl\": this build has no NCCL; install NCCL and the CUDA toolkit and configure "
      "again, or copy to the host and use engine \"tcp\"");
}

}  // namespace

NcclFacts nccl_facts(int /*device*/) { refuse(); }

std::shared_ptr<Engine> make_nccl(MeetingPlace& /*place*/, const NcclOptions& /*options*/) {
  refuse();
}

}  // namespace tutti
