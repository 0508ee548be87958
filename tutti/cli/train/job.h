/// A training job as flags describe it: model, data and strategy, checked before any work starts.
/// `train` and `bench step` share them.
/// Thread rule: the main thread alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tutti/cli/run/server_flags.h"
#include "tutti/cli/train/device_flags.h"
#include "tutti/cli/train/optimizer_flags.h"
#include "tutti/data/dataset.h"
#include "tutti/nn/graph.h"
#include "tutti/ps/spec/placement.h"
#include "tutti/strategy/choice/choice.h"
#include "tutti/strategy/choice/options.h"

namespace tutti::cli {

struct Command;

/// What was typed; unset is empty.
struct JobFlags {
  std::string model;
  std::string data;
  std::string strategy = "one_device";
  bool uses_servers() const noexcept { return strategy == "parameter_server"; }
  std::optional<int64_t> replicas;  ///< of the whole world
  std::string reduction_shape;
  std::string mesh;                      ///< "data=2,stage=2"; "": each replica is a rank
  std::string shard;                     ///< "state", "gradients", "parameters"
  std::optional<int64_t> tensor_blocks;  ///< that a layer is cut into
  double piece_mib = 0;                  ///< that go between hosts and to servers; 0: as fits
  std::string shares;                    ///< "2,1", "by-speed", "file:PATH"; "": equal
  std::string sum_order = "any";         ///< or fixed
  std::string engine = "nccl";           ///< or hier
  std::string communication = "auto";    ///< CommunicationOptions::implementation
  DeviceFlags devices;
  std::optional<int64_t> threads;  ///< of LibTorch in each replica
  std::string dense_kernel;        ///< "": that of the rule
  double time_limit_s = 30;
  /// Between SIGTERM to the job and SIGKILL; where nothing has to be saved before: 2.
  std::optional<double> grace_s{};
  int64_t global_batch = 128;
  OptimizerFlags optimizer;
  uint64_t seed = 0;
  std::string reduction = "fused";
  std::string compression = "none";
  int64_t compression_start = 0;         ///< the first step that is compressed
  std::optional<int64_t> local_steps{};  ///< between averagings; none: replicas meet in each update
  LocalUpdates local{};                  ///< the rest of it
  std::string table;                     ///< file of `tutti bench tune`
  ServerFlags served;                    ///< of parameter_server
  std::vector<std::string>
      typed{};  ///< all flags of the command that were, as Command::typed() has them
};

/// Describes the flags on `command`. `extra_strategies` are known beside those of Strategy.
void add_job_flags(Command& command, JobFlags& flags,
                   std::vector<std::string> extra_strategies = {});

/// Whether the replicas are in processes of their own, of which this may be one.
bool are_processes(const JobFlags& flags);

/// Whether this process is to start the workers of its job itself: multi_worker or
/// parameter_server, outside a launcher.
bool starts_workers(const JobFlags& flags);

/// This process is a worker that another command has started, which has its own flags for the job;
/// not one of those that the same command line has started.
bool behind_a_launcher();

/// How many workers those are: the number of replicas, or one a device, or on the CPU one a usable
/// core, when none was given.
int num_workers_of(const JobFlags& flags);

/// Workers of the job that this process is in, or starts.
int workers_of_job(const JobFlags& flags);

/// Starts this very command (`name`: "train") again as each of `num_workers` workers, with more
/// NAME=value in their environment, prints what failed, and returns the job's exit code.
int run_as_workers(const std::string& name, const JobFlags& flags, int num_workers,
                   std::vector<std::string> environment = {});

/// The arguments this process was started with, the program's name first.
std::vector<std::string> own_command();

/// Ranks that the flags ask for, over all workers: copies of the model, but on a mesh. UsageError
/// when a strategy cannot have as many.
int num_ranks_of(const JobFlags& flags);

/// Copies of the model, which share a batch.
int num_replicas_of(const JobFlags& flags);

/// Strategy's options, for a job that trains as `fit` says. Throws UsageError when they contradict
/// each other or it, there are more workers than replicas, or fewer devices than replicas here.
StrategyOptions strategy_options(const JobFlags& flags, const FitFacts& fit = {});

/// The model of that name for such samples and so many classes; 0: it predicts a number. UsageError
/// when it cannot take them, with the names of those that can.
nn::Graph model_of(const std::string& name, const std::vector<int64_t>& sample, int64_t classes);

/// What a graph trains, by name.
std::vector<ps::Variable> variables_of(const nn::Graph& graph);

/// UsageError when --parameter-group is for none of these.
void check_groups(const JobFlags& flags, const std::vector<ps::Variable>& variables);

/// model_of() for the samples and classes of `dataset`, and check_groups().
nn::Graph model_for(const JobFlags& flags, const data::Dataset& dataset);

/// UsageError when servers cannot hold the model's parameters as the flags say.
void check_placement(const JobFlags& flags, const std::vector<ps::Variable>& variables);

/// UsageError when a global batch holds more samples than there are.
void check_batch(const JobFlags& flags, const data::Dataset& train);
/// Where fewer samples are there than the batch that nobody has asked for: they are one batch,
/// which the answer says; "" elsewhere.
std::string fit_default_batch(JobFlags& flags, const data::Dataset& train);

/// Before workers start: UsageError when --shares leaves a replica nothing of a batch.
void check_given_shares(const JobFlags& flags);

/// For measurements: UsageError when a global batch leaves a replica without samples.
void check_shares(const JobFlags& flags);

/// UsageError when a replica would get one sample in one of the `steps` and the graph cannot train
/// on that (train/model/batch_norm_check.h).
void check_batch_norm(const JobFlags& flags, const nn::Graph& graph, const data::Dataset& train,
                      int64_t steps);

}  // namespace tutti::cli
