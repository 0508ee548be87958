#include "tutti/ps/partition/meetings.h"

#include <fmt/format.h>

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/ps/spec/detail/json_fields.h"

namespace tutti::ps {
namespace {

constexpr int64_t kMostKept = int64_t{64} << 20;  // bytes of values of meetings that are over

int64_t bytes_of(const Brought& values) {
  int64_t bytes = 0;
  for (const auto& [worker, value] : values) bytes += value.size();
  return bytes;
}

}  // namespace

void Meetings::begins(int worker, int64_t step) { begins_[worker] = step; }

std::string Meetings::objection(const Session& session) const {
  if (session > last_ || over_.contains(session)) return "";
  return fmt::format(
      "meeting {} after {} steps is over, and what was brought is not known any more",
      session.number, session.step);
}

void Meetings::bring(int worker, const Session& session, const Bytes& value) {
  if (session > last_) open_[session].try_emplace(worker, Bytes::copy_of(value.span));
}

bool Meetings::has_brought(int worker, const Session& session) const {
  const auto open = open_.find(session);
  return open != open_.end() && open->second.contains(worker);
}

std::vector<int> Meetings::waits_for(const Session& session, const std::vector<int>& here) const {
  std::vector<int> missing;
  for (const int worker : here) {
    const auto begins = begins_.find(worker);
    const bool comes = begins == begins_.end() || begins->second < session.step;
    if (comes && !has_brought(worker, session)) missing.push_back(worker);
  }
  return missing;
}

std::vector<Meetings::Session> Meetings::end(const std::vector<int>& here) {
  std::vector<Session> ended;
  while (!open_.empty() && waits_for(open_.begin()->first, here).empty()) {
    last_ = open_.begin()->first;
    over_.insert(open_.extract(open_.begin()));
    ended.push_back(last_);
  }
  if (!ended.empty()) forget_old();
  return ended;
}

void Meetings::forget_old() {
  std::erase_if(over_, [this](const auto& entry) { return entry.first.step < last_.step; });
  int64_t bytes = 0;
  for (const auto& [session, values] : over_) bytes += bytes_of(values);
  while (bytes > kMostKept && over_.size() > 1) {
    bytes -= bytes_of(over_.begin()->second);
    over_.erase(over_.begin());
  }
}

const Brought* Meetings::values(const Session& session) const {
  const auto over = over_.find(session);
  return over == over_.end() ? nullptr : &over->second;
}

std::vector<std::pair<std::string, Bytes>> Meetings::chunks() const {
  std::vector<std::pair<std::string, Bytes>> chunks;
  Json begins = Json::array();
  for (const auto& [worker, step] : begins_) begins.push_back({worker, step});
  chunks.emplace_back(dump_json(Json{last_.step, last_.number, begins}), Bytes{});
  for (const auto* const meetings : {&open_, &over_})
    for (const auto& [session, values] : *meetings) {
      auto [sizes, payload] = packed(values);
      chunks.emplace_back(dump_json(Json{meetings == &over_, session.step, session.number, sizes}),
                          std::move(payload));
    }
  return chunks;
}

void Meetings::take(std::string_view text, const Bytes& payload) {
  return detail::read_json(text, "a meeting", [&](const Json& list) {
    if (list.size() == 3) {
      last_ = {list.at(0), list.at(1)};
      for (const Json& entry : list.at(2)) begins_[entry.at(0)] = entry.at(1);
      return;
    }
    auto& meetings = list.at(0).get<bool>() ? over_ : open_;
    Brought& brought = meetings[{list.at(1), list.at(2)}];
    for (const auto& [worker, value] : unpacked(list.at(3).get<std::string>(), payload))
      brought[worker] = Bytes::copy_of(value.span);
  });
}

std::pair<std::string, Bytes> packed(const Brought& values) {
  Json sizes = Json::array();
  std::vector<std::byte> all;
  all.reserve(static_cast<size_t>(bytes_of(values)));
  for (const auto& [worker, value] : values) {
    sizes.push_back({worker, value.size()});
    all.insert(all.end(), value.span.begin(), value.span.end());
  }
  return {dump_json(sizes), Bytes::copy_of(all)};
}

Brought unpacked(std::string_view text, const Bytes& payload) {
  return detail::read_json(text, "values of a meeting", [&](const Json& sizes) {
    Brought values;
    int64_t at = 0;
    for (const Json& entry : sizes) {
      const int64_t bytes = entry.at(1);
      if (bytes < 0 || bytes > payload.size() - at)
        throw Error(
            fmt::format("values of a meeting: {} bytes of {} at {}", bytes, payload.size(), at));
      values[entry.at(0)] = {payload.span.subspan(at, bytes), payload.owner};
      at += bytes;
    }
    if (at != payload.size())
      throw Error(fmt::format("values of a meeting: {} bytes, {} told", payload.size(), at));
    return values;
  });
}

}  // namespace tutti::ps
