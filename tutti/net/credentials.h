/// Credentials: what a process shows on every connection of its job.
#pragma once

#include <memory>
#include <string>

#include "tutti/net/token.h"

namespace tutti {

class TlsContext;

/// Thread rule: as a value.
struct Credentials {
  Token token;
  std::string job;                             ///< the job's id: tells two jobs at a port apart
  std::shared_ptr<const TlsContext> tls = {};  ///< none: plain text; the same on all processes
};

}  // namespace tutti
