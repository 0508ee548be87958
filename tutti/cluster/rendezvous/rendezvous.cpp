#include "tutti/cluster/rendezvous/rendezvous.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/base/threads.h"

namespace tutti {
namespace {

using detail::RendezvousMessage;
using Kind = RendezvousMessage::Kind;

// As the server does: two beats may be late.
constexpr int kBeatsPerLimit = 3;
// How long the last words of a process may take to leave it.
constexpr Millis kLastWords{500};
// For the answer to "who is missing?", after the limit itself has passed.
constexpr Millis kWhoLimit{1'000};

void wait_for_stream(const TextStream& stream, const Deadline& deadline, const char* operation) {
  pollfd entry{stream.link().descriptor(), stream.wants(), 0};
  const int left = static_cast<int>(std::min<int64_t>(deadline.left().count(), 1'000));
  if (poll(&entry, 1, left) < 0 && errno != EINTR)
    throw Error(fmt::format("{}: poll: {}", operation, errno_words(errno)));
  if (entry.revents == 0 && deadline.passed())
    throw Timeout(fmt::format("{}: {} did not answer within {} ms", operation, stream.link().peer(),
                              deadline.limit().count()));
}

}  // namespace

Rendezvous::Rendezvous(std::unique_ptr<Link> link, Options options, Events events,
                       const Deadline& deadline)
    : options_(std::move(options)),
      events_(std::move(events)),
      stream_(std::move(link), detail::kMaxRendezvousBytes),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!wake_) throw Error("rendezvous: eventfd: " + errno_words(errno));
  stream_.send(encode(RendezvousMessage{.kind = Kind::hello,
                                        .worker = options_.worker,
                                        .number = options_.num_workers,
                                        .text = options_.name}));
  std::optional<std::string> text;
  while (!(text = stream_.receive())) {
    stream_.flush();
    wait_for_stream(stream_, deadline, "rendezvous, hello");
  }
  const RendezvousMessage answer = detail::decode_rendezvous(*text);
  if (answer.kind == Kind::refused)
    throw UsageError(
        fmt::format("{} refused {}: {}", stream_.link().peer(), options_.name, answer.text));
  if (answer.kind != Kind::welcome)
    throw Error(fmt::format("{} answered a hello with something else", stream_.link().peer()));
  silence_ = Millis(answer.number);
  thread_ = start_thread("the connection to the rendezvous", [this] { listen(); });
}

Rendezvous::~Rendezvous() { end(); }

void Rendezvous::end() {
  {
    std::unique_lock lock(mutex_);
    if (ends_) return;
    outgoing_.push_back(encode(RendezvousMessage{.kind = Kind::bye}));
    ends_ = true;
  }
  eventfd_write(wake_.get(), 1);
  thread_.join();
  {
    const std::scoped_lock lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
}

void Rendezvous::send(const RendezvousMessage& message) {
  {
    const std::scoped_lock lock(mutex_);
    outgoing_.push_back(encode(message));
    unsent_ = true;
  }
  eventfd_write(wake_.get(), 1);
}

/// True when all of it has left.
bool Rendezvous::send_what_waits() {
  std::vector<std::string> texts;
  {
    const std::scoped_lock lock(mutex_);
    texts.swap(outgoing_);
  }
  for (const std::string& text : texts) stream_.send(text);
  if (!stream_.flush()) return false;
  const std::scoped_lock lock(mutex_);
  if (!outgoing_.empty()) return false;
  unsent_ = false;
  changed_.notify_all();
  return true;
}

void Rendezvous::listen() {
  sigset_t all;
  sigfillset(&all);  // signals are for the program's own threads
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  TimePoint next_beat = Clock::now();
  TimePoint heard = Clock::now();
  std::optional<Deadline> last_words;
  try {
    while (true) {
      if (Clock::now() >= next_beat) {
        stream_.send(encode(RendezvousMessage{
            .kind = Kind::beat, .text = options_.last ? options_.last() : std::string()}));
        next_beat = Clock::now() + silence_ / kBeatsPerLimit;
      }
      const bool sent = send_what_waits();
      {
        const std::scoped_lock lock(mutex_);
        if (over_) return;
        if (ends_ && !last_words) last_words.emplace(kLastWords);
      }
      if (last_words && (sent || last_words->passed())) return;
      pollfd watched[] = {{wake_.get(), POLLIN, 0},
                          {stream_.link().descriptor(), stream_.wants(), 0}};
      const auto left = std::chrono::ceil<Millis>(next_beat - Clock::now()).count();
      poll(watched, 2, static_cast<int>(std::clamp<int64_t>(left, 0, last_words ? 10 : 1000)));
      eventfd_t ignored = 0;
      eventfd_read(wake_.get(), &ignored);
      while (const auto text = stream_.receive()) {
        heard = Clock::now();
        keep(detail::decode_rendezvous(*text));
      }
      if (Clock::now() - heard >= silence_)
        return lose_rendezvous(
            fmt::format("{} was silent for {} ms", stream_.link().peer(), silence_.count()));
    }
  } catch (const std::exception& error) {
    hear_last_words();
    lose_rendezvous(error.what());
  }
}

/// A write may have failed before what the rendezvous said last was read: its bye, say.
void Rendezvous::hear_last_words() {
  try {
    while (const auto text = stream_.receive()) keep(detail::decode_rendezvous(*text));
  } catch (const std::exception& error) {
    log(LogLevel::trace, "rendezvous: {}", error.what());
  }
}

void Rendezvous::keep(const RendezvousMessage& message) {
  switch (message.kind) {
    case Kind::lost: return lose(message.worker, message.text);
    case Kind::failed:
      if (events_.failed && message.worker != options_.worker)
        events_.failed(message.worker, message.text);
      return;
    case Kind::ended:
      if (events_.ended) events_.ended(message.text, message.key);
      return;
    case Kind::exchanged:
    case Kind::refused:
    case Kind::who:
    case Kind::answer:
    case Kind::bye: break;
    default: return;
  }
  {
    const std::scoped_lock lock(mutex_);
    if (message.kind == Kind::exchanged && readers_.contains(message.key))
      exchanged_[message.key] = message.texts;
    if (message.kind == Kind::refused && readers_.contains(message.key))
      refused_[message.key] = message.text;
    if (message.kind == Kind::who) who_[message.key] = message.text;
    if (const auto asked = questions_.find(message.number);
        message.kind == Kind::answer && asked != questions_.end())
      asked->second = message;
    if (message.kind == Kind::bye) over_ = true;
  }
  changed_.notify_all();
  if (message.kind == Kind::bye && events_.ended) events_.ended("", "");
}

void Rendezvous::lose(int worker, const std::string& words) {
  {
    const std::scoped_lock lock(mutex_);
    if (first_loss_.empty()) first_loss_ = words;
  }
  changed_.notify_all();
  const bool launcher = worker < 0;
  if (events_.lost && (launcher || worker != options_.worker)) events_.lost(worker, words);
}

void Rendezvous::lose_rendezvous(const std::string& words) {
  bool news = true;
  {
    const std::scoped_lock lock(mutex_);
    news = !over_ && !ends_;  // else the end of a rendezvous that nobody needs any more
    over_ = true;
  }
  if (news) lose(-1, words);
  changed_.notify_all();
  if (events_.ended) events_.ended("", "");
}

std::vector<std::string> Rendezvous::exchange(std::string_view key, int rank, int size,
                                              std::string_view text, const Deadline& deadline) {
  const std::string name(key);
  {
    const std::scoped_lock lock(mutex_);
    ++readers_[name];
  }
  send({.kind = Kind::exchange,
        .worker = rank,
        .number = size,
        .key = name,
        .text = std::string(text)});
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline.at(), [&] {
    return exchanged_.contains(name) || refused_.contains(name) || !first_loss_.empty() || over_;
  });
  const bool last_reader = --readers_[name] == 0;
  if (last_reader) readers_.erase(name);
  const auto found = exchanged_.find(name);
  if (found != exchanged_.end()) {
    std::vector<std::string> texts = found->second;
    if (last_reader) exchanged_.erase(found);
    return texts;
  }
  const auto refused = refused_.find(name);
  const std::string refusal = refused == refused_.end() ? "" : refused->second;
  if (last_reader) refused_.erase(name);
  const std::string loss = first_loss_;
  const bool over = over_;
  lock.unlock();  // what nobody catches unwinds nothing, and its telling needs the mutex
  const std::string where = fmt::format("rendezvous \"{}\", rank {} of {}", key, rank, size);
  if (!refusal.empty()) throw UsageError(fmt::format("{}: {}", where, refusal));
  if (!loss.empty())
    throw PeerLost(fmt::format("{}: {}\n  look first at its last lines", where, loss));
  if (over) throw PeerLost(where + ": the rendezvous has ended");
  throw Timeout(fmt::format("{}: after {} ms {} had not come", where, deadline.limit().count(),
                            ask_who(name)));
}

std::string Rendezvous::ask_who(const std::string& key) {
  send({.kind = Kind::who, .key = key});
  const Deadline deadline(kWhoLimit);
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline.at(), [&] { return who_.contains(key) || over_; });
  const auto answer = who_.extract(key);
  return answer && !answer.mapped().empty() ? answer.mapped() : "some ranks (unknown which)";
}

RendezvousMessage Rendezvous::ask(RendezvousMessage question, const Deadline& deadline) {
  {
    const std::scoped_lock lock(mutex_);
    question.number = ++last_question_;
    questions_[question.number];
  }
  send(question);
  std::unique_lock lock(mutex_);
  std::optional<RendezvousMessage>& answer = questions_.at(question.number);
  changed_.wait_until(lock, deadline.at(),
                      [&] { return answer.has_value() || !first_loss_.empty() || over_; });
  const auto asked = questions_.extract(question.number);
  const std::string loss = first_loss_;
  const bool over = over_;
  lock.unlock();  // as in exchange()
  if (asked.mapped()) return *asked.mapped();
  const std::string where = fmt::format("rendezvous, value \"{}\"", question.key);
  if (!loss.empty())
    throw PeerLost(fmt::format("{}: {}\n  look first at its last lines", where, loss));
  if (over) throw PeerLost(where + ": the rendezvous has ended");
  throw Timeout(fmt::format(
      "{}: {} within {} ms", where,
      question.kind == Kind::get ? "nobody has put it" : "the rendezvous did not answer",
      deadline.limit().count()));
}

void Rendezvous::put(std::string_view key, std::string_view text, const Deadline& deadline) {
  const RendezvousMessage answer =
      ask({.kind = Kind::put, .key = std::string(key), .text = std::string(text)}, deadline);
  if (!answer.text.empty())
    throw UsageError(fmt::format("rendezvous, value \"{}\": {}", key, answer.text));
}

std::string Rendezvous::get(std::string_view key, const Deadline& deadline) {
  const RendezvousMessage answer = ask({.kind = Kind::get, .key = std::string(key)}, deadline);
  return answer.texts.empty() ? std::string() : answer.texts.front();
}

std::optional<std::string> Rendezvous::look(std::string_view key, const Deadline& deadline) {
  const RendezvousMessage answer = ask({.kind = Kind::look, .key = std::string(key)}, deadline);
  if (answer.texts.empty()) return std::nullopt;
  return answer.texts.front();
}

std::string Rendezvous::first_loss() const {
  const std::scoped_lock lock(mutex_);
  return first_loss_;
}

void Rendezvous::report_failure(std::string_view text, int worker) {
  send({.kind = Kind::failed, .worker = worker, .text = std::string(text)});
  // The process may end right after this.
  const Deadline deadline(kLastWords);
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline.at(), [&] { return !unsent_ || over_; });
}

void Rendezvous::report_end(std::string_view said) {
  send({.kind = Kind::ended, .key = std::string(said)});
}

std::vector<std::string> RendezvousMeeting::exchange(std::string_view key, std::string_view mine,
                                                     const Deadline& deadline) {
  return rendezvous_.exchange(fmt::format("{}/{}", name_, key), rank_, size_, mine, deadline);
}

}  // namespace tutti
