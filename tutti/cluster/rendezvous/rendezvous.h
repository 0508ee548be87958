/// A process's connection to the rendezvous of its job: it swaps texts with the others while groups
/// are formed, and stays afterwards as the liveness channel.
///
/// A thread answers for this process whatever the program does, hears which ranks are lost, and
/// notices when the rendezvous itself has gone.
/// Thread rule: every function may be called from any thread.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/base/file_descriptor.h"
#include "tutti/cluster/rendezvous/detail/rendezvous_state.h"
#include "tutti/net/meeting_place.h"
#include "tutti/net/text_stream.h"

namespace tutti {

class Rendezvous {
 public:
  struct Options {
    int worker = -1;  ///< 0-based; -1: a launcher
    int num_workers = 1;
    std::string name;  ///< how others call this process: "rank 3 (host b, pid 77)"
    /// What this process did last, in words, for the others should it fall silent. Called by the
    /// thread, about every 10 s.
    std::function<std::string()> last;
  };
  /// What the thread hears; called by it, one at a time. May be empty.
  struct Events {
    std::function<void(int worker, const std::string& words)> lost;    ///< -1: no worker
    std::function<void(int worker, const std::string& words)> failed;  ///< the first cause, maybe
    /// The workers of the launcher of that name, which said so; "": the rendezvous itself.
    std::function<void(const std::string& name, const std::string& said)> ended{};
  };

  /// Says hello over an authenticated link. Throws UsageError with the rendezvous' reason when it
  /// refuses, PeerLost, Timeout.
  Rendezvous(std::unique_ptr<Link> link, Options options, Events events, const Deadline& deadline);
  Rendezvous(const Rendezvous&) = delete;
  /// Says bye; what others wait for from this process is then lost to them, but nobody is blamed.
  ~Rendezvous();

  /// What `size` ranks give under `key`, in rank order; each process for all the ranks that it
  /// holds, from as many threads. Throws Timeout naming the ranks that did not come, PeerLost when
  /// a worker is lost meanwhile, UsageError naming two that say different sizes.
  std::vector<std::string> exchange(std::string_view key, int rank, int size, std::string_view text,
                                    const Deadline& deadline);

  /// Values that processes of the job leave for each other (RendezvousValues); texts in UTF-8, each
  /// set once. put() throws UsageError where another stands there, get() Timeout where none comes;
  /// look() gives what is there now. All of them Timeout without an answer, and PeerLost.
  void put(std::string_view key, std::string_view text, const Deadline& deadline);
  std::string get(std::string_view key, const Deadline& deadline);
  std::optional<std::string> look(std::string_view key, const Deadline& deadline);

  /// What the destructor does, while others may still hold this: what they wait for is PeerLost.
  void end();

  /// The first worker that was lost, in words; empty while all live.
  std::string first_loss() const;

  /// Tells all which error ends this process (or how `worker`, of a launcher, ended).
  void report_failure(std::string_view text, int worker = -1);
  /// Tells all launchers, this one too, that the workers of this one have ended, and `said`.
  void report_end(std::string_view said = "");

 private:
  void listen();
  void hear_last_words();
  void keep(const detail::RendezvousMessage& message);
  void lose(int worker, const std::string& words);
  void lose_rendezvous(const std::string& words);
  void send(const detail::RendezvousMessage& message);
  bool send_what_waits();
  std::string ask_who(const std::string& key);
  detail::RendezvousMessage ask(detail::RendezvousMessage question, const Deadline& deadline);

  const Options options_;
  const Events events_;
  TextStream stream_;  // used by the thread alone once it runs
  FileDescriptor wake_;
  Millis silence_{30'000};

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<std::string> outgoing_;
  bool unsent_ = false;  // something of it has not left yet
  std::map<std::string, std::vector<std::string>, std::less<>> exchanged_;
  std::map<std::string, int, std::less<>> readers_;  // ranks here that have yet to read a result
  std::map<std::string, std::string, std::less<>> refused_;  // why there is none
  std::map<std::string, std::string, std::less<>> who_;
  std::map<int64_t, std::optional<detail::RendezvousMessage>> questions_;  // and their answers
  int64_t last_question_ = 0;
  std::string first_loss_;
  bool over_ = false;  // the rendezvous has ended, or is lost
  bool ends_ = false;

  std::thread thread_;
};

/// The meeting place of one rank among `size`. `name` keeps the keys of different meetings apart.
class RendezvousMeeting final : public MeetingPlace {
 public:
  RendezvousMeeting(Rendezvous& rendezvous, std::string name, int rank, int size)
      : rendezvous_(rendezvous), name_(std::move(name)), rank_(rank), size_(size) {}

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return size_; }
  std::vector<std::string> exchange(std::string_view key, std::string_view mine,
                                    const Deadline& deadline) override;

 private:
  Rendezvous& rendezvous_;
  const std::string name_;
  const int rank_;
  const int size_;
};

}  // namespace tutti
