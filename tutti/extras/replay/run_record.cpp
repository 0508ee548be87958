#include "tutti/extras/replay/run_record.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/json.h"
#include "tutti/base/typed.h"

namespace tutti::plan {
namespace {

constexpr double kTraceUnit = 1e-6;    // seconds
constexpr int kMostRanks = 1 << 20;    // whoever says more is damaged
constexpr double kMostSeconds = 1e10;  // as well: centuries

/// What a training says of itself: event "train.begin".
struct Training {
  std::string strategy, shard, shares;
  int ranks = 0, model_ranks = 1;
  bool in_turn = false, on_devices = false;
  bool operator==(const Training&) const = default;
};

/// Event "train.step" of a worker, in seconds of its clock.
struct WorkerStep {
  double begin = 0, end = 0;
  int64_t number = 0, samples = 0;
};

struct WorkerTrace {
  std::string file;
  int worker = 0;
  std::string machine;
  bool whole = true;
  std::optional<Training> training;
  std::vector<WorkerStep> steps;
  std::map<int, std::vector<double>> there;  // by rank and step, in seconds of this worker's clock
};

/// Goes through a trace's events, which lie in the order in which they began.
class TraceReader {
 public:
  explicit TraceReader(std::string file) { trace_.file = std::move(file); }

  // Drops each event once it is read: a trace may have a million of them.
  WorkerTrace read(std::string_view text) {
    try {
      const Json rest = parse_json(text, kMostJsonDepth, [this](int depth, Json& got) {
        if (depth != kDepthOfEvents) return true;
        take(got);
        return false;
      });
      trace_.whole = rest.at("leftOut") == 0;
    } catch (const JsonError& error) {
      refuse(fmt::format("a damaged trace ({})", error.what()));
    }
    if (!trace_.training)
      refuse(
          "no training begins in it; expected a trace of `tutti train --trace`, or of a program "
          "with Model::fit, by this version");
    if (trace_.steps.empty()) refuse("no step of a training ends in it");
    return std::move(trace_);
  }

 private:
  static constexpr int kDepthOfEvents = 2;  // in the array that the document has

  [[noreturn]] void refuse(const std::string& what) const {
    throw DataError(fmt::format("{}: {}", trace_.file, what));
  }

  void take(const Json& event) {
    const std::string& name = event.at("name").text();
    if (name == "process_name") trace_.worker = whole_in<int>(event, "pid");
    if (name == "train.begin") begin(event.at("args"));
    if (!trace_.training) return;
    if (name == "train.step" && event.at("args").contains("step"))  // not a step of one graph
      trace_.steps.push_back({.begin = begin_of(event),
                              .end = begin_of(event) + seconds_of(event),
                              .number = whole_in<int64_t>(event.at("args"), "step"),
                              .samples = whole_in<int64_t>(event.at("args"), "samples")});
    if (name == "sync.backward")
      computed_[whole_in<int>(event.at("args"), "replica")] = begin_of(event) + seconds_of(event);
    if (name == "sync.exchange")
      exchange(whole_in<int>(event.at("args"), "replica"), begin_of(event));
  }

  void begin(const Json& facts) {
    const Training training{.strategy = facts.at("strategy"),
                            .shard = facts.at("shard"),
                            .shares = facts.at("shares"),
                            .ranks = whole_in<int>(facts, "ranks"),
                            .model_ranks = whole_in<int>(facts, "model_ranks"),
                            .in_turn = facts.at("in_turn") != 0,
                            .on_devices = facts.at("on_devices") != 0};
    if (training.ranks < 1 || training.ranks > kMostRanks)
      refuse(fmt::format("a training of {} ranks, expected 1 to {}", training.ranks, kMostRanks));
    if (trace_.training && *trace_.training != training)
      refuse(
          "two trainings of different ranks are in it, so that a rank is not one and the same; "
          "trace one of them alone");
    trace_.training = training;
    trace_.machine = facts.at("machine");
  }

  void exchange(int rank, double begin) {
    const auto computed = computed_.extract(rank);
    trace_.there[rank].push_back(computed.empty() ? begin : computed.mapped());
  }

  double begin_of(const Json& event) const { return seconds_in(event, "ts", -kMostSeconds); }
  double seconds_of(const Json& event) const { return seconds_in(event, "dur", 0); }

  double seconds_in(const Json& event, const char* field, double least) const {
    const double seconds = event.at(field).get<double>() * kTraceUnit;
    if (!(seconds >= least && seconds <= kMostSeconds))
      refuse(fmt::format("an event {} whose {} is {:g} s, expected {:g} to {:g}",
                         event.at("name").get<std::string>(), field, seconds, least, kMostSeconds));
    return seconds;
  }
  template <class Whole>
  Whole whole_in(const Json& args, const char* field) const {
    const Json& value = args.at(field);
    if (!value.is_number_integer() || !std::in_range<Whole>(value.get<int64_t>()))
      refuse(fmt::format("{} is {}, expected a whole number", field, dump_json(value)));
    return value.get<Whole>();
  }

  WorkerTrace trace_;
  std::map<int, double> computed_;  // by rank, the end of its last backward of this step
};

bool is_trace(std::string_view text) {
  constexpr size_t kHead = 256;  // where Trace::json() has begun its events
  return text.substr(0, kHead).find("\"traceEvents\"") != std::string_view::npos;
}

std::vector<WorkerTrace> traces_in(const std::filesystem::path& folder) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored))
    throw UsageError(fmt::format(
        "RUN_DIR {}: got {}, expected the folder of a run's traces; `tutti train ... --trace "
        "{}/trace.json` writes them",
        folder.string(), std::filesystem::exists(folder, ignored) ? "a file" : "nothing there",
        folder.string()));
  std::vector<WorkerTrace> traces;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".json" || !entry.is_regular_file()) continue;
    const MappedFile file = map_file(entry.path());
    const std::string_view text(reinterpret_cast<const char*>(file.bytes.data()),
                                file.bytes.size());
    if (is_trace(text)) traces.push_back(TraceReader(entry.path().string()).read(text));
  }
  if (traces.empty())
    throw UsageError(fmt::format(
        "RUN_DIR {}: got a folder without a record, expected one NAME.json a worker, as `tutti "
        "train ... --trace {}/trace.json` writes them",
        folder.string(), folder.string()));
  std::ranges::sort(traces, {}, &WorkerTrace::worker);
  return traces;
}

/// Why the steps of a training cannot be replayed; "" where they can.
std::string objection_to(const Training& training) {
  if (training.strategy == "parameter_server")
    return "workers of parameter servers wait for parameters within forward";
  if (training.in_turn) return "its replicas take turns, so none waits for another";
  if (training.on_devices) return "GPUs computed, and when each was done is not in a trace";
  if (training.model_ranks > 1) return "its ranks had parts of one model and waited within a step";
  if (training.shard == "parameters") return "its ranks waited for parameters within forward";
  return "";
}

void require_one_run(const std::filesystem::path& folder, const std::vector<WorkerTrace>& traces) {
  const WorkerTrace& first = traces.front();
  for (size_t i = 1; i < traces.size(); ++i) {
    if (traces[i].worker == traces[i - 1].worker)
      throw DataError(
          fmt::format("RUN_DIR {}: {} and {} are both of worker {}; expected the traces of one run",
                      folder.string(), traces[i - 1].file, traces[i].file, traces[i].worker));
    if (traces[i].training != first.training)
      throw DataError(fmt::format(
          "RUN_DIR {}: {} ({} ranks of {}) is of another run than {} ({} ranks of {}); "
          "remove what an older run left there",
          folder.string(), traces[i].file, traces[i].training->ranks, traces[i].training->strategy,
          first.file, first.training->ranks, first.training->strategy));
  }
  const std::string why = objection_to(*first.training);
  if (!why.empty())
    throw UsageError(fmt::format(
        "RUN_DIR {}: got a run of {}: {}; expected one of mirrored, multi_worker or "
        "central_storage on CPUs, without a mesh: to compare, train again without the rank",
        folder.string(), first.training->strategy, why));
}

/// By rank, the worker whose replica it is.
std::vector<const WorkerTrace*> workers_of_ranks(const std::filesystem::path& folder,
                                                 const std::vector<WorkerTrace>& traces) {
  std::vector<const WorkerTrace*> workers(static_cast<size_t>(traces.front().training->ranks));
  for (const WorkerTrace& trace : traces)
    for (const auto& [rank, there] : trace.there) {
      if (rank < 0 || rank >= std::ssize(workers))
        throw DataError(fmt::format("{}: rank {} of {}", trace.file, rank, workers.size()));
      workers[static_cast<size_t>(rank)] = &trace;
    }
  std::vector<size_t> missing;
  for (size_t rank = 0; rank < workers.size(); ++rank)
    if (workers[rank] == nullptr) missing.push_back(rank);
  if (!missing.empty())
    throw DataError(fmt::format(
        "RUN_DIR {}: nothing of rank {} of {}; each worker writes a trace of its own, on its host: "
        "copy all of them into this folder",
        folder.string(), fmt::join(missing, ", "), workers.size()));
  return workers;
}

/// The steps that all have taken to their ends. A run that was cut off has some of them in the
/// middle of one; traces that are full end anywhere.
size_t steps_of_all(const std::vector<WorkerTrace>& traces, bool whole) {
  size_t fewest = traces.front().steps.size(), most = 0;
  const WorkerTrace* shortest = &traces.front();
  for (const WorkerTrace& trace : traces) {
    const auto look_at = [&](size_t count) {
      most = std::max(most, count);
      if (count < fewest) shortest = &trace;
      fewest = std::min(fewest, count);
    };
    look_at(trace.steps.size());
    for (const auto& [rank, there] : trace.there) look_at(there.size());
  }
  if (whole && most > fewest + 1)
    throw DataError(fmt::format(
        "{}: {} steps, where another rank has {}; expected as many in all traces of one run",
        shortest->file, fewest, most));
  return fewest;
}

/// What is added to a worker's times to have them on the first one's clock.
double offset_of(const WorkerTrace& trace, const WorkerTrace& first, size_t steps) {
  if (trace.machine == first.machine && !trace.machine.empty()) return 0;
  std::vector<double> differences(steps);
  for (size_t step = 0; step < steps; ++step)
    differences[step] = first.steps[step].end - trace.steps[step].end;
  std::ranges::nth_element(differences, differences.begin() + static_cast<int64_t>(steps / 2));
  return differences[steps / 2];
}

std::vector<double> shares_of(const WorkerTrace& trace) {
  const auto ranks = static_cast<size_t>(trace.training->ranks);
  std::vector<double> shares;
  if (trace.training->shares.empty()) shares.assign(ranks, 1);
  for (const std::string_view part : parts_of(trace.training->shares, ','))
    if (const auto share = number_in<double>(part); share && *share > 0) shares.push_back(*share);
  if (shares.size() != ranks)
    throw DataError(fmt::format("{}: shares \"{}\", expected {} numbers above 0", trace.file,
                                trace.training->shares, ranks));
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  for (double& share : shares) share /= sum;
  return shares;
}

}  // namespace

RunRecord read_run(const std::filesystem::path& folder) {
  const std::vector<WorkerTrace> traces = traces_in(folder);
  require_one_run(folder, traces);
  const std::vector<const WorkerTrace*> workers = workers_of_ranks(folder, traces);
  const WorkerTrace& first = *workers.front();
  RunRecord record{.strategy = first.training->strategy,
                   .shares = shares_of(first),
                   .whole = std::ranges::all_of(traces, &WorkerTrace::whole)};
  const size_t steps = steps_of_all(traces, record.whole);
  for (size_t step = 0; step < steps; ++step) {
    const WorkerStep& seen = first.steps[step];
    record.steps.push_back({.samples = seen.samples, .seconds = seen.end - seen.begin});
  }
  for (size_t rank = 0; rank < workers.size(); ++rank) {
    const WorkerTrace& trace = *workers[rank];
    const double offset = offset_of(trace, first, steps);
    const std::vector<double>& there = trace.there.at(static_cast<int>(rank));
    for (size_t step = 0; step < steps; ++step) {
      if (trace.steps[step].number != first.steps[step].number)
        throw DataError(fmt::format("{}: step {}, where {} has {}; expected traces of one run",
                                    trace.file, trace.steps[step].number, first.file,
                                    first.steps[step].number));
      record.steps[step].there.push_back(there[step] + offset - first.steps[step].begin);
    }
  }
  return record;
}

}  // namespace tutti::plan
