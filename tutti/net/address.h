/// Address: an IPv4 or IPv6 address with a port; the text of addresses; which local one to use.
///
/// Thread rule: values and pure functions; any thread.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tutti {

class Address {
 public:
  /// None: family() is AF_UNSPEC.
  Address() = default;
  /// Copies a socket address; UsageError when it is neither IPv4 nor IPv6.
  Address(const sockaddr* raw, socklen_t length);

  /// Of numbers alone, no name: "10.0.0.7", "::1", "fe80::1%eth0". None when it is no such text.
  static std::optional<Address> from_number(std::string_view number, uint16_t port);

  int family() const noexcept { return raw_.any.sa_family; }  ///< AF_INET, AF_INET6, AF_UNSPEC
  uint16_t port() const noexcept;
  Address with_port(uint16_t port) const noexcept;
  bool is_loopback() const noexcept;
  bool is_any() const noexcept;         ///< 0.0.0.0 or ::
  bool is_link_local() const noexcept;  ///< 169.254.x.x or fe80::

  std::string number() const;  ///< "10.0.0.7", "fe80::1%eth0"
  std::string text() const;    ///< "10.0.0.7:41023", "[::1]:41023"; "nowhere" when none

  const sockaddr* raw() const noexcept { return &raw_.any; }
  socklen_t length() const noexcept;
  std::span<const uint8_t> bytes() const noexcept;  ///< 4 or 16, highest first, without the port

  /// Equal family, number, scope and port.
  friend bool operator==(const Address& a, const Address& b) noexcept;

 private:
  union {
    sockaddr any;
    sockaddr_in v4;
    sockaddr_in6 v6;
  } raw_{.v6 = {}};
};

/// A host, by name or number, and a port: what people write.
struct HostPort {
  std::string host;
  uint16_t port = 0;

  std::string text() const;  ///< as parse_host_port() takes it
  bool is_loopback() const;  ///< localhost, 127.0.0.1, ::1; nothing is looked up
  bool operator==(const HostPort&) const = default;
};

/// "node7:29500", "10.0.0.7:29500", "[::1]:29500"; the port may be missing when there is a default.
/// Throws UsageError with what is wrong and an example; `what` names the flag or variable.
HostPort parse_host_port(std::string_view text, std::string_view what,
                         std::optional<uint16_t> default_port = {});

/// Where the addresses of a network begin and how many bits they share: "10.0.0.0/8", "fd00::/8".
struct Subnet {
  Address first;
  int bits = 0;

  bool contains(const Address& address) const noexcept;
};

/// Throws UsageError with an example.
Subnet parse_subnet(std::string_view text, std::string_view what);

/// An address that this machine has. One interface may have several.
struct Interface {
  std::string name;  ///< "eth0"
  Address address;   ///< port 0
};

/// All that are up, loopback included, as the system lists them.
std::vector<Interface> local_interfaces();

/// The local address from which packets to `target` leave, port 0. Sends nothing. Throws Error when
/// no route leads there.
Address local_address_towards(const Address& target);

/// The local address for `wanted`, port 0: the name of an interface ("eth0"), a subnet
/// ("10.0.0.0/8") or an address that this machine has. Of several: not link-local before
/// link-local, IPv4 before IPv6, then as listed. Throws UsageError that lists what there is.
Address choose_local_address(std::string_view wanted, std::string_view what,
                             std::span<const Interface> interfaces);

}  // namespace tutti
