#include "tutti/comm/engine/engine_meeting.h"

#include <algorithm>
#include <limits>

#include "tutti/base/detail/check.h"
#include "tutti/base/json.h"

namespace tutti {
namespace {

// Beside the tags that programs use.
constexpr int kTag = std::numeric_limits<int>::min() + 0x7475;
constexpr int64_t kMaxBytes = int64_t{256} << 20;

// A line of JSON with their lengths, then the texts: they may be any bytes.
std::string packed(const std::vector<std::string>& texts) {
  Json lengths = Json::array();
  for (const std::string& text : texts) lengths.push_back(text.size());
  std::string all = dump_json(lengths) + "\n";
  for (const std::string& text : texts) all += text;
  return all;
}

std::vector<std::string> unpacked(std::string_view all) {
  const size_t line = std::min(all.find('\n'), all.size());
  const Json lengths = parse_json(all.substr(0, line), 1);
  std::string_view rest = all.substr(std::min(line + 1, all.size()));
  std::vector<std::string> texts;
  for (const Json& length : lengths) {
    texts.emplace_back(rest.substr(0, length.get<size_t>()));
    TUTTI_CHECK(texts.back().size() == length, "a text of {} bytes", dump_json(length));
    rest.remove_prefix(texts.back().size());
  }
  return texts;
}

}  // namespace

EngineMeeting::EngineMeeting(std::shared_ptr<Engine> engine, std::vector<int> members)
    : engine_(std::move(engine)), members_(std::move(members)) {
  const auto found = std::find(members_.begin(), members_.end(), engine_->rank());
  TUTTI_CHECK(found != members_.end(), "rank {} is no member", engine_->rank());
  rank_ = static_cast<int>(found - members_.begin());
}

void EngineMeeting::send(int to, const std::string& text, const Deadline& deadline) {
  auto length = static_cast<int64_t>(text.size());
  const Operation batch[] = {{.collective = Collective::send,
                              .root = members_[static_cast<size_t>(to)],
                              .tag = kTag,
                              .input = {&length, 1, DType::int64},
                              .limit = std::max(Millis{1}, deadline.left())},
                             {.collective = Collective::send,
                              .root = members_[static_cast<size_t>(to)],
                              .tag = kTag,
                              .input = {const_cast<char*>(text.data()), length, DType::uint8},
                              .limit = std::max(Millis{1}, deadline.left())}};
  engine_->progress(engine_->submit(batch), deadline);
}

std::string EngineMeeting::receive(int from, const Deadline& deadline) {
  const auto take = [&](MemorySpan room) {
    const Operation operation{.collective = Collective::recv,
                              .root = members_[static_cast<size_t>(from)],
                              .tag = kTag,
                              .output = room,
                              .limit = std::max(Millis{1}, deadline.left())};
    engine_->progress(engine_->submit({&operation, 1}), deadline);
  };
  int64_t length = 0;
  take({&length, 1, DType::int64});
  TUTTI_CHECK(length >= 0 && length <= kMaxBytes, "a text of {} bytes", length);
  std::string text(static_cast<size_t>(length), '\0');
  take({text.data(), length, DType::uint8});
  return text;
}

/// The first member gathers all texts and gives them to the others.
std::vector<std::string> EngineMeeting::exchange(std::string_view /*key*/, std::string_view mine,
                                                 const Deadline& deadline) {
  if (rank_ != 0) {
    send(0, std::string(mine), deadline);
    return unpacked(receive(0, deadline));
  }
  std::vector<std::string> texts = {std::string(mine)};
  for (int r = 1; r < size(); ++r) texts.push_back(receive(r, deadline));
  const std::string all = packed(texts);
  for (int r = 1; r < size(); ++r) send(r, all, deadline);
  return texts;
}

}  // namespace tutti
