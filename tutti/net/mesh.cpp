#include "tutti/net/mesh.h"

#include <poll.h>

#include "tutti/base/error.h"
#include "tutti/base/host.h"
#include "tutti/base/json.h"
#include "tutti/net/connect_link.h"
#include "tutti/net/detail/socket_link.h"

namespace tutti {
namespace {

// Facts of a connection: stream 0 is the control stream, 1 to k are the data streams.
constexpr const char* kPurpose = "mesh";

/// What a rank tells the others.
struct Card {
  Address address;
  std::string identity;
  std::string process;  ///< "host node7, pid 4711"
  int streams = 0;
  int called = 0;  ///< its rank, for messages

  std::string name() const {
    return fmt::format("rank {} ({}, {})", called, process, address.text());
  }
};

std::string encode(const Listener& listener, int streams, int called) {
  return dump_json_lossy(Json{{"number", listener.address().number()},
                              {"port", listener.address().port()},
                              {"identity", listener.identity()},
                              {"process", process_words()},
                              {"streams", streams},
                              {"called", called}},
                         -1, true);
}

Card parse_card(const std::string& text, int rank) {
  try {
    const auto json = parse_json(text);
    const auto address =
        Address::from_number(json.at("number").get<std::string>(), json.at("port").get<uint16_t>());
    if (!address) throw Error("no address");
    return {*address, json.at("identity").get<std::string>(), json.at("process").get<std::string>(),
            json.at("streams").get<int>(), json.value("called", rank)};
  } catch (const std::exception& error) {
    throw Mismatch(
        fmt::format("what rank {} told at the meeting place is no address: {}\n  all "
                    "ranks need the same build of tutti",
                    rank, error.what()));
  }
}

/// Whether the other side has closed it; reads nothing.
bool has_ended(const Link& link) {
  pollfd entry{link.descriptor(), POLLRDHUP, 0};
  return poll(&entry, 1, 0) == 1;
}

class MeshBuilder {
 public:
  MeshBuilder(MeetingPlace& place, Listener& listener, const std::string& key, int streams,
              int lanes)
      : listener_(listener),
        key_(key),
        rank_(place.rank()),
        size_(place.size()),
        streams_(streams),
        links_(streams * lanes) {
    mesh_.rank = rank_;
    mesh_.peers.resize(static_cast<size_t>(size_));
    for (MeshPeer& peer : mesh_.peers) peer.data.resize(static_cast<size_t>(links_));
    mesh_.peers[static_cast<size_t>(rank_)].data.clear();
  }

  void read(const std::vector<std::string>& texts) {
    for (int rank = 0; rank < size_; ++rank) {
      cards_.push_back(parse_card(texts.at(static_cast<size_t>(rank)), rank));
      mesh_.peers[static_cast<size_t>(rank)].name = cards_.back().name();
      if (cards_.back().streams != streams_) {
        throw Mismatch(fmt::format("{}: {} streams a pair here, {} at {}", where(), streams_,
                                   cards_.back().streams, cards_.back().name()));
      }
    }
  }

  void connect_to_lower(const Deadline& deadline) {
    for (int rank = 0; rank < rank_; ++rank) {
      const Card& card = cards_[static_cast<size_t>(rank)];
      for (int stream = 0; stream <= links_; ++stream) {
        const Facts facts{.purpose = kPurpose,
                          .group = key_,
                          .to = card.identity,
                          .rank = rank_,
                          .stream = stream};
        put(rank, stream,
            connect_link(card.address, listener_.credentials(), facts,
                         fmt::format("rank {}", card.called), deadline));
      }
    }
  }

  void take_higher(const Deadline& deadline) {
    for (int missing = (size_ - 1 - rank_) * (links_ + 1); missing > 0;) {
      Arrival arrival = next(deadline);
      const auto [rank, stream] = std::pair(arrival.facts.rank, arrival.facts.stream);
      const bool expected = rank > rank_ && rank < size_ && stream >= 0 && stream <= links_;
      const bool again = expected && slot(rank, stream);
      // Who was cut off before it heard that it is in comes once more.
      if (!expected || (again && !has_ended(*slot(rank, stream)))) {
        throw Mismatch(
            fmt::format("{}: an unexpected connection of {} ({})\n  a key of a group was "
                        "used twice",
                        where(), arrival.link->peer(), words_of(arrival.facts)));
      }
      put(rank, stream, std::move(arrival.link));
      if (!again) --missing;
    }
  }

  std::string where() const {
    return fmt::format("connect, group \"{}\", rank {} of {}", key_, rank_, size_);
  }

  Mesh take() { return std::move(mesh_); }

 private:
  std::unique_ptr<Link>& slot(int rank, int stream) {
    MeshPeer& peer = mesh_.peers[static_cast<size_t>(rank)];
    return stream == 0 ? peer.control : peer.data[static_cast<size_t>(stream - 1)];
  }

  void put(int rank, int stream, std::unique_ptr<Link> link) {
    detail::name_peer(*link, mesh_.peers[static_cast<size_t>(rank)].name);
    slot(rank, stream) = std::move(link);
  }

  Arrival next(const Deadline& deadline) {
    try {
      return listener_.wait(kPurpose, key_, deadline);
    } catch (const Timeout&) {
      throw Timeout(fmt::format(
          "{}: not all ranks connected to {} in {} ms; missing:{}\n  look at "
          "their logs; can they reach this address?",
          where(), listener_.address().text(), deadline.limit().count(), words_of_missing()));
    }
  }

  std::string words_of_missing() {
    std::string words;
    for (int rank = rank_ + 1; rank < size_; ++rank) {
      int missing = 0;
      for (int stream = 0; stream <= links_; ++stream) missing += slot(rank, stream) ? 0 : 1;
      if (missing == 0) continue;
      words += fmt::format("{} {}", words.empty() ? "" : ",",
                           mesh_.peers[static_cast<size_t>(rank)].name);
      if (missing <= links_) {
        words += fmt::format(" with {} of {} connections", missing, links_ + 1);
      }
    }
    return words;
  }

  Listener& listener_;
  const std::string& key_;
  const int rank_, size_, streams_, links_;
  std::vector<Card> cards_;
  Mesh mesh_;
};

}  // namespace

Mesh connect_mesh(MeetingPlace& place, Listener& listener, const std::string& key, int streams,
                  const Deadline& deadline, int called, int lanes) {
  if (streams < 1 || streams > kMaxStreams) {
    throw UsageError(fmt::format("{} data streams a pair: expected 1 to {}", streams, kMaxStreams));
  }
  MeshBuilder builder(place, listener, key, streams, lanes);
  builder.read(place.exchange(
      "mesh/" + key, encode(listener, streams, called < 0 ? place.rank() : called), deadline));
  try {
    builder.connect_to_lower(deadline);
  } catch (const Timeout& error) {
    throw Timeout(fmt::format("{}: {}", builder.where(), error.what()));
  } catch (const PeerLost& error) {
    throw PeerLost(fmt::format("{}: {}", builder.where(), error.what()));
  } catch (const Mismatch& error) {
    throw Mismatch(fmt::format("{}: {}", builder.where(), error.what()));
  }
  builder.take_higher(deadline);
  return builder.take();
}

}  // namespace tutti
