/// StoreMeeting: a c10d store as the place where the ranks of a group meet.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "tutti/net/meeting_place.h"

namespace tutti::python {

/// Thread rule: as MeetingPlace. The store must be this group's own (c10d prefixes it so).
class StoreMeeting final : public MeetingPlace {
 public:
  StoreMeeting(c10::intrusive_ptr<c10d::Store> store, int rank, int size)
      : store_(std::move(store)), rank_(rank), size_(size) {}

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return size_; }
  /// Asked about once a second while others are awaited: who of them is lost, in words; "" nobody.
  void look_for_losses(std::function<std::string()> first_loss) {
    first_loss_ = std::move(first_loss);
  }

  std::vector<std::string> exchange(std::string_view key, std::string_view mine,
                                    const Deadline& deadline) override;

 private:
  std::string key_of(std::string_view key, int rank) const;
  void wait_for(const std::vector<std::string>& keys, std::string_view key,
                const Deadline& deadline);
  std::string where(std::string_view key) const;
  [[noreturn]] void fail(std::string_view key, const Deadline& deadline, const char* why);

  c10::intrusive_ptr<c10d::Store> store_;
  int rank_;
  int size_;
  std::function<std::string()> first_loss_;
};

}  // namespace tutti::python
