/// Throttle: slow wires. Bytes pass through a thread in small pieces, so many a millisecond, and
/// not at all while they stall.
#pragma once

#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "tests/support/tcp_members.h"

namespace tutti::test {

class Throttle {
 public:
  /// Each direction of each wire passes so many bytes a millisecond, 1 to `piece` at a time.
  Throttle(int64_t bytes_per_ms, int64_t piece) : bytes_per_ms_(bytes_per_ms), piece_(piece) {}
  Throttle(const Throttle&) = delete;
  ~Throttle() {
    ending_ = true;
    if (thread_.joinable()) thread_.join();
  }

  /// A link between two ranks whose bytes pass here. Before start().
  LinkPair link_between(int a, int b) {
    auto [first, near_first] = unix_pair();
    auto [second, near_second] = unix_pair();
    pipes_.push_back({near_first.get(), near_second.get()});
    pipes_.push_back({near_second.get(), near_first.get()});
    kept_.push_back(std::move(near_first));
    kept_.push_back(std::move(near_second));
    return {make_plain_link(std::move(first), "rank " + std::to_string(b)),
            make_plain_link(std::move(second), "rank " + std::to_string(a))};
  }

  /// After so many bytes nothing passes for so many ms, and nothing closes, as when a wire is cut.
  /// Before start().
  void stall_after(int64_t bytes, int64_t milliseconds) {
    stall_after_ = bytes;
    stall_left_ = milliseconds;
  }

  void start() {
    thread_ = std::thread([this] {
      for (; !ending_; std::this_thread::sleep_for(std::chrono::milliseconds(1))) {
        if (passed_ >= stall_after_ && stall_left_-- > 0) continue;
        for (Pipe& pipe : pipes_) pass_some(pipe);
      }
    });
  }

  /// Whether a stall has begun.
  bool has_stalled() const { return passed_ >= stall_after_; }

 private:
  struct Pipe {
    int from = -1, to = -1;
    std::vector<std::byte> waiting{};
    bool ended = false;
  };

  static std::pair<FileDescriptor, FileDescriptor> unix_pair() {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
      throw Error("socketpair: " + errno_words(errno));
    return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
  }

  void pass_some(Pipe& pipe) {
    for (int64_t left = bytes_per_ms_; left > 0 && !pipe.ended;) {
      if (pipe.waiting.empty() && !take(pipe)) return;
      const auto bytes =
          static_cast<size_t>(std::min<int64_t>(left, static_cast<int64_t>(pipe.waiting.size())));
      const ssize_t sent = send(pipe.to, pipe.waiting.data(), bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent <= 0) return;
      pipe.waiting.erase(pipe.waiting.begin(), pipe.waiting.begin() + sent);
      left -= sent;
      passed_ += sent;
    }
  }

  bool take(Pipe& pipe) {
    pipe.waiting.resize(1 + random_() % static_cast<size_t>(piece_));
    const ssize_t got = recv(pipe.from, pipe.waiting.data(), pipe.waiting.size(), MSG_DONTWAIT);
    pipe.waiting.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (got == 0) {
      pipe.ended = true;
      shutdown(pipe.to, SHUT_WR);
    }
    return got > 0;
  }

  const int64_t bytes_per_ms_;
  const int64_t piece_;
  std::vector<FileDescriptor> kept_;
  std::vector<Pipe> pipes_;
  std::minstd_rand random_{7};
  int64_t stall_after_ = INT64_MAX;
  int64_t stall_left_ = 0;  // of the thread, once it runs
  std::atomic<bool> ending_{false};
  std::atomic<int64_t> passed_{0};
  std::thread thread_;
};

}  // namespace tutti::test
