/// Ranks of a TensorGroup as threads of one process.
#pragma once

#include <ATen/Parallel.h>

#include <string>
#include <vector>

#include "tutti/parallel/tensor/tensor_group.h"

#include "tests/support/comm.h"

namespace tutti::test {

/// Runs `body(group)` on `ranks` threads, each of which computes on one core, and gives what each
/// threw as words ("" for nothing).
template <class Body>
std::vector<std::string> errors_of_tensor_ranks(int ranks, int blocks, const Body& body,
                                                Millis limit = kDefaultTimeLimit) {
  const auto thrown = run_members(make_shm_threads(ranks), [&](const Group& group) {
    at::set_num_threads(1);
    body(parallel::TensorGroup(group, blocks, limit));
  });
  std::vector<std::string> words;
  for (const auto& one : thrown) words.push_back(words_of(one));
  return words;
}

/// What `body(group)` gives on each rank; rethrows the first error. Engines as make_engines() has
/// them.
template <class Body>
auto on_tensor_ranks(int ranks, int blocks, const Body& body, const std::string& engine = "shm") {
  using Result = std::invoke_result_t<Body, const parallel::TensorGroup&>;
  std::vector<Result> results(static_cast<size_t>(ranks));
  run_all_members(make_engines(engine, ranks), [&](const Group& group) {
    at::set_num_threads(1);
    results[static_cast<size_t>(group.rank())] = body(parallel::TensorGroup(group, blocks));
  });
  return results;
}

}  // namespace tutti::test
