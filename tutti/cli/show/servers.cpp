#include "tutti/cli/show/servers.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/cli/show/time_axis.h"

namespace tutti::cli {
namespace {

using drawings::Kind;

constexpr double kLeastWait = 20;  // us: less is no wait that is seen

/// What went between a worker and a server.
struct Transfer {
  int worker = 0, server = 0, piece = 0;
  int64_t step = 0, bytes = 0;
  double sent_us = 0, received_us = 0;
};

/// An update of one server's piece: by one push, or, synchronous, by those of a step.
struct PieceUpdate {
  int server = 0;
  int64_t version = 0;    ///< after it
  int64_t staleness = 0;  ///< updates since the parameters that its gradient was computed on
  double begin_us = 0, end_us = 0;
};

struct Wait {
  int worker = 0;
  int64_t step = 0;
  double begin_us = 0, end_us = 0;
};

/// A trace, sorted out.
struct Told {
  std::vector<Transfer> pushes, pulls;
  std::vector<PieceUpdate> updates;
  std::vector<Wait> waits, computes;  ///< computes: by worker, steps in order
  int64_t most_ahead = std::numeric_limits<int64_t>::min();  ///< of who may begin a step
  double end_us = 0;
};

using Key = std::tuple<int64_t, int64_t, int64_t>;  // worker, piece, step

Transfer transfer_of(const Recorded& from, const Recorded& to, const Recorded& server) {
  return {.worker = static_cast<int>(server.number("worker")),
          .server = static_cast<int>(server.number("server")),
          .piece = static_cast<int>(server.number("piece")),
          .step = server.number("step"),
          .bytes = server.number("bytes"),
          .sent_us = from.when_us,
          .received_us = to.when_us};
}

Key key_of(const Recorded& event) {
  return {event.number("worker"), event.number("piece"), event.number("step")};
}

/// Of each server: steps that workers have pushed, in the order in which it heard of them.
class Clocks {
 public:
  Clocks(int workers, int servers)
      : pushed_(static_cast<size_t>(servers), std::vector<int64_t>(static_cast<size_t>(workers))) {}
  void push(const Recorded& event) {
    auto& clock = of(event)[static_cast<size_t>(event.number("worker"))];
    clock = std::max(clock, event.number("step") + 1);
  }
  /// How many steps before the slowest is who is given parameters.
  int64_t ahead(const Recorded& event) {
    return event.number("step") - std::ranges::min(of(event));
  }

 private:
  std::vector<int64_t>& of(const Recorded& event) {
    return pushed_[static_cast<size_t>(event.number("server"))];
  }
  std::vector<std::vector<int64_t>> pushed_;
};

class Sorter {
 public:
  explicit Sorter(const ServersTrace& trace) : clocks_(trace.job.workers, trace.job.servers) {
    for (const Recorded& event : trace.events) take(event);
    if (told_.computes.empty() || told_.pushes.empty() || told_.updates.empty())
      throw Error("show: the trace of the servers' job is empty; please report this");
  }
  Told told() { return std::move(told_); }

 private:
  void take(const Recorded& event) {
    told_.end_us = std::max(told_.end_us, event.when_us);
    if (event.name == "ps.push") {
      handed_in_[key_of(event)] = &event;
    } else if (event.name == "ps.push_came") {
      came_[{event.number("worker"), event.number("sequence"), event.number("server")}] = &event;
      clocks_.push(event);
      if (const auto sent = handed_in_.find(key_of(event)); sent != handed_in_.end())
        told_.pushes.push_back(transfer_of(*sent->second, event, event));
    } else if (event.name == "ps.updated") {
      take_updated(event);
    } else if (event.name == "ps.parameters") {
      given_[key_of(event)] = &event;
      told_.most_ahead = std::max(told_.most_ahead, clocks_.ahead(event));
    } else if (event.name == "ps.arrived") {
      if (const auto sent = given_.find(key_of(event)); sent != given_.end())
        told_.pulls.push_back(transfer_of(*sent->second, event, *sent->second));
    } else if (event.name == "ps.waited") {
      told_.waits.push_back(span_of(event, event.number("step")));
    } else if (event.name == "show.compute") {
      const auto worker = event.number("worker");
      told_.computes.push_back(span_of(event, steps_[worker]++));
    }
  }

  void take_updated(const Recorded& event) {
    const auto push =
        came_.find({event.number("worker"), event.number("sequence"), event.number("server")});
    if (push == came_.end()) return;
    const int64_t version = event.number("version");
    told_.updates.push_back(
        {.server = static_cast<int>(event.number("server")),
         .version = version,
         .staleness = std::max<int64_t>(0, version - 1 - push->second->number("version")),
         .begin_us = event.begin_us(),
         .end_us = event.when_us});
  }

  static Wait span_of(const Recorded& event, int64_t step) {
    return {.worker = static_cast<int>(event.number("worker")),
            .step = step,
            .begin_us = std::max(0.0, event.begin_us()),
            .end_us = event.when_us};
  }

  Clocks clocks_;
  Told told_;
  std::map<Key, const Recorded*> handed_in_, given_;
  std::map<Key, const Recorded*> came_;  // by worker, sequence, server
  std::map<int64_t, int64_t> steps_;
};

std::string title_of(const ServersJob& job, ServersView view) {
  if (view == ServersView::sync)
    return fmt::format("Synchronous: {} workers wait for the slowest", job.workers);
  if (view == ServersView::async)
    return fmt::format("Asynchronous: {} workers, staleness {}", job.workers, job.staleness.text());
  return fmt::format("{} workers and {} parameter server{}", job.workers, job.servers,
                     job.servers == 1 ? "" : "s");
}

drawings::Drawing drawing_of_servers(const ServersTrace& trace, const Told& told,
                                     ServersView view) {
  const int workers = trace.job.workers;
  drawings::Drawing drawing;
  drawing.title = title_of(trace.job, view);
  for (int w = 0; w < workers; ++w) drawing.lanes.push_back(fmt::format("worker {}", w));
  for (int s = 0; s < trace.job.servers; ++s) drawing.lanes.push_back(fmt::format("server {}", s));
  drawing.ticks = clock_ticks(told.end_us);
  for (const Wait& one : told.computes)
    drawing.bars.push_back({.lane = one.worker,
                            .begin = one.begin_us,
                            .end = one.end_us,
                            .kind = Kind::first,
                            .label = std::to_string(one.step),
                            .words = fmt::format("step {}: gradient, {:.2f} ms", one.step,
                                                 (one.end_us - one.begin_us) / 1000)});
  for (const Wait& one : told.waits)
    if (one.end_us - one.begin_us >= kLeastWait)
      drawing.bars.push_back(
          {.lane = one.worker,
           .begin = one.begin_us,
           .end = one.end_us,
           .kind = Kind::wait,
           .words = fmt::format("waited {:.2f} ms for parameters to begin step {}",
                                (one.end_us - one.begin_us) / 1000, one.step)});
  for (const PieceUpdate& one : told.updates)
    drawing.bars.push_back(
        {.lane = workers + one.server,
         .begin = one.begin_us,
         .end = one.end_us,
         .kind = Kind::third,
         .words = fmt::format("update {}, staleness {}, {:.3f} ms", one.version, one.staleness,
                              (one.end_us - one.begin_us) / 1000)});
  for (const Transfer& one : told.pushes)
    drawing.arrows.push_back({.from = one.worker,
                              .to = workers + one.server,
                              .begin = one.sent_us,
                              .end = one.received_us,
                              .kind = Kind::first,
                              .words = fmt::format("gradient of piece {}, step {}, {} bytes",
                                                   one.piece, one.step, one.bytes)});
  for (const Transfer& one : told.pulls)
    drawing.arrows.push_back({.from = workers + one.server,
                              .to = one.worker,
                              .begin = one.sent_us,
                              .end = one.received_us,
                              .kind = Kind::second,
                              .words = fmt::format("parameters of piece {} for step {}, {} bytes",
                                                   one.piece, one.step, one.bytes)});
  drawing.legend = {{Kind::first, "computes a gradient (number: the step), and pushes it"},
                    {Kind::second, "parameters that are pulled"},
                    {Kind::third, "a server updates its piece"},
                    {Kind::wait, "waits for parameters"}};
  return drawing;
}

OrderedJson json_of(const std::vector<Transfer>& transfers) {
  OrderedJson all = OrderedJson::array();
  for (const Transfer& one : transfers)
    all.push_back({{"worker", one.worker},
                   {"server", one.server},
                   {"piece", one.piece},
                   {"step", one.step},
                   {"bytes", one.bytes},
                   {"sent_us", one.sent_us},
                   {"received_us", one.received_us}});
  return all;
}

OrderedJson json_of(const std::vector<Wait>& spans) {
  OrderedJson all = OrderedJson::array();
  for (const Wait& one : spans)
    all.push_back({{"worker", one.worker},
                   {"step", one.step},
                   {"begin_us", one.begin_us},
                   {"end_us", one.end_us}});
  return all;
}

std::vector<double> waited_by_worker(const Told& told, int workers) {
  std::vector<double> waited(static_cast<size_t>(workers));
  for (const Wait& one : told.waits)
    waited[static_cast<size_t>(one.worker)] += one.end_us - one.begin_us;
  return waited;
}

/// Of each update of a synchronous step: the last push that it needs, the first parameters after.
OrderedJson barriers_of(const Told& told, int64_t steps) {
  OrderedJson all = OrderedJson::array();
  for (int64_t step = 0; step < steps; ++step) {
    double last = 0, first = std::numeric_limits<double>::max();
    for (const Transfer& one : told.pushes)
      if (one.step == step) last = std::max(last, one.received_us);
    for (const Transfer& one : told.pulls)
      if (one.step == step + 1) first = std::min(first, one.sent_us);
    all.push_back({{"step", step}, {"last_push_us", last}, {"first_parameters_us", first}});
  }
  return all;
}

std::string name_of_view(ServersView view) {
  return view == ServersView::sync    ? "sync"
         : view == ServersView::async ? "async"
                                      : "parameter_server";
}

std::vector<std::string> lines_of_servers(const ServersTrace& trace, const Told& told,
                                          ServersView view, int64_t most_stale, double mean_stale) {
  const ServersJob& job = trace.job;
  std::vector<std::string> lines;
  if (view == ServersView::parameter_server)
    for (size_t piece = 0; piece < trace.pieces.size(); ++piece)
      lines.push_back(fmt::format("server {} has piece {}, {} bytes", trace.pieces[piece].server,
                                  piece, trace.pieces[piece].bytes));
  lines.push_back(
      fmt::format("{} steps of each worker: {} pushes and {} pulls, each to or from every server",
                  job.steps, told.pushes.size(), told.pulls.size()));
  const auto waited = waited_by_worker(told, job.workers);
  for (int w = 0; w < job.workers; ++w)
    lines.push_back(fmt::format("worker {} waited {:.2f} of {:.2f} ms", w,
                                waited[static_cast<size_t>(w)] / 1000, told.end_us / 1000));
  if (job.slow_rows > 1 && job.workers > 1)
    lines.push_back(
        fmt::format("worker {} has {} times the rows of another", job.workers - 1, job.slow_rows));
  if (view == ServersView::async)
    lines.push_back(
        fmt::format("nobody began a step more than {} before the slowest (bound {}); {:.2f} "
                    "updates, {} at most, between a pull and its own update",
                    told.most_ahead, job.staleness.text(), mean_stale, most_stale));
  lines.push_back(fmt::format("loss of worker 0's rows: {:.3f}, at the end {:.3f}",
                              trace.first_loss, trace.last_loss));
  return lines;
}

}  // namespace

Shown servers_shown(const ServersTrace& trace, ServersView view) {
  const ServersJob& job = trace.job;
  const Told told = Sorter(trace).told();
  ps::StalenessHistogram stale;
  OrderedJson updates = OrderedJson::array();
  for (const PieceUpdate& one : told.updates) {
    stale.add(one.staleness);
    updates.push_back({{"server", one.server},
                       {"version", one.version},
                       {"staleness", one.staleness},
                       {"begin_us", one.begin_us},
                       {"end_us", one.end_us}});
  }
  OrderedJson pieces = OrderedJson::array();
  for (const auto& [server, bytes] : trace.pieces)
    pieces.push_back({{"server", server}, {"bytes", bytes}});
  Shown shown{.drawing = drawing_of_servers(trace, told, view),
              .figures = {{"show", name_of_view(view)},
                          {"workers", job.workers},
                          {"servers", job.servers},
                          {"steps", job.steps},
                          {"staleness", job.staleness.text()},
                          {"pieces", pieces},
                          {"us", told.end_us},
                          {"waited_us", waited_by_worker(told, job.workers)},
                          {"most_steps_ahead", told.most_ahead},
                          {"staleness_mean", stale.mean()},
                          {"staleness_most", stale.most()},
                          {"loss_first", trace.first_loss},
                          {"loss_last", trace.last_loss},
                          {"pushes", json_of(told.pushes)},
                          {"pulls", json_of(told.pulls)},
                          {"updates", updates},
                          {"computes", json_of(told.computes)},
                          {"waits", json_of(told.waits)}},
              .lines = lines_of_servers(trace, told, view, stale.most(), stale.mean())};
  if (job.staleness.synchronous()) shown.figures["barriers"] = barriers_of(told, job.steps);
  for (const std::string& line : shown.lines) shown.drawing.notes.push_back(line + ".");
  return shown;
}

}  // namespace tutti::cli
