/// A worker of a simulation (simulation.h): it waits for all that a step needs, computes, pushes.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tutti/ps/client/client_state.h"
#include "tutti/ps/spec/carriers.h"
#include "tutti/ps/values/partial_sums.h"
#include "tutti/ps/values/sparse_batch.h"

namespace tutti::ps::testing {

/// What one worker computes: the parts of its push of a piece, and what it sees.
struct Program {
  /// Gradients of `piece` in `step` of `worker`, given all parameters of the step.
  std::function<std::vector<std::byte>(int worker, int piece, int64_t step,
                                       const std::vector<Bytes>& parameters)>
      gradients;
  std::function<Bytes(int piece)> initial;
  /// Called as a worker begins a step; may be empty.
  std::function<void(int worker, int64_t step, const std::vector<Bytes>& parameters)> begins;
  /// Keys of `table` that a worker needs in a step, and gradients given their rows: [keys, width].
  /// Empty for a specification without tables.
  std::function<std::vector<uint64_t>(int worker, int table, int64_t step)> keys;
  std::function<std::vector<std::byte>(int worker, int table, int64_t step,
                                       const std::vector<std::byte>& rows)>
      row_gradients;
  /// Workers meet each time that they have done so many steps; 0: never.
  int64_t meets_every = 0;
  /// Called with what came of a meeting after `step` steps.
  std::function<void(int worker, int64_t step, const Brought& values)> met;
};

/// What the workers of one host have in common: what each has of a piece in a step, the cuts that
/// they have marked before a step, and the parameters that have come.
struct SimulatedHost {
  explicit SimulatedHost(size_t num_pieces) : parameters(num_pieces), steps(num_pieces, -1) {}

  std::map<std::pair<int, int64_t>, std::map<int, Bytes>> gradients;  // by piece and step; worker
  std::map<std::pair<int, int64_t>, int64_t> marked;                  // by worker and step: the cut
  std::vector<Bytes> parameters;                                      // by piece
  std::vector<int64_t> steps;                                         // by piece: for which step
};

class SimulatedWorker {
 public:
  /// `host`: alone on it unless the specification has host_sums.
  SimulatedWorker(int number, const Spec& spec, int64_t steps, const Program& program,
                  std::shared_ptr<SimulatedHost> host, ClientState::Send send)
      : state(
            number, spec, std::move(send),
            [this](int piece, int64_t for_step, const Bytes& values) {
              host_->parameters[piece] = Bytes::copy_of(values.span);
              host_->steps[piece] = for_step;
            },
            program.initial,
            [this](int64_t pull, int partition, const Bytes& rows) {
              for (Rows& asked : rows_)
                if (asked.pull == pull) asked.batch.spread(partition, rows, asked.values.data());
            }),
        number_(number),
        num_steps_(steps),
        program_(program),
        host_(std::move(host)),
        carriers_(spec),
        workers_(carriers_.hosts()[carriers_.host_of(number)]) {}
  SimulatedWorker(const SimulatedWorker&) = delete;

  bool ready() const {
    if (!pulled_first_) return state.view().number > 0;
    if (meets_) return state.brought().has_value();
    if (state.waits()) return false;
    if (!begun_ || meets_next_) return true;
    if (step >= num_steps_) return false;
    for (const int64_t for_step : host_->steps)
      if (for_step < step) return false;
    return true;
  }

  bool done() const {
    return begun_ && step >= num_steps_ && !meets_next_ && !meets_ && !state.waits() &&
           !to_carry() && state.num_unsettled() == 0;
  }

  /// A piece that this worker carries and of which all of its host have what its push needs.
  std::optional<int> to_carry() const {
    const Spec& spec = state.spec();
    for (int piece = 0; piece < std::ssize(spec.pieces); ++piece) {
      if (!carriers_.carries(number_, piece)) continue;
      const int64_t next = carried_.contains(piece) ? carried_.at(piece) + 1 : 0;
      const auto all = host_->gradients.find({piece, next});
      if (all == host_->gradients.end() || std::ssize(all->second) != workers_.count) continue;
      if (knows_marks_of_host(next)) return piece;
    }
    return std::nullopt;
  }

  /// Adds and pushes it.
  void carry(int piece) {
    const int64_t next = carried_.contains(piece) ? carried_.at(piece) + 1 : 0;
    carried_[piece] = next;
    const auto all = host_->gradients.extract({piece, next});
    for (const auto& [worker, bytes] : all.mapped())
      if (const auto mark = host_->marked.find({worker, next}); mark != host_->marked.end())
        state.mark_with_host(mark->second, next);
    const Spec& spec = state.spec();
    const auto sums = partial_sums(spec.shape, workers_.first, workers_.count);
    std::vector<std::byte> payload(spec.pieces[piece].num_bytes * sums.size());
    auto parts = add_parts(
        spec.shape, spec.pieces[piece], sums,
        [&](int rank, const Segment& segment) -> const void* {
          return all.mapped().at(rank).span.data() + segment.offset_bytes;
        },
        payload.data());
    state.push({.piece = piece,
                .step = next,
                .learning_rate = spec.rule.learning_rate(),
                .then_pull = next + 1 < num_steps_,
                .parts = std::move(parts),
                .payload = Bytes::copy_of(payload)});
  }

  /// Asks for what the first step needs; from then on does a step, or meets the others. True when
  /// it has pushed, or has handed in what its host pushes.
  bool act() {
    if (!pulled_first_) {
      pulled_first_ = true;
      for (int piece = 0; piece < std::ssize(state.spec().pieces); ++piece)
        if (carriers_.carries(number_, piece)) state.pull(piece, 0);
      pull_rows();
      return false;
    }
    if (!begun_) return begin();
    if (meets_next_ || meets_) return meet();
    if (program_.begins) program_.begins(number_, step, host_->parameters);
    hand_in_pieces();
    push_rows();
    ++step;
    if (step < num_steps_) pull_rows();
    meets_next_ = meets_here();
    return true;
  }

  ClientState state;
  int64_t step = 0;

 private:
  bool meets_here() const { return program_.meets_every > 0 && step % program_.meets_every == 0; }

  // One that has come again goes on where the job is. Whether it comes to the meeting that is held
  // there is its own choice.
  bool begin() {
    begun_ = true;
    step = state.first_step();
    if (step == 0) return false;
    for (int piece = 0; piece < std::ssize(state.spec().pieces); ++piece) {
      host_->steps[piece] = step;
      carried_[piece] = step - 1;
    }
    meets_next_ = meets_here() && number_ % 2 == 0;
    return false;
  }

  bool meet() {
    if (std::exchange(meets_next_, false)) {
      const std::array<std::byte, 1> value{static_cast<std::byte>(number_)};
      state.bring(step, Bytes::copy_of(value));
      meets_ = true;
      return false;
    }
    meets_ = false;
    program_.met(number_, step, *state.brought());
    return false;
  }

  struct Rows {
    int64_t pull = 0;
    SparseBatch batch;
    std::vector<std::byte> values;
  };

  // Alone it pushes them at once.
  void hand_in_pieces() {
    const Spec& spec = state.spec();
    if (const int64_t cut = state.enter(step, true); cut > 0) host_->marked[{number_, step}] = cut;
    for (int piece = static_cast<int>(spec.pieces.size()) - 1; piece >= 0; --piece) {
      const auto bytes = program_.gradients(number_, piece, step, host_->parameters);
      host_->gradients[{piece, step}][number_] = Bytes::copy_of(bytes);
      if (workers_.count == 1) carry(piece);
    }
  }

  bool knows_marks_of_host(int64_t of_step) const {
    for (int i = 0; i < workers_.count; ++i) {
      const auto mark = host_->marked.find({workers_.first + i, of_step});
      if (mark != host_->marked.end() && !state.knows_cut(mark->second)) return false;
    }
    return true;
  }

  void pull_rows() {
    const Spec& spec = state.spec();
    rows_.clear();
    for (int table = 0; table < std::ssize(spec.tables); ++table) {
      const auto keys = program_.keys(number_, table, step);
      SparseBatch batch(keys, spec.tables[table], spec.num_partitions);
      std::vector<Bytes> payloads;
      for (int i = 0; i < spec.num_partitions; ++i) payloads.push_back(batch.payload_of_keys(i));
      std::vector<std::byte> values(keys.size() * spec.tables[table].width *
                                    size_of(spec.tables[table].dtype));
      const int64_t pull = state.sparse_pull(table, step, std::move(payloads));
      rows_.push_back({pull, std::move(batch), std::move(values)});
    }
  }

  void push_rows() {
    const Spec& spec = state.spec();
    for (int table = 0; table < std::ssize(spec.tables); ++table) {
      const SparseBatch& batch = rows_[table].batch;
      const auto gradients = program_.row_gradients(number_, table, step, rows_[table].values);
      SparseOrder order{table, step, spec.rule.learning_rate(), {}};
      for (int i = 0; i < spec.num_partitions; ++i) {
        std::vector<std::byte> payload(batch.payload_bytes(i));
        batch.gather(i, gradients.data(), payload.data());
        order.payloads.push_back(Bytes::copy_of(payload));
      }
      state.sparse_push(std::move(order));
    }
  }

  const int number_;
  const int64_t num_steps_;
  const Program& program_;
  bool pulled_first_ = false;
  bool begun_ = false;       // with the parameters of its first step
  bool meets_next_ = false;  // instead of a step
  bool meets_ = false;       // and waits for the others
  const std::shared_ptr<SimulatedHost> host_;
  const Carriers carriers_;
  const HostWorkers workers_;       // of the host
  std::map<int, int64_t> carried_;  // by piece: the last step that it has pushed
  std::vector<Rows> rows_;          // by table
};

}  // namespace tutti::ps::testing
