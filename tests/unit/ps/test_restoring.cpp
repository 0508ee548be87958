// A snapshot takes long to read, and to pass on: the worker that does is heard of all the same.
#include <gmock/gmock.h>

#include <condition_variable>
#include <mutex>
#include <thread>

#include "tutti/base/error.h"
#include "tutti/net/listener.h"
#include "tutti/ps/client/client.h"
#include "tutti/ps/wire/streams.h"

#include "tests/support/message_of.h"
#include "tests/unit/ps/small_job.h"

namespace tutti::ps::testing {
namespace {

using ::testing::HasSubstr;
using tutti::test::message_of;
using Kind = Message::Kind;

constexpr Millis kPatience{20'000};

/// The view service and the one server of a job of one worker, as far as it gives first values.
class EmptyJob {
 public:
  EmptyJob()
      : listener_(*Address::from_number("127.0.0.1", 0), credentials_),
        streams_(std::make_shared<SharedHeap>(), credentials_,
                 {.message = [this](Peer from, const Message& m) { on_message(from, m); },
                  .connected = [](Peer) {},
                  .closed = [](Peer, const std::string&) {}}) {
    streams_.take_from(listener_, kViewPurpose, Peer::Kind::view_service);
    streams_.take_from(listener_, kWorkerPurpose, Peer::Kind::worker);
    thread_ = std::thread([this] { work(); });
  }
  ~EmptyJob() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    streams_.wake();
    thread_.join();
  }

  const Credentials& credentials() const { return credentials_; }
  ClientOptions options() const {
    return {.view_service = {"127.0.0.1", listener_.address().port()}, .share_memory = false};
  }
  bool wait_for_beats(int more) {
    std::unique_lock lock(mutex_);
    const int wanted = beats_ + more;
    return changed_.wait_for(lock, kPatience, [&] { return beats_ >= wanted; });
  }
  std::vector<int> wait_for_assigns(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kPatience, [&] { return assigned_.size() >= count; });
    return assigned_;
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    while (!ends_) {
      lock.unlock();
      streams_.wait(Millis{50});
      lock.lock();
      streams_.process();
      if (service_of_ != Peer{}) say(service_of_, {.kind = Kind::progress});
    }
  }

  void on_message(Peer from, const Message& message) {
    if (message.kind == Kind::join) {
      service_of_ = from;
      say(from, {.kind = Kind::joined, .step = 2'000});
      say(from, {.kind = Kind::view, .text = to_text(view())});
    }
    if (message.kind == Kind::hello) say(from, {.kind = Kind::welcome, .partition = 0});
    if (message.kind == Kind::progress) ++beats_;
    if (message.kind == Kind::assign) assigned_.push_back(message.piece);
    changed_.notify_all();
  }

  void say(Peer to, Message message) {
    streams_.send(to, std::move(message));
    streams_.flush(to);
  }

  View view() const {
    View view{.number = 1};
    view.partitions = {{0, -1, -1, 1}};
    view.servers.push_back({"server 0", listener_.address().text(), true, ""});
    view.workers.push_back({"worker 0", "", true, ""});
    return view;
  }

  const Credentials credentials_{Token::random(), "test", nullptr};
  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  Listener listener_;
  Streams streams_;
  Peer service_of_;
  int beats_ = 0;
  std::vector<int> assigned_;
  bool ends_ = false;
  std::thread thread_;
};

Spec spec_of_one() { return small_spec(1, Staleness(0)); }

Bytes no_values(int) { return {}; }

Message assign_of(int piece) {
  return {.kind = Kind::assign,
          .piece = piece,
          .payload = Bytes::copy_of(std::vector<std::byte>(3 << 20))};
}

// It does not go on before two beats have come.
TEST(PsRestoring, AWorkerBeatsWhileItReads) {
  EmptyJob job;
  bool beats = false;
  const Client client(job.options(), job.credentials(), spec_of_one(), no_values,
                      [&](int partition, const std::function<void(Message)>& assign) {
                        EXPECT_EQ(partition, 0);
                        beats = job.wait_for_beats(2);
                        for (int piece = 0; piece < 8; ++piece) assign(assign_of(piece));
                      });
  EXPECT_THAT(job.wait_for_assigns(8), ::testing::ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_TRUE(beats);
}

TEST(PsRestoring, WhatCannotBeReadIsSaid) {
  EmptyJob job;
  Client client(job.options(), job.credentials(), spec_of_one(), no_values,
                [](int, const std::function<void(Message)>&) { throw DataError("it is torn"); });
  EXPECT_THAT(message_of<Error>([&] {
                client.pull(0, 0);
                client.fetch(0, 0, Deadline(kPatience), [](const Bytes&) {});
              }),
              HasSubstr("it is torn"));
}

// What it reads has no end.
TEST(PsRestoring, EndsWithItsWorker) {
  EmptyJob job;
  const Client client(job.options(), job.credentials(), spec_of_one(), no_values,
                      [](int, const std::function<void(Message)>& assign) {
                        for (int piece = 0;; ++piece) assign(assign_of(piece));
                      });
  EXPECT_GE(job.wait_for_assigns(2).size(), 2U);
}

}  // namespace
}  // namespace tutti::ps::testing
