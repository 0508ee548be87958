#include "tutti/plan/choose.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <tuple>
#include <utility>

#include "tutti/base/error.h"

namespace tutti::plan {
namespace {

/// What was looked at, and what came of it.
struct Found {
  std::vector<Candidate> candidates;
  int64_t too_large = 0, too_slow = 0;
  double fastest_too_slow = std::numeric_limits<double>::infinity();
};

void check(const Search& search) {
  const auto filled = [](const char* what, size_t size) {
    if (size == 0) throw UsageError(fmt::format("{}: none to choose from", what));
  };
  filled("hosts", search.hosts.size());
  filled("replicas of a host", search.replicas_per_host.size());
  filled("batches", search.batches.size());
  filled("kinds of exchange", search.kinds.size());
  filled("engines", search.engines.size());
  if (!(search.samples > 0))
    throw UsageError(fmt::format("samples: {}; expected more than 0", search.samples));
  if (!(search.noise_scale >= 0))
    throw UsageError(fmt::format("noise scale: {}; expected 0 or more", search.noise_scale));
  if (!(search.within > 0))
    throw UsageError(fmt::format("time: {} s; expected more than 0", search.within));
}

bool has_engine(const Job& kind) {
  return kind.exchange == Exchange::all_reduce && !kind.overlap && !kind.updates_each;
}

/// Whether it goes in pieces, so that their size is another job.
bool has_pieces(const Job& job) {
  if (job.exchange == Exchange::parameter_server) return true;
  const bool flat = job.engine == EngineKind::tcp && job.replicas_per_host > 1;
  return !job.overlap && !job.updates_each && job.hosts > 1 && !flat;
}

/// With what it leaves to strategies said.
Job said_in_full(Job job) {
  job.engine = engine_of(job);
  job.piece_bytes = has_pieces(job) ? piece_bytes_of(job) : 0;
  return job;
}

/// The kind of number `kind` with the hosts, replicas and batch of another job.
Job job_like(const Search& search, Job other, size_t kind, size_t engine) {
  Job job = search.kinds[kind];
  job.link = search.link;
  if (has_engine(job)) job.engine = search.engines[engine];
  job.hosts = other.hosts;
  job.replicas_per_host = other.replicas_per_host;
  job.batch = other.batch;
  return job;
}

/// Whether an engine or a kind before is the same job.
bool is_told_before(const Search& search, const Job& job, size_t kind, size_t engine) {
  const Job asked = said_in_full(job);
  for (size_t k = 0; k <= kind; ++k) {
    const size_t engines = has_engine(search.kinds[k]) ? search.engines.size() : 1;
    for (size_t e = 0; e < (k == kind ? engine : engines); ++e)
      if (said_in_full(job_like(search, job, k, e)) == asked) return true;
  }
  return false;
}

/// A kind with one of the engines: replicas, batches, hosts.
void add_jobs(const Search& search, size_t kind, size_t engine, std::vector<Job>& jobs) {
  for (int replicas : search.replicas_per_host)
    for (int64_t batch : search.batches)
      for (int hosts : search.hosts) {
        Job job = job_like(search, {.hosts = hosts, .replicas_per_host = replicas, .batch = batch},
                           kind, engine);
        if (is_told_before(search, job, kind, engine)) continue;
        if (!has_pieces(job)) job.piece_bytes = 0;
        jobs.push_back(job);
      }
}

Found find(const Machine& machine, const Search& search) {
  Found found;
  for (const Job& job : jobs_of(search)) {
    if (job.batch > machine.largest_batch(job.replicas_per_host)) {
      ++found.too_large;
      continue;
    }
    Candidate one{.prediction = predict(machine, job)};
    const double batch = static_cast<double>(job.batch) * job.replicas();
    one.seconds = samples_needed(search, batch) / one.prediction.samples_per_second;
    const int servers = job.exchange == Exchange::parameter_server ? job.servers : 0;
    one.host_seconds = one.seconds * (job.hosts + servers);
    if (one.seconds <= search.within) {
      found.candidates.push_back(std::move(one));
    } else {
      ++found.too_slow;
      found.fastest_too_slow = std::min(found.fastest_too_slow, one.seconds);
    }
  }
  return found;
}

const Candidate& best_of(const std::vector<Candidate>& candidates, Objective objective) {
  return *std::ranges::min_element(candidates, {}, [&](const Candidate& one) {
    const Job& job = one.prediction.job;
    return std::tuple(objective == Objective::time ? one.seconds : one.host_seconds, job.hosts,
                      job.batch);
  });
}

bool has_several_engines(const Job& job) {
  return has_engine(job) && job.hosts > 1 && job.replicas_per_host > 1;
}

/// How sums go, where there is a choice.
std::string way_of(const Job& job) {
  if (job.overlap && job.hosts > 1)
    return fmt::format("buckets of {:.3g} MiB", static_cast<double>(job.bucket_bytes) / (1 << 20));
  if (job.updates_each) return "reduction all_reduce";
  std::string way;
  if (has_several_engines(job))
    way = job.engine == EngineKind::tcp ? "engine tcp (a loop of your own)" : "engine hier";
  if (has_pieces(job) && job.piece_bytes != 0)
    way += fmt::format("{}pieces of {:.3g} MiB", way.empty() ? "" : ", ",
                       static_cast<double>(job.piece_bytes) / (1 << 20));
  return way;
}

std::string words_of(const Job& job) {
  std::string words = fmt::format("{} host{} of {} replica{}, batch {} a replica", job.hosts,
                                  job.hosts == 1 ? "" : "s", job.replicas_per_host,
                                  job.replicas_per_host == 1 ? "" : "s", job.batch);
  if (job.exchange == Exchange::parameter_server)
    words += fmt::format(", {} server{}, staleness {}", job.servers, job.servers == 1 ? "" : "s",
                         job.staleness == kAnyStaleness ? "inf" : std::to_string(job.staleness));
  const std::string way = way_of(job);
  return way.empty() ? words : words + ", " + way;
}

std::string duration(double seconds) {
  if (seconds < 1) return fmt::format("{:.3g} ms", 1e3 * seconds);
  if (seconds < 120) return fmt::format("{:.3g} s", seconds);
  if (seconds < 7200) return fmt::format("{:.3g} min", seconds / 60);
  return fmt::format("{:.4g} h", seconds / 3600);
}

/// The same job on the next larger number of hosts of the search, by its speed.
std::string of_more_hosts(const Machine& machine, const Search& search, const Candidate& best) {
  const Job& job = best.prediction.job;
  std::vector<int> more;
  std::ranges::copy_if(search.hosts, std::back_inserter(more),
                       [&](int n) { return n > job.hosts; });
  if (more.empty()) return "no larger number of hosts was asked for";
  Search next = search;
  next.hosts = {std::ranges::min(more)};
  next.within = std::numeric_limits<double>::infinity();
  const Found found = find(machine, next);
  if (found.candidates.empty()) return "more hosts do not fit";
  const Candidate& other = best_of(found.candidates, Objective::time);
  return fmt::format("{} hosts would take {} and {:.3g} times the host hours", next.hosts[0],
                     duration(other.seconds), other.host_seconds / best.host_seconds);
}

/// The same job but for engine, bucket, pieces and reduction, the best of those that take another
/// time; "" where there is none.
std::string by_another_way(const std::vector<Candidate>& candidates, const Search& search,
                           const Candidate& best) {
  constexpr double kAlike = 1e-3;
  const Job& chosen = best.prediction.job;
  std::vector<Candidate> others;
  std::ranges::copy_if(candidates, std::back_inserter(others), [&](const Candidate& one) {
    Job job = one.prediction.job;
    const bool other_time = std::abs(one.seconds - best.seconds) > kAlike * best.seconds;
    job.engine = chosen.engine;
    job.bucket_bytes = chosen.bucket_bytes;
    job.piece_bytes = chosen.piece_bytes;
    job.updates_each = chosen.updates_each;
    return other_time && job == chosen;
  });
  if (others.empty()) return "";
  const Candidate& other = best_of(others, search.objective);
  const std::string way = way_of(other.prediction.job);
  return way.empty() ? "" : fmt::format("{} would take {}; ", way, duration(other.seconds));
}

std::string why(const Machine& machine, const Search& search,
                const std::vector<Candidate>& candidates, const Choice& choice) {
  const Prediction& step = choice.best.prediction;
  return fmt::format(
      "{}: {} of {} jobs, {} in all, {} host hours; a step is {}, bound by {} ({:.0f} % "
      "efficient); {}{}.",
      words_of(step.job), search.objective == Objective::time ? "the fastest" : "the cheapest",
      choice.tried, duration(choice.best.seconds),
      fmt::format("{:.4g}", choice.best.host_seconds / 3600), duration(step.step), step.bound_by,
      100 * step.efficiency, by_another_way(candidates, search, choice.best),
      of_more_hosts(machine, search, choice.best));
}

/// One thing that may be otherwise, from a little to much.
struct Change {
  std::vector<double> times;
  std::function<std::string(double times, Machine&, Search&)> make;  ///< says what it made
};

std::vector<Change> changes(const Search& search) {
  const auto link = [](double times, Machine&, Search& other) {
    other.link.bytes_per_second *= times;
    return "a link of " + plan::words_of(other.link);
  };
  const auto replicas = [](double times, Machine& machine, Search&) {
    for (BatchTime& time : machine.compute) {
      time.forward /= times;
      time.backward /= times;
    }
    return fmt::format("replicas {:.2g} times as fast", times);
  };
  const auto noise = [](double times, Machine&, Search& other) {
    other.noise_scale *= times;
    return fmt::format("a noise scale of {:.3g}", other.noise_scale);
  };
  const std::vector<double> more{1.5, 2, 4, 10}, less{1 / 1.5, 0.5, 0.25, 0.1};
  std::vector<Change> all{{more, link}, {less, link}, {more, replicas}, {less, replicas}};
  if (search.noise_scale > 0) all.insert(all.end(), {{more, noise}, {less, noise}});
  return all;
}

/// The least change of its kind that leads to another job, in words; "" where none does.
std::string told(const Machine& machine, const Search& search, const Job& chosen,
                 const Change& change) {
  for (double times : change.times) {
    Machine other_machine = machine;
    Search other = search;
    const std::string words = change.make(times, other_machine, other);
    const Found found = find(other_machine, other);
    if (found.candidates.empty()) continue;
    Job job = best_of(found.candidates, search.objective).prediction.job;
    job.link = chosen.link;
    if (job != chosen) return fmt::format("with {}: {}", words, words_of(job));
  }
  return "";
}

std::string what_changes(const Machine& machine, const Search& search, const Job& chosen) {
  std::string words;
  for (const Change& change : changes(search)) {
    const std::string one = told(machine, search, chosen, change);
    if (!one.empty()) words += (words.empty() ? "" : "; ") + one;
  }
  return words.empty() ? "Nothing from a tenth to ten times as fast changes it."
                       : "It would be another " + words + ".";
}

}  // namespace

double samples_needed(const Search& search, double batch) {
  return search.noise_scale == 0 ? search.samples
                                 : search.samples * (1 + batch / search.noise_scale);
}

std::vector<Job> jobs_of(const Search& search) {
  check(search);
  std::vector<Job> jobs;
  for (size_t kind = 0; kind < search.kinds.size(); ++kind) {
    const size_t engines = has_engine(search.kinds[kind]) ? search.engines.size() : 1;
    for (size_t engine = 0; engine < engines; ++engine) add_jobs(search, kind, engine, jobs);
  }
  return jobs;
}

std::vector<Candidate> candidates_of(const Machine& machine, const Search& search) {
  return find(machine, search).candidates;
}

Choice choose(const Machine& machine, const Search& search) {
  const Found found = find(machine, search);
  if (found.candidates.empty())
    throw UsageError(
        found.too_slow > 0
            ? fmt::format("no job ends within {}: the fastest takes {}; ask for more hosts, or "
                          "give it more time",
                          duration(search.within), duration(found.fastest_too_slow))
            : fmt::format("no batch fits into memory; the largest that does is {} for {} replicas "
                          "a host",
                          machine.largest_batch(std::ranges::min(search.replicas_per_host)),
                          std::ranges::min(search.replicas_per_host)));
  Choice choice{.best = best_of(found.candidates, search.objective),
                .tried = std::ssize(found.candidates),
                .too_large = found.too_large,
                .too_slow = found.too_slow};
  choice.why = why(machine, search, found.candidates, choice);
  choice.what_changes = what_changes(machine, search, choice.best.prediction.job);
  return choice;
}

}  // namespace tutti::plan
