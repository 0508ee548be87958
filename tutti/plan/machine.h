/// Machine: what was measured of a model on a machine, and what somebody writes in its place of one
/// that they consider buying. A file in JSON, made by `tutti plan measure`.
///
/// Thread rule: a value and pure functions; load and save touch the file alone.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/plan/link.h"

namespace tutti::plan {

/// Seconds of one replica for a batch; medians.
struct BatchTime {
  int64_t batch = 1;   ///< samples, > 0
  double forward = 0;  ///< the loss too, >= 0
  double backward = 0;
  bool operator==(const BatchTime&) const = default;
};

/// Of an engine between two ranks, in software alone: what no faster network would take away.
struct EngineSpeed {
  double latency = 0;             ///< seconds of the smallest all-reduce of two, >= 0
  double bytes_per_second = 1e9;  ///< of a large one, each way, > 0
  bool operator==(const EngineSpeed&) const = default;
};

/// Between hosts of this kind, by fit_link() and set_link() or by hand.
struct MeasuredLink {
  Link wire{};    ///< of each host, as Job::link: payload and tcp come on top
  int hosts = 2;  ///< between which it was measured, >= 2
  bool operator==(const MeasuredLink&) const = default;
};

struct Machine {
  std::string name;                ///< of the machine, for people
  std::string model;               ///< that was measured
  int64_t parameters = 0;          ///< of the model, > 0
  int64_t bytes = 0;               ///< that a step sends of them, > 0
  int64_t largest_parameter = 0;   ///< bytes of the largest, which one server has whole; > 0
  std::vector<BatchTime> compute;  ///< one or more; batches ascend
  /// A step's compute over its median: quantiles from the least to the greatest, evenly spaced, 2
  /// or more, >= 0, ascending. {1, 1}: every step takes as long.
  std::vector<double> jitter{1, 1};
  double update = 0;  ///< seconds of one replica's optimizer for all parameters, >= 0
  /// Times the parameters that it reads and writes: SGD 3 (gradient and parameter in, parameter
  /// out), two more for each state: with momentum 5, Adam 7. >= 1.
  double update_streams = 7;
  double input = 0;  ///< seconds a sample of reading and decoding, on all cores, >= 0
  int cores = 1;     ///< >= 1
  /// Bytes a second that one core reads and writes, and all together; > 0.
  double core_memory_rate = 1e10, memory_rate = 1e10;
  int64_t memory = 0;                  ///< bytes there are, > 0
  double fixed_memory = 0;             ///< bytes of a replica without samples, >= 0
  double sample_memory = 0;            ///< more a sample of the batch, >= 0
  EngineSpeed shm, tcp;                ///< inside a host; between hosts
  double payload = 1448.0 / 1538;      ///< of what crosses a wire, > 0, <= 1: TCP over Ethernet
  double compute_error = 0.03;         ///< relative standard deviation of a prediction's compute
  double communication_error = 0.06;   ///< and of the rest; both >= 0, < 1
  std::optional<MeasuredLink> link{};  ///< none: nobody measured it
  bool operator==(const Machine&) const = default;

  /// Forward and backward of a replica: straight between the batches that were measured, and
  /// beyond them as the nearest two say. A single one: in proportion. batch > 0.
  BatchTime compute_of(double batch) const;

  /// Bytes of a replica; what fits: the largest batch of `replicas` on this machine, 0 for none.
  double memory_of(double batch) const;
  int64_t largest_batch(int replicas) const;
};

/// Throws UsageError that names the field, what it is and what is expected.
void check(const Machine& machine);

/// {"tutti_machine": 1, "name": ..., ...}: docs/formats/machine.md. Throws DataError with origin,
/// field, got and expected, for unknown fields too.
Machine parse_machine(std::string_view json, std::string_view origin);
std::string to_json(const Machine& machine);

/// The same from and to a file, which is replaced as a whole. Saving throws as check() does.
Machine load_machine(const std::filesystem::path& path);
void save_machine(const Machine& machine, const std::filesystem::path& path);

}  // namespace tutti::plan
