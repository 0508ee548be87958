/// Partitions of a small job after two steps, for tests of what is written of them.
#pragma once

#include <cstring>
#include <vector>

#include "tutti/ps/partition/partition_state.h"
#include "tutti/ps/spec/placement.h"

#include "tests/unit/ps/small_job.h"

namespace tutti::ps::testing {

// Two variables by rows on so many servers, and a table.
inline Spec spec_on(int servers) {
  Spec spec{.rule = optim::adam()};
  spec.variables = {{"w", {12, 300}, DType::float32}, {"v", {7}, DType::float64}};
  PlacementOptions options{.num_servers = servers};
  options.partitioner = Partitioner::fixed(servers);
  spec.pieces = pieces_of(spec.variables, place(spec.variables, options), 4096);
  spec.tables = {{.name = "user", .width = 3, .initializer = ZeroRows{}}};
  spec.num_partitions = servers;
  return spec;
}

inline std::vector<uint64_t> keys_of(int partition, int servers) {
  std::vector<uint64_t> keys;
  for (uint64_t key = 0; key < 40; ++key)
    if (server_of_key(key * 977, servers) == partition) keys.push_back(key * 977);
  return keys;
}

// Elements i of a variable get gradient i + 1: two steps of one worker.
inline std::vector<PartitionState> trained(const Spec& spec) {
  std::vector<PartitionState> states;
  for (int p = 0; p < spec.num_partitions; ++p) {
    PartitionState& state = states.emplace_back(p, Compute::plain());
    state.apply(hello(spec, 0));
    int64_t sequence = 0;
    for (int64_t step = 0; step < 2; ++step) {
      for (int piece = 0; piece < std::ssize(spec.pieces); ++piece) {
        if (spec.pieces[piece].partition != p) continue;
        std::vector<std::byte> bytes(spec.pieces[piece].num_bytes);
        if (step == 0)
          state.apply({.kind = Message::Kind::assign,
                       .worker = 0,
                       .piece = piece,
                       .payload = Bytes::copy_of(bytes)});
        for (const Segment& segment : spec.pieces[piece].segments)
          for (int64_t i = 0; i < segment.count(); ++i) {
            const double value = static_cast<double>(segment.begin + i + 1 + step);
            const auto narrow = static_cast<float>(value);
            const bool wide = spec.pieces[piece].dtype == DType::float64;
            std::memcpy(bytes.data() + segment.offset_bytes + i * (wide ? 8 : 4),
                        wide ? static_cast<const void*>(&value) : &narrow, wide ? 8 : 4);
          }
        Message pushed = push(spec, 0, ++sequence, step, {}, piece);
        pushed.learning_rate = 0.1;
        pushed.payload = Bytes::copy_of(bytes);
        state.apply(pushed);
      }
      const auto keys = keys_of(p, spec.num_partitions);
      std::vector<std::byte> rows(keys.size() * (8 + 12));
      std::memcpy(rows.data(), keys.data(), keys.size() * 8);
      for (size_t i = 0; i < keys.size() * 3; ++i) {
        const auto value = static_cast<float>(keys[i / 3] + 1);
        std::memcpy(rows.data() + keys.size() * 8 + i * 4, &value, 4);
      }
      state.apply({.kind = Message::Kind::sparse_push,
                   .worker = 0,
                   .sequence = ++sequence,
                   .step = step,
                   .learning_rate = 0.1,
                   .payload = Bytes::copy_of(rows)});
    }
  }
  return states;
}

}  // namespace tutti::ps::testing
