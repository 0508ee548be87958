/// Connecting: names to addresses to sockets, each under a deadline.
/// Thread rule: every function may be called from any thread.
#pragma once

#include <string_view>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/base/file_descriptor.h"
#include "tutti/net/address.h"

namespace tutti {

/// The addresses of a host, in the order in which the system prefers them. Numbers are not looked
/// up. Throws Error with the resolver's words, Timeout when it has not answered by the deadline.
std::vector<Address> resolve(const HostPort& target, const Deadline& deadline);

/// One try: a connected, nonblocking stream socket. Throws PeerLost when it was refused or no route
/// leads there, Timeout. `who` names the other side: "rank 3", "the rendezvous".
FileDescriptor connect_to(const Address& target, std::string_view who, const Deadline& deadline);

/// One try at each address of `target`, until one answers. Throws as connect_to() and resolve() do,
/// for the last of them.
FileDescriptor connect_to_any(const HostPort& target, std::string_view who,
                              const Deadline& deadline);

/// The address of this end, or of the other one, of a TCP socket; none when it has no such.
Address local_address_of(int socket);
Address peer_address_of(int socket);

}  // namespace tutti
