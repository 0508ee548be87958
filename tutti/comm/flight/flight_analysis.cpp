#include "tutti/comm/flight/flight_analysis.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "tutti/base/error.h"

namespace tutti {
namespace {

using State = FlightOperation::State;
using Ranks = std::vector<int>;

/// One group, as all its members' records have it.
struct View {
  std::string name;
  std::string engine;
  std::vector<const FlightGroup*> members;  ///< by rank; null where there is no record
  std::vector<const FlightFile*> files;     ///< by rank

  /// Collectives of a rank by their number.
  std::map<uint64_t, const FlightOperation*> collectives(int rank) const {
    std::map<uint64_t, const FlightOperation*> all;
    for (const auto& operation : members[static_cast<size_t>(rank)]->operations) {
      if (!detail::is_message(operation.call.collective)) all[operation.number] = &operation;
    }
    return all;
  }
  Ranks recorded() const {
    return ranks_where([](const auto* group) { return group != nullptr; });
  }
  Ranks missing() const {
    return ranks_where([](const auto* group) { return group == nullptr; });
  }

 private:
  template <class Condition>
  Ranks ranks_where(const Condition& condition) const {
    Ranks ranks;
    for (size_t r = 0; r < members.size(); ++r) {
      if (condition(members[r])) ranks.push_back(static_cast<int>(r));
    }
    return ranks;
  }
};

/// "rank 3", "ranks 0, 1 and 3", "ranks 0 to 63".
std::string words(const Ranks& ranks) {
  if (ranks.size() == 1) return fmt::format("rank {}", ranks[0]);
  const bool in_a_row = ranks.back() - ranks.front() + 1 == static_cast<int>(ranks.size());
  if (ranks.size() > 3 && in_a_row) {
    return fmt::format("ranks {} to {}", ranks.front(), ranks.back());
  }
  std::string text = "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    const char* between = i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ";
    text += fmt::format("{}{}", between, ranks[i]);
  }
  return text;
}

std::string words(const FlightOperation& operation) {
  const std::string call = detail::words_of(operation.call);
  if (operation.file.empty()) return fmt::format("{} ({})", call, operation.function);
  return fmt::format("{} at {} ({})", call, detail::place_words(operation.file, operation.line),
                     operation.function);
}

/// What one group's records say.
struct Finding {
  std::string text;
  Ranks suspects;
  bool notable = false;

  void add(const std::string& line) { text += "  " + line + "\n"; }
};

using Calls = std::map<int, std::map<uint64_t, const FlightOperation*>>;  // by rank, by number

/// The first number under which two ranks called different things.
std::optional<uint64_t> first_difference(const Calls& calls) {
  std::map<uint64_t, const FlightOperation*> first;
  std::optional<uint64_t> found;
  for (const auto& [rank, operations] : calls) {
    for (const auto& [number, operation] : operations) {
      const auto [reference, is_new] = first.emplace(number, operation);
      if (is_new || detail::agree(reference->second->call, operation->call)) continue;
      if (!found || number < *found) found = number;
    }
  }
  return found;
}

/// Whether `odd` from `number` on did what `other` did one call later: it left a call out.
bool left_out(const std::map<uint64_t, const FlightOperation*>& odd,
              const std::map<uint64_t, const FlightOperation*>& other, uint64_t number) {
  int equal = 0;
  for (auto mine = odd.find(number); mine != odd.end(); ++mine) {
    const auto later = other.find(mine->first + 1);
    if (later == other.end()) break;
    if (!detail::agree(mine->second->call, later->second->call)) return false;
    ++equal;
  }
  return equal > 0;
}

void tell_difference(const Calls& calls, uint64_t number, Finding& finding) {
  // Ranks that called the same, in order of their lowest rank.
  std::vector<std::pair<const FlightOperation*, Ranks>> camps;
  for (const auto& [rank, operations] : calls) {
    const auto at = operations.find(number);
    if (at == operations.end()) continue;
    const auto camp = std::find_if(camps.begin(), camps.end(), [&](const auto& known) {
      return detail::agree(known.first->call, at->second->call);
    });
    if (camp == camps.end()) {
      camps.push_back({at->second, {rank}});
    } else {
      camp->second.push_back(rank);
    }
  }
  finding.notable = true;
  finding.add(fmt::format("different calls under one number, #{}:", number));
  for (const auto& [operation, ranks] : camps) {
    finding.add(fmt::format("  {} called {}", words(ranks), words(*operation)));
  }
  const auto largest = std::max_element(
      camps.begin(), camps.end(),
      [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  for (const auto& [operation, ranks] : camps) {
    // Of two equal camps nobody can say which is wrong.
    if (ranks.size() == largest->second.size()) continue;
    for (const int rank : ranks) {
      finding.suspects.push_back(rank);
      if (left_out(calls.at(rank), calls.at(largest->second[0]), number)) {
        finding.add(
            fmt::format("  rank {} seems to have left out #{}: from there on it called what "
                        "the others called one later",
                        rank, number));
      }
    }
  }
}

void tell_progress(const Calls& calls, Finding& finding) {
  uint64_t furthest = 0;
  for (const auto& [rank, operations] : calls) {
    if (!operations.empty()) furthest = std::max(furthest, operations.rbegin()->first);
  }
  Ranks inside;
  Ranks finished;
  Ranks behind;
  const FlightOperation* last = nullptr;
  for (const auto& [rank, operations] : calls) {
    const auto at = operations.find(furthest);
    if (at == operations.end()) {
      behind.push_back(rank);
      continue;
    }
    if (last == nullptr) last = at->second;
    (at->second->state == State::done ? finished : inside).push_back(rank);
  }
  if (last == nullptr || (inside.empty() && behind.empty())) return;
  finding.notable = true;
  if (!inside.empty()) {
    finding.add(fmt::format("{} {} in #{}, {}", words(inside), inside.size() == 1 ? "is" : "are",
                            furthest, words(*calls.at(inside[0]).at(furthest))));
  }
  if (!finished.empty()) {
    finding.add(fmt::format("{} {} finished #{}{}", words(finished),
                            finished.size() == 1 ? "has" : "have", furthest,
                            inside.empty() ? ", " + words(*last) : ""));
  }
  for (const int rank : behind) {
    const auto& operations = calls.at(rank);
    std::string did = "it has called nothing";
    if (!operations.empty()) {
      const auto& [number, operation] = *operations.rbegin();
      did = fmt::format("its last call was #{}, {}, {}", number, words(*operation),
                        operation->state == State::done ? "which is done" : "in which it is");
    }
    finding.add(fmt::format("rank {} is behind: {}", rank, did));
  }
  // Whoever is furthest behind keeps the others waiting.
  uint64_t least = furthest;
  for (const int rank : behind) {
    least = std::min(least, calls.at(rank).empty() ? 0 : calls.at(rank).rbegin()->first);
  }
  for (const int rank : behind) {
    const uint64_t reached = calls.at(rank).empty() ? 0 : calls.at(rank).rbegin()->first;
    if (reached == least) finding.suspects.push_back(rank);
  }
}

void tell_messages(const View& view, Finding& finding) {
  for (const int rank : view.recorded()) {
    const auto& operations = view.members[static_cast<size_t>(rank)]->operations;
    const auto waiting =
        std::find_if(operations.begin(), operations.end(), [](const FlightOperation& operation) {
          return detail::is_message(operation.call.collective) && operation.state != State::done;
        });
    if (waiting == operations.end()) continue;
    finding.notable = true;
    finding.add(fmt::format("rank {} has a message that is not done: {}", rank, words(*waiting)));
  }
}

void tell_failures(const View& view, Finding& finding) {
  Ranks failed;
  for (const int rank : view.recorded()) {
    if (!view.members[static_cast<size_t>(rank)]->failure.empty()) failed.push_back(rank);
  }
  if (failed.empty()) return;
  finding.notable = true;
  finding.add(fmt::format("{} ended with an error; rank {}'s:", words(failed), failed[0]));
  const std::string& text = view.members[static_cast<size_t>(failed[0])]->failure;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    finding.add("  " + text.substr(begin, end - begin));
    begin = end + 1;
  }
}

std::string who(const View& view, int rank) {
  const FlightRecord& record = view.files[static_cast<size_t>(rank)]->record;
  return fmt::format("rank {} (pid {} on {}, {})", rank, record.pid, record.host,
                     view.files[static_cast<size_t>(rank)]->name);
}

Finding look_at(const View& view) {
  Finding finding;
  Calls calls;
  for (const int rank : view.recorded()) calls[rank] = view.collectives(rank);
  const auto difference = first_difference(calls);
  if (difference) tell_difference(calls, *difference, finding);
  // After a difference the numbers mean different things: who is behind says nothing.
  if (!difference) tell_progress(calls, finding);
  tell_messages(view, finding);
  tell_failures(view, finding);
  const Ranks missing = view.missing();
  if (!missing.empty()) {
    finding.notable = true;
    finding.add(
        fmt::format("no record of {}: killed, stopped, still running, or its file was not "
                    "given",
                    words(missing)));
  }
  if (!finding.suspects.empty()) {
    std::string names;
    for (const int rank : finding.suspects) {
      names += (names.empty() ? "" : ", ") + who(view, rank);
    }
    finding.add("look first at " + names);
  } else if (!missing.empty() && finding.notable) {
    finding.add("look first at " + words(missing));
  }
  if (!finding.notable) finding.add("all ranks agree, and nothing is unfinished");
  return finding;
}

void add_member(std::vector<View>& views, const FlightFile& file, const FlightGroup& group) {
  auto view = std::find_if(views.begin(), views.end(),
                           [&](const View& known) { return known.name == group.name; });
  const auto size = static_cast<size_t>(group.size);
  if (view == views.end()) {
    views.push_back({group.name, group.engine, {}, {}});
    view = views.end() - 1;
    view->members.resize(size);
    view->files.resize(size);
  }
  if (view->members.size() != size) {
    throw DataError(fmt::format("{}: group \"{}\" has {} ranks, in the other files {}", file.name,
                                group.name, group.size, view->members.size()));
  }
  const auto rank = static_cast<size_t>(group.rank);
  if (view->members[rank] != nullptr) {
    throw DataError(fmt::format("{} and {}: both are of rank {} of group \"{}\"",
                                view->files[rank]->name, file.name, group.rank, group.name));
  }
  view->members[rank] = &group;
  view->files[rank] = &file;
}

std::string head(std::span<const FlightFile> files) {
  const FlightRecord& first = files[0].record;
  std::set<int> workers;
  for (const FlightFile& file : files) {
    if (file.record.job != first.job) {
      throw UsageError(
          fmt::format("{} is of job \"{}\", {} of job \"{}\": give the files of one job",
                      files[0].name, first.job, file.name, file.record.job));
    }
    workers.insert(file.record.worker);
  }
  std::string text = fmt::format("{} file{}", files.size(), files.size() == 1 ? "" : "s");
  if (!first.job.empty()) text += fmt::format(" of job {}", first.job);
  std::string missing;
  for (int worker = 0; worker < first.num_workers; ++worker) {
    if (!workers.contains(worker))
      missing += fmt::format("{}{}", missing.empty() ? "" : ", ", worker);
  }
  if (!missing.empty()) {
    text += fmt::format("; of {} workers these are missing: {}", first.num_workers, missing);
  }
  return text + "\n";
}

}  // namespace

std::string analyse_flight_records(std::span<const FlightFile> files) {
  if (files.empty()) throw UsageError("no flight records were given");
  std::string text = head(files);
  std::vector<View> views;
  for (const FlightFile& file : files) {
    for (const FlightGroup& group : file.record.groups) add_member(views, file, group);
  }
  if (views.empty()) text += "no groups of several ranks were alive when they were written\n";
  std::string quiet;
  for (const View& view : views) {
    const Finding finding = look_at(view);
    (finding.notable ? text : quiet) +=
        fmt::format("\ngroup \"{}\" of {} ranks, engine {}\n{}", view.name, view.members.size(),
                    view.engine, finding.text);
  }
  return text + quiet;
}

}  // namespace tutti
