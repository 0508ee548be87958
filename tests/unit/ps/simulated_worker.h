/// A worker of a simulation (simulation.h): it waits for all that a step needs, computes, pushes.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "tutti/ps/client_state.h"
#include "tutti/ps/sparse_batch.h"

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
};

class SimulatedWorker {
 public:
  SimulatedWorker(int number, const Spec& spec, int64_t steps, const Program& program,
                  ClientState::Send send)
      : state(
            number, spec, std::move(send),
            [this](int piece, int64_t for_step, const Bytes& values) {
              parameters_[piece] = Bytes::copy_of(values.span);
              steps_[piece] = for_step;
            },
            program.initial,
            [this](int64_t pull, int partition, const Bytes& rows) {
              for (Rows& asked : rows_)
                if (asked.pull == pull) asked.batch.spread(partition, rows, asked.values.data());
            }),
        number_(number),
        num_steps_(steps),
        program_(program),
        parameters_(spec.pieces.size()),
        steps_(spec.pieces.size(), -1) {}
  SimulatedWorker(const SimulatedWorker&) = delete;

  bool ready() const {
    if (step >= num_steps_) return false;
    if (!pulled_first_) return state.view().number > 0;
    if (state.waits()) return false;
    for (const int64_t for_step : steps_)
      if (for_step < step) return false;
    return true;
  }

  /// Asks for what the first step needs; from then on does a step. True when it has pushed.
  bool act() {
    if (!pulled_first_) {
      pulled_first_ = true;
      for (int piece = 0; piece < std::ssize(state.spec().pieces); ++piece) state.pull(piece, 0);
      pull_rows();
      return false;
    }
    if (program_.begins) program_.begins(number_, step, parameters_);
    push_pieces();
    push_rows();
    ++step;
    if (step < num_steps_) pull_rows();
    return true;
  }

  ClientState state;
  int64_t step = 0;

 private:
  struct Rows {
    int64_t pull = 0;
    SparseBatch batch;
    std::vector<std::byte> values;
  };

  void push_pieces() {
    const Spec& spec = state.spec();
    for (int piece = static_cast<int>(spec.pieces.size()) - 1; piece >= 0; --piece) {
      const auto bytes = program_.gradients(number_, piece, step, parameters_);
      Part part{number_, std::vector<uint8_t>(spec.pieces[piece].segments.size(), 1)};
      state.push({.piece = piece,
                  .step = step,
                  .learning_rate = spec.rule.learning_rate(),
                  .then_pull = step + 1 < num_steps_,
                  .parts = {part},
                  .payload = Bytes::copy_of(bytes)});
    }
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
  std::vector<Bytes> parameters_;
  std::vector<int64_t> steps_;  // by piece: for which step its parameters are
  std::vector<Rows> rows_;      // by table
};

}  // namespace tutti::ps::testing
