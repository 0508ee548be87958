#include "bench/compare/servers.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/host.h"
#include "tutti/cli/bench/all_reduce.h"
#include "tutti/cli/bench/timing.h"
#include "tutti/cluster/rendezvous/job_links.h"
#include "tutti/net/tls.h"
#include "tutti/ps/client/client.h"

namespace tutti::bench {
using namespace cli;
namespace {

constexpr int kWarmUps = 2;  // the heaps grow, on both sides
constexpr int kRatesPerRound = 3;
constexpr int64_t kMostRateBytes = 64 << 20;

int samples_per_round(int64_t bytes) {
  return bytes <= (1 << 20) ? 20 : bytes <= (16 << 20) ? 6 : 3;
}

template <class Body>
double seconds_of(const Body& body) {
  const auto start = Clock::now();
  body();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

ps::Spec spec_of(const ServedPlace& place, const PsBench& bench) {
  ps::Spec spec{.rule = optim::sgd({.learning_rate = 1})};
  spec.variables = {{"values", {bench.bytes / 4}, DType::float32}};
  const ps::PlacementOptions placement{
      .num_servers = place.num_servers,
      .how = ps::PlacementOptions::How::round_robin,
      .partitioner = ps::Partitioner::min_part(4, place.num_servers)};
  spec.pieces = ps::pieces_of(spec.variables, ps::place(spec.variables, placement));
  spec.num_partitions = place.num_servers;
  spec.staleness = bench.staleness;
  spec.num_workers = place.num_workers;
  spec.shape = ReductionShape::flat(place.num_workers);
  return spec;
}

// Bytes a second that go each way over one connection inside this machine.
double raw_stream_rate(int64_t bytes) {
  double rate = 0;
  on_threads(2, {.engine = "tcp", .pin = false}, [&](BenchMember member) {
    const Exercise exercise = Exercise::of(Collective::all_reduce, bytes, 2);
    std::vector<float> data(static_cast<size_t>(exercise.output_elements()));
    Group side = member.side;
    const auto stream = make_raw_stream(std::move(*member.wires), {.output = data.data()},
                                        host_facts().usable_cores > 1);
    stream->run(exercise);
    std::vector<double> seconds;
    for (int i = 0; i < kRatesPerRound; ++i) {
      side.barrier(kMeasureLimit);
      seconds.push_back(seconds_of([&] { stream->run(exercise); }));
    }
    if (side.rank() == 0) rate = static_cast<double>(exercise.bytes()) / median(seconds);
  });
  return rate;
}

double copy_rate(int64_t bytes) {
  std::vector<std::byte> from(static_cast<size_t>(bytes), std::byte{1}), to(from.size());
  std::vector<double> seconds;
  for (int i = 0; i < kRatesPerRound; ++i)
    seconds.push_back(seconds_of([&] {
      std::memcpy(to.data(), from.data(), to.size());
      asm volatile("" : : "r"(to.data()) : "memory");
    }));
  return static_cast<double>(bytes) / median(seconds);
}

class ServedMeasurement {
 public:
  ServedMeasurement(Group& side, const ServedPlace& place, const PsBench& bench)
      : side_(side), bench_(bench), place_(place), spec_(spec_of(place, bench)) {
    const Token token = require_token("tutti_bench servers");
    client_ = std::make_unique<ps::Client>(
        ps::ClientOptions{.worker = place.worker,
                          .view_service = place.view_service,
                          .poll = place.poll,
                          .share_memory = bench.engine == "shm"},
        Credentials{token, job_of_token(token), tls_from_environment()}, spec_, [this](int piece) {
          return ps::Bytes::copy_of(std::vector<std::byte>(spec_.pieces[piece].num_bytes));
        });
    result_.resize(static_cast<size_t>(bench.bytes / 4));
    payloads_.resize(spec_.pieces.size());
  }

  PsRow run() {
    ask();
    take();
    for (int i = 0; i < kWarmUps; ++i) turn();
    for (auto* samples : {&pull_, &push_, &push_pull_}) samples->clear();
    for (int round = 0; round < bench_.rounds; ++round) {
      rates_.push_back(rate());
      for (int i = 0; i < samples_per_round(bench_.bytes); ++i) turn();
    }
    const bool counted = counts_are_right();
    return row(all_agree(counted));
  }

 private:
  int num_pieces() const { return static_cast<int>(spec_.pieces.size()); }

  void turn() {
    push_.push_back(sample([&] {
      push(false);
      settle();
    }));
    pull_.push_back(sample([&] {
      ask();
      take();
    }));
    push_pull_.push_back(sample([&] {
      push(true);
      take();
    }));
    settle();
    right_ &= values_are_right(false);
  }

  // Of the slowest worker.
  template <class Body>
  double sample(const Body& body) {
    make_gradients();
    side_.barrier(kMeasureLimit);
    return most_of_all(seconds_of(body));
  }

  double most_of_all(double mine) {
    side_.all_reduce_now({&mine, 1, DType::float64}, ReduceOp::max, kMeasureLimit);
    return mine;
  }

  void make_gradients() {
    for (int piece = 0; piece < num_pieces(); ++piece) {
      const int64_t bytes = spec_.pieces[piece].num_bytes;
      payloads_[piece] = client_->allocate(bytes);
      std::fill_n(reinterpret_cast<float*>(payloads_[piece].get()), bytes / 4, 1.0F);
    }
  }

  void push(bool then_pull) {
    for (int piece = 0; piece < num_pieces(); ++piece) {
      const auto bytes = static_cast<size_t>(spec_.pieces[piece].num_bytes);
      const auto& payload = payloads_[piece];
      client_->push({.piece = piece,
                     .step = step_,
                     .learning_rate = 1,
                     .then_pull = then_pull,
                     .parts = {{place_.worker, {1}}},
                     .payload = {{payload.get(), bytes}, payload}});
      payloads_[piece].reset();
    }
    ++step_;
  }

  void ask() {
    for (int piece = 0; piece < num_pieces(); ++piece) client_->pull(piece, step_);
  }

  void take() {
    const Deadline deadline(kMeasureLimit);
    for (int piece = 0; piece < num_pieces(); ++piece)
      client_->fetch(piece, step_, deadline, [&](const ps::Bytes& values) {
        const ps::Segment& segment = spec_.pieces[piece].segments[0];
        std::memcpy(result_.data() + segment.begin, values.span.data() + segment.offset_bytes,
                    static_cast<size_t>(segment.count()) * sizeof(float));
      });
  }

  void settle() { client_->wait_until_settled(Deadline(kMeasureLimit)); }

  // Each push takes 1 from every element; sums of whole numbers are exact. What others have pushed
  // meanwhile may be there, or not: unless all have ended, or are in step.
  bool values_are_right(bool ended) const {
    const auto mine = static_cast<float>(step_);
    const float all = mine * static_cast<float>(place_.num_workers);
    const bool exact = ended || bench_.staleness.synchronous();
    return std::ranges::all_of(result_, [&](float value) {
      return exact ? value == -all : value <= -mine && value >= -all;
    });
  }

  bool counts_are_right() {
    side_.barrier(kMeasureLimit);
    ask();
    take();
    right_ &= values_are_right(true);
    const ps::PartitionCounts counts = client_->server_counts(Deadline(kMeasureLimit)).counts;
    const int64_t updates = bench_.staleness.synchronous() ? step_ : step_ * place_.num_workers;
    return right_ && counts.updates == updates && counts.dropped == 0;
  }

  bool all_agree(bool right) { return most_of_all(right ? 0 : 1) == 0; }

  // By worker 0, while the others wait.
  double rate() {
    double rate = 0;
    if (place_.worker == 0) {
      const int64_t bytes = std::min(bench_.bytes, kMostRateBytes);
      rate = bench_.engine == "tcp" ? raw_stream_rate(bytes) : copy_rate(bytes);
    }
    return most_of_all(rate);
  }

  PsRow row(bool correct) const {
    const auto gb_s = [&](const std::vector<double>& seconds) {
      return static_cast<double>(bench_.bytes) / median(seconds) / 1e9;
    };
    PsRow row{.servers = place_.num_servers,
              .workers = place_.num_workers,
              .engine = bench_.engine,
              .backups = bench_.backups && place_.num_servers > 1,
              .staleness = bench_.staleness.text(),
              .bytes = bench_.bytes,
              .pull_gb_s = gb_s(pull_),
              .push_gb_s = gb_s(push_),
              .push_pull_gb_s = gb_s(push_pull_),
              .rate_gb_s = median(rates_) / 1e9,
              .correct = correct};
    row.limit_gb_s = row.rate_gb_s / std::max(1.0, static_cast<double>(row.workers) / row.servers);
    row.fraction = row.push_pull_gb_s / row.limit_gb_s;
    return row;
  }

  Group& side_;
  const PsBench bench_;
  const ServedPlace place_;
  const ps::Spec spec_;
  std::vector<float> result_;
  std::vector<std::shared_ptr<std::byte>> payloads_;  // by piece
  std::vector<double> pull_, push_, push_pull_;       // seconds
  std::vector<double> rates_;                         // bytes a second
  int64_t step_ = 0;
  bool right_ = true;
  std::unique_ptr<ps::Client> client_;
};

}  // namespace

std::string PsRow::to_json() const {
  return fmt::format(
      R"({{"bench": "ps", "servers": {}, "workers": {}, "engine": "{}", "backups": {}, )"
      R"("staleness": "{}", "bytes": {}, "pull_gb_s": {:.3f}, "push_gb_s": {:.3f}, )"
      R"("push_pull_gb_s": {:.3f}, "limit_gb_s": {:.3f}, "fraction": {:.3f}, "correct": {}}})",
      servers, workers, engine, backups, staleness, bytes, pull_gb_s, push_gb_s, push_pull_gb_s,
      limit_gb_s, fraction, correct);
}

PsRow measure_ps(Group& side, const ServedPlace& place, const PsBench& bench) {
  return ServedMeasurement(side, place, bench).run();
}

}  // namespace tutti::bench
