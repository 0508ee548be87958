/// Pairs of TLS links in this process, with their handshake behind them.
#pragma once

#include <sys/socket.h>

#include <string>
#include <utility>

#include "tutti/net/tls.h"

#include "tests/support/certificates.h"
#include "tests/support/tcp_members.h"
#include "tests/support/temp_folder.h"

namespace tutti::test {

class TlsLinks {
 public:
  struct Pair {
    std::unique_ptr<Link> near, far;
    FileDescriptor wire;  ///< far's socket, for what is no TLS
  };

  /// Named "rank B" and "rank A", as the other side of each.
  Pair make(int a, int b) const {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
      throw Error("socketpair: " + errno_words(errno));
    FileDescriptor first(ends[0]), second(ends[1]);
    const int small = 4096;  // so that a frame of 256 KiB does not go at once
    setsockopt(first.get(), SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    Pair pair{nullptr, nullptr, FileDescriptor(dup(second.get()))};
    pair.near =
        context_.make_link(std::move(first), "rank " + std::to_string(b), TlsContext::Side::client);
    pair.far = context_.make_link(std::move(second), "rank " + std::to_string(a),
                                  TlsContext::Side::server);
    shake(*pair.near, *pair.far);
    return pair;
  }

  LinkPair link_between(int a, int b) const {
    Pair pair = make(a, b);
    return {std::move(pair.near), std::move(pair.far)};
  }

 private:
  /// A byte moves each way, so both sides have come to trust each other.
  static void shake(Link& client, Link& server) {
    char byte = 'x';
    const iovec piece{&byte, 1};
    for (bool sent = false, got = false; !got;) {
      if (!sent) sent = client.write_some({&piece, 1}) == 1;
      got = server.read_some(&byte, 1) == 1;
    }
    while (server.write_some({&piece, 1}) == 0) continue;
    while (client.read_some(&byte, 1) == 0) continue;
  }

  const TempFolder folder_;
  const Authority authority_{"the job's authority"};
  const TlsContext context_{authority_.issue(folder_.path() / "rank", "rank")};
};

}  // namespace tutti::test
