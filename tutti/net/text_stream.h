/// TextStream: whole texts over a Link, each behind its length. Never waits.
/// Thread rule: one thread at a time.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "tutti/net/link.h"

namespace tutti {

class TextStream {
 public:
  /// Texts longer than `max_bytes` are refused, in both directions, before memory is taken for
  /// them.
  TextStream(std::unique_ptr<Link> link, size_t max_bytes);

  /// Puts a text behind those that wait, and sends what goes. Throws UsageError when it is too
  /// long, PeerLost as Link does.
  void send(std::string_view text);
  /// Sends what goes; true when nothing waits any more.
  bool flush();

  /// The next whole text; nothing when it has not come yet. Throws PeerLost, or Error when a length
  /// is beyond max_bytes (then the stream is to be given up).
  std::optional<std::string> receive();

  /// What to wait for with poll(2) on link().descriptor().
  short wants() const noexcept;
  Link& link() const noexcept { return *link_; }

 private:
  std::unique_ptr<Link> link_;
  size_t max_bytes_;
  std::deque<std::string> waiting_;  // framed; the first is sent up to sent_
  size_t sent_ = 0;
  std::string received_;  // up to one whole frame
};

}  // namespace tutti
