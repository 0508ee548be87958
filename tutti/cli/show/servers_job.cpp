#include "tutti/cli/show/servers_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <thread>

#include "tutti/base/error.h"
#include "tutti/base/threads.h"
#include "tutti/cli/show/local_members.h"
#include "tutti/ps/client/client.h"
#include "tutti/ps/server/server.h"
#include "tutti/ps/server/view_service.h"

namespace tutti::cli {
namespace {

constexpr int64_t kWeights = 4096;  ///< 64 rows of 64, so that up to 64 servers have a shard
constexpr int64_t kRows = 384;      ///< of a worker: a millisecond or two of computing
// The largest eigenvalue is about (1 + sqrt(kWeights / kRows))^2 = 18.
constexpr double kRate = 0.02;

/// Servers and the view service, while it lives.
class LocalServers {
 public:
  LocalServers(int servers, int workers)
      : credentials_{Token::random(), "show", nullptr},
        service_(std::make_unique<ps::ViewService>(
            ps::ViewServiceOptions{
                .num_servers = servers, .num_workers = workers, .backups = false},
            *Address::from_number("127.0.0.1", 0), credentials_)),
        failures_(static_cast<size_t>(servers)) {
    for (int i = 0; i < servers; ++i)
      threads_.push_back(start_thread(fmt::format("server {}", i), [this, i] { serve(i); }));
  }
  ~LocalServers() { join(); }
  LocalServers(const LocalServers&) = delete;

  const Credentials& credentials() const { return credentials_; }
  HostPort where() const { return {"127.0.0.1", service_->address().port()}; }

  /// Once the workers have ended: rethrows what a server threw.
  void end() {
    join();
    for (const auto& failure : failures_)
      if (failure) std::rethrow_exception(failure);
  }

 private:
  void join() {
    if (!service_) return;
    // Who comes after its end would look for it long.
    service_->wait_until([](const ps::View& view) { return view.number > 0; },
                         Deadline(kShowLimit));
    service_.reset();
    for (std::thread& thread : threads_) thread.join();
  }
  void serve(int number) {
    try {
      ps::run_server({.number = number, .view_service = where(), .threads = 1, .limit = kShowLimit},
                     credentials_);
    } catch (const std::exception&) {
      failures_[static_cast<size_t>(number)] = std::current_exception();
    }
  }

  const Credentials credentials_;
  std::unique_ptr<ps::ViewService> service_;
  std::vector<std::exception_ptr> failures_;
  std::vector<std::thread> threads_;
};

/// All workers begin together, and what they do from then on is recorded.
class StartLine {
 public:
  explicit StartLine(int workers) : missing_(workers) {}

  void wait() {
    std::unique_lock lock(mutex_);
    if (--missing_ == 0) {
      recorder_.emplace(std::vector<std::string>{"ps.", "show."});
      all_here_.notify_all();
    }
    if (!all_here_.wait_for(lock, kShowLimit, [&] { return missing_ == 0; }))
      throw Timeout(fmt::format("show: {} workers have not come to the start", missing_));
  }
  std::vector<Recorded> end() { return recorder_->end(); }

 private:
  std::mutex mutex_;
  std::condition_variable all_here_;
  int missing_;
  std::optional<Recorder> recorder_;
};

ps::Spec spec_of(const ServersJob& job) {
  ps::Spec spec{.rule = optim::sgd({.learning_rate = kRate})};
  spec.variables = {{"weights", {64, kWeights / 64}, DType::float32}};
  spec.pieces = ps::pieces_of(
      spec.variables,
      ps::place(spec.variables,
                {.num_servers = job.servers, .partitioner = ps::Partitioner::fixed(job.servers)}));
  spec.num_partitions = job.servers;
  spec.staleness = job.staleness;
  spec.num_workers = job.workers;
  spec.shape = ReductionShape::flat(job.workers);
  return spec;
}

/// Rows of one worker, and what the weights that it looks for make of them.
struct LeastSquares {
  std::vector<float> rows, targets;

  LeastSquares(int worker, int64_t count) : rows(static_cast<size_t>(count * kWeights)) {
    std::minstd_rand draw(static_cast<unsigned>(worker) + 1);
    for (float& one : rows) one = draw() % 2 == 0 ? 1.0F : -1.0F;
    for (int64_t row = 0; row < count; ++row) {
      float sum = 0;
      for (int64_t k = 0; k < kWeights; ++k)
        sum += rows[static_cast<size_t>(row * kWeights + k)] * static_cast<float>(k % 7 - 3) / 64;
      targets.push_back(sum);
    }
  }
  int64_t count() const { return std::ssize(targets); }

  /// Fills `gradient` and returns the loss: half of the mean squared error.
  double gradient_of(std::span<const float> weights, std::span<float> gradient) const {
    std::ranges::fill(gradient, 0.0F);
    double loss = 0;
    for (int64_t row = 0; row < count(); ++row) {
      const float* const values = rows.data() + row * kWeights;
      float error = -targets[static_cast<size_t>(row)];
      for (size_t k = 0; k < weights.size(); ++k) error += values[k] * weights[k];
      loss += 0.5 * error * error;
      const float each = error / static_cast<float>(count());
      for (size_t k = 0; k < weights.size(); ++k) gradient[k] += each * values[k];
    }
    return loss / static_cast<double>(count());
  }
};

/// A worker's whole life; its losses, one a step and one at the end.
class ServedWorker {
 public:
  ServedWorker(const ServersJob& job, const ps::Spec& spec, const LocalServers& servers, int number)
      : job_(job),
        spec_(spec),
        number_(number),
        data_(number, kRows * (number + 1 == job.workers ? job.slow_rows : 1)),
        client_({.worker = number, .view_service = servers.where(), .limit = kShowLimit},
                servers.credentials(), spec, [&spec](int piece) {
                  return ps::Bytes::copy_of(std::vector<std::byte>(
                      static_cast<size_t>(spec.pieces[static_cast<size_t>(piece)].num_bytes)));
                }) {}

  std::vector<double> train(StartLine& start) {
    const int pieces = static_cast<int>(spec_.pieces.size());
    for (int piece = 0; piece < pieces; ++piece) client_.pull(piece, 0);
    fetch_all(0);
    start.wait();
    std::vector<double> losses;
    for (int64_t step = 0; step < job_.steps; ++step) {
      if (step > 0) fetch_all(step);
      {
        const TimedEvent timed("show.compute", {"worker", int64_t{number_}});
        losses.push_back(data_.gradient_of(weights_, gradient_));
      }
      for (int piece = 0; piece < pieces; ++piece) push(piece, step);
    }
    client_.wait_until_settled(Deadline(kShowLimit));
    fetch_all(job_.steps);
    losses.push_back(data_.gradient_of(weights_, gradient_));
    return losses;
  }

 private:
  const ps::Segment& segment_of(int piece) const {
    return spec_.pieces[static_cast<size_t>(piece)].segments[0];
  }
  void fetch_all(int64_t step) {
    for (int piece = 0; piece < static_cast<int>(spec_.pieces.size()); ++piece)
      client_.fetch(piece, step, Deadline(kShowLimit), [&](const ps::Bytes& values) {
        const ps::Segment& segment = segment_of(piece);
        std::memcpy(weights_.data() + segment.begin, values.span.data() + segment.offset_bytes,
                    static_cast<size_t>(segment.count()) * sizeof(float));
      });
  }
  void push(int piece, int64_t step) {
    const ps::Segment& segment = segment_of(piece);
    const int64_t bytes = spec_.pieces[static_cast<size_t>(piece)].num_bytes;
    auto memory = client_.allocate(bytes);
    std::memset(memory.get(), 0, static_cast<size_t>(bytes));
    auto* const to = reinterpret_cast<float*>(memory.get() + segment.offset_bytes);
    for (int64_t k = 0; k < segment.count(); ++k)
      to[k] = gradient_[static_cast<size_t>(segment.begin + k)] / static_cast<float>(job_.workers);
    client_.push({.piece = piece,
                  .step = step,
                  .learning_rate = kRate,
                  .parts = {{number_, {ps::Part::counts}}},
                  .payload = {{memory.get(), static_cast<size_t>(bytes)}, memory}});
  }

  const ServersJob& job_;
  const ps::Spec& spec_;
  const int number_;
  const LeastSquares data_;
  std::vector<float> weights_ = std::vector<float>(kWeights);
  std::vector<float> gradient_ = std::vector<float>(kWeights);
  ps::Client client_;
};

}  // namespace

ServersTrace run_servers(const ServersJob& job) {
  const ps::Spec spec = spec_of(job);
  ServersTrace trace{.job = job, .pieces = {}, .events = {}};
  for (const ps::Piece& piece : spec.pieces)
    trace.pieces.push_back({piece.partition, piece.num_bytes});
  StartLine start(job.workers);
  LocalServers servers(job.servers, job.workers);
  at_once(job.workers, "a worker", [&](int number) {
    ServedWorker worker(job, spec, servers, number);
    const std::vector<double> losses = worker.train(start);
    if (number != 0) return;
    trace.first_loss = losses.front();
    trace.last_loss = losses.back();
  });
  trace.events = start.end();
  servers.end();
  return trace;
}

}  // namespace tutti::cli
