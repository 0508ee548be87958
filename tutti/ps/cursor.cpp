#include "tutti/ps/cursor.h"

#include <fmt/format.h>

#include <algorithm>

#include <nlohmann/json.hpp>

#include "tutti/base/error.h"

namespace tutti::ps {
namespace {

using nlohmann::json;

template <class Read>
auto parsed(std::string_view text, const char* what, Read&& read) {
  try {
    return read(json::parse(text));
  } catch (const json::exception& error) {
    throw Error(fmt::format("{} cannot be read: {}", what, error.what()));
  }
}

}  // namespace

std::string to_text(const LeaseRequest& request) {
  return json{request.dataset, request.epoch, request.num_batches, request.returned, request.sums}
      .dump();
}

LeaseRequest lease_request_from(std::string_view text) {
  return parsed(text, "a request for a batch", [](const json& list) {
    return LeaseRequest{list.at(0), list.at(1), list.at(2), list.at(3), list.at(4)};
  });
}

std::string to_text(const Lease& lease) {
  return json{lease.batch, lease.repeated, lease.sums, lease.repeats}.dump();
}

Lease lease_from(std::string_view text) {
  return parsed(text, "a lease of a batch", [](const json& list) {
    return Lease{list.at(0), list.at(1), list.at(2), list.at(3)};
  });
}

std::string Cursor::objection(const LeaseRequest& request) const {
  const auto found = epochs_.find({request.dataset, request.epoch});
  if (found != epochs_.end() && found->second.num_batches != request.num_batches)
    return fmt::format("epoch {} has {} batches, not {}", request.epoch, found->second.num_batches,
                       request.num_batches);
  if (found != epochs_.end()) return "";
  const auto before = epochs_.find({request.dataset, request.epoch - 1});
  const bool next = request.epoch == 0 || (before != epochs_.end() && before->second.over());
  if (next && request.num_batches >= 0) return "";
  return fmt::format("epoch {} of {} batches cannot begin: the one before is not over",
                     request.epoch, request.num_batches);
}

void Cursor::ask(int worker, const LeaseRequest& request) {
  if (const std::string why = objection(request); !why.empty()) throw Error(why);
  const auto [place, fresh] = epochs_.try_emplace({request.dataset, request.epoch});
  Epoch& epoch = place->second;
  if (fresh) {
    epoch.num_batches = request.num_batches;
    epochs_.erase({request.dataset, request.epoch - 2});
  }
  if (request.returned >= 0) {
    const auto out = epoch.out.find(request.returned);
    // Another worker has it by now: this one was taken for lost.
    if (out != epoch.out.end() && out->second == worker) {
      epoch.out.erase(out);
      epoch.sums.resize(std::max(epoch.sums.size(), request.sums.size()));
      for (size_t i = 0; i < request.sums.size(); ++i) epoch.sums[i] += request.sums[i];
    }
  }
  asked_[worker] = {request.dataset, request.epoch};
}

std::vector<std::pair<int, Lease>> Cursor::answers(const std::function<bool(int worker)>& may) {
  std::vector<std::pair<int, Lease>> answered;
  for (const auto& [worker, key] : asked_) {
    Epoch& epoch = epochs_.at(key);
    if (!epoch.over() && !may(worker)) continue;
    if (auto lease = answer(worker, epoch)) answered.emplace_back(worker, std::move(*lease));
  }
  for (const auto& [worker, lease] : answered) asked_.erase(worker);
  return answered;
}

std::optional<Lease> Cursor::answer(int worker, Epoch& epoch) {
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
  json text = {{"epochs", json::array()}, {"asked", json::array()}};
  for (const auto& [key, epoch] : epochs_) {
    json out = json::array();
    for (const auto& [batch, worker] : epoch.out) out.push_back({batch, worker});
    text["epochs"].push_back({key.first, key.second, epoch.num_batches, epoch.next, out,
                              epoch.again, epoch.sums, epoch.repeats});
  }
  for (const auto& [worker, key] : asked_) text["asked"].push_back({worker, key.first, key.second});
  return text.dump();
}

void Cursor::restore(std::string_view bytes) {
  parsed(bytes, "a cursor", [this](const json& text) {
    for (const json& e : text.at("epochs")) {
      Epoch& epoch = epochs_[{e.at(0), e.at(1)}];
      epoch = {e.at(2), e.at(3), {}, e.at(5), e.at(6), e.at(7)};
      for (const json& out : e.at(4)) epoch.out[out.at(0)] = out.at(1);
    }
    for (const json& a : text.at("asked")) asked_[a.at(0)] = {a.at(1), a.at(2)};
    return true;
  });
}

}  // namespace tutti::ps
