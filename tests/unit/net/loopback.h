/// What tests of connections on this host share.
#pragma once

#include <filesystem>

#include "tutti/net/address.h"

namespace tutti {

/// Any free port of this host.
inline const Address kLoopback = *Address::from_number("127.0.0.1", 0);

/// Of this process, with the one that counts them.
inline std::ptrdiff_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return std::distance(begin(all), end(all));
}

}  // namespace tutti
