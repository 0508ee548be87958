#include "tutti/ps/partition/cursor.h"

#include <fmt/format.h>

#include <algorithm>

#include "tutti/base/agreed_lines.h"
#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/json_numbers.h"
#include "tutti/ps/spec/detail/json_fields.h"

namespace tutti::ps {
namespace {

using detail::read_json;
using detail::whole_number;

constexpr int64_t kMostBatches = int64_t{1} << 60;

// Dataset and epoch.
std::pair<int, int64_t> key_from(const Json& dataset, const Json& epoch) {
  return {whole_number<int>(dataset, "a dataset"),
          whole_number<int64_t>(epoch, "an epoch", 0, kMostBatches)};
}

}  // namespace

std::string to_text(const LeaseRequest& request) {
  return dump_json(Json{request.dataset, request.epoch, request.num_batches, request.returned,
                        json_of(request.sums), request.agreed});
}

LeaseRequest lease_request_from(std::string_view text) {
  return read_json(text, "a request for a batch", [](const Json& list) {
    return LeaseRequest{list.at(0), list.at(1), list.at(2), list.at(3), doubles_from(list.at(4)),
                        list.at(5)};
  });
}

std::string to_text(const Lease& lease) {
  return dump_json(
      Json{lease.batch, lease.repeated, json_of(lease.sums), lease.repeats, lease.past});
}

Lease lease_from(std::string_view text) {
  return read_json(text, "a lease of a batch", [](const Json& list) {
    return Lease{list.at(0), list.at(1), doubles_from(list.at(2)), list.at(3), list.at(4)};
  });
}

std::string Cursor::objection(const LeaseRequest& request) const {
  const Key key(request.dataset, request.epoch);
  const auto found = epochs_.find(key);
  if (found != epochs_.end()) {
    const Epoch& epoch = found->second;
    if (!epoch.agreed.empty() && !request.agreed.empty())
      if (const auto lines = first_difference(epoch.agreed, request.agreed))
        return fmt::format(
            "epoch {}: this worker was asked for something else than those before it\n"
            "  they have {}\n  it has {}\n"
            "  every worker makes the same calls, with the same options and data",
            request.epoch, lines->first, lines->other);
    if (epoch.num_batches < 0 ? epoch.next <= request.num_batches
                              : epoch.num_batches == request.num_batches)
      return "";
    return fmt::format("epoch {} has {} batches, not {}", request.epoch,
                       epoch.num_batches < 0 ? fmt::format("{} or more", epoch.next)
                                             : std::to_string(epoch.num_batches),
                       request.num_batches);
  }
  if (is_past(key)) return "";
  const auto before = epochs_.find({request.dataset, request.epoch - 1});
  const bool next = request.epoch == 0 || (before != epochs_.end() && before->second.over());
  if (next && request.num_batches >= 0) return "";
  return fmt::format("epoch {} of {} batches cannot begin: the one before is not over",
                     request.epoch, request.num_batches);
}

// Before the first that is known of its dataset.
bool Cursor::is_past(const Key& key) const {
  const auto first = epochs_.lower_bound({key.first, 0});
  return key.second >= 0 && first != epochs_.end() && first->first.first == key.first &&
         key.second < first->first.second;
}

void Cursor::ask(int worker, const LeaseRequest& request) {
  if (const std::string why = objection(request); !why.empty()) throw Error(why);
  const Key key(request.dataset, request.epoch);
  asked_[worker] = key;
  if (is_past(key)) return;
  const auto [place, fresh] = epochs_.try_emplace(key);
  Epoch& epoch = place->second;
  if (fresh) epochs_.erase({request.dataset, request.epoch - 2});
  epoch.num_batches = request.num_batches;
  if (epoch.agreed.empty()) epoch.agreed = request.agreed;
  if (request.returned < 0) return;
  const auto out = epoch.out.find(request.returned);
  // Another worker has it by now: this one was taken for lost.
  if (out == epoch.out.end() || out->second != worker) return;
  epoch.out.erase(out);
  add(epoch, request.sums);
}

void Cursor::add(Epoch& epoch, const std::vector<double>& sums) {
  epoch.sums.resize(std::max(epoch.sums.size(), sums.size()));
  for (size_t i = 0; i < sums.size(); ++i) epoch.sums[i] += sums[i];
}

void Cursor::record(const LeaseRequest& request) {
  const Key key(request.dataset, request.epoch);
  if (request.returned < 0 || is_past(key)) return;
  Epoch& epoch = epochs_.try_emplace(key, Epoch{.num_batches = request.num_batches}).first->second;
  const int64_t batch = request.returned;
  const bool had = epoch.out.erase(batch) > 0 || std::erase(epoch.again, batch) > 0;
  // Batches that were given out meanwhile and are not done are to be done again.
  if (!had && batch < epoch.next) return;
  if (!had) {
    for (; epoch.next < batch; ++epoch.next) epoch.again.push_back(epoch.next);
    ++epoch.next;
  }
  add(epoch, request.sums);
}

void Cursor::reopen() {
  asked_.clear();
  for (auto& [key, epoch] : epochs_) {
    for (const auto& [batch, worker] : epoch.out) epoch.again.push_back(batch);
    epoch.out.clear();
    std::ranges::sort(epoch.again);
    epoch.num_batches = -1;
    epoch.agreed.clear();
  }
}

std::vector<std::pair<int, Lease>> Cursor::answers(const std::function<bool(int worker)>& may) {
  std::vector<std::pair<int, Lease>> answered;
  for (const auto& [worker, key] : asked_) {
    const auto epoch = epochs_.find(key);
    if (epoch != epochs_.end() && !epoch->second.over() && !may(worker)) continue;
    if (auto lease = answer(worker, key)) answered.emplace_back(worker, std::move(*lease));
  }
  for (const auto& [worker, lease] : answered) asked_.erase(worker);
  return answered;
}

std::optional<Lease> Cursor::answer(int worker, const Key& key) {
  if (!epochs_.contains(key)) return Lease{.past = true};
  Epoch& epoch = epochs_.at(key);
  if (epoch.over()) return Lease{.sums = epoch.sums, .repeats = epoch.repeats};
  Lease lease;
  if (!epoch.again.empty()) {
    lease = {.batch = epoch.again.front(), .repeated = true};
    epoch.again.pop_front();
  } else if (epoch.next < epoch.num_batches) {
    lease.batch = epoch.next++;
  } else {
    return std::nullopt;
  }
  epoch.out[lease.batch] = worker;
  return lease;
}

void Cursor::leave(int worker) {
  asked_.erase(worker);
  for (auto& [key, epoch] : epochs_)
    std::erase_if(epoch.out, [&, &epoch = epoch](const auto& entry) {
      if (entry.second != worker) return false;
      epoch.again.push_back(entry.first);
      ++epoch.repeats;
      return true;
    });
}

std::string Cursor::to_text() const {
  Json text = {{"epochs", Json::array()}, {"asked", Json::array()}};
  for (const auto& [key, epoch] : epochs_) {
    Json out = Json::array();
    for (const auto& [batch, worker] : epoch.out) out.push_back({batch, worker});
    text["epochs"].push_back({key.first, key.second, epoch.num_batches, epoch.next, out,
                              epoch.again, json_of(epoch.sums), epoch.repeats});
  }
  for (const auto& [worker, key] : asked_) text["asked"].push_back({worker, key.first, key.second});
  return dump_json(text);
}

void Cursor::restore(std::string_view bytes) {
  read_json(bytes, "a cursor", [this](const Json& text) {
    for (const Json& e : text.at("epochs")) {
      Epoch& epoch = epochs_[key_from(e.at(0), e.at(1))];
      epoch.num_batches = whole_number<int64_t>(e.at(2), "batches of an epoch", -1, kMostBatches);
      epoch.next = whole_number<int64_t>(e.at(3), "the next batch", 0, kMostBatches);
      const auto batch = [&](const Json& value) {
        return whole_number<int64_t>(value, "a batch that was given out", 0, epoch.next - 1);
      };
      for (const Json& out : e.at(4))
        epoch.out[batch(out.at(0))] = whole_number<int>(out.at(1), "its worker", 0);
      for (const Json& again : e.at(5)) epoch.again.push_back(batch(again));
      epoch.sums = doubles_from(e.at(6));
      epoch.repeats = whole_number<int64_t>(e.at(7), "repeated batches", 0, kMostBatches);
    }
    for (const Json& a : text.at("asked"))
      asked_[whole_number<int>(a.at(0), "a worker that asks", 0)] = key_from(a.at(1), a.at(2));
  });
}

}  // namespace tutti::ps
