// The middle of emulated links with latency: what comes in by one interface goes on by another, so
// many milliseconds later and in order. bench/emulated_hosts.py runs it in place of a bridge, in a
// namespace of its own, where the kernel has no netem.
//
//   bench_delayed_links MILLISECONDS INTERFACE...
//
// Frames are whole segments of TCP, up to 64 KiB as the sender made them, so they are few; rates
// are those of the interfaces' queues, which frames pass as before. The core that a frame is moved
// on is one of those that the hosts compute on: when SIGTERM ends it, it prints a line of JSON:
// frames, dropped (must be 0), cpu_s (of this process) and late_us (median: beyond the latency).
#include <arpa/inet.h>
#include <fmt/format.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bench/rounds.h"

namespace {

using Clock = std::chrono::steady_clock;
using Address = std::array<std::byte, ETH_ALEN>;  // of an interface

constexpr size_t kHeaderBytes = 10;  // virtio_net_hdr, whose file C++ cannot read
constexpr size_t kFrameBytes = kHeaderBytes + ETH_HLEN + (64 << 10);
constexpr int kBufferBytes = 64 << 20;  // of a socket each way: 10 Gbit/s for 50 ms

volatile std::sig_atomic_t ended = 0;

// A frame as the kernel has it, with what is left to cut and to sum.
struct Frame {
  std::vector<std::byte> bytes;
  size_t size = 0;
  size_t from = 0;  // which interface
  Clock::time_point due{};

  Address address(size_t offset) const {
    Address found;
    std::memcpy(found.data(), bytes.data() + kHeaderBytes + offset, found.size());
    return found;
  }
  Address to() const { return address(0); }
  Address of() const { return address(ETH_ALEN); }
};

void require(bool done, const std::string& what) {
  if (!done) throw std::runtime_error(fmt::format("{}: {}", what, std::strerror(errno)));
}

int opened(const char* interface) {
  const int socket = ::socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
  require(socket >= 0, "socket");
  const int on = 1;
  const auto set = [&](int level, int name, int value) {
    require(::setsockopt(socket, level, name, &value, sizeof value) == 0, interface);
  };
  set(SOL_PACKET, PACKET_VNET_HDR, on);
  set(SOL_PACKET, PACKET_IGNORE_OUTGOING, on);
  set(SOL_SOCKET, SO_RCVBUFFORCE, kBufferBytes);
  set(SOL_SOCKET, SO_SNDBUFFORCE, kBufferBytes);
  sockaddr_ll place{};
  place.sll_family = AF_PACKET;
  place.sll_protocol = htons(ETH_P_ALL);
  place.sll_ifindex = static_cast<int>(::if_nametoindex(interface));
  require(place.sll_ifindex != 0, interface);
  require(::bind(socket, reinterpret_cast<const sockaddr*>(&place), sizeof place) == 0, interface);
  return socket;
}

class Links {
 public:
  Links(double latency_ms, const std::vector<const char*>& interfaces)
      : latency_(std::chrono::duration_cast<Clock::duration>(
            std::chrono::duration<double, std::milli>(latency_ms))) {
    for (const char* interface : interfaces)
      polled_.push_back({.fd = opened(interface), .events = POLLIN, .revents = 0});
  }

  void run(const sigset_t& while_waiting) {
    while (ended == 0) {
      const auto left = waiting_.empty()
                            ? std::chrono::nanoseconds(0)
                            : std::chrono::nanoseconds(waiting_.front().due - Clock::now());
      const auto ns = std::max<int64_t>(left.count(), 0);
      const timespec limit{.tv_sec = ns / 1'000'000'000, .tv_nsec = ns % 1'000'000'000};
      const int found = ::ppoll(polled_.data(), polled_.size(), waiting_.empty() ? nullptr : &limit,
                                &while_waiting);
      require(found >= 0 || errno == EINTR, "ppoll");
      for (size_t from = 0; found > 0 && from < polled_.size(); ++from)
        if (polled_[from].revents != 0) take(from);
      while (!waiting_.empty() && waiting_.front().due <= Clock::now()) send_first();
    }
  }

  void print() const {
    int64_t dropped = unsent_;
    for (const pollfd& each : polled_) {
      tpacket_stats stats{};
      socklen_t size = sizeof stats;
      require(::getsockopt(each.fd, SOL_PACKET, PACKET_STATISTICS, &stats, &size) == 0,
              "getsockopt");
      dropped += stats.tp_drops;
    }
    rusage used{};
    ::getrusage(RUSAGE_SELF, &used);
    const auto seconds = [](const timeval& time) {
      return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
    };
    fmt::print(R"({{"frames": {}, "dropped": {}, "cpu_s": {:.3f}, "late_us": {:.1f}}})"
               "\n",
               late_us_.size(), dropped, seconds(used.ru_utime) + seconds(used.ru_stime),
               late_us_.empty() ? 0 : tutti::bench::median(late_us_));
  }

 private:
  void take(size_t from) {
    while (true) {
      Frame frame{
          .bytes = spare_.empty() ? std::vector<std::byte>(kFrameBytes) : std::move(spare_.back()),
          .from = from};
      if (!spare_.empty()) spare_.pop_back();
      const ssize_t size =
          ::recv(polled_[from].fd, frame.bytes.data(), frame.bytes.size(), MSG_DONTWAIT);
      if (size < static_cast<ssize_t>(kHeaderBytes + ETH_HLEN)) {
        require(size >= 0 || errno == EAGAIN, "recv");
        spare_.push_back(std::move(frame.bytes));
        return;
      }
      frame.size = static_cast<size_t>(size);
      frame.due = Clock::now() + latency_;
      where_[frame.of()] = from;
      waiting_.push_back(std::move(frame));
    }
  }

  // To the interface from which its receiver was heard; to all others while there is none.
  void send_first() {
    Frame& frame = waiting_.front();
    const auto known = where_.find(frame.to());
    for (size_t to = 0; to < polled_.size(); ++to)
      if (to != frame.from && (known == where_.end() || known->second == to))
        unsent_ += ::send(polled_[to].fd, frame.bytes.data(), frame.size, 0) < 0;
    late_us_.push_back(std::chrono::duration<double, std::micro>(Clock::now() - frame.due).count());
    spare_.push_back(std::move(frame.bytes));
    waiting_.pop_front();
  }

  const Clock::duration latency_;
  std::vector<pollfd> polled_;
  std::map<Address, size_t> where_;  // behind which interface
  std::deque<Frame> waiting_;        // by due: all wait equally long
  std::vector<std::vector<std::byte>> spare_;
  std::vector<double> late_us_;
  int64_t unsent_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);  // the links are of whoever has started this
  const double latency_ms = argc > 1 ? std::atof(argv[1]) : 0;
  if (argc < 4 || !(latency_ms > 0 && latency_ms <= 1000)) {
    fmt::print(stderr, "usage: {} MILLISECONDS INTERFACE INTERFACE...\n", argv[0]);
    return 2;
  }
  ::prctl(PR_SET_TIMERSLACK, 1);  // ns: frames leave when they should
  sigset_t blocked, before;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGTERM);
  sigprocmask(SIG_BLOCK, &blocked, &before);
  struct sigaction action{};
  action.sa_handler = [](int) { ended = 1; };
  sigaction(SIGTERM, &action, nullptr);
  try {
    Links links(latency_ms, {argv + 2, argv + argc});
    fmt::print("ready\n");
    std::fflush(stdout);
    links.run(before);
    links.print();
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
}
