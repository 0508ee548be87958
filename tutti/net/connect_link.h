/// Connecting to a Listener of the same job.
/// Thread rule: every function may be called from any thread.
#pragma once

#include <memory>
#include <string>

#include "tutti/base/deadline.h"
#include "tutti/net/address.h"
#include "tutti/net/credentials.h"
#include "tutti/net/handshake.h"
#include "tutti/net/link.h"

namespace tutti {

/// Connects, secures (with TLS credentials) and authenticates. `facts` say what the connection is
/// for; job is filled in. `who` names the other side, also in later errors of the link: "rank 3".
/// `peer_facts`, when given, receives what the listener says of itself. A handshake that is broken
/// off in the middle is tried again until the deadline.
/// Throws PeerLost when nobody listens there, Timeout, and Mismatch when that process does not hold
/// the token, is of another job or version, or is not the one meant; messages say which.
std::unique_ptr<Link> connect_link(const Address& target, const Credentials& credentials,
                                   const Facts& facts, const std::string& who,
                                   const Deadline& deadline, Facts* peer_facts = nullptr);

/// For what may not have been started yet: resolves the name and tries again, with pauses that grow
/// to a second, while nobody listens there or whoever does says nothing or breaks off. A Mismatch
/// is thrown at once.
std::unique_ptr<Link> connect_link_with_retry(const HostPort& target,
                                              const Credentials& credentials, const Facts& facts,
                                              const std::string& who, const Deadline& deadline,
                                              Facts* peer_facts = nullptr);

}  // namespace tutti
