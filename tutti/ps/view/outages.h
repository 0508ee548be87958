/// Outages: which servers a worker does not reach, since when, and who took over. Pure: no clock.
/// Thread rule: one thread.
#pragma once

#include <map>
#include <string>

#include "tutti/base/deadline.h"
#include "tutti/ps/view/view.h"

namespace tutti::ps {

class Outages {
 public:
  /// A server said something, or has nothing to say, since nothing was asked of it.
  void on_word(int server, TimePoint now) { heard_at_[server] = now; }
  void on_connected(int server) { unreached_.erase(server); }
  /// A connection ended, or there was none, for the reason `how`. Whether that is news: the first
  /// word on it since the server was last welcome.
  bool on_closed(int server, const std::string& how, TimePoint now);
  /// A server that only fell silent is out of reach since its last word; its connection is there.
  void on_view(const View& view);
  /// The worker is welcome at the server, which has `partition`. How long that was out of reach,
  /// from the loss of a server to this, as a line for the log; "": it was not.
  std::string on_welcome(int partition, int server, TimePoint now);

  /// Servers without a connection and why, each in a line of its own after a line break.
  std::string words(const View& view) const;

 private:
  std::map<int, std::string> unreached_;  // servers without a connection: why
  std::map<int, TimePoint> heard_at_;     // servers: their last word
  std::map<int, TimePoint> lost_at_;      // servers
  std::map<int, int> primaries_;          // of partitions
};

}  // namespace tutti::ps
