/// FailedElsewhere: what ends a worker because another one has failed, and that is there and says
/// why. A launcher takes it for a consequence, and never for the cause. Not for users.
/// Thread rule: a plain value.
#pragma once

#include "tutti/base/error.h"

namespace tutti::detail {

class FailedElsewhere : public Error {
 public:
  using Error::Error;
};

}  // namespace tutti::detail
