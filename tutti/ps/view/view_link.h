/// ViewLink: what servers and workers say to the view service and hear of it: who they are, that
/// they are alive, and that they end in order.
///
/// Messages of `Peer{}` are the service's. Thread rule: as Streams.
#pragma once

#include <string>
#include <utility>

#include "tutti/base/deadline.h"
#include "tutti/ps/wire/streams.h"

namespace tutti::ps {

/// A member, and the service, says something this often within the limit of silence.
inline constexpr int kBeatsPerLimit = 4;

class ViewLink {
 public:
  struct Options {
    Peer who;          ///< a server of number -1 gets any
    int training = 0;  ///< of the job, from 0 on
    std::string name;  ///< "server 1 (host b, pid 77)"
    Whereabouts where;
    std::string order;  ///< what it does with the order of updates (words_of_replay()); "": nothing
    Millis silence{kDefaultTimeLimit};
  };
  ViewLink(Streams& streams, Options options)
      : streams_(streams), options_(std::move(options)), silence_(options_.silence) {}

  /// The connection is there: says who this process is.
  void on_connected();
  /// The service let it in: from now on it beats as often as the service expects.
  void on_joined(const Message& message);
  bool connected() const noexcept { return joined_; }
  void hear() { heard_ = Clock::now(); }
  /// Beats when it is time.
  void beat(TimePoint now, const std::string& last);
  /// What the service said last was too long ago when this process looked for it: why that ends
  /// this process, else "".
  std::string silent(TimePoint looked) const;
  Millis until_beat(TimePoint now) const;
  void say_goodbye();

 private:
  Streams& streams_;
  const Options options_;
  Millis silence_;
  bool joined_ = false;
  TimePoint heard_{};
  TimePoint next_beat_{};
};

}  // namespace tutti::ps
