/// Small specifications and messages for tests of the parameter server's states.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tutti/ps/partition/partition_state.h"
#include "tutti/ps/values/partial_sums.h"

namespace tutti::ps::testing {

/// One variable of 4 floats, one piece and one partition; workers push one part each.
inline Spec small_spec(int workers, Staleness staleness,
                       const optim::Rule& rule = optim::sgd({.learning_rate = 1})) {
  Spec spec{.rule = rule};
  spec.variables = {{"w", {4}, DType::float32}};
  spec.pieces = pieces_of(spec.variables, place(spec.variables, {}));
  spec.staleness = staleness;
  spec.num_workers = workers;
  spec.shape = ReductionShape::flat(workers);
  return spec;
}

/// The same with two pieces: "w" and "v", of 1,024 floats each.
inline Spec two_pieces(int workers, Staleness staleness,
                       const optim::Rule& rule = optim::sgd({.learning_rate = 1})) {
  Spec spec = small_spec(workers, staleness, rule);
  spec.variables = {{"w", {1024}, DType::float32}, {"v", {1024}, DType::float32}};
  spec.pieces = pieces_of(spec.variables, place(spec.variables, {}), 4096);
  return spec;
}

inline Bytes bytes_of(const Piece& piece, const std::vector<float>& values) {
  std::vector<std::byte> bytes(piece.num_bytes);
  std::ranges::copy(std::as_bytes(std::span(values)), bytes.begin());
  return Bytes::copy_of(bytes);
}

inline float first_of(const Bytes& bytes) {
  float value = 0;
  std::memcpy(&value, bytes.span.data(), sizeof value);
  return value;
}

inline std::string raw(const Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.span.data()), bytes.span.size()};
}

inline Message hello(const Spec& spec, int worker) {
  return {.kind = Message::Kind::hello, .worker = worker, .text = to_text(spec)};
}

inline Message assign(const Spec& spec, int piece, const std::vector<float>& values) {
  return {.kind = Message::Kind::assign,
          .worker = 0,
          .piece = piece,
          .payload = bytes_of(spec.pieces[piece], values)};
}

inline Message push(const Spec& spec, int worker, int64_t sequence, int64_t step,
                    const std::vector<float>& gradient, int piece = 0) {
  const Piece& about = spec.pieces[piece];
  const Bytes values = bytes_of(about, gradient);
  const std::shared_ptr<std::byte> sums = Compute::plain().allocate(about.num_bytes);
  const std::vector<PartialSum> alone = {{worker, {worker}}};
  auto parts = add_parts(
      spec.shape, about, alone,
      [&](int, const Segment& segment) { return values.span.data() + segment.offset_bytes; },
      sums.get());
  return {.kind = Message::Kind::push,
          .flags = Message::last_of_step,
          .worker = worker,
          .piece = piece,
          .sequence = sequence,
          .step = step,
          .learning_rate = 1,
          .parts = std::move(parts),
          .payload = {{sums.get(), values.span.size()}, sums}};
}

inline Message pull(int worker, int64_t step, int piece = 0) {
  return {.kind = Message::Kind::pull, .worker = worker, .piece = piece, .step = step};
}

inline Message leave(int worker) { return {.kind = Message::Kind::leave, .worker = worker}; }

/// All workers are here, and all values are `start`.
inline PartitionState begun(const Spec& spec, float start = 0) {
  PartitionState state(0, Compute::plain());
  for (int worker = 0; worker < spec.num_workers; ++worker) state.apply(hello(spec, worker));
  for (int piece = 0; piece < static_cast<int>(spec.pieces.size()); ++piece)
    state.apply(assign(spec, piece, std::vector<float>(4, start)));
  return state;
}

/// All chunks of a copy of `state`.
inline std::vector<Message> chunks_of(const PartitionState& state) {
  std::vector<Message> chunks;
  PartitionCopy copy = state.copy();
  while (auto chunk = copy.next()) chunks.push_back(std::move(*chunk));
  return chunks;
}

/// What a joining server has after a copy of `state`.
inline PartitionState copy_of(const PartitionState& state) {
  PartitionState copy(0, Compute::plain());
  for (const Message& chunk : chunks_of(state)) copy.take(chunk);
  return copy;
}

/// All rows, by table and key: where they lie is not part of a state.
inline std::vector<std::string> rows_of(const SparseShard& tables) {
  std::vector<std::string> all;
  for (int table = 0; table < tables.num_tables(); ++table) {
    SparseReader reader(tables.snapshot(table));
    for (auto rows = reader.next(1); !rows.keys.empty(); rows = reader.next(1)) {
      const auto [text, payload] = SparseShard::chunk_of(table, rows);
      all.push_back(text + raw(payload));
    }
  }
  return all;
}

/// All that a state knows, for comparisons.
inline std::vector<std::string> all_of(const PartitionState& state) {
  std::vector<std::string> all{std::to_string(state.num_orders())};
  for (const Message& chunk : chunks_of(state))
    if (chunk.text.find("\"what\":\"rows\"") == std::string::npos)
      all.push_back(encode_text(chunk) + raw(chunk.payload));
  if (state.registered()) std::ranges::move(rows_of(state.tables()), std::back_inserter(all));
  return all;
}

/// Each backup of a settled simulation has its primary's bits. Returns how many there were.
template <class Simulation>
int64_t expect_equal_backups(const Simulation& simulation, int num_partitions) {
  int64_t compared = 0;
  for (int partition = 0; partition < num_partitions; ++partition) {
    const PartitionState* const backup = simulation.backup(partition);
    if (backup == nullptr) continue;
    EXPECT_EQ(all_of(*backup), all_of(simulation.partition(partition))) << partition;
    ++compared;
  }
  return compared;
}

}  // namespace tutti::ps::testing
