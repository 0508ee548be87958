#include "bench/compare/servers_sparse.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <vector>

#include "tutti/base/random.h"
#include "tutti/cli/bench/timing.h"
#include "tutti/cluster/rendezvous/job_links.h"
#include "tutti/net/tls.h"
#include "tutti/ps/client/client.h"
#include "tutti/strategy/run/detail/replica_threads.h"

namespace tutti::bench {
using namespace cli;
namespace {

constexpr int kSamplesPerRound = 40;
constexpr int kRowsWarmUps = 20;
constexpr int64_t kRowsAtOnce = 1 << 16;  // while the table is filled

ps::Spec spec_of(const ServedPlace& place, const SparseBench& bench) {
  ps::Spec spec{.rule = optim::sgd({.learning_rate = 1})};
  spec.tables = {{.name = "values", .width = bench.width, .initializer = ps::ZeroRows{}}};
  spec.num_partitions = place.num_servers;
  spec.staleness = bench.staleness;
  spec.num_workers = place.num_workers;
  spec.shape = ReductionShape::flat(place.num_workers);
  return spec;
}

class RowsMeasurement {
 public:
  RowsMeasurement(Group& side, const ServedPlace& place, const SparseBench& bench)
      : side_(side), place_(place), bench_(bench) {
    detail::keep_freed_memory();  // as every training does
    const Token token = require_token("tutti_bench servers");
    client_ = std::make_unique<ps::Client>(
        ps::ClientOptions{.worker = place.worker,
                          .view_service = place.view_service,
                          .poll = place.poll,
                          .share_memory = bench.engine == "shm"},
        Credentials{token, job_of_token(token), tls_from_environment()}, spec_of(place, bench),
        [](int) { return ps::Bytes{}; });
  }

  SparseRow run() {
    fill();
    for (int i = 0; i < kRowsWarmUps; ++i) turn();
    push_pull_.clear();
    copy_.clear();
    for (int i = 0; i < bench_.rounds * kSamplesPerRound; ++i) turn();
    side_.barrier(kMeasureLimit);
    return {median(push_pull_) * 1e6, median(copy_) * 1e6, most_of_all(right_ ? 0 : 1) == 0};
  }

 private:
  // Worker 0 makes the rows, by gradients of zero; the others age them.
  void fill() {
    for (int64_t begin = 0; begin < bench_.rows; begin += kRowsAtOnce) {
      const int64_t count = place_.worker == 0 ? std::min(kRowsAtOnce, bench_.rows - begin) : 0;
      std::vector<uint64_t> keys(count);
      std::iota(keys.begin(), keys.end(), begin);
      std::vector<float> zeros(count * bench_.width);
      push(keys, zeros);
      client_->wait_until_settled(Deadline(kMeasureLimit));
    }
    plain_.assign(bench_.rows * bench_.width, 1.0F);
    to_.resize(bench_.keys * bench_.width);
    gradients_.assign(bench_.keys * bench_.width, -1.0F);
    draw();
    counts_.resize(bench_.rows);
  }

  // Distinct ones, of this worker alone: so that what its rows are is known.
  void draw() {
    const auto workers = static_cast<uint64_t>(place_.num_workers);
    const uint64_t mine = static_cast<uint64_t>(bench_.rows) / workers;
    keys_.clear();
    const uint64_t start = random_key(1, RandomPurpose::test, {++draws_});
    // A walk whose stride has no divisor in common with the rows comes to none twice.
    uint64_t stride = start / mine % mine | 1;
    while (std::gcd(stride, mine) != 1) stride += 2;
    for (int64_t i = 0; i < bench_.keys; ++i)
      keys_.push_back((start + static_cast<uint64_t>(i) * stride) % mine * workers +
                      static_cast<uint64_t>(place_.worker));
  }

  void push(const std::vector<uint64_t>& keys, std::vector<float>& gradients) {
    client_->sparse_push(0, keys, {gradients.data(), std::ssize(gradients), DType::float32}, step_,
                         1.0);
    ++step_;
  }

  void turn() {
    draw();
    push_pull_.push_back(sample([&] {
      push(keys_, gradients_);
      rows_ = client_->sparse_fetch(client_->sparse_pull(0, keys_, step_), Deadline(kMeasureLimit));
    }));
    client_->wait_until_settled(Deadline(kMeasureLimit));
    check();
    draw();
    copy_.push_back(sample([&] {
      for (int time = 0; time < 2; ++time) gather();
    }));
  }

  void gather() {
    float* to = to_.data();
    for (const uint64_t key : keys_) {
      std::memcpy(to, plain_.data() + key * static_cast<uint64_t>(bench_.width),
                  static_cast<size_t>(bench_.width) * sizeof(float));
      to += bench_.width;
    }
    asm volatile("" : : "r"(to_.data()) : "memory");
  }

  // Each push adds 1 to every element of its rows.
  void check() {
    const auto* row = static_cast<const float*>(rows_.data());
    for (const uint64_t key : keys_) {
      const auto expected = static_cast<float>(++counts_[key]);
      right_ &= std::all_of(row, row + bench_.width, [&](float v) { return v == expected; });
      row += bench_.width;
    }
  }

  template <class Body>
  double sample(const Body& body) {
    side_.barrier(kMeasureLimit);
    const auto start = Clock::now();
    body();
    return most_of_all(std::chrono::duration<double>(Clock::now() - start).count());
  }

  double most_of_all(double mine) {
    side_.all_reduce_now({&mine, 1, DType::float64}, ReduceOp::max, kMeasureLimit);
    return mine;
  }

  Group& side_;
  const ServedPlace place_;
  const SparseBench bench_;
  std::vector<uint64_t> keys_;
  std::vector<float> gradients_, plain_, to_;
  Array rows_;
  std::vector<int32_t> counts_;  // pushes, by key
  std::vector<double> push_pull_, copy_;
  int64_t step_ = 0;
  uint64_t draws_ = 0;
  bool right_ = true;
  std::unique_ptr<ps::Client> client_;
};

}  // namespace

std::string SparseRow::to_json(const SparseBench& bench, const ServedPlace& place) const {
  return fmt::format(
      R"({{"bench": "ps_sparse", "servers": {}, "workers": {}, "engine": "{}", "backups": {}, )"
      R"("staleness": "{}", "rows": {}, "width": {}, "keys": {}, "push_pull_us": {:.1f}, )"
      R"("copy_us": {:.1f}, "ratio": {:.3f}, "correct": {}}})",
      place.num_servers, place.num_workers, bench.engine, bench.backups && place.num_servers > 1,
      bench.staleness.text(), bench.rows, bench.width, bench.keys, push_pull_us, copy_us,
      push_pull_us / copy_us, correct);
}

SparseRow measure_sparse(Group& side, const ServedPlace& place, const SparseBench& bench) {
  return RowsMeasurement(side, place, bench).run();
}

}  // namespace tutti::bench
