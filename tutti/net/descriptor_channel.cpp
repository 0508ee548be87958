#include "tutti/net/descriptor_channel.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "tutti/base/error.h"

namespace tutti {
namespace {

// In front of each message, so that bytes of another origin are told from ours.
struct Header {
  uint32_t magic = 0;
  uint32_t text_bytes = 0;
  uint32_t num_descriptors = 0;
};
constexpr uint32_t kMagic = 0x74757474;  // "tutt"

constexpr size_t kControlBytes = CMSG_SPACE(sizeof(int) * DescriptorChannel::kMaxDescriptors);

Error garbage(const std::string& peer, const std::string& what) {
  return Error(
      fmt::format("receive from {}: this is not a message of a channel ({})\n"
                  "  something else writes to this socket, or the two sides are different builds",
                  peer, what));
}

std::vector<FileDescriptor> descriptors_of(msghdr& message) {
  std::vector<FileDescriptor> received;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr;
       part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int number = -1;
      std::memcpy(&number, CMSG_DATA(part) + i * sizeof(int), sizeof number);
      received.emplace_back(number);
    }
  }
  return received;
}

bool is_gone(int error_number) {
  return error_number == EPIPE || error_number == ECONNRESET || error_number == ENOTCONN;
}

PeerLost closed(const char* operation, const std::string& peer) {
  return PeerLost(fmt::format("{} {}: the other side has closed the channel (it ended, or died)",
                              operation, peer));
}

}  // namespace

DescriptorChannel::DescriptorChannel(int descriptor, std::string peer) : peer_(std::move(peer)) {
  int type = 0;
  socklen_t length = sizeof type;
  const bool known = getsockopt(descriptor, SOL_SOCKET, SO_TYPE, &type, &length) == 0;
  if (!known || type != SOCK_SEQPACKET) {
    throw UsageError(fmt::format("descriptor {} is not the channel to {}: {}", descriptor, peer_,
                                 known ? "a socket of another type" : errno_words(errno)));
  }
  socket_.reset(descriptor);
}

std::pair<DescriptorChannel, DescriptorChannel> DescriptorChannel::make_pair(
    std::string first_peer, std::string second_peer) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    throw Error("socketpair: " + errno_words(errno));
  }
  return {DescriptorChannel(ends[0], std::move(first_peer)),
          DescriptorChannel(ends[1], std::move(second_peer))};
}

void DescriptorChannel::wait_for(short events, const char* operation,
                                 const Deadline& deadline) const {
  pollfd entry{socket_.get(), events, 0};
  while (true) {
    const int ready =
        poll(&entry, 1, static_cast<int>(std::min<int64_t>(deadline.left().count(), 1'000'000)));
    if (ready > 0) return;
    if (ready < 0 && errno != EINTR) throw Error(fmt::format("poll: {}", errno_words(errno)));
    if (deadline.passed()) {
      throw Timeout(fmt::format("{} {}: nothing moved for {} ms", operation, peer_,
                                deadline.limit().count()));
    }
  }
}

void DescriptorChannel::send(std::string_view text, std::span<const int> descriptors,
                             const Deadline& deadline) {
  if (!socket_) throw UsageError("send: this channel is closed");
  if (text.size() > kMaxTextBytes || descriptors.size() > kMaxDescriptors) {
    throw UsageError(
        fmt::format("send to {}: {} bytes and {} descriptors; at most {} and {} fit in a message",
                    peer_, text.size(), descriptors.size(), kMaxTextBytes, kMaxDescriptors));
  }
  Header header{kMagic, static_cast<uint32_t>(text.size()),
                static_cast<uint32_t>(descriptors.size())};
  std::array<iovec, 2> pieces{iovec{&header, sizeof header},
                              iovec{const_cast<char*>(text.data()), text.size()}};
  alignas(cmsghdr) std::array<char, kControlBytes> control{};
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = pieces.size();
  if (!descriptors.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(part), descriptors.data(), descriptors.size_bytes());
  }
  while (sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    if (is_gone(errno)) throw closed("send to", peer_);
    if (errno == EAGAIN) {
      wait_for(POLLOUT, "send to", deadline);
    } else if (errno != EINTR) {
      throw Error(fmt::format("send to {}: {}", peer_, errno_words(errno)));
    }
  }
}

DescriptorChannel::Message DescriptorChannel::receive(const Deadline& deadline) {
  if (!socket_) throw UsageError("receive: this channel is closed");
  Header header;
  std::string text(kMaxTextBytes, '\0');
  std::array<iovec, 2> pieces{iovec{&header, sizeof header}, iovec{text.data(), text.size()}};
  alignas(cmsghdr) std::array<char, kControlBytes> control{};
  msghdr message{};
  ssize_t got = -1;
  bool reset = false;  // told before what it has sent, once, when it has not read all of ours
  while (got < 0) {
    message = {};
    message.msg_iov = pieces.data();
    message.msg_iovlen = pieces.size();
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    got = recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (got >= 0) break;
    if (errno == ECONNRESET && !std::exchange(reset, true)) continue;
    if (is_gone(errno)) throw closed("receive from", peer_);
    if (errno == EAGAIN) {
      wait_for(POLLIN, "receive from", deadline);
    } else if (errno != EINTR) {
      throw Error(fmt::format("receive from {}: {}", peer_, errno_words(errno)));
    }
  }
  Message result{.text = {}, .descriptors = descriptors_of(message)};  // owned before any throw
  if (got == 0) throw closed("receive from", peer_);
  const auto bytes = static_cast<size_t>(got);
  if (bytes < sizeof header || header.magic != kMagic) {
    throw garbage(peer_, fmt::format("{} bytes without the mark", bytes));
  }
  if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0 ||
      header.text_bytes != bytes - sizeof header ||
      header.num_descriptors != result.descriptors.size()) {
    throw garbage(
        peer_, fmt::format("{} of {} text bytes, {} of {} descriptors", bytes - sizeof header,
                           header.text_bytes, result.descriptors.size(), header.num_descriptors));
  }
  text.resize(header.text_bytes);
  result.text = std::move(text);
  return result;
}

}  // namespace tutti
