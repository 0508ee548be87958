#include "tutti/ps/meetings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include <nlohmann/json.hpp>

#include "tutti/base/error.h"

namespace tutti::ps {

std::string Meetings::objection(int worker, int64_t number) const {
  if (number == num_over_ + 1) return "";
  if (number == num_over_ && last_.contains(worker)) return "";
  return fmt::format("worker {} comes to meeting {}; {} are over", worker, number, num_over_);
}

void Meetings::bring(int worker, int64_t number, const Bytes& value) {
  if (number == num_over_ + 1) brought_.try_emplace(worker, Bytes::copy_of(value.span));
}

std::vector<int> Meetings::end_if_all(const std::vector<int>& here) {
  if (brought_.empty() ||
      !std::ranges::all_of(here, [&](int worker) { return brought_.contains(worker); }))
    return {};
  last_ = std::exchange(brought_, {});
  ++num_over_;
  std::vector<int> workers;
  for (const auto& [worker, value] : last_) workers.push_back(worker);
  return workers;
}

void Meetings::restore(int64_t num_over, std::map<int, Bytes> last, std::map<int, Bytes> next) {
  num_over_ = num_over;
  last_ = std::move(last);
  brought_ = std::move(next);
}

void pack(const std::map<int, Bytes>& values, Message& message) {
  nlohmann::json sizes = nlohmann::json::array();
  int64_t bytes = 0;
  for (const auto& [worker, value] : values) {
    sizes.push_back({worker, value.size()});
    bytes += value.size();
  }
  std::vector<std::byte> all;
  all.reserve(bytes);
  for (const auto& [worker, value] : values)
    all.insert(all.end(), value.span.begin(), value.span.end());
  message.text = sizes.dump();
  message.payload = Bytes::copy_of(all);
}

std::map<int, Bytes> unpack(const Message& message) {
  try {
    std::map<int, Bytes> values;
    int64_t at = 0;
    for (const auto& entry : nlohmann::json::parse(message.text)) {
      const int64_t bytes = entry.at(1);
      if (bytes < 0 || bytes > message.payload.size() - at)
        throw Error(fmt::format("values of a meeting: {} bytes of {} at {}", bytes,
                                message.payload.size(), at));
      values[entry.at(0)] = {message.payload.span.subspan(at, bytes), message.payload.owner};
      at += bytes;
    }
    if (at != message.payload.size())
      throw Error(
          fmt::format("values of a meeting: {} bytes, {} told", message.payload.size(), at));
    return values;
  } catch (const nlohmann::json::exception& error) {
    throw Error(fmt::format("values of a meeting cannot be read: {}", error.what()));
  }
}

}  // namespace tutti::ps
