#include "store_meeting.h"

#include <c10/util/Exception.h>

#include "tutti/base/error.h"

namespace tutti::python {
namespace {

constexpr Millis kSlice{1'000};
constexpr size_t kMostBytes = 64 << 10;  // as MeetingPlace promises

}  // namespace

std::string StoreMeeting::key_of(std::string_view key, int rank) const {
  return fmt::format("tutti/{}/{}", key, rank);
}

std::vector<std::string> StoreMeeting::exchange(std::string_view key, std::string_view mine,
                                                const Deadline& deadline) {
  if (mine.size() > kMostBytes)
    throw UsageError(
        fmt::format("exchange \"{}\", rank {} of {}: {} bytes; at most {} are possible", key, rank_,
                    size_, mine.size(), kMostBytes));
  std::vector<std::string> keys;
  for (int r = 0; r < size_; ++r) keys.push_back(key_of(key, r));
  std::vector<std::string> texts;
  try {
    store_->set(keys[static_cast<size_t>(rank_)], std::vector<uint8_t>(mine.begin(), mine.end()));
    wait_for(keys, key, deadline);
    if (store_->hasExtendedApi()) {
      for (const auto& value : store_->multiGet(keys))
        texts.emplace_back(value.begin(), value.end());
    } else {
      for (const auto& one : keys) {
        const auto value = store_->get(one);
        texts.emplace_back(value.begin(), value.end());
      }
    }
  } catch (const c10::Error& error) {
    fail(key, deadline, error.what_without_backtrace());
  }
  return texts;
}

// In slices, between which the liveness channel is asked.
void StoreMeeting::wait_for(const std::vector<std::string>& keys, std::string_view key,
                            const Deadline& deadline) {
  while (true) {
    try {
      // A limit of 0 means "none" to a store.
      store_->wait(keys, std::clamp(deadline.left(), Millis{1}, kSlice));
      return;
    } catch (const c10::Error&) {
      if (deadline.passed()) throw;
      store_->check({keys[static_cast<size_t>(rank_)]});  // throws when the store itself is gone
    }
    if (const std::string loss = first_loss_ ? first_loss_() : ""; !loss.empty())
      throw PeerLost(fmt::format("{}: {}\n  look first at its last lines", where(key), loss));
  }
}

std::string StoreMeeting::where(std::string_view key) const {
  return fmt::format("meeting \"{}\" in the c10d store, rank {} of {}", key, rank_, size_);
}

void StoreMeeting::fail(std::string_view key, const Deadline& deadline, const char* why) {
  std::string missing;
  try {
    for (int r = 0; r < size_; ++r)
      if (!store_->check({key_of(key, r)}))
        missing += fmt::format("{}{}", missing.empty() ? "" : ", ", r);
  } catch (const c10::Error&) {
    missing.clear();  // the store is gone: nobody can say who has come
  }
  const std::string what = where(key);
  if (!missing.empty() && deadline.passed())
    throw Timeout(
        fmt::format("{}: rank {} did not come within {} ms\n  look first at its last lines", what,
                    missing, deadline.limit().count()));
  throw PeerLost(fmt::format("{}: the store failed: {}\n  look first at the rank that holds it",
                             what, plain_words(why)));
}

}  // namespace tutti::python
