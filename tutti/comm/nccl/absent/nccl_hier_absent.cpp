// Compiled instead of tutti/extras/nccl_hier where TUTTI_WITH_EXTRAS is off, or there is no NCCL.
#include "tutti/base/error.h"
#include "tutti/comm/nccl/nccl_hier.h"

namespace tutti {

// NOLINTNEXTLINE(performance-unnecessary-value-param): moved from where it is there
std::shared_ptr<Engine> make_nccl_hier(NcclHierParts /*parts*/, const NcclOptions& /*options*/) {
  throw UsageError(
      "sums over the devices of several hosts by NCCL and another engine are not in this build; "
      "configure it with TUTTI_WITH_EXTRAS=ON where NCCL is");
}

}  // namespace tutti
