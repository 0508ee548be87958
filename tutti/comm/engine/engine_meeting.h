/// The meeting place of some members of a group that is connected already: they swap texts by
/// messages, so that the others need not take part.
/// Thread rule: the thread of the engine.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/comm/engine/engine.h"
#include "tutti/net/meeting_place.h"

namespace tutti {

class EngineMeeting final : public MeetingPlace {
 public:
  /// `members`: ranks of `engine`, in the order of the ranks here; this member is one of them.
  EngineMeeting(std::shared_ptr<Engine> engine, std::vector<int> members);

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return static_cast<int>(members_.size()); }
  std::vector<std::string> exchange(std::string_view key, std::string_view mine,
                                    const Deadline& deadline) override;

 private:
  void send(int to, const std::string& text, const Deadline& deadline);
  std::string receive(int from, const Deadline& deadline);

  std::shared_ptr<Engine> engine_;
  std::vector<int> members_;
  int rank_ = -1;
};

}  // namespace tutti
