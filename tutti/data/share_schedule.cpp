#include "tutti/data/share_schedule.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/json.h"

namespace tutti::data {
namespace {

constexpr const char* kSharesFormat = "tutti shares 1";
constexpr int kDeepestShares = 4;  // a file needs 3

// Reads a file of shares, or says which field of it is not as it must be.
class SharesReader {
 public:
  explicit SharesReader(const std::filesystem::path& path) : path_(path) {}

  ShareSchedule read(std::string_view text, int replicas) const {
    const OrderedJson json = parse(text);
    if (!json.is_object() || json.value("format", OrderedJson()) != kSharesFormat)
      throw wrong(fmt::format(
          "its field format is {}, expected \"{}\"",
          json.is_object() && json.contains("format") ? dump_json(json.at("format")) : "not there",
          kSharesFormat));
    if (const int64_t of = whole(json, "replicas"); of != replicas)
      throw wrong(
          fmt::format("its field replicas is {}, but here are {}; train with {} replicas, or with "
                      "shares of these",
                      of, replicas, of));
    ShareSchedule schedule;
    for (const OrderedJson& change : list(json, "changes")) {
      SharesFrom& from = schedule.changes.emplace_back(SharesFrom{whole(change, "step"), {}});
      for (const OrderedJson& share : list(change, "shares"))
        from.shares.push_back(whole_number(share, "a share"));
    }
    if (const std::string why = schedule.objection(replicas); !why.empty()) throw wrong(why);
    return schedule;
  }

 private:
  UsageError wrong(const std::string& what) const {
    return UsageError(fmt::format("shares of {}: {}", path_.string(), what));
  }

  OrderedJson parse(std::string_view text) const {
    try {
      return parse_json<OrderedJson>(text, kDeepestShares);
    } catch (const JsonError& error) {
      throw wrong(fmt::format("cannot be read as JSON: {}", error.what()));
    }
  }

  const OrderedJson& field(const OrderedJson& of, const char* name) const {
    if (!of.is_object() || !of.contains(name))
      throw wrong(fmt::format("its field {} is not there", name));
    return of.at(name);
  }
  int64_t whole_number(const OrderedJson& got, const char* name) const {
    const bool whole =
        got.is_number_unsigned() && got.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX);
    if (!whole)
      throw wrong(
          fmt::format("{} is {}, expected a whole number, 0 or more", name, dump_json(got)));
    return got.get<int64_t>();
  }
  int64_t whole(const OrderedJson& of, const char* name) const {
    return whole_number(field(of, name), name);
  }
  const OrderedJson& list(const OrderedJson& of, const char* name) const {
    const OrderedJson& got = field(of, name);
    if (!got.is_array())
      throw wrong(fmt::format("{} is {}, expected a list", name, dump_json(got)));
    return got;
  }

  const std::filesystem::path& path_;
};

}  // namespace

std::vector<double> ShareSchedule::at(int64_t step) const {
  const auto after = std::ranges::upper_bound(changes, step, {}, &SharesFrom::step);
  if (after == changes.begin()) return {};
  const std::vector<int64_t>& shares = std::prev(after)->shares;
  return {shares.begin(), shares.end()};
}

int64_t ShareSchedule::next_change(int64_t step) const {
  const auto after = std::ranges::upper_bound(changes, step, {}, &SharesFrom::step);
  return after == changes.end() ? -1 : after->step;
}

void ShareSchedule::cut(int64_t step) {
  std::erase_if(changes, [&](const SharesFrom& change) { return change.step >= step; });
}

std::string ShareSchedule::objection(int replicas) const {
  int64_t before = -1;
  for (const auto& [step, shares] : changes) {
    if (step <= before)
      return fmt::format("a change is at step {}, after one at {}; expected steps that grow", step,
                         before);
    before = step;
    const auto bad = std::ranges::find_if_not(
        shares, [](int64_t share) { return share >= 1 && share <= kMostShare; });
    if (bad != shares.end())
      return fmt::format(
          "the shares from step {}: that of replica {} is {}, expected 1 to {}: a replica with "
          "nothing to do is better left out (fewer replicas)",
          step, bad - shares.begin(), *bad, kMostShare);
    if (std::ssize(shares) != replicas)
      return fmt::format("the shares from step {} are [{}], expected {}, one a replica", step,
                         fmt::join(shares, ", "), replicas);
  }
  return {};
}

std::string ShareSchedule::to_json(int replicas) const {
  OrderedJson json = {
      {"format", kSharesFormat}, {"replicas", replicas}, {"changes", OrderedJson::array()}};
  for (const auto& [step, shares] : changes)
    json["changes"].push_back({{"step", step}, {"shares", shares}});
  return dump_json(json, 1) + "\n";
}

ShareSchedule ShareSchedule::from_json(std::string_view text, int replicas,
                                       const std::filesystem::path& path) {
  return SharesReader(path).read(text, replicas);
}

}  // namespace tutti::data
