/// FailedElsewhere: what agree_on_failure() throws on workers that have not failed themselves. Not
/// for users. Thread rule: a plain value.
#pragma once

#include "tutti/base/error.h"

namespace tutti::detail {

class FailedElsewhere : public Error {
 public:
  using Error::Error;
};

}  // namespace tutti::detail
