/// A MeetingPlace between threads of one test: a map behind a mutex.
///
///   InProcessMeeting meeting(3);
///   run_threads(3, [&](int rank) {
///     auto place = meeting.place(rank);
///     ... connect_mesh(*place, ...)
///   });
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/net/meeting_place.h"

namespace tutti::test {

/// What the ranks of a test share. Outlives its places.
class InProcessMeeting {
 public:
  explicit InProcessMeeting(int size) : size_(size) {}

  /// The view of one rank; one thread uses it.
  std::unique_ptr<MeetingPlace> place(int rank) { return std::make_unique<Place>(*this, rank); }

  /// From now on whoever waits for `rank` throws PeerLost.
  void lose(int rank) {
    std::lock_guard lock(mutex_);
    lost_ = rank;
    changed_.notify_all();
  }

 private:
  using Texts = std::vector<std::optional<std::string>>;

  class Place final : public MeetingPlace {
   public:
    Place(InProcessMeeting& meeting, int rank) : meeting_(meeting), rank_(rank) {}
    int rank() const noexcept override { return rank_; }
    int size() const noexcept override { return meeting_.size_; }
    std::vector<std::string> exchange(std::string_view key, std::string_view mine,
                                      const Deadline& deadline) override {
      return meeting_.exchange(rank_, std::string(key), std::string(mine), deadline);
    }

   private:
    InProcessMeeting& meeting_;
    int rank_;
  };

  std::vector<std::string> exchange(int rank, const std::string& key, std::string mine,
                                    const Deadline& deadline) {
    if (mine.size() > 64 << 10) throw UsageError("exchange: more than 64 KiB under " + key);
    std::unique_lock lock(mutex_);
    Texts& texts = given_.try_emplace(key, static_cast<size_t>(size_)).first->second;
    auto& own = texts[static_cast<size_t>(rank)];
    if (own) throw UsageError(fmt::format("exchange: rank {} used key {} twice", rank, key));
    own = std::move(mine);
    changed_.notify_all();
    const auto missing = [&] { return words_of_missing(texts); };
    const bool done = changed_.wait_until(lock, deadline.at(), [&] {
      return missing().empty() || (lost_ && !texts[static_cast<size_t>(*lost_)]);
    });
    if (missing().empty()) return all_of(texts);
    if (done) throw PeerLost(fmt::format("exchange of {}: rank {} is lost", key, *lost_));
    throw Timeout(fmt::format("exchange of {}: missing{}", key, missing()));
  }

  static std::string words_of_missing(const Texts& texts) {
    std::string words;
    for (size_t rank = 0; rank < texts.size(); ++rank) {
      if (!texts[rank]) words += fmt::format(" rank {}", rank);
    }
    return words;
  }

  static std::vector<std::string> all_of(const Texts& texts) {
    std::vector<std::string> all;
    for (const auto& text : texts) all.push_back(*text);
    return all;
  }

  const int size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, Texts> given_;
  std::optional<int> lost_;
};

/// Runs `body(rank)` in one thread a rank; throws what the lowest rank threw, when all have ended.
inline void run_threads(int ranks, const std::function<void(int)>& body) {
  std::vector<std::exception_ptr> thrown(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (...) {
        thrown[static_cast<size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& error : thrown) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace tutti::test
