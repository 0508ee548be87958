#include "tutti/net/descriptor_giver.h"

#include <openssl/rand.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <exception>
#include <optional>
#include <thread>

#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/base/threads.h"
#include "tutti/net/detail/admission.h"
#include "tutti/net/detail/pauses.h"

namespace tutti {
namespace {

constexpr const char* kPurpose = "host";
constexpr size_t kNameBytes = 16;
constexpr size_t kMostNameBytes = sizeof(sockaddr_un::sun_path) - 1;  // a zero stands before it

/// A Unix address without a name in the file system: it belongs to the network namespace and is
/// gone with its socket. 128 random bits: nobody else has it.
struct AbstractAddress {
  explicit AbstractAddress(const std::string& name) {
    raw.sun_family = AF_UNIX;
    std::memcpy(raw.sun_path + 1, name.data(), std::min(name.size(), sizeof raw.sun_path - 1));
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&raw); }

  sockaddr_un raw{};
  socklen_t length = 0;
};

std::string random_name() {
  unsigned char bytes[kNameBytes];
  if (RAND_bytes(bytes, sizeof bytes) != 1) throw Error("no random bytes for a socket's name");
  std::string name = "tutti-";
  for (const unsigned char byte : bytes) name += fmt::format("{:02x}", byte);
  return name;
}

FileDescriptor unix_socket() {
  FileDescriptor made(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!made) throw Error("socket: " + errno_words(errno));
  return made;
}

void send_descriptor(int socket, int descriptor) {
  char byte = 'd';
  iovec piece{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof descriptor)] = {};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* part = CMSG_FIRSTHDR(&message);
  part->cmsg_level = SOL_SOCKET;
  part->cmsg_type = SCM_RIGHTS;
  part->cmsg_len = CMSG_LEN(sizeof descriptor);
  std::memcpy(CMSG_DATA(part), &descriptor, sizeof descriptor);
  // The socket has carried a hundred bytes so far: there is room, and nobody has to wait.
  if (sendmsg(socket, &message, MSG_NOSIGNAL) != 1) {
    throw PeerLost("its descriptor could not be passed: " + errno_words(errno));
  }
}

FileDescriptor receive_descriptor(int socket, const std::string& peer, const Deadline& deadline) {
  char byte = 0;
  iovec piece{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  while (true) {
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    const cmsghdr* part = got == 1 ? CMSG_FIRSTHDR(&message) : nullptr;
    if (part != nullptr && part->cmsg_type == SCM_RIGHTS &&
        part->cmsg_len == CMSG_LEN(sizeof(int))) {
      int descriptor = -1;
      std::memcpy(&descriptor, CMSG_DATA(part), sizeof descriptor);
      return FileDescriptor(descriptor);
    }
    if (got >= 0) throw PeerLost(fmt::format("{} ended before it passed its descriptor", peer));
    if (errno != EAGAIN && errno != EINTR) {
      throw PeerLost(fmt::format("{} did not pass its descriptor: {}", peer, errno_words(errno)));
    }
    pollfd entry{socket, POLLIN, 0};
    const auto left = std::min<int64_t>(deadline.left().count(), 1'000'000);
    if (poll(&entry, 1, static_cast<int>(left)) == 0 && deadline.passed()) {
      throw Timeout(
          fmt::format("{} did not pass its descriptor in {} ms", peer, deadline.limit().count()));
    }
  }
}

/// A connection to the socket of that name; none when it is not of this network namespace.
FileDescriptor connect_near(const std::string& name, const std::string& who,
                            const Deadline& deadline) {
  const AbstractAddress address(name);
  FileDescriptor connected = unix_socket();
  while (connect(connected.get(), address.get(), address.length) != 0) {
    // Refused: there is no such socket here. Forbidden: a sandbox keeps the two apart.
    if (errno == ECONNREFUSED || errno == EACCES || errno == EPERM) return {};
    if (errno != EAGAIN && errno != EINTR) {
      throw Error(fmt::format("connect to {} on this host: {}", who, errno_words(errno)));
    }
    if (deadline.passed()) {
      throw Timeout(fmt::format("connect to {} on this host: its queue stayed full for {} ms", who,
                                deadline.limit().count()));
    }
    std::this_thread::sleep_for(Millis(1));  // there is no event for room in the queue
  }
  return connected;
}

FileDescriptor ask(FileDescriptor socket, const DescriptorRequest& request, const Token& token,
                   const Deadline& deadline) {
  const auto link = detail::make_plain_socket_link(std::move(socket), request.who);
  const Facts facts{
      .job = request.key, .purpose = kPurpose, .to = request.name, .rank = request.rank};
  Handshake handshake(Handshake::Role::client, token, facts);
  try {
    detail::finish(handshake, *link, deadline);
  } catch (const Mismatch& error) {
    throw Mismatch(fmt::format("meeting on the host: {}: {}", request.who, error.what()));
  }
  return receive_descriptor(link->descriptor(), request.who, deadline);
}

}  // namespace

class DescriptorGiver::Work {
 public:
  Work(const Token& token, const std::string& key, int descriptor)
      : name(random_name()),
        admission_(
            listen_at(name), "the socket of host meeting " + key, {token, key}, name, {},
            [descriptor](std::unique_ptr<detail::SocketLink> link, const Facts&, const Address&) {
              send_descriptor(link->descriptor(), descriptor);
            }),
        thread_(start_thread("the socket of the host", [this] { work(); })) {}
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;
  ~Work() {
    admission_.stop();
    thread_.join();
  }

  const std::string name;

 private:
  static FileDescriptor listen_at(const std::string& name) {
    FileDescriptor listening = unix_socket();
    const AbstractAddress address(name);
    if (bind(listening.get(), address.get(), address.length) != 0 ||
        listen(listening.get(), SOMAXCONN) != 0) {
      throw Error("Unix socket of the host: " + errno_words(errno));
    }
    return listening;
  }

  void work() noexcept {
    try {
      admission_.run([] {});
    } catch (const std::exception& error) {  // those who ask see a timeout; this says why
      log(LogLevel::error, "the socket of the host ended: {}", error.what());
    }
  }

  detail::Admission admission_;
  std::thread thread_;
};

DescriptorGiver::DescriptorGiver(const Token& token, const std::string& key, int descriptor)
    : work_(std::make_unique<Work>(token, key, descriptor)) {}
DescriptorGiver::~DescriptorGiver() = default;

const std::string& DescriptorGiver::name() const noexcept { return work_->name; }

std::optional<FileDescriptor> take_descriptor(const DescriptorRequest& request, const Token& token,
                                              const Deadline& deadline) {
  if (request.name.empty() || request.name.size() > kMostNameBytes) {
    throw Mismatch(
        fmt::format("what {} told of its host is no socket's name\n  all ranks need "
                    "the same build of tutti",
                    request.who));
  }
  detail::Pauses pauses;
  std::exception_ptr lost;  // how the try before this one ended
  for (int without_a_word = 0;;) {
    FileDescriptor socket = connect_near(request.name, request.who, deadline);
    // Else it is of this host, and has ended meanwhile.
    if (!socket && !lost) return std::nullopt;
    if (!socket) std::rethrow_exception(lost);
    try {
      return ask(std::move(socket), request, token, deadline);
    } catch (const detail::CutOff&) {  // it is there, and speaks: nothing is final
      lost = std::current_exception();
    } catch (const PeerLost&) {  // a burst of others may have pushed this one out
      lost = std::current_exception();
      if (++without_a_word == detail::kTriesWithoutAWord) throw;
    }
    if (!pauses.wait(deadline)) std::rethrow_exception(lost);
  }
}

}  // namespace tutti
