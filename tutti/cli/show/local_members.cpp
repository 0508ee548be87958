#include "tutti/cli/show/local_members.h"

#include <algorithm>
#include <string>
#include <utility>

#include "tutti/base/threads.h"
#include "tutti/comm/group/group.h"
#include "tutti/net/link.h"

namespace tutti::cli {
namespace {

std::string name_of_rank(int rank) { return "rank " + std::to_string(rank); }

}  // namespace

std::vector<std::shared_ptr<Engine>> local_tcp_members(int size, const TcpOptions& options) {
  std::vector<TcpLinks> all(static_cast<size_t>(size));
  for (int r = 0; r < size; ++r) {
    all[static_cast<size_t>(r)].rank = r;
    all[static_cast<size_t>(r)].size = size;
    all[static_cast<size_t>(r)].peers.resize(static_cast<size_t>(size));
  }
  for (int a = 0; a < size; ++a)
    for (int b = a + 1; b < size; ++b) {
      TcpLinks::Peer& of_a = all[static_cast<size_t>(a)].peers[static_cast<size_t>(b)];
      TcpLinks::Peer& of_b = all[static_cast<size_t>(b)].peers[static_cast<size_t>(a)];
      auto data = make_link_pair(name_of_rank(b), name_of_rank(a));
      of_a.data.push_back(std::move(data.first));
      of_b.data.push_back(std::move(data.second));
      auto control = make_link_pair(name_of_rank(b), name_of_rank(a));
      of_a.control = std::move(control.first);
      of_b.control = std::move(control.second);
    }
  std::vector<std::shared_ptr<Engine>> engines;
  for (TcpLinks& links : all) engines.push_back(make_tcp(std::move(links), options));
  return engines;
}

RecordedSum record_all_reduce(const std::vector<std::shared_ptr<Engine>>& engines, int64_t bytes,
                              std::vector<std::string> prefixes) {
  const auto ranks = static_cast<int>(engines.size());
  std::vector<std::vector<float>> vectors(engines.size());
  // Whole numbers, whose sums are exact in any order.
  const auto fill = [&](size_t r) {
    vectors[r].resize(static_cast<size_t>(bytes / 4));
    for (size_t i = 0; i < vectors[r].size(); ++i)
      vectors[r][i] = static_cast<float>((i + 1) % 251 * (r + 1));
  };
  const auto reduce = [&](int rank) {
    auto& mine = vectors[static_cast<size_t>(rank)];
    Group group(engines[static_cast<size_t>(rank)]);
    group.barrier(kShowLimit);
    group
        .all_reduce(
            {.data = mine.data(), .num_elements = std::ssize(mine), .dtype = DType::float32},
            ReduceOp::sum, kShowLimit)
        .wait();
  };
  for (size_t r = 0; r < vectors.size(); ++r) fill(r);
  at_once(ranks, "a rank", reduce);  // what comes first touches memory for the first time
  for (size_t r = 0; r < vectors.size(); ++r) fill(r);
  Recorder recorder(std::move(prefixes));
  at_once(ranks, "a rank", reduce);
  RecordedSum made{.events = recorder.end()};
  std::erase_if(made.events, [](const Recorded& event) { return event.number("bytes") == 0; });
  const size_t factor = engines.size() * (engines.size() + 1) / 2;
  made.correct = std::ranges::all_of(vectors, [&](const auto& vector) {
    for (size_t i = 0; i < vector.size(); ++i)
      if (vector[i] != static_cast<float>((i + 1) % 251 * factor)) return false;
    return true;
  });
  return made;
}

}  // namespace tutti::cli
