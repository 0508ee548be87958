#include "tutti/cluster/join/detail/lifeline.h"

#include <fmt/ranges.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>

#include "tutti/base/detail/check.h"
#include "tutti/base/threads.h"

namespace tutti::detail {
namespace {

/// The launcher has gone. Its pipes may be broken, and nobody is left to read an exit code.
[[noreturn]] void end_process(int worker) {
  const std::string text =
      fmt::format("tutti: worker {}: the launcher has gone away; this process ends\n", worker);
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text.data(), text.size());
  std::_Exit(1);
}

}  // namespace

Lifeline& Lifeline::of(const WorkerEnvironment& environment) {
  // Never destroyed: its thread uses it until the process ends.
  static Lifeline& instance = *std::make_unique<Lifeline>(environment).release();
  return instance;
}

Lifeline::Lifeline(const WorkerEnvironment& environment)
    : worker_(environment.worker),
      channel_(environment.lifeline_fd, "the launcher"),
      joined_(static_cast<size_t>(environment.num_workers), false) {
  start_thread("the connection to the launcher", [this] { listen(); }).detach();
}

void Lifeline::listen() {
  sigset_t all;
  sigfillset(&all);  // signals are for the program's own threads; a broken stderr must not kill
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  while (true) {
    try {
      keep(channel_.receive(Deadline(std::chrono::hours(1))));
    } catch (const Timeout&) {
      continue;  // a quiet hour
    } catch (const std::exception&) {
      end_process(worker_);  // closed, or no longer a launcher at the other end
    }
  }
}

void Lifeline::keep(DescriptorChannel::Message received) {
  const auto message = decode(received.text);
  if (!message) throw Error("not a message of the launcher: " + received.text);
  {
    std::lock_guard lock(mutex_);
    switch (message->kind) {
      case Notice::Kind::joined:
        for (int worker : joined_workers(*message)) joined_.at(static_cast<size_t>(worker)) = true;
        break;
      case Notice::Kind::lost: lost_.push_back(message->text); break;
      case Notice::Kind::share:
        if (!received.descriptors.empty()) {
          shares_[message->number] = std::move(received.descriptors.front());
        }
        break;
      case Notice::Kind::refused: refusals_[message->number] = message->text; break;
      case Notice::Kind::failed:
      case Notice::Kind::replicas:
      case Notice::Kind::grace: break;  // only workers say so
    }
  }
  changed_.notify_all();
}

void Lifeline::send(const Notice& message, std::span<const int> descriptors,
                    const Deadline& deadline) {
  std::lock_guard lock(sending_);
  channel_.send(encode(message), descriptors, deadline);
}

void Lifeline::wait_until_all_joined(const Deadline& deadline) {
  std::unique_lock lock(mutex_);
  const auto missing = [&] {
    std::vector<int> workers;
    for (size_t w = 0; w < joined_.size(); ++w) {
      if (!joined_[w]) workers.push_back(static_cast<int>(w));
    }
    return workers;
  };
  const bool in_time =
      changed_.wait_until(lock, deadline.at(), [&] { return missing().empty() || !lost_.empty(); });
  if (!missing().empty() && !lost_.empty()) {
    throw PeerLost(
        fmt::format("join, rank {} of {}: {} before all had joined\n  look first at its last lines",
                    worker_, joined_.size(), lost_.front()));
  }
  if (!in_time) {
    throw Timeout(fmt::format("join, rank {} of {}: after {} ms rank {} had not called join()",
                              worker_, joined_.size(), deadline.limit().count(),
                              fmt::join(missing(), ", ")));
  }
}

std::string Lifeline::first_loss() {
  std::lock_guard lock(mutex_);
  return lost_.empty() ? "" : lost_.front();
}

FileDescriptor Lifeline::wait_for_share(int number, const Deadline& deadline) {
  std::unique_lock lock(mutex_);
  const bool in_time = changed_.wait_until(lock, deadline.at(), [&] {
    return shares_.count(number) > 0 || refusals_.count(number) > 0 || !lost_.empty();
  });
  if (const auto share = shares_.extract(number)) return std::move(share.mapped());
  if (const auto refusal = refusals_.extract(number)) throw Error(refusal.mapped());
  if (!lost_.empty()) {
    throw PeerLost(fmt::format("join_replicas, worker {}: {} before worker 0 gave out the segment",
                               worker_, lost_.front()));
  }
  TUTTI_CHECK(!in_time, "share {}", number);
  throw Timeout(
      fmt::format("join_replicas, worker {}: rank 0 did not give out the segment in {} ms", worker_,
                  deadline.limit().count()));
}

}  // namespace tutti::detail
