#include "tutti/cli/bench_all_reduce.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <thread>

#include "tutti/base/error.h"
#include "tutti/base/host.h"
#include "tutti/comm/shm/shm.h"
#include "tutti/net/flag.h"

namespace tutti::cli {
namespace {

constexpr Millis kLimit{120'000};
constexpr int64_t kRowBytes = 8 << 10;  // below, one operation is too short for a clock
constexpr int kRowLength = 100;
constexpr int kMaxSamples = 256;

double now_us() {
  return std::chrono::duration<double, std::micro>(Clock::now().time_since_epoch()).count();
}

// What each rank shares beside its data.
struct Board {
  FlagLine arrived;
  alignas(64) double samples[kMaxSamples];
  alignas(64) double floor_samples[kMaxSamples];
};

// One rank's view of the buffers and of the others.
class Member {
 public:
  Member(Group group, int64_t max_bytes)
      : group_(std::move(group)), shared_(group_.allocate(kBoardBytes + max_bytes, kLimit)) {}

  int rank() const { return group_.rank(); }
  int size() const { return group_.size(); }
  Group& group() { return group_; }
  Board& board(int r) const { return *static_cast<Board*>(shared_.parts[r].data); }
  float* data(int r) const {
    return reinterpret_cast<float*>(static_cast<char*>(shared_.parts[r].data) + kBoardBytes);
  }
  float* mine() const { return data(rank()); }

  // A bare barrier: flags and nothing else.
  void meet() {
    board(rank()).arrived.flag.set(++meetings_);
    for (int r = 0; r < size(); ++r)
      while (!board(r).arrived.flag.spin_until(meetings_, 2'000)) std::this_thread::yield();
  }

 private:
  static constexpr int64_t kBoardBytes = (sizeof(Board) + 4095) / 4096 * 4096;
  Group group_;
  SharedParts shared_;
  uint32_t meetings_ = 0;
};

// Adds this rank's slice of all buffers and writes it to all.
void floor_kernel(const Member& member, int64_t n) {
  const int64_t unit = n >= 16'384 ? 1024 : 16;  // slices begin on a page, or on a line
  const int64_t units = (n + unit - 1) / unit;
  const int64_t begin = std::min(n, units * member.rank() / member.size() * unit);
  const int64_t end = std::min(n, units * (member.rank() + 1) / member.size() * unit);
  if (member.size() == 2) {
    float* const a = member.data(0);
    float* const b = member.data(1);
#pragma GCC ivdep
    for (int64_t i = begin; i < end; ++i) a[i] = b[i] = a[i] + b[i];
    return;
  }
  constexpr int64_t kBlock = 512;
  for (int64_t first = begin; first < end; first += kBlock) {
    const int64_t count = std::min(kBlock, end - first);
    float total[kBlock] = {};
    for (int r = 0; r < member.size(); ++r)
      for (int64_t i = 0; i < count; ++i) total[i] += member.data(r)[first + i];
    for (int r = 0; r < member.size(); ++r)
      std::memcpy(member.data(r) + first, total, static_cast<size_t>(count) * sizeof(float));
  }
}

void produce(const Member& member, int64_t n) { std::fill_n(member.mine(), n, 1.f); }

// A sum that is used, so that it is not left out.
float consume(const Member& member, int64_t n) {
  float total = 0;
  for (int64_t i = 0; i < n; i += 16) total += member.mine()[i];
  return total;
}

template <class Body>
double sample_us(Member& member, int64_t n, const Body& body) {
  produce(member, n);
  const int row = n * 4 < kRowBytes ? kRowLength : 1;
  member.meet();
  const double start = now_us();
  for (int i = 0; i < row; ++i) body();
  const double taken = (now_us() - start) / row;
  volatile float used = consume(member, n);
  static_cast<void>(used);
  return taken;
}

bool check(Member& member, int64_t n) {
  const int size = member.size();
  for (int64_t i = 0; i < n; ++i) member.mine()[i] = static_cast<float>(i % 1009 + member.rank());
  member.group().all_reduce_now({member.mine(), n, DType::float32}, ReduceOp::sum, kLimit);
  int32_t right = 1;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t expected = i % 1009 * size + int64_t{size} * (size - 1) / 2;
    if (member.mine()[i] != static_cast<float>(expected)) right = 0;
  }
  member.group().all_reduce_now({&right, 1, DType::int32}, ReduceOp::min, kLimit);
  return right == 1;
}

double flag_round_trip_ns(Member& member) {
  constexpr int kRounds = 2'000;
  member.meet();
  const double start = now_us();
  for (int i = 0; i < kRounds; ++i) member.meet();
  return (now_us() - start) * 1e3 / kRounds;
}

int samples_per_round(int64_t bytes) {
  return bytes <= (1 << 20) ? 40 : bytes <= (16 << 20) ? 8 : 3;
}

// The p-quantile of the slowest rank's samples.
double quantile(std::vector<double> samples, double p) {
  std::sort(samples.begin(), samples.end());
  const auto last = static_cast<double>(samples.size() - 1);
  return samples[static_cast<size_t>(std::lround(p * last))];
}

// Adds one round's samples of the slowest ranks to `all`.
void gather(Member& member, int count, double (Board::*samples)[kMaxSamples],
            std::vector<double>& all) {
  for (int i = 0; i < count; ++i) {
    double slowest = 0;
    for (int r = 0; r < member.size(); ++r)
      slowest = std::max(slowest, (member.board(r).*samples)[i]);
    all.push_back(slowest);
  }
}

struct Samples {
  std::vector<double> operation, floor;
};

void measure_round(Member& member, int64_t bytes, Samples& samples) {
  const int64_t n = bytes / 4;
  const int count = samples_per_round(bytes);
  Board& board = member.board(member.rank());
  for (int i = 0; i < count; ++i) {
    board.samples[i] = sample_us(member, n, [&] {
      member.group().all_reduce_now({member.mine(), n, DType::float32}, ReduceOp::max, kLimit);
    });
    board.floor_samples[i] = sample_us(member, n, [&] {
      member.meet();
      floor_kernel(member, n);
      member.meet();
    });
  }
  member.meet();
  gather(member, count, &Board::samples, samples.operation);
  gather(member, count, &Board::floor_samples, samples.floor);
  member.meet();
}

void pin_to_core(int index) {
  const auto& cores = host_facts().cores;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(cores[static_cast<size_t>(index)]), &set);
  sched_setaffinity(0, sizeof set, &set);
}

}  // namespace

std::string AllReduceRow::to_json() const {
  return fmt::format(
      R"({{"bench": "all-reduce", "engine": "{}", "ranks": {}, "bytes": {}, "p50_us": {:.3f}, )"
      R"("p99_us": {:.3f}, "bus_gb_s": {:.3f}, "floor_fraction": {:.3f}, "correct": {}, )"
      R"("floor_p50_us": {:.3f}, "flag_round_trip_ns": {:.1f}}})",
      engine, ranks, bytes, p50_us, p99_us, bus_gb_s, floor_fraction, correct, floor_p50_us,
      flag_round_trip_ns);
}

std::vector<AllReduceRow> measure_all_reduce(Group group, const AllReduceBench& bench) {
  for (int64_t bytes : bench.bytes)
    if (bytes < 0 || bytes % 4 != 0)
      throw UsageError(
          fmt::format("bench all-reduce: {} bytes; expected a multiple of 4, 0 or more", bytes));
  if (bench.bytes.empty() || bench.rounds < 1) return {};
  if (bench.pin && group.size() <= host_facts().usable_cores) pin_to_core(group.rank());
  Member member(std::move(group), *std::max_element(bench.bytes.begin(), bench.bytes.end()));

  std::vector<Samples> samples(bench.bytes.size());
  std::vector<double> flags;
  std::vector<char> correct(bench.bytes.size(), 1);
  for (int round = 0; round < bench.rounds; ++round) {
    flags.push_back(flag_round_trip_ns(member));
    for (size_t s = 0; s < bench.bytes.size(); ++s) {
      correct[s] &= static_cast<char>(check(member, bench.bytes[s] / 4));
      measure_round(member, bench.bytes[s], samples[s]);
    }
  }
  std::vector<AllReduceRow> rows;
  for (size_t s = 0; s < bench.bytes.size(); ++s) {
    AllReduceRow row{.engine = std::string(member.group().engine().name()),
                     .ranks = member.size(),
                     .bytes = bench.bytes[s],
                     .p50_us = quantile(samples[s].operation, 0.5),
                     .p99_us = quantile(samples[s].operation, 0.99),
                     .correct = correct[s] != 0,
                     .floor_p50_us = quantile(samples[s].floor, 0.5),
                     .flag_round_trip_ns = quantile(flags, 0.5)};
    const double n = member.size();
    row.bus_gb_s = 2 * (n - 1) / n * static_cast<double>(row.bytes) / row.p50_us / 1e3;
    row.floor_fraction = row.floor_p50_us / row.p50_us;
    rows.push_back(row);
  }
  return rows;
}

std::vector<AllReduceRow> bench_all_reduce_threads(int ranks, const AllReduceBench& bench) {
  const bool pinned = bench.pin && ranks <= host_facts().usable_cores;
  const auto engines = make_shm_threads(ranks, {.pinned = pinned});
  std::vector<AllReduceRow> rows;
  std::exception_ptr thrown;
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      try {
        auto mine = measure_all_reduce(Group(engines[r]), bench);
        if (r == 0) rows = std::move(mine);
      } catch (const std::exception& error) {
        engines[r]->abort(FailureKind::aborted, error.what());
        if (r == 0) thrown = std::current_exception();
      }
    });
  for (auto& thread : threads) thread.join();
  if (thrown) std::rethrow_exception(thrown);
  return rows;
}

}  // namespace tutti::cli
