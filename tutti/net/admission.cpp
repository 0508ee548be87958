#include "tutti/net/detail/admission.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/event.h"
#include "tutti/base/log.h"
#include "tutti/net/tls.h"

namespace tutti::detail {
namespace {

// Between two looks at the handshakes under way: a burst of connections does not starve them.
constexpr int kAcceptsAtOnce = 32;
constexpr Millis kPauseWithoutDescriptors{100};

bool is_shortage(int error_number) {
  return error_number == EMFILE || error_number == ENFILE || error_number == ENOBUFS ||
         error_number == ENOMEM;
}

/// Strangers may take at most a quarter of what the process may open.
size_t bounded_by_descriptors(size_t wanted) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return wanted;
  return std::clamp<size_t>(limit.rlim_cur / 4, 1, wanted);
}

/// Who connected to a Unix socket.
std::string local_process(int socket) {
  ucred who{};
  socklen_t length = sizeof who;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &length) != 0) return "a local process";
  return fmt::format("process {} of user {}", who.pid, who.uid);
}

FileDescriptor make_wake() {
  FileDescriptor wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) throw Error("eventfd: " + errno_words(errno));
  return wake;
}

}  // namespace

void RefusalLog::refused(const std::string& from, std::string_view why, TimePoint now) {
  emit("net.refused", {{"from", std::string_view(from)}, {"why", why}});
  sum_up(now, false);
  if (in_window_ == 0) window_ = now;
  last_ = from;
  if (++in_window_ <= kLines) {
    log(LogLevel::warning, "{}: refused a connection from {}: {}", place_, from, why);
  }
}

void RefusalLog::sum_up(TimePoint now, bool ends) {
  if (in_window_ == 0 || (!ends && now - window_ < kWindow)) return;
  if (in_window_ > kLines) {
    log(LogLevel::warning, "{}: refused {} more connections, the last from {}", place_,
        in_window_ - kLines, last_);
  }
  in_window_ = 0;
}

Admission::Admission(FileDescriptor socket, std::string place, const Credentials& credentials,
                     std::string identity, const AdmissionLimits& limits, Admitted admitted)
    : socket_(std::move(socket)),
      wake_(make_wake()),
      credentials_(credentials),
      identity_(std::move(identity)),
      limits_(limits),
      admitted_(std::move(admitted)),
      log_(std::move(place)) {
  limits_.max_pending = bounded_by_descriptors(limits.max_pending);
}

void Admission::stop() noexcept {
  stopped_.store(true);
  eventfd_write(wake_.get(), 1);
}

void Admission::run(const std::function<void()>& tick) {
  while (!stopped_.load()) {
    wait();
    drop_late();
    log_.sum_up(Clock::now(), false);
    tick();
  }
  log_.sum_up(Clock::now(), true);
  pending_.clear();
}

Millis Admission::until_next() const {
  TimePoint next = Clock::now() + Millis(1000);
  if (!pending_.empty()) next = std::min(next, pending_.front().since + limits_.handshake);
  if (accepts_again_ > Clock::now()) next = std::min(next, accepts_again_);
  return std::max(Millis{0}, std::chrono::ceil<Millis>(next - Clock::now()));
}

void Admission::wait() {
  const bool accepts = Clock::now() >= accepts_again_;
  std::vector<pollfd> entries = {{wake_.get(), POLLIN, 0},
                                 {accepts ? socket_.get() : -1, POLLIN, 0}};
  std::vector<PendingAt> places;
  for (auto place = pending_.begin(); place != pending_.end(); ++place) {
    const bool sends = !place->handshake.to_send().empty();
    const short wanted = sends ? place->link->wants_to_write() : place->link->wants_to_read();
    entries.push_back({place->link->descriptor(), wanted, 0});
    places.push_back(place);
  }
  const int ready = poll(entries.data(), entries.size(), static_cast<int>(until_next().count()));
  if (ready < 0 && errno != EINTR) throw Error("poll: " + errno_words(errno));
  if (ready <= 0) return;
  eventfd_t ignored = 0;
  if (entries[0].revents != 0) eventfd_read(wake_.get(), &ignored);
  for (size_t i = 0; i < places.size(); ++i) {
    if (entries[i + 2].revents != 0) move_on(places[i]);
  }
  if (entries[1].revents != 0) accept_some();
}

void Admission::accept_some() {
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    sockaddr_storage raw{};
    socklen_t length = sizeof raw;
    auto* address = reinterpret_cast<sockaddr*>(&raw);
    FileDescriptor socket(accept4(socket_.get(), address, &length, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket) {
      const bool is_local = raw.ss_family == AF_UNIX;
      take(std::move(socket), is_local ? Address() : Address(address, length));
    } else if (is_shortage(errno)) {
      log_.refused("the queue of the port", "no descriptor or memory is left for a connection",
                   Clock::now());
      if (!pending_.empty()) make_room();
      accepts_again_ = Clock::now() + kPauseWithoutDescriptors;
      return;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return;
    }  // else that one connection has failed already, or EINTR: the next
  }
}

void Admission::take(FileDescriptor socket, const Address& from) {
  if (pending_.size() >= limits_.max_pending) make_room();
  const std::string name = from.family() == AF_UNSPEC ? local_process(socket.get()) : from.text();
  try {
    pending_.emplace_back(
        make_socket_link(credentials_.tls.get(), std::move(socket), name, TlsContext::Side::server),
        from,
        Handshake(Handshake::Role::server, credentials_.token,
                  {.job = credentials_.job, .to = identity_}));
    move_on(std::prev(pending_.end()));
  } catch (const Error& error) {
    log_.refused(name, error.what(), Clock::now());
  }
}

void Admission::make_room() {
  const auto silent = std::find_if(pending_.begin(), pending_.end(),
                                   [](const Pending& p) { return !p.handshake.has_hello(); });
  refuse(silent == pending_.end() ? pending_.begin() : silent,
         "too many connections at once, and it was the slowest");
}

void Admission::move_on(PendingAt pending) {
  try {
    if (!advance(pending->handshake, *pending->link)) return;
  } catch (const PeerLost&) {
    refuse(pending, pending->handshake.has_hello() ? "it left in the middle of the handshake"
                                                   : "it left without a word: a port scan?");
    return;
  } catch (const Error& error) {
    refuse(pending, error.what());
    return;
  }
  Pending admitted = std::move(*pending);
  pending_.erase(pending);
  const Facts& facts = admitted.handshake.peer();
  const std::string name = admitted.link->peer();
  if (facts.rank >= 0) admitted.link->name_peer(fmt::format("rank {} ({})", facts.rank, name));
  try {
    admitted_(std::move(admitted.link), facts, admitted.from);
  } catch (const std::exception& error) {
    log_.refused(name, error.what(), Clock::now());
  }
}

void Admission::refuse(PendingAt pending, std::string_view why) {
  log_.refused(pending->link->peer(), why, Clock::now());
  try {  // an honest peer of another version or job is told so, if that goes at once
    send_what_waits(pending->handshake, *pending->link);
  } catch (const Error&) {
  }
  // Closing a socket with unread bytes resets the connection, and what was just sent is lost.
  char unread[4096];
  (void)recv(pending->link->descriptor(), unread, sizeof unread, MSG_DONTWAIT);
  pending_.erase(pending);
}

void Admission::drop_late() {
  while (!pending_.empty() && Clock::now() - pending_.front().since >= limits_.handshake) {
    refuse(pending_.begin(),
           fmt::format("it did not prove itself within {} ms", limits_.handshake.count()));
  }
}

}  // namespace tutti::detail
