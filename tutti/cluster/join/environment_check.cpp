#include "tutti/cluster/join/environment_check.h"

#include "tutti/base/cpu_variant.h"
#include "tutti/cluster/rendezvous/job_links.h"
#include "tutti/cluster/spec/detail/environment.h"
#include "tutti/net/address.h"
#include "tutti/net/tls.h"
#include "tutti/net/token.h"

namespace tutti {

void check_environment() {
  best_variant();
  token_from_environment();
  tls_from_environment();
  if (const std::string interface = interface_from_environment(); !interface.empty())
    choose_local_address(interface, detail::kInterfaceVariable, local_interfaces());
}

}  // namespace tutti
