#include "tutti/coordinator/step_server.h"

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/base/threads.h"
#include "tutti/coordinator/detail/step.h"
#include "tutti/coordinator/dispatcher.h"
#include "tutti/ps/wire/streams.h"

namespace tutti::coordinator {
namespace {

using Kind = ps::Message::Kind;
using ps::Peer;

const Peer kCoordinator{Peer::Kind::server, 0};

class StepServer {
 public:
  StepServer(const StepServerOptions& options, const Credentials& credentials)
      : options_(options),
        heap_(std::make_shared<ps::SharedHeap>()),
        silence_(options.limit),
        found_until_(time_after(options.limit)),
        streams_(heap_, credentials,
                 {.message = [this](Peer from, ps::Message m) { on_message(from, std::move(m)); },
                  .connected = [this](Peer peer) { on_connected(peer); },
                  .closed = [this](Peer peer, const std::string& how) { on_closed(peer, how); }}) {
    streams_.connect_to_service(options.view_service, options.limit);
    thread_ = start_thread("the connections of a worker", [this] { work(); });
  }

  ~StepServer() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    streams_.wake();
    thread_.join();
  }

  void run() {
    std::optional<RemoteWorker> worker;
    while (auto task = next()) {
      if (task->anew || !worker) worker.emplace(options_.number, options_.num_workers);
      answer(run_one(*worker, task->message));
    }
  }

 private:
  struct Given {
    ps::Message message;
    bool anew = false;
  };

  // ---- in the caller's thread ----

  // The next task; none when all is over. Throws why this worker cannot go on.
  std::optional<Given> next() {
    std::unique_lock lock(mutex_);
    runs_ = false;
    changed_.wait(lock, [&] { return over_ || !tasks_.empty(); });
    if (failure_) std::rethrow_exception(failure_);
    if (over_) return std::nullopt;
    runs_ = true;
    Given task{std::move(tasks_.front()), std::exchange(anew_, false)};
    tasks_.pop_front();
    return task;
  }

  ps::Message run_one(RemoteWorker& worker, const ps::Message& task) {
    ps::Message outcome{
        .kind = Kind::outcome, .worker = options_.number, .sequence = task.sequence};
    try {
      const Step& step = step_named(task.text);
      ValueReader reader(task.payload.span);
      ValueWriter writer;
      if (!step.run) throw UsageError(fmt::format("\"{}\" is no step", step.name));
      step.run(worker, reader, writer);
      outcome.payload = lasting(writer.take());
    } catch (const std::exception& error) {
      outcome.flags = ps::Message::failed;
      outcome.text = plain_words(error.what());
    } catch (...) {
      outcome.flags = ps::Message::failed;
      outcome.text = "it threw what is no std::exception";
    }
    return outcome;
  }

  // Where a coordinator of this host reads it.
  ps::Bytes lasting(const std::string& values) {
    const auto bytes = std::as_bytes(std::span(values));
    if (std::ssize(bytes) > kMostFrameBytes)
      throw UsageError(
          fmt::format("its result takes {} bytes; at most {}", bytes.size(), kMostFrameBytes));
    const auto memory = heap_->allocate(std::ssize(bytes));
    std::ranges::copy(bytes, memory.get());
    return {{memory.get(), bytes.size()}, memory};
  }

  void answer(ps::Message outcome) {
    const std::lock_guard lock(mutex_);
    streams_.send(kCoordinator, std::move(outcome));
    if (!streams_.flush(kCoordinator)) streams_.wake();
  }

  // ---- in the thread that speaks with the coordinator ----

  void work() {
    while (true) {
      streams_.wait(kTurn);
      const std::lock_guard lock(mutex_);
      if (over_ && !runs_) return;
      try {
        turn(Clock::now());
      } catch (const std::exception&) {
        end(std::current_exception());
      }
    }
  }

  void turn(TimePoint now) {
    if (over_) return leave_a_step_behind(now);
    streams_.process();
    if (!met_) {
      if (now < found_until_) return;
      if (!lost_.empty()) throw PeerLost(fmt::format("the coordinator: {}", lost_));
      throw Timeout(
          fmt::format("worker {} waited {} ms to learn where the coordinator is; does its program "
                      "call coordinate()?",
                      options_.number, options_.limit.count()));
    }
    if (now - heard_ >= silence_)
      throw PeerLost(fmt::format("the coordinator was silent for {} ms", silence_.count()));
    if (!enlisted_) return;
    if (now < next_beat_) return;
    next_beat_ = now + silence_ / kBeatsPerLimit;
    streams_.send(kCoordinator, {.kind = Kind::progress});
    streams_.flush(kCoordinator);
  }

  // Nobody is there any more to take what the step that still runs will give.
  void leave_a_step_behind(TimePoint now) const {
    if (now - over_since_ < options_.limit) return;
    log(LogLevel::error, "worker {}: the job is over, and a step did not end within {} ms",
        options_.number, options_.limit.count());
    std::_Exit(EXIT_FAILURE);
  }

  void end(std::exception_ptr why) {
    if (std::exchange(over_, true)) return;
    over_since_ = Clock::now();
    failure_ = std::move(why);
    streams_.drop(kCoordinator);
    changed_.notify_all();
  }

  void on_connected(Peer peer) {
    if (peer == Peer{}) {
      streams_.send(peer, {.kind = Kind::meet});
      return;
    }
    streams_.send(peer, {.kind = Kind::enlist,
                         .worker = options_.number,
                         .text = options_.build + " " + options_.process});
  }

  void on_message(Peer from, ps::Message message) {
    heard_ = Clock::now();
    switch (message.kind) {
      case Kind::meet: return meet(message);
      case Kind::enlisted:
        silence_ = Millis(message.step);
        enlisted_ = true;
        next_beat_ = {};
        return;
      case Kind::task:
        tasks_.push_back(std::move(message));
        changed_.notify_all();
        return;
      case Kind::progress: return;
      case Kind::finished: return end(nullptr);
      case Kind::refused: throw UsageError(message.text);
      default:
        throw Mismatch(fmt::format("a {} of {}", ps::name_of(message.kind),
                                   from == kCoordinator ? "the coordinator" : "the view service"));
    }
  }

  void meet(const ps::Message& message) {
    if (met_) return;
    met_ = true;
    if (!lost_.empty()) throw PeerLost(fmt::format("the coordinator: {}", lost_));
    place_ = ps::Whereabouts::from(message.text);
    streams_.drop(Peer{});
    connect();
  }

  void connect() {
    heard_ = Clock::now();
    streams_.connect(kCoordinator, place_, {.purpose = kStepsPurpose, .rank = options_.number},
                     "the coordinator", options_.limit);
  }

  // A connection that breaks is made anew; a coordinator that is gone listens no more.
  void on_closed(Peer peer, const std::string& how) {
    if (over_) return;
    if (peer == Peer{}) {
      if (!met_) streams_.connect_to_service(options_.view_service, options_.limit);
      return;
    }
    if (!enlisted_) return ask_whether_it_is_over(broken_.empty() ? how : broken_);
    enlisted_ = false;
    anew_ = true;
    broken_ = how;
    tasks_.clear();
    connect();
  }

  // The view service says `finished` when the coordinator has, else where it was.
  void ask_whether_it_is_over(const std::string& how) {
    lost_ = how;
    met_ = false;
    found_until_ = time_after(options_.limit);
    streams_.connect_to_service(options_.view_service, options_.limit);
  }

  const StepServerOptions options_;
  const std::shared_ptr<ps::SharedHeap> heap_;
  std::mutex mutex_;  // guards what follows, but thread_
  std::condition_variable changed_;
  std::deque<ps::Message> tasks_;
  bool runs_ = false;  // a step
  bool anew_ = false;  // this worker had been given up: what it kept may have lost its place
  bool over_ = false;
  TimePoint over_since_{};
  std::exception_ptr failure_;
  bool met_ = false;       // the view service has said where the coordinator is
  bool enlisted_ = false;  // the coordinator has let this worker in
  std::string broken_;     // how its connection ended
  std::string lost_;       // how the coordinator was lost, unless it has ended as it should
  ps::Whereabouts place_;
  Millis silence_;
  TimePoint heard_{};
  TimePoint next_beat_{};
  TimePoint found_until_;
  ps::Streams streams_;
  std::thread thread_;
};

}  // namespace

void serve_steps(const StepServerOptions& options, const Credentials& credentials) {
  StepServer(options, credentials).run();
}

}  // namespace tutti::coordinator
