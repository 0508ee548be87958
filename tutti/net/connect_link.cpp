#include "tutti/net/connect_link.h"

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/stop.h"
#include "tutti/net/connect.h"
#include "tutti/net/detail/pauses.h"
#include "tutti/net/detail/socket_link.h"
#include "tutti/net/tls.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;

// A try that hangs (a process that was stopped, a port of something else) makes way for the next.
constexpr Millis kOneTry = 10s;

/// Connected, but not let in before anything was said: it may be overloaded, or just ending.
class TurnedAway : public PeerLost {
 public:
  using PeerLost::PeerLost;
};

/// Runs the handshake; says in whose words it failed, and where.
void authenticate(Handshake& handshake, detail::SocketLink& link, bool has_tls,
                  const Deadline& deadline) {
  try {
    detail::finish(handshake, link, deadline);
  } catch (const Mismatch& error) {
    throw Mismatch(fmt::format("handshake with {}: {}", link.peer(), error.what()));
  } catch (const Timeout&) {
    throw;
  } catch (const detail::CutOff&) {
    throw;
  } catch (const PeerLost&) {
    throw TurnedAway(
        fmt::format("handshake with {}: it closed the connection without a word\n  "
                    "it has just ended, has too many connections{}, or is no process "
                    "of tutti",
                    link.peer(), has_tls ? "" : ", wants TLS (TUTTI_TLS is not set here)"));
  } catch (const Error& error) {
    throw Mismatch(fmt::format("handshake with {}: {}\n  something else listens at that port",
                               link.peer(), error.what()));
  }
}

std::unique_ptr<Link> secure(FileDescriptor socket, const Credentials& credentials, Facts facts,
                             const std::string& who, const Deadline& deadline, Facts* peer_facts) {
  const Address target = peer_address_of(socket.get());
  auto link = detail::make_socket_link(credentials.tls.get(), std::move(socket),
                                       fmt::format("{} ({})", who, target.text()),
                                       TlsContext::Side::client);
  facts.job = credentials.job;
  Handshake handshake(Handshake::Role::client, credentials.token, std::move(facts));
  authenticate(handshake, *link, credentials.tls != nullptr, deadline);
  if (peer_facts != nullptr) *peer_facts = handshake.peer();
  return link;
}

Timeout gave_up(const std::string& target, const std::string& who, const Deadline& deadline,
                int tries, const std::string& cause) {
  return Timeout(fmt::format(
      "{} did not let this process in at {} in {} ms, {} {}\n  last: {}\n  is it started, and is "
      "the address right?",
      who, target, deadline.limit().count(), tries, tries == 1 ? "try" : "tries", cause));
}

}  // namespace

std::unique_ptr<Link> connect_link(const Address& target, const Credentials& credentials,
                                   const Facts& facts, const std::string& who,
                                   const Deadline& deadline, Facts* peer_facts) {
  detail::Pauses pauses;
  std::string cut;  // why the handshake before this one was broken off
  int wordless = 0;
  for (int tries = 1;; ++tries) {
    try {
      return secure(connect_to(target, who, deadline), credentials, facts, who, deadline,
                    peer_facts);
    } catch (const TurnedAway&) {  // a burst of others may have pushed this one out
      if (++wordless >= detail::kTriesWithoutAWord || !pauses.wait(deadline)) throw;
    } catch (const detail::CutOff& error) {  // it is there, and speaks: nothing is final
      cut = error.what();
      throw_if_stop_requested(("connecting to " + who).c_str());
      if (!pauses.wait(deadline)) throw gave_up(target.text(), who, deadline, tries, cut);
    } catch (const Timeout&) {
      if (cut.empty()) throw;
      throw gave_up(target.text(), who, deadline, tries, cut);
    }
  }
}

std::unique_ptr<Link> connect_link_with_retry(const HostPort& target,
                                              const Credentials& credentials, const Facts& facts,
                                              const std::string& who, const Deadline& deadline,
                                              Facts* peer_facts) {
  std::string cause;
  detail::Pauses pauses;
  for (int tries = 1;; ++tries) {
    throw_if_stop_requested(("connecting to " + who).c_str());
    const Deadline one(std::min(kOneTry, deadline.left()));
    try {
      return secure(connect_to_any(target, who, one), credentials, facts, who, one, peer_facts);
    } catch (const Mismatch&) {
      throw;
    } catch (const Error& error) {  // a name, too, may be known only when its process has started
      // The last try may have been cut short: what ended the one before says more.
      if (cause.empty() || !deadline.passed()) cause = error.what();
    }
    if (!pauses.wait(deadline)) throw gave_up(target.text(), who, deadline, tries, cause);
  }
}

}  // namespace tutti
