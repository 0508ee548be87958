#include "tutti/cluster/rendezvous/detail/rendezvous_state.h"

#include <fmt/ranges.h>

#include <array>

#include "tutti/base/error.h"
#include "tutti/base/json.h"

namespace tutti::detail {
namespace {

using Kind = RendezvousMessage::Kind;

constexpr std::array<std::string_view, 15> kKinds = {
    "hello", "welcome", "refused", "exchange", "exchanged", "who",    "beat", "failed",
    "lost",  "ended",   "put",     "get",      "look",      "answer", "bye"};
// A third of the limit: two beats may be late before a client counts as silent.
constexpr int kBeatsPerLimit = 3;

RendezvousState::Outgoing reply(RendezvousState::Client to, Kind kind, std::string text) {
  return {to, {.kind = kind, .text = std::move(text)}};
}

}  // namespace

std::string encode(const RendezvousMessage& message) {
  Json object = {{"kind", kKinds[static_cast<size_t>(message.kind)]}};
  if (message.worker >= 0) object["worker"] = message.worker;
  if (message.number != 0) object["number"] = message.number;
  if (!message.key.empty()) object["key"] = message.key;
  if (!message.text.empty()) object["text"] = message.text;
  if (!message.texts.empty()) object["texts"] = message.texts;
  // What a program's error says may be no UTF-8: such bytes are replaced.
  return dump_json_lossy(object);
}

RendezvousMessage decode_rendezvous(std::string_view text) {
  try {
    const Json object = parse_json(text);
    const auto word = object.at("kind").get<std::string>();
    RendezvousMessage message;
    size_t kind = 0;
    while (kind < kKinds.size() && kKinds[kind] != word) ++kind;
    if (kind == kKinds.size()) throw Error(fmt::format("unknown kind \"{}\"", word));
    message.kind = static_cast<Kind>(kind);
    message.worker = object.value("worker", -1);
    message.number = object.value("number", int64_t{0});
    message.key = object.value("key", "");
    message.text = object.value("text", "");
    message.texts = object.value("texts", std::vector<std::string>{});
    return message;
  } catch (const JsonError& error) {
    throw Error(fmt::format("not a message of the rendezvous: {}", error.what()));
  }
}

RendezvousState::Outbox RendezvousState::to_all(const RendezvousMessage& message) const {
  Outbox outbox;
  for (const auto& [client, member] : clients_) outbox.push_back({client, message});
  return outbox;
}

const RendezvousState::Member* RendezvousState::find_worker(int worker) const {
  for (const auto& [client, member] : clients_)
    if (member.worker == worker) return &member;
  return nullptr;
}

RendezvousState::Outbox RendezvousState::on_message(Client from, const RendezvousMessage& message,
                                                    TimePoint now) {
  if (message.kind == Kind::hello) return on_hello(from, message, now);
  const auto found = clients_.find(from);
  if (found == clients_.end()) return {reply(from, Kind::refused, "the first message is hello")};
  Member& member = found->second;
  member.heard = now;
  switch (message.kind) {
    case Kind::exchange: return on_exchange(from, message);
    case Kind::who: return on_who(from, message);
    case Kind::put: return on_put(from, message);
    case Kind::get:
    case Kind::look: return on_get(from, message);
    case Kind::beat: member.last = message.text; return {};
    case Kind::failed: return on_failed(member, message);
    case Kind::ended: return to_all({.kind = Kind::ended, .key = message.key, .text = member.name});
    case Kind::bye: clients_.erase(found); return {};
    default: return lose(from, "sent what only the rendezvous says");
  }
}

RendezvousState::Outbox RendezvousState::on_hello(Client from, const RendezvousMessage& message,
                                                  TimePoint now) {
  const int worker = message.worker;
  const bool launcher = worker < 0;
  if (!launcher && message.number != options_.num_workers)
    return {
        reply(from, Kind::refused,
              fmt::format("worker {} says that the job has {} workers, the rendezvous waits for "
                          "{}: give every node the same numbers",
                          worker, message.number, options_.num_workers))};
  if (worker >= options_.num_workers)
    return {
        reply(from, Kind::refused,
              fmt::format("worker {} of {}: workers count from 0", worker, options_.num_workers))};
  if (const Member* there = launcher ? nullptr : find_worker(worker))
    return {reply(from, Kind::refused,
                  fmt::format("worker {} is here already: {}; two processes have the same number",
                              worker, there->name))};
  clients_[from] = {.worker = worker, .name = message.text, .last = "", .heard = now};
  if (!launcher) ++workers_seen_;
  Outbox outbox = {{from, {.kind = Kind::welcome, .number = options_.silence.count()}}};
  for (const RendezvousMessage& loss : losses_) outbox.push_back({from, loss});
  return outbox;
}

RendezvousState::Outbox RendezvousState::on_exchange(Client from,
                                                     const RendezvousMessage& message) {
  Exchange& exchange = exchanges_[message.key];
  if (exchange.from.empty()) exchange.size = message.number;
  if (message.number != exchange.size) return refuse_sizes(from, message);
  const bool valid = message.worker >= 0 && message.worker < message.number &&
                     message.text.size() <= kMaxExchangeBytes &&
                     !exchange.texts.contains(message.worker);
  if (!valid)
    return lose(from, fmt::format("gave part {} of {} under \"{}\", which is not possible there",
                                  message.worker, message.number, message.key));
  exchange.texts[message.worker] = message.text;
  exchange.from[message.worker] = from;
  if (static_cast<int64_t>(exchange.texts.size()) < exchange.size) return {};

  RendezvousMessage all{.kind = Kind::exchanged, .key = message.key};
  for (auto& [worker, text] : exchange.texts) all.texts.push_back(std::move(text));
  Outbox outbox;
  for (const auto& [worker, client] : exchange.from) {
    const bool told = !outbox.empty() && outbox.back().to == client;  // ranks of one process
    if (!told && clients_.contains(client)) outbox.push_back({client, all});
  }
  exchanges_.erase(message.key);
  return outbox;
}

/// Which of them is right nobody knows: all that gave are told both, and nobody is lost.
RendezvousState::Outbox RendezvousState::refuse_sizes(Client from,
                                                      const RendezvousMessage& message) {
  const Exchange exchange = std::move(exchanges_.extract(message.key).mapped());
  std::set<Client> all = {from};
  for (const auto& [worker, client] : exchange.from) all.insert(client);
  const auto first = clients_.find(exchange.from.begin()->second);
  const std::string text = fmt::format("{} is one of {}, {} one of {}",
                                       first == clients_.end() ? "one" : first->second.name,
                                       exchange.size, clients_.at(from).name, message.number);
  Outbox outbox;
  for (const Client client : all)
    outbox.push_back({client, {.kind = Kind::refused, .key = message.key, .text = text}});
  return outbox;
}

RendezvousState::Outbox RendezvousState::on_who(Client from,
                                                const RendezvousMessage& message) const {
  std::vector<int> missing;
  const auto found = exchanges_.find(message.key);
  for (int r = 0; found != exchanges_.end() && r < found->second.size; ++r)
    if (!found->second.texts.contains(r)) missing.push_back(r);
  RendezvousMessage answer{.kind = Kind::who, .key = message.key};
  if (!missing.empty())
    answer.text = fmt::format("rank{} {}", missing.size() > 1 ? "s" : "", fmt::join(missing, ", "));
  return {{from, answer}};
}

RendezvousState::Outbox RendezvousState::on_put(Client from, const RendezvousMessage& message) {
  RendezvousMessage done{.kind = Kind::answer, .number = message.number};
  const auto there = values_.find(message.key);
  const bool again = there != values_.end() && there->second == message.text;
  if (there != values_.end() && !again)
    done.text = "another value stands there already";
  else if (message.text.size() > 2 * kMaxValueBytes)
    done.text = "it is too large";
  else if (!again && values_text_ + message.text.size() > kMaxValuesText)
    done.text = "there are too many values";
  Outbox outbox = {{from, done}};
  if (there != values_.end() || !done.text.empty()) return outbox;
  values_.emplace(message.key, message.text);
  values_text_ += message.text.size();
  const auto waiting = waiting_.extract(message.key);
  if (waiting.empty()) return outbox;
  for (const auto& [client, number] : waiting.mapped())
    if (clients_.contains(client))
      outbox.push_back({client, {.kind = Kind::answer, .number = number, .texts = {message.text}}});
  return outbox;
}

RendezvousState::Outbox RendezvousState::on_get(Client from, const RendezvousMessage& message) {
  const auto there = values_.find(message.key);
  if (there == values_.end() && message.kind == Kind::get) {
    waiting_[message.key].emplace_back(from, message.number);
    return {};
  }
  RendezvousMessage answer{.kind = Kind::answer, .number = message.number};
  if (there != values_.end()) answer.texts = {there->second};
  return {{from, answer}};
}

/// A worker says which error ends it, a launcher how one of its workers ended.
RendezvousState::Outbox RendezvousState::on_failed(Member& member,
                                                   const RendezvousMessage& message) {
  RendezvousMessage told = message;
  if (member.worker >= 0) {
    told.worker = member.worker;
    told.text = fmt::format("{} failed: {}", member.name, message.text);
    member.error = message.text;
  }
  return to_all(told);
}

RendezvousState::Outbox RendezvousState::lose(Client client, std::string_view how) {
  const auto found = clients_.find(client);
  if (found == clients_.end()) return {};
  const Member member = std::move(found->second);
  clients_.erase(found);
  for (auto& [key, waiting] : waiting_)
    std::erase_if(waiting, [&](const auto& one) { return one.first == client; });
  RendezvousMessage loss{.kind = Kind::lost, .worker = member.worker};
  loss.text = member.error.empty() ? fmt::format("{} {}", member.name, how)
                                   : fmt::format("{} failed: {}", member.name, member.error);
  if (!member.last.empty()) loss.text += "; " + member.last;
  losses_.push_back(loss);
  Outbox outbox = to_all(loss);
  outbox.push_back({client, loss});  // should it still listen
  return outbox;
}

RendezvousState::Outbox RendezvousState::on_closed(Client client, std::string_view how) {
  return lose(client, how);
}

RendezvousState::Outbox RendezvousState::on_time(TimePoint now) {
  Outbox outbox;
  std::vector<Client> silent;
  for (const auto& [client, member] : clients_)
    if (now - member.heard >= options_.silence) silent.push_back(client);
  for (Client client : silent) {
    Outbox told = lose(client, fmt::format("was silent for {} ms", options_.silence.count()));
    outbox.insert(outbox.end(), told.begin(), told.end());
  }
  if (now >= next_beat_) {
    Outbox beats = to_all({.kind = Kind::beat});
    outbox.insert(outbox.end(), beats.begin(), beats.end());
    next_beat_ = now + options_.silence / kBeatsPerLimit;
  }
  return outbox;
}

}  // namespace tutti::detail
