/// `tutti_bench compare` of networks that are no doodles' (bench/peer/networks.py), and
/// `tutti_bench scale`: the median step beside the best of all peers, equal losses, and memory.
/// Thread rule: the main thread alone.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bench/compare/compare.h"

namespace tutti::bench {

struct NetworkSubject {
  std::string name;   ///< as peer/networks.py and bench_network_step have it
  std::string model;  ///< of --models: all subjects that have it
  int64_t batch = 0;  ///< samples of a step of all replicas
  double bound = 0;   ///< ours is at least so many times as fast as the best peer
  double aim = 0;
  bool table = false;       ///< of rows, which is in one process, or on servers: no multi_worker
  bool batch_norm = false;  ///< two replicas with half a batch each train another model than one
};

const std::vector<NetworkSubject>& network_subjects();

/// Those of a name, or of a model; none for another.
std::vector<NetworkSubject> networks_named(const std::string& name);

/// All that --models takes of networks: models with several subjects, and these.
std::vector<std::string> network_names();

/// Of a list as --models has it, each once. UsageError for what is none of them.
std::vector<NetworkSubject> networks_in(const std::string& list);

/// Of two runs with equal first weights and batches, each the mean loss of their last steps of the
/// check: whether they did the same work. Sums in another order move them apart, by less.
bool equal_work(double ours, double theirs);

/// Measures all of them and prints tables. keep: called after each with a line of JSON for each
/// row. Contenders of other work (equal_work(); of ours other bits than two threads have) are no
/// best peer, and no claim about them holds.
void compare_networks(const std::vector<NetworkSubject>& subjects, const CompareFlags& flags,
                      const std::function<void(const std::string&)>& keep);

struct ScaleNetworksFlags {
  std::string models = "resnet18,gpt,lstm";
  std::string replicas = "1,2";
  int64_t rounds = 3;
  int64_t steps = 0;  ///< as CompareFlags::steps
  std::string json;
};

/// The batch of a replica stays, whatever their number. UsageError for more replicas than cores.
int scale_networks(const ScaleNetworksFlags& flags);

}  // namespace tutti::bench
