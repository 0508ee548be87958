#include "tutti/net/host_meeting.h"

#include <openssl/rand.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <exception>
#include <fstream>
#include <map>
#include <optional>
#include <thread>

#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/net/admission.h"

namespace tutti {
namespace {

constexpr const char* kPurpose = "host";
constexpr size_t kNameBytes = 16;

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

/// Differs between machines; spares tries that must fail. "" when the kernel does not tell.
std::string boot_id() {
  std::string id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id);
  return id;
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

/// Gives the own file to every process of the job that asks, in a thread, while it lives.
class Giver {
 public:
  Giver(const std::string& name, const std::string& key, const Token& token, int descriptor)
      : admission_(
            listen_at(name), "the socket of host meeting " + key, {token, key}, name, {},
            [descriptor](std::unique_ptr<detail::SocketLink> link, const Facts&, const Address&) {
              send_descriptor(link->descriptor(), descriptor);
            }),
        thread_([this] { work(); }) {}
  Giver(const Giver&) = delete;
  Giver& operator=(const Giver&) = delete;
  ~Giver() {
    admission_.stop();
    thread_.join();
  }

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

SharedFile ask_for_file(FileDescriptor socket, const std::string& name, const std::string& key,
                        int rank, const std::string& who, const Token& token,
                        const Deadline& deadline) {
  const auto link = detail::make_plain_socket_link(std::move(socket), who);
  Handshake handshake(Handshake::Role::client, token,
                      {.job = key, .purpose = kPurpose, .to = name, .rank = rank});
  try {
    detail::finish(handshake, *link, deadline);
  } catch (const PeerLost&) {
    if (!handshake.has_hello()) throw;
    throw Mismatch(
        fmt::format("meeting on the host: {} closed the connection at the proof of the "
                    "token\n  it holds another token: look at its log",
                    who));
  }
  return SharedFile::duplicate(receive_descriptor(link->descriptor(), who, deadline).get());
}

/// The name of a rank's socket, and its machine.
std::pair<std::string, std::string> parse_told(const std::string& text, int rank) {
  const size_t space = text.find(' ');
  if (space == std::string::npos || space >= sizeof(sockaddr_un::sun_path)) {
    throw Mismatch(
        fmt::format("what rank {} told of its host is no socket's name\n  all ranks need "
                    "the same build of tutti",
                    rank));
  }
  return {text.substr(0, space), text.substr(space + 1)};
}

/// Numbers hosts, and checks that every leader leads itself.
HostMeeting sort_out(const std::vector<std::string>& leaders, int rank) {
  HostMeeting meeting;
  std::map<int, int> host_of_leader;
  const int size = static_cast<int>(leaders.size());
  const auto leader_of = [&](int of) {
    const std::string& text = leaders[static_cast<size_t>(of)];
    int leader = -1;
    std::from_chars(text.data(), text.data() + text.size(), leader);
    if (leader < 0 || leader > of) throw Mismatch(fmt::format("rank {} told no leader", of));
    return leader;
  };
  for (int other = 0; other < size; ++other) {
    const int leader = leader_of(other);
    if (leader_of(leader) != leader) {
      throw Error(
          fmt::format("rank {} reaches rank {} on its host, which reaches rank {}, but the "
                      "first does not reach the last\n  put them into one network namespace, "
                      "or each into its own",
                      other, leader, leader_of(leader)));
    }
    const int next = static_cast<int>(host_of_leader.size());
    meeting.host_of_rank.push_back(host_of_leader.try_emplace(leader, next).first->second);
  }
  for (int other = 0; other < size; ++other) {
    if (meeting.host_of_rank[static_cast<size_t>(other)] ==
        meeting.host_of_rank[static_cast<size_t>(rank)]) {
      meeting.ranks_here.push_back(other);
    }
  }
  meeting.leads = meeting.ranks_here.front() == rank;
  return meeting;
}

}  // namespace

HostMeeting meet_on_host(MeetingPlace& place, const std::string& key, const Token& token,
                         const Deadline& deadline) {
  const int rank = place.rank();
  const std::string name = random_name(), machine = boot_id();
  SharedFile own = SharedFile::create("tutti host");
  std::optional<SharedFile> given;
  HostMeeting meeting;
  {
    const Giver giver(name, key, token, own.descriptor());
    const auto told = place.exchange("host/" + key + "/socket", name + " " + machine, deadline);
    int leader = rank;
    for (int lower = 0; lower < rank && !given; ++lower) {
      const auto [socket_name, its_machine] = parse_told(told[static_cast<size_t>(lower)], lower);
      if (its_machine != machine) continue;
      const std::string who = fmt::format("rank {} (on this host)", lower);
      FileDescriptor socket = connect_near(socket_name, who, deadline);
      if (!socket) continue;
      given = ask_for_file(std::move(socket), socket_name, key, rank, who, token, deadline);
      leader = lower;
    }
    // Once everybody has told its leader, nobody asks any more.
    const auto leaders =
        place.exchange("host/" + key + "/leader", std::to_string(leader), deadline);
    meeting = sort_out(leaders, rank);
  }
  meeting.shared = given ? std::move(*given) : std::move(own);
  return meeting;
}

}  // namespace tutti
