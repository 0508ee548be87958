/// What the rendezvous of a job decides: who is there, what they swap, who is lost. Pure: no
/// sockets, no clock; the server (rendezvous_server.h) carries it out.
///
/// Clients are the workers, one connection each, and the launchers of the job's nodes. All of them
/// stay connected: the connection is at the same time the liveness channel.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/base/deadline.h"

namespace tutti::detail {

/// One message between a client and the rendezvous; what the fields mean stands beside each kind.
struct RendezvousMessage {
  enum class Kind {
    hello,      ///< client: I am `worker` of `number` (launchers: worker -1), `text` describes me
    welcome,    ///< server: answer to hello; `number` is the silence limit in ms
    refused,    ///< server: you cannot take part, or all cannot under `key`; `text` says why
    exchange,   ///< client: `worker` of `number` gives `text` under `key`
    exchanged,  ///< server: what all gave under `key`, in `texts`
    who,        ///< client: who is missing under `key`?  server: the words in `text`
    beat,       ///< both: still there; a client's `text` says what it did last
    failed,     ///< worker: the error that ends it; launcher: how `worker` ended; told to all
    lost,       ///< server: `worker` is lost; `text` is a sentence that says who and how
    ended,   ///< launcher: its workers have ended, and what it says in `key`; told to all, `text`
             ///< is its name
    put,     ///< client: `text` stands under `key` from here on
    get,     ///< client: what stands under `key`, once it does?
    look,    ///< client: what stands under `key` now?
    answer,  ///< server: to the put, get or look of that `number`: in `texts` what was asked for,
             ///< if it is there; `text` says why a put was refused
    bye,     ///< both: ends in order
  };
  Kind kind = Kind::beat;
  int worker = -1;
  int64_t number = 0;
  std::string key;
  std::string text;
  std::vector<std::string> texts;

  bool operator==(const RendezvousMessage&) const = default;
};

/// JSON text, at most kMaxRendezvousBytes long where the other side obeys.
std::string encode(const RendezvousMessage& message);
/// Throws Error, saying what is wrong, for anything that encode() does not write.
RendezvousMessage decode_rendezvous(std::string_view text);
constexpr size_t kMaxRendezvousBytes = size_t{16} << 20;
constexpr size_t kMaxExchangeBytes = size_t{64} << 10;  ///< of one text in an exchange
constexpr size_t kMaxValueBytes = size_t{4} << 20;      ///< of one value, which is twice that here
constexpr size_t kMaxValuesText = size_t{512} << 20;    ///< of all of them, as they are here

/// Thread rule: one thread.
class RendezvousState {
 public:
  struct Options {
    int num_workers = 1;
    Millis silence{30'000};  ///< a client that says nothing for so long is lost
  };
  using Client = int;  ///< number of a connection, given by the server, never used twice
  struct Outgoing {
    Client to = 0;
    RendezvousMessage message;
  };
  using Outbox = std::vector<Outgoing>;

  explicit RendezvousState(const Options& options) : options_(options) {}

  Outbox on_message(Client from, const RendezvousMessage& message, TimePoint now);
  /// A connection ended; `how` is a predicate: "closed its connection".
  Outbox on_closed(Client client, std::string_view how);
  /// Beats that are due, and clients that have been silent for too long.
  Outbox on_time(TimePoint now);
  TimePoint next_beat() const noexcept { return next_beat_; }

  /// Every worker has come, and all clients have left in order or are lost.
  bool over() const noexcept { return workers_seen_ >= options_.num_workers && clients_.empty(); }

 private:
  struct Member {
    int worker = -1;  // -1: a launcher
    std::string name;
    std::string last;   // what it did last, as its beats say
    std::string error;  // that ends it, as it said
    TimePoint heard{};
  };
  struct Exchange {
    std::map<int, std::string> texts;  // by worker
    std::map<int, Client> from;
    int64_t size = 0;
  };

  Outbox on_hello(Client from, const RendezvousMessage& message, TimePoint now);
  Outbox on_exchange(Client from, const RendezvousMessage& message);
  Outbox refuse_sizes(Client from, const RendezvousMessage& message);
  Outbox on_who(Client from, const RendezvousMessage& message) const;
  Outbox on_put(Client from, const RendezvousMessage& message);
  Outbox on_get(Client from, const RendezvousMessage& message);
  Outbox on_failed(Member& member, const RendezvousMessage& message);
  Outbox lose(Client client, std::string_view how);
  Outbox to_all(const RendezvousMessage& message) const;
  const Member* find_worker(int worker) const;

  const Options options_;
  std::map<Client, Member> clients_;  // those that said hello and are still there
  std::map<std::string, Exchange, std::less<>> exchanges_;
  std::map<std::string, std::string, std::less<>> values_;
  size_t values_text_ = 0;  // bytes of all of them
  std::map<std::string, std::vector<std::pair<Client, int64_t>>, std::less<>> waiting_;  // gets
  std::vector<RendezvousMessage> losses_;  // for whoever comes later
  int workers_seen_ = 0;
  TimePoint next_beat_{};
};

}  // namespace tutti::detail
