// In place of the optimizer's kernels, which parse nothing and ask for CPU features that older
// clangs do not know. A specification names a rule, which has them.
#include "tutti/base/cpu_variant.h"
#include "tutti/optim/kernels/update.h"

namespace tutti {
CpuVariant best_variant() { return CpuVariant::baseline; }
}  // namespace tutti

namespace tutti::optim::baseline {
const detail::Kernels kernels{};
}
namespace tutti::optim::avx2 {
const detail::Kernels kernels{};
}
namespace tutti::optim::avx512 {
const detail::Kernels kernels{};
}
