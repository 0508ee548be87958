#include "tutti/ps/partition/cut_part.h"

#include <fmt/format.h>

#include "tutti/base/json.h"
#include "tutti/ps/spec/detail/json_fields.h"

namespace tutti::ps {
namespace {

std::string step_words(const CutPart& part) {
  return fmt::format("partition {} has step {}", part.partition, part.step);
}

// -1: it has not marked it.
int64_t step_of(const CutPart& part, int worker) {
  const auto mark = part.marks->find(worker);
  return mark == part.marks->end() ? -1 : mark->second;
}

std::string mark_words(const CutPart& part, int worker) {
  const int64_t step = step_of(part, worker);
  if (step < 0) return fmt::format("partition {} has no mark of worker {}", part.partition, worker);
  return fmt::format("partition {} has worker {} up to step {}", part.partition, worker, step);
}

std::string objection_to_steps(const std::vector<CutPart>& parts) {
  const CutPart* first = nullptr;
  for (const CutPart& part : parts) {
    if (part.step < 0) continue;
    for (size_t table = 0; table < part.tables.size(); ++table)
      if (part.tables[table] != part.step)
        return fmt::format("{}, its embedding table {} step {}", step_words(part), table,
                           part.tables[table]);
    if (first == nullptr) first = &part;
    if (part.step != first->step)
      return fmt::format("{}, {}", step_words(*first), step_words(part));
  }
  return "";
}

std::string objection_to_marks(const std::vector<CutPart>& parts) {
  const CutPart& first = parts.front();
  for (const CutPart& part : parts) {
    if (part.marks == first.marks) continue;
    std::map<int, int64_t> all = *first.marks;
    all.insert(part.marks->begin(), part.marks->end());
    for (const auto& [worker, step] : all)
      if (step_of(first, worker) != step_of(part, worker))
        return fmt::format("{}, {}", mark_words(first, worker), mark_words(part, worker));
  }
  return "";
}

}  // namespace

std::optional<std::string> sums_of(const Spec& spec) {
  if (!spec.staleness.synchronous()) return std::nullopt;
  return spec.on_lost_worker == OnLostWorker::go_on ? "those left" : "all workers";
}

std::string to_text(const CutPart& part) {
  Json text = {{"partition", part.partition}, {"step", part.step}, {"tables", part.tables}};
  if (part.sums_of) text["sums_of"] = *part.sums_of;
  if (part.marks) {
    text["marks"] = Json::array();
    for (const auto& [worker, step] : *part.marks) text["marks"].push_back({worker, step});
  }
  return dump_json(text);
}

CutPart cut_part_from(std::string_view text) {
  return detail::read_json(text, "a part of a cut", [&](const Json& facts) {
    CutPart part{.partition = facts.at("partition"),
                 .step = facts.at("step"),
                 .tables = facts.at("tables").get<std::vector<int64_t>>()};
    if (facts.contains("sums_of")) part.sums_of = facts.at("sums_of").get<std::string>();
    if (!facts.contains("marks")) return part;
    part.marks.emplace();
    for (const Json& mark : facts.at("marks")) (*part.marks)[mark.at(0)] = mark.at(1);
    return part;
  });
}

std::string objection_to_cut(const std::vector<CutPart>& parts) {
  if (parts.empty()) return "it has no partition";
  for (const CutPart& part : parts)
    if (part.marks.has_value() != parts.front().marks.has_value())
      return fmt::format("partition {} is in step and partition {} is not",
                         (part.marks ? parts.front() : part).partition,
                         (part.marks ? part : parts.front()).partition);
  return parts.front().marks ? objection_to_marks(parts) : objection_to_steps(parts);
}

}  // namespace tutti::ps
