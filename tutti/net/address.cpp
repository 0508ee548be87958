#include "tutti/net/address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "tutti/base/error.h"
#include "tutti/base/file_descriptor.h"
#include "tutti/base/typed.h"

namespace tutti {
namespace {

/// A number from 0 to `most`, digits only.
std::optional<int> parse_number(std::string_view text, int most) {
  const auto value = number_in<int>(text);
  return value && *value >= 0 && *value <= most ? value : std::nullopt;
}

/// What people wrote, fit for a message: bounded, without control characters.
std::string shown(std::string_view text) {
  std::string words;
  for (const char c : text.substr(0, 100)) words += c >= ' ' && c <= '~' ? c : '?';
  return words + (text.size() > 100 ? "..." : "");
}

UsageError bad_host_port(std::string_view what, std::string_view text, std::string_view why) {
  return UsageError(
      fmt::format("{} \"{}\": {}\n  write HOST:PORT, for example node7:29500, 10.0.0.7:29500 or "
                  "[fd00::7]:29500",
                  what, shown(text), why));
}

bool is_host_text(std::string_view host) {
  return !host.empty() && host.size() <= 255 &&
         std::all_of(host.begin(), host.end(), [](char c) { return c > ' ' && c <= '~'; });
}

/// Lower is better.
int preference(const Interface& interface) {
  return (interface.address.is_link_local() ? 2 : 0) +
         (interface.address.family() == AF_INET6 ? 1 : 0);
}

std::string list_of(std::span<const Interface> interfaces) {
  std::string words;
  for (const auto& [name, address] : interfaces) {
    words += fmt::format("{}{} {}", words.empty() ? "" : ", ", name, address.number());
  }
  return words.empty() ? "no address at all" : words;
}

}  // namespace

Address::Address(const sockaddr* raw, socklen_t length) {
  const bool v4 = raw->sa_family == AF_INET && length >= sizeof(sockaddr_in);
  const bool v6 = raw->sa_family == AF_INET6 && length >= sizeof(sockaddr_in6);
  if (!v4 && !v6) {
    throw UsageError(
        fmt::format("a socket address of family {} is not IPv4 or IPv6", int{raw->sa_family}));
  }
  std::memcpy(&raw_, raw, v4 ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
}

std::optional<Address> Address::from_number(std::string_view number, uint16_t port) {
  // getaddrinfo() also reads "10.1" and "0x7f000001", which people never mean.
  const bool v6 = number.find(':') != std::string_view::npos;
  if (!is_host_text(number)) return {};
  const std::string text(number);
  if (!v6) {
    sockaddr_in raw{};
    raw.sin_family = AF_INET;
    if (inet_pton(AF_INET, text.c_str(), &raw.sin_addr) != 1) return {};
    return Address(reinterpret_cast<const sockaddr*>(&raw), sizeof raw).with_port(port);
  }
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST;
  hints.ai_family = AF_INET6;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(text.c_str(), nullptr, &hints, &found) != 0) return {};
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  return Address(found->ai_addr, found->ai_addrlen).with_port(port);
}

uint16_t Address::port() const noexcept {
  return ntohs(family() == AF_INET ? raw_.v4.sin_port : raw_.v6.sin6_port);
}

Address Address::with_port(uint16_t port) const noexcept {
  Address copy = *this;
  (family() == AF_INET ? copy.raw_.v4.sin_port : copy.raw_.v6.sin6_port) = htons(port);
  return copy;
}

std::span<const uint8_t> Address::bytes() const noexcept {
  if (family() == AF_INET) {
    return {reinterpret_cast<const uint8_t*>(&raw_.v4.sin_addr), sizeof raw_.v4.sin_addr};
  }
  if (family() == AF_INET6) return {raw_.v6.sin6_addr.s6_addr, sizeof raw_.v6.sin6_addr};
  return {};
}

bool Address::is_loopback() const noexcept {
  return family() == AF_INET ? bytes()[0] == 127 : IN6_IS_ADDR_LOOPBACK(&raw_.v6.sin6_addr);
}

bool Address::is_any() const noexcept {
  return std::ranges::all_of(bytes(), [](uint8_t byte) { return byte == 0; });
}

bool Address::is_link_local() const noexcept {
  return family() == AF_INET ? bytes()[0] == 169 && bytes()[1] == 254
                             : IN6_IS_ADDR_LINKLOCAL(&raw_.v6.sin6_addr);
}

socklen_t Address::length() const noexcept {
  return family() == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
}

std::string Address::number() const {
  char host[NI_MAXHOST];
  const int error =
      getnameinfo(raw(), length(), host, sizeof host, nullptr, 0, NI_NUMERICHOST | NI_NUMERICSERV);
  return family() == AF_UNSPEC || error != 0 ? "nowhere" : host;
}

std::string Address::text() const {
  if (family() == AF_UNSPEC) return "nowhere";
  return HostPort{number(), port()}.text();
}

bool operator==(const Address& a, const Address& b) noexcept {
  if (a.family() != b.family() || a.port() != b.port()) return false;
  const bool same_scope =
      a.family() != AF_INET6 || a.raw_.v6.sin6_scope_id == b.raw_.v6.sin6_scope_id;
  return same_scope && std::ranges::equal(a.bytes(), b.bytes());
}

std::string HostPort::text() const {
  const bool brackets = host.find(':') != std::string::npos;
  return fmt::format("{}{}{}:{}", brackets ? "[" : "", host, brackets ? "]" : "", port);
}

bool HostPort::is_loopback() const {
  const auto number = Address::from_number(host, port);
  return number ? number->is_loopback() : host == "localhost";
}

HostPort parse_host_port(std::string_view text, std::string_view what,
                         std::optional<uint16_t> default_port) {
  std::string_view host = text, port;
  bool has_port = false;
  if (text.starts_with('[')) {
    const size_t end = text.find(']');
    if (end == std::string_view::npos) throw bad_host_port(what, text, "the [ is not closed");
    host = text.substr(1, end - 1);
    const std::string_view rest = text.substr(end + 1);
    if (!rest.empty() && rest[0] != ':') throw bad_host_port(what, text, "no : after the ]");
    has_port = !rest.empty();
    port = rest.substr(has_port ? 1 : 0);
    if (!Address::from_number(host, 0)) throw bad_host_port(what, text, "no IPv6 address in [ ]");
  } else if (const size_t colon = text.find(':'); colon != std::string_view::npos) {
    if (text.find(':', colon + 1) != std::string_view::npos) {
      throw bad_host_port(what, text, "an IPv6 address needs [ ] around it");
    }
    host = text.substr(0, colon);
    port = text.substr(colon + 1);
    has_port = true;
  }
  if (!is_host_text(host)) throw bad_host_port(what, text, "there is no host in it");
  if (!has_port && default_port) return {std::string(host), *default_port};
  if (!has_port) throw bad_host_port(what, text, "the port is missing");
  const auto number = parse_number(port, 65535);
  if (!number || *number == 0) {
    throw bad_host_port(what, text, "the port is not a number from 1 to 65535");
  }
  return {std::string(host), static_cast<uint16_t>(*number)};
}

bool Subnet::contains(const Address& address) const noexcept {
  if (address.family() != first.family()) return false;
  const auto mine = first.bytes(), other = address.bytes();
  for (int bit = 0; bit < bits; bit += 8) {
    const int take = std::min(8, bits - bit);
    const int differ = mine[static_cast<size_t>(bit / 8)] ^ other[static_cast<size_t>(bit / 8)];
    if (differ >> (8 - take) != 0) return false;
  }
  return true;
}

Subnet parse_subnet(std::string_view text, std::string_view what) {
  const size_t slash = text.find('/');
  const auto first = Address::from_number(text.substr(0, slash), 0);
  const int most = first && first->family() == AF_INET ? 32 : 128;
  const auto bits =
      slash == std::string_view::npos ? std::nullopt : parse_number(text.substr(slash + 1), most);
  if (!first || !bits) {
    throw UsageError(
        fmt::format("{} \"{}\" is no subnet\n  write ADDRESS/BITS, for example "
                    "10.0.0.0/8 or fd00::/8",
                    what, shown(text)));
  }
  return {*first, *bits};
}

std::vector<Interface> local_interfaces() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) throw Error("getifaddrs: " + errno_words(errno));
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, freeifaddrs);
  std::vector<Interface> found;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    found.push_back({entry->ifa_name, Address(entry->ifa_addr, length)});
  }
  return found;
}

Address local_address_towards(const Address& target) {
  // Connecting a datagram socket chooses a route and an address, and sends no packet.
  const FileDescriptor probe(socket(target.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const Address to = target.port() == 0 ? target.with_port(9) : target;
  sockaddr_storage local{};
  socklen_t length = sizeof local;
  if (!probe || connect(probe.get(), to.raw(), to.length()) != 0 ||
      getsockname(probe.get(), reinterpret_cast<sockaddr*>(&local), &length) != 0) {
    throw Error(fmt::format("no local address leads to {}: {}\n  see `ip route get {}`",
                            target.text(), errno_words(errno), target.number()));
  }
  return Address(reinterpret_cast<const sockaddr*>(&local), length).with_port(0);
}

Address choose_local_address(std::string_view wanted, std::string_view what,
                             std::span<const Interface> interfaces) {
  const bool by_subnet = wanted.find('/') != std::string_view::npos;
  const auto number = by_subnet ? std::nullopt : Address::from_number(wanted, 0);
  const auto subnet = by_subnet ? std::optional(parse_subnet(wanted, what)) : std::nullopt;
  const Interface* best = nullptr;
  for (const Interface& interface : interfaces) {
    const bool fits = subnet   ? subnet->contains(interface.address)
                      : number ? std::ranges::equal(number->bytes(), interface.address.bytes())
                               : interface.name == wanted;
    if (fits && (best == nullptr || preference(interface) < preference(*best))) best = &interface;
  }
  if (best != nullptr) return best->address.with_port(0);
  throw UsageError(fmt::format("{} \"{}\": this machine has no {}\n  it has {}", what,
                               shown(wanted),
                               by_subnet ? "address in that subnet"
                               : number  ? "such address"
                                         : "interface of that name that is up",
                               list_of(interfaces)));
}

}  // namespace tutti
