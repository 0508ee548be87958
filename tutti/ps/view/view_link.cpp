#include "tutti/ps/view/view_link.h"

#include <algorithm>

namespace tutti::ps {
namespace {

using Kind = Message::Kind;

constexpr Millis kBeforeItJoined{200};

}  // namespace

void ViewLink::on_connected() {
  joined_ = true;
  hear();
  const bool worker = options_.who.kind == Peer::Kind::worker;
  streams_.send(Peer{},
                {.kind = Kind::join,
                 .worker = worker ? options_.who.number : -1,
                 .index = options_.training,
                 .sequence = options_.who.number,
                 .text = options_.name + "\n" + options_.where.text() + "\n" + options_.order});
}

void ViewLink::on_joined(const Message& message) {
  silence_ = std::clamp(Millis(message.step), Millis{1}, silence_);
  next_beat_ = {};
}

void ViewLink::beat(TimePoint now, const std::string& last) {
  if (!joined_ || now < next_beat_) return;
  next_beat_ = now + silence_ / kBeatsPerLimit;
  streams_.send(Peer{}, {.kind = Kind::progress, .text = last});
  streams_.flush(Peer{});
}

std::string ViewLink::silent(TimePoint looked) const {
  if (!joined_ || looked - heard_ < silence_) return "";
  return fmt::format("the view service was silent for {} ms", silence_.count());
}

Millis ViewLink::until_beat(TimePoint now) const {
  if (!joined_) return kBeforeItJoined;
  return std::clamp(std::chrono::ceil<Millis>(next_beat_ - now), Millis{0}, Millis{1'000});
}

void ViewLink::say_goodbye() { streams_.send(Peer{}, {.kind = Kind::finished}); }

}  // namespace tutti::ps
