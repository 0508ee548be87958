// Compiled instead of tutti/extras/coders where TUTTI_WITH_EXTRAS is off.
#include "tutti/base/error.h"
#include "tutti/comm/compression/coders.h"

namespace tutti::detail {
namespace {

// check_compression() has said so of every Compression that comes here.
[[noreturn]] void refuse() { throw UsageError("this coder is not in this build"); }

}  // namespace

bool extra_coders_available() noexcept { return false; }

std::unique_ptr<BucketCoder> make_one_bit_coder(CoderParts /*parts*/) { refuse(); }

std::unique_ptr<BucketCoder> make_power_sgd_coder(CoderParts /*parts*/) { refuse(); }

}  // namespace tutti::detail
