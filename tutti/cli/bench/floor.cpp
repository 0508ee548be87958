#include "tutti/cli/bench/floor.h"

#include <poll.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <thread>

#include "tutti/base/error.h"
#include "tutti/base/host.h"

namespace tutti::cli {
namespace {

constexpr Millis kSilence{60'000};

class PlainLoop final : public Floor {
 public:
  PlainLoop(Meeting& meeting, int rank, std::vector<Buffers> buffers)
      : meeting_(meeting), rank_(rank), all_(std::move(buffers)) {}

  std::string_view name() const noexcept override { return "plain loop"; }

  void run(const Exercise& exercise) override {
    meeting_.meet();
    const int64_t part = exercise.part;
    float* const out = all_[index(rank_)].output;
    switch (exercise.collective) {
      case Collective::all_reduce: add_slices(exercise.whole); break;
      case Collective::reduce_scatter: add_part(rank_ * part, part); break;
      case Collective::broadcast:
        if (rank_ != exercise.root) copy(out, all_[index(exercise.root)].output, exercise.whole);
        break;
      case Collective::all_gather:
        for (int r = 0; r < size(); ++r) copy(out + r * part, all_[index(r)].input, part);
        break;
      case Collective::barrier: break;
      default:  // all_to_all
        for (int r = 0; r < size(); ++r)
          copy(out + r * part, all_[index(r)].input + rank_ * part, part);
    }
    meeting_.meet();
  }

 private:
  static constexpr int64_t kBlock = 512;
  static size_t index(int rank) { return static_cast<size_t>(rank); }
  int size() const { return static_cast<int>(all_.size()); }

  static void copy(float* to, const float* from, int64_t count) {
    std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
  }

  // Adds this rank's slice of all buffers and writes it to all.
  void add_slices(int64_t n) {
    const int64_t unit = n >= 16'384 ? 1024 : 16;  // slices begin on a page, or on a line
    const int64_t units = (n + unit - 1) / unit;
    const int64_t begin = std::min(n, units * rank_ / size() * unit);
    const int64_t end = std::min(n, units * (rank_ + 1) / size() * unit);
    if (size() == 2) {
      float* const a = all_[0].output;
      float* const b = all_[1].output;
#pragma GCC ivdep
      for (int64_t i = begin; i < end; ++i) a[i] = b[i] = a[i] + b[i];
      return;
    }
    for (int64_t first = begin; first < end; first += kBlock) {
      const int64_t count = std::min(kBlock, end - first);
      float total[kBlock] = {};
      for (const Buffers& one : all_)
        for (int64_t i = 0; i < count; ++i) total[i] += one.output[first + i];
      for (const Buffers& one : all_) copy(one.output + first, total, count);
    }
  }

  void add_part(int64_t begin, int64_t part) {
    float* const out = all_[index(rank_)].output;
    for (int64_t first = 0; first < part; first += kBlock) {
      const int64_t count = std::min(kBlock, part - first);
      float total[kBlock] = {};
      for (const Buffers& one : all_)
        for (int64_t i = 0; i < count; ++i) total[i] += one.input[begin + first + i];
      copy(out + first, total, count);
    }
  }

  Meeting& meeting_;
  const int rank_;
  const std::vector<Buffers> all_;
};

class RawStream final : public Floor {
 public:
  RawStream(Mesh mesh, const Buffers& mine, bool spin)
      : mesh_(std::move(mesh)), mine_(mine), spin_(spin) {}

  std::string_view name() const noexcept override { return "raw stream"; }

  void run(const Exercise& exercise) override {
    const int size = static_cast<int>(mesh_.peers.size());
    const auto total =
        static_cast<int64_t>(std::ceil(exercise.traffic() * static_cast<double>(exercise.bytes())));
    const bool once = exercise.collective == Collective::broadcast;  // from the root on, no round
    const int next = (mesh_.rank + 1) % size;
    Flow out{.left = once && next == exercise.root ? 0 : total};
    Flow in{.left = once && mesh_.rank == exercise.root ? 0 : total};
    Link& to = link(next);
    Link& from = link((mesh_.rank + size - 1) % size);
    const Deadline deadline(kSilence);
    int idle = 0;
    while (out.left > 0 || in.left > 0) {
      const int64_t moved = send(to, out, exercise) + receive(from, in, exercise.bytes());
      idle = moved > 0 ? 0 : idle + 1;
      if (idle > (spin_ ? kSpins : 0)) wait(to, from, out, in, deadline);
    }
  }

 private:
  static constexpr int64_t kPiece = 1 << 20;
  static constexpr int kSpins = 200;

  struct Flow {
    int64_t left = 0, done = 0;
  };

  Link& link(int rank) { return *mesh_.peers[static_cast<size_t>(rank)].data[0]; }

  static void advance(Flow& flow, int64_t moved) {
    flow.left -= moved;
    flow.done += moved;
  }

  // Goes through the data as the collective does, so that as much memory is read and written.
  int64_t send(Link& to, Flow& flow, const Exercise& exercise) {
    if (flow.left == 0) return 0;
    float* const data = exercise.input_elements() > 0 ? mine_.input : mine_.output;
    const int64_t length = 4 * (exercise.input_elements() > 0 ? exercise.input_elements()
                                                              : exercise.output_elements());
    const int64_t at = flow.done % length;
    const iovec piece{reinterpret_cast<char*>(data) + at,
                      static_cast<size_t>(std::min({kPiece, flow.left, length - at}))};
    const int64_t moved = to.write_some({&piece, 1});
    advance(flow, moved);
    return moved;
  }

  int64_t receive(Link& from, Flow& flow, int64_t room) {
    if (flow.left == 0) return 0;
    if (static_cast<int64_t>(room_.size()) < room) room_.resize(static_cast<size_t>(room));
    const int64_t at = flow.done % room;
    const int64_t moved =
        from.read_some(room_.data() + at, std::min({kPiece, flow.left, room - at}));
    advance(flow, moved);
    return moved;
  }

  void wait(Link& to, Link& from, const Flow& out, const Flow& in, const Deadline& deadline) {
    pollfd ready[2] = {{.fd = to.descriptor(),
                        .events = static_cast<short>(out.left > 0 ? to.wants_to_write() : 0),
                        .revents = 0},
                       {.fd = from.descriptor(),
                        .events = static_cast<short>(in.left > 0 ? from.wants_to_read() : 0),
                        .revents = 0}};
    if (poll(ready, 2, static_cast<int>(deadline.left().count())) == 0 && deadline.passed())
      throw Timeout(
          fmt::format("bench all-reduce, rank {}: the raw stream stands still; {} bytes "
                      "to send to {} and {} to come from {}",
                      mesh_.rank, out.left, to.peer(), in.left, from.peer()));
  }

  Mesh mesh_;
  const Buffers mine_;
  const bool spin_;
  std::vector<char> room_;
};

class OtherGroup final : public Floor {
 public:
  OtherGroup(Group group, const Buffers& mine, Millis limit)
      : group_(std::move(group)), mine_(mine), limit_(limit) {}
  std::string_view name() const noexcept override { return "flat tcp"; }
  void run(const Exercise& exercise) override { exercise.run(group_, mine_, limit_); }

 private:
  Group group_;
  const Buffers mine_;
  const Millis limit_;
};

}  // namespace

Meeting::Meeting(Group side)
    : side_(std::move(side)),
      policy_(choose_wait_policy(side_.size(), host_facts().usable_cores, true)) {
  if (side_.size() > 1 && !side_.engine().shares_memory()) return;
  shared_ = side_.allocate(sizeof(FlagLine));
  for (const MemorySpan& part : shared_.parts) lines_.push_back(static_cast<FlagLine*>(part.data));
}

void Meeting::meet() {
  if (!has_flags()) {
    side_.barrier(kSilence);
    return;
  }
  lines_[static_cast<size_t>(side_.rank())]->flag.set(++meetings_);
  const Deadline deadline(kSilence);
  for (size_t r = 0; r < lines_.size(); ++r)
    for (int turns = 1; !lines_[r]->flag.spin_until(meetings_, policy_); ++turns) {
      std::this_thread::yield();
      if (turns % 1'000 == 0 && deadline.passed())
        throw Timeout(fmt::format("bench all-reduce, rank {}: rank {} did not come to meeting {}",
                                  side_.rank(), r, meetings_));
    }
}

void Meeting::give_up() noexcept {
  constexpr uint32_t kFarAway = 1u << 30;
  if (has_flags()) lines_[static_cast<size_t>(side_.rank())]->flag.set(meetings_ + kFarAway);
}

std::unique_ptr<Floor> make_plain_loop(Meeting& meeting, int rank, std::vector<Buffers> buffers) {
  return std::make_unique<PlainLoop>(meeting, rank, std::move(buffers));
}

std::unique_ptr<Floor> make_raw_stream(Mesh mesh, const Buffers& mine, bool spin) {
  return std::make_unique<RawStream>(std::move(mesh), mine, spin);
}

std::unique_ptr<Floor> make_other_group(Group group, const Buffers& mine, Millis limit) {
  return std::make_unique<OtherGroup>(std::move(group), mine, limit);
}

}  // namespace tutti::cli
