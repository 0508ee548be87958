/// The features that rules name: when each was asked for, and how it is said. Without LibTorch.
/// Thread rule: pure functions.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <initializer_list>
#include <string>
#include <tuple>

#include "tutti/device/devices.h"
#include "tutti/mesh/mesh.h"
#include "tutti/strategy/choice/choice.h"

namespace tutti::detail::features {

// ---- strategies, and what some of them have ----

inline bool one_device(const Asked& a) { return a.strategy.kind == "one_device"; }
inline bool served(const Asked& a) { return a.strategy.uses_servers(); }

inline bool of_several_processes(const Asked& a) {
  return a.strategy.kind == "multi_worker" || a.strategy.kind == "independent" || served(a);
}

inline bool served_in_step(const Asked& a) {
  const ServedOptions& o = a.strategy.served;
  return served(a) && o.staleness.synchronous() && o.drop_slowest == 0 &&
         o.on_lost_worker == ps::OnLostWorker::end;
}

inline std::string words_of_staleness(const Asked& a) {
  return "--staleness " + a.strategy.served.staleness.text();
}
inline std::string words_of_drop_slowest(const Asked& a) {
  return fmt::format("--drop-slowest {}", a.strategy.served.drop_slowest);
}
inline std::string words_of_on_lost_worker(const Asked& a) {
  return fmt::format("--on-lost-worker {}", name_of(a.strategy.served.on_lost_worker));
}

inline bool takes_turns(const Asked& a) {
  const auto& [mesh, replicas] = std::tie(a.strategy.mesh, a.strategy.replicas);
  return one_device(a) &&
         (mesh.empty() ? replicas : mesh::Mesh::parse(mesh, replicas).data_replicas()) > 1;
}

// One worker alone is in all steps that are made.
inline bool some_may_miss_steps(const Asked& a) {
  const ServedOptions& o = a.strategy.served;
  return served(a) && (!o.staleness.synchronous() || o.drop_slowest > 0 ||
                       (o.on_lost_worker != ps::OnLostWorker::end && a.machine.workers > 1));
}

inline constexpr Feature kOneDevice{"`one_device`", one_device};
inline constexpr Feature kInTurn{"several replicas of `one_device`", takes_turns};
inline constexpr Feature kMultiWorker{
    "`multi_worker`", [](const Asked& a) { return a.strategy.kind == "multi_worker"; }};
inline constexpr Feature kCentralStorage{
    "`central_storage`", [](const Asked& a) { return a.strategy.kind == "central_storage"; }};
inline constexpr Feature kServers{"`parameter_server`", served};
inline constexpr Feature kServersOrMultiWorker{
    "`multi_worker` or `parameter_server`",
    [](const Asked& a) { return served(a) || a.strategy.kind == "multi_worker"; }};
inline constexpr Feature kTpu{"`tpu`", [](const Asked& a) { return a.strategy.is_compiled(); }};
inline constexpr Feature kIndependent{"`independent` (of measurements)", [](const Asked& a) {
                                        return a.strategy.kind == "independent";
                                      }};
inline constexpr Feature kNoServers{"another strategy than `parameter_server`",
                                    [](const Asked& a) { return !served(a); }};
inline constexpr Feature kOneProcess{"a strategy of one process",
                                     [](const Asked& a) { return !of_several_processes(a); }};
inline constexpr Feature kServersInStep{
    "`parameter_server` with `--staleness 0`, where no worker is left out", served_in_step};
inline constexpr Feature kOutOfStep{
    "servers out of step (`--staleness` above 0)",
    [](const Asked& a) { return served(a) && !a.strategy.served.staleness.synchronous(); },
    words_of_staleness};
inline constexpr Feature kServersSynchronous{
    "servers in step (`--staleness 0`)",
    [](const Asked& a) { return served(a) && a.strategy.served.staleness.synchronous(); },
    words_of_staleness};
inline constexpr Feature kSomeMissSteps{
    "servers whose steps some may miss (`--drop-slowest`, `--on-lost-worker`)",
    [](const Asked& a) { return kServersSynchronous.on(a) && some_may_miss_steps(a); },
    [](const Asked& a) {
      return a.strategy.served.drop_slowest > 0 ? words_of_drop_slowest(a)
                                                : words_of_on_lost_worker(a);
    }};
inline constexpr Feature kNotTogether{
    "servers without a step of all (`--staleness` above 0, `--drop-slowest`, `--on-lost-worker`)",
    [](const Asked& a) { return served(a) && !served_in_step(a); }};
inline constexpr Feature kNotAllInSteps{
    "servers whose steps not all workers may come to (`--staleness` above 0, `--drop-slowest`, "
    "`--on-lost-worker`)",
    some_may_miss_steps};
inline constexpr Feature kGoesOnWithoutLost{
    "`--on-lost-worker` continue or wait",
    [](const Asked& a) { return a.strategy.served.on_lost_worker != ps::OnLostWorker::end; }};
inline constexpr Feature kWaitsForLost{
    "`--on-lost-worker` wait",
    [](const Asked& a) { return a.strategy.served.on_lost_worker == ps::OnLostWorker::wait; },
    words_of_on_lost_worker};
inline constexpr Feature kCoordinator{
    "a coordinator", [](const Asked& a) { return served(a) && a.machine.coordinated; }};

// ---- devices ----

// "auto" is GPUs where there are any: until that is known it may be some, and is none that an
// option cannot go with.
inline bool may_use_gpus(const Asked& a) { return needs_gpus(a.strategy.device); }
inline bool uses_gpus(const Asked& a) {
  return a.machine.gpus.value_or(may_use_gpus(a) && a.strategy.device != "auto");
}

inline constexpr Feature kCpus{
    "CPUs", [](const Asked& a) { return !a.machine.gpus.value_or(may_use_gpus(a)); }};
inline constexpr Feature kMaybeGpus{"`--device` other than cpu", may_use_gpus};
inline constexpr Feature kGpus{"GPUs", uses_gpus};
inline constexpr Feature kWorkersOnGpus{"`multi_worker` on GPUs", [](const Asked& a) {
                                          return a.strategy.kind == "multi_worker" && uses_gpus(a);
                                        }};
inline constexpr Feature kNccl{"`multi_worker` on GPUs, by NCCL", [](const Asked& a) {
                                 return a.strategy.kind == "multi_worker" &&
                                        a.machine.nccl.value_or(may_use_gpus(a));
                               }};

// ---- options that differ from what they are without a word ----

template <auto field>
bool is_set(const Asked& a) {
  return a.strategy.*field != StrategyOptions().*field;
}

template <auto field>
bool is_set_of_servers(const Asked& a) {
  return a.strategy.served.*field != ServedOptions().*field;
}

using Options = StrategyOptions;
using Served = ServedOptions;

inline bool communicates_by(const Asked& a, std::initializer_list<std::string_view> names) {
  return std::ranges::count(names, a.strategy.communication.implementation) > 0;
}
inline std::string words_of_communication(const Asked& a) {
  return "--communication " + a.strategy.communication.implementation;
}
inline constexpr Feature kCommunication{
    "--communication", [](const Asked& a) { return !communicates_by(a, {"auto"}); },
    words_of_communication};
inline constexpr Feature kBetweenProcesses{
    "--communication ring, tree, tcp, hier, mpi",
    [](const Asked& a) { return communicates_by(a, {"ring", "tree", "tcp", "hier", "mpi"}); },
    words_of_communication};
inline constexpr Feature kInHostMemory{
    "--communication ring, tree, shm, tcp, mpi",
    [](const Asked& a) { return communicates_by(a, {"ring", "tree", "shm", "tcp", "mpi"}); },
    words_of_communication};
inline constexpr Feature kByAlgorithm{
    "--communication ring, tree",
    [](const Asked& a) { return communicates_by(a, {"ring", "tree"}); }, words_of_communication};
inline constexpr Feature kByNccl{"--communication nccl",
                                 [](const Asked& a) { return communicates_by(a, {"nccl"}); },
                                 words_of_communication};
inline constexpr Feature kHierarchical{"--communication hier",
                                       [](const Asked& a) { return communicates_by(a, {"hier"}); },
                                       words_of_communication};
inline constexpr Feature kBytesPerPack{
    "bytes_per_pack", [](const Asked& a) { return a.strategy.communication.bytes_per_pack != 0; },
    [](const Asked& a) {
      return fmt::format("bytes_per_pack {}", a.strategy.communication.bytes_per_pack);
    }};
inline constexpr Feature kAnyOrder{
    "`communication.order` any",
    [](const Asked& a) { return a.strategy.communication.order == Order::any; },
    [](const Asked&) { return std::string("communication.order any"); }};
inline constexpr Feature kFixedOnGpus{
    "fixed order of summation on GPUs", [](const Asked& a) {
      return uses_gpus(a) &&
             a.strategy.communication.order.value_or(a.strategy.sum_order) == Order::fixed;
    }};
inline constexpr Feature kExchanges{
    "`mirrored`, `multi_worker` or `central_storage`", [](const Asked& a) {
      const std::string& kind = a.strategy.kind;
      return kind == "mirrored" || kind == "multi_worker" || kind == "central_storage";
    }};
inline constexpr Feature kNcclOrNamed{
    "`multi_worker` on GPUs, by NCCL, or `--communication` ring, tree, tcp, hier, mpi",
    [](const Asked& a) { return kNccl.on(a) || kBetweenProcesses.on(a); }};

inline constexpr Feature kLocal{
    "--local-steps", [](const Asked& a) { return a.strategy.local.has_value(); },
    [](const Asked& a) { return fmt::format("--local-steps {}", a.strategy.local->every); }};
inline constexpr Feature kLocalStart{"--local-start"};
inline constexpr Feature kOuterRate{"--outer-learning-rate"};
inline constexpr Feature kOuterMomentum{"--outer-momentum"};
inline constexpr Feature kOuterNesterov{"--outer-nesterov"};

inline constexpr Feature kEngine{"--engine", is_set<&Options::engine>};
inline constexpr Feature kSumOrder{"--sum-order", is_set<&Options::sum_order>};
inline constexpr Feature kPlugin{"--plugin", is_set<&Options::plugin>};
inline constexpr Feature kDevice{"--device", is_set<&Options::device>};
inline constexpr Feature kDeterministic{"--deterministic", is_set<&Options::deterministic>};
inline constexpr Feature kMemoryLimit{"--memory-limit", is_set<&Options::memory_limit_mib>};
inline constexpr Feature kStepGraph{"--step-graph", is_set<&Options::step_graph>};
inline constexpr Feature kReductionShape{"--reduction-shape", is_set<&Options::reduction_shape>};
inline constexpr Feature kTable{"--algorithm-table", is_set<&Options::table>};
inline constexpr Feature kShardBucket{"shard_bucket_bytes", is_set<&Options::shard_bucket_bytes>};
inline constexpr Feature kAlone{"alone", is_set<&Options::alone>};

inline constexpr Feature kDropSlowest{"--drop-slowest", is_set_of_servers<&Served::drop_slowest>,
                                      words_of_drop_slowest};
inline constexpr Feature kOnLostWorker{
    "--on-lost-worker", is_set_of_servers<&Served::on_lost_worker>, words_of_on_lost_worker};
inline constexpr Feature kScaleByStaleness{"--scale-by-staleness",
                                           is_set_of_servers<&Served::scale_by_staleness>};
inline constexpr Feature kDelayCompensation{
    "--delay-compensation", is_set_of_servers<&Served::delay_compensation>, [](const Asked& a) {
      return fmt::format("--delay-compensation {}", a.strategy.served.delay_compensation);
    }};
inline constexpr Feature kHostSums{"--host-sums", is_set_of_servers<&Served::host_sums>};
inline constexpr Feature kStopIfNotFinite{"stop_if_not_finite",
                                          is_set_of_servers<&Served::stop_if_not_finite>};
inline constexpr Feature kPieceSize{"--piece-mib", is_set<&Options::piece_bytes>};
inline constexpr Feature kStaleness{
    "--staleness", [](const Asked& a) { return !a.strategy.served.staleness.synchronous(); }};
inline constexpr Feature kBoundedStaleness{
    "--staleness other than inf",
    [](const Asked& a) { return a.strategy.served.staleness.bounded(); }, words_of_staleness};
inline constexpr Feature kPlacement{
    "--placement",
    [](const Asked& a) { return a.strategy.served.placement.how != Served().placement.how; }};
inline constexpr Feature kPartition{"--partition", [](const Asked& a) {
                                      return a.strategy.served.placement.partitioner.words() !=
                                             Served().placement.partitioner.words();
                                    }};

// ---- reductions ----

inline bool is_compressed(const Asked& a) { return a.strategy.compression.on(); }

inline bool gathers(const Asked& a) {
  const auto kind = a.strategy.compression.kind;
  return kind == Compression::Kind::top_k || kind == Compression::Kind::one_bit;
}

inline bool is_summed_otherwise(const Asked& a) {
  return a.strategy.make_reduction ||
         (a.strategy.reduction != "fused" && a.strategy.reduction != "all_reduce");
}

inline std::string words_of_compression(const Asked& a) {
  return "--compression " + to_string(a.strategy.compression);
}

inline std::string words_of_reduction(const Asked& a) {
  return "--reduction " + (a.strategy.make_reduction ? "of your own" : a.strategy.reduction);
}

inline constexpr Feature kReduction{
    "--reduction",
    [](const Asked& a) { return a.strategy.reduction != "fused" || a.strategy.make_reduction; },
    words_of_reduction};
inline constexpr Feature kOtherReduction{"--reduction other than fused and all_reduce",
                                         is_summed_otherwise, words_of_reduction};
inline constexpr Feature kCompression{"--compression", is_compressed, words_of_compression};
inline constexpr Feature kGathering{"--compression topk, onebit", gathers, words_of_compression};
inline constexpr Feature kRounded{"--compression bf16, fp16",
                                  [](const Asked& a) {
                                    const auto kind = a.strategy.compression.kind;
                                    return kind == Compression::Kind::bfloat16 ||
                                           kind == Compression::Kind::float16;
                                  },
                                  words_of_compression};
inline constexpr Feature kCompressionStart{
    "--compression-start", [](const Asked& a) { return a.strategy.compression.start_step != 0; }};

// ---- parts of a model, of its state, and of a batch ----

inline mesh::Mesh mesh_of(const Asked& a) { return mesh::Mesh::parse(a.strategy.mesh, 0); }

inline bool in_model_parts(const Asked& a) { return mesh_of(a).model_ranks() > 1; }
inline std::string words_of_mesh(const Asked& a) { return "--mesh " + a.strategy.mesh; }
inline std::string words_of_shard(const Asked& a) { return "--shard " + a.strategy.shard; }

inline std::string words_of_shares(const Asked& a) {
  const Options& o = a.strategy;
  if (o.by_speed) return "--shares by-speed";
  if (!o.shares_file.empty()) return "--shares file:" + o.shares_file;
  return fmt::format("--shares {}", fmt::join(o.shares, ","));
}

inline constexpr Feature kMesh{"--mesh", is_set<&Options::mesh>, words_of_mesh};
inline constexpr Feature kTensorBlocks{"--tensor-blocks",
                                       [](const Asked& a) { return a.strategy.tensor_blocks > 1; }};
inline constexpr Feature kModelParts{"--mesh with stages or pieces of layers", in_model_parts,
                                     words_of_mesh};
inline constexpr Feature kPartsOfRanks{
    "--mesh with stages or pieces of layers, a rank each",
    [](const Asked& a) { return in_model_parts(a) && !one_device(a); }, words_of_mesh};
inline constexpr Feature kStages{
    "--mesh with stages", [](const Asked& a) { return mesh_of(a).size(mesh::Axis::stage) > 1; }};
inline constexpr Feature kShardAxis{
    "--mesh with axis shard", [](const Asked& a) { return mesh_of(a).size(mesh::Axis::shard) > 1; },
    words_of_mesh};
inline constexpr Feature kShard{"--shard", is_set<&Options::shard>, words_of_shard};
inline constexpr Feature kSlices{
    "--shard of several replicas",
    [](const Asked& a) { return !a.strategy.shard.empty() && !one_device(a); }, words_of_shard};
inline constexpr Feature kShardWithin{"--shard gradients, parameters",
                                      [](const Asked& a) {
                                        return a.strategy.shard == "gradients" ||
                                               a.strategy.shard == "parameters";
                                      },
                                      words_of_shard};
inline constexpr Feature kShares{
    "--shares",
    [](const Asked& a) { return !a.strategy.shares.empty() || a.strategy.shares_move(); },
    words_of_shares};
inline constexpr Feature kGivenShares{
    "--shares in numbers", [](const Asked& a) { return !a.strategy.shares.empty(); },
    [](const Asked& a) { return fmt::format("shares [{}]", fmt::join(a.strategy.shares, ", ")); }};
inline constexpr Feature kSharesOfFile{
    "--shares file:PATH", [](const Asked& a) { return !a.strategy.shares_file.empty(); },
    [](const Asked& a) { return fmt::format("file \"{}\"", a.strategy.shares_file); }};
inline constexpr Feature kMovingShares{"--shares by-speed, file:PATH",
                                       [](const Asked& a) { return a.strategy.shares_move(); },
                                       words_of_shares};
inline constexpr Feature kBySpeed{"--shares by-speed",
                                  [](const Asked& a) { return a.strategy.by_speed.has_value(); },
                                  words_of_shares};

// ---- what is trained ----

template <auto field>
bool trains(const Asked& a) {
  return a.recipe.*field;
}

// A torch optimizer that is more than a rule is one of optim::WholeRule.
inline constexpr Feature kTorchOptimizer{"a torch optimizer", trains<&RecipeFacts::torch_optimizer>,
                                         [](const Asked& a) {
                                           const std::string& more = a.recipe.more_than_a_rule;
                                           return more.empty() ? "a torch optimizer" : more;
                                         }};
inline constexpr Feature kWholeRule{
    "muon, adafactor",
    [](const Asked& a) { return a.recipe.torch_optimizer && !a.recipe.more_than_a_rule.empty(); },
    [](const Asked& a) { return a.recipe.more_than_a_rule; }};
inline constexpr Feature kOwnReduction{"a reduction given with the optimizer",
                                       trains<&RecipeFacts::own_reduction>};
inline constexpr Feature kMoreThanARule{
    "clipping, parameter groups, lars, lamb",
    [](const Asked& a) { return !a.recipe.more_than_a_rule.empty(); },
    [](const Asked& a) { return a.recipe.more_than_a_rule; }};
inline constexpr Feature kClipsOrGroups{"clipping, parameter groups",
                                        trains<&RecipeFacts::clips_or_groups>,
                                        [](const Asked& a) { return a.recipe.more_than_a_rule; }};
inline constexpr Feature kEmbeddingTable{
    "an embedding table", [](const Asked& a) { return !a.recipe.table.empty(); },
    [](const Asked& a) { return fmt::format("embedding table \"{}\"", a.recipe.table); }};
inline constexpr Feature kPrecision{
    "--precision", [](const Asked& a) { return a.recipe.precision != "float32"; },
    [](const Asked& a) { return "--precision " + a.recipe.precision; }};
inline constexpr Feature kFloat16{"--precision float16",
                                  [](const Asked& a) { return a.recipe.precision == "float16"; }};
inline constexpr Feature kStepsPerExecution{
    "--steps-per-execution", [](const Asked& a) { return a.recipe.steps_per_execution > 1; },
    [](const Asked& a) {
      return fmt::format("--steps-per-execution {}", a.recipe.steps_per_execution);
    }};
inline constexpr Feature kLossScaling{"--loss-scaling", trains<&RecipeFacts::scales_losses>};
inline constexpr Feature kCountsLabels{"a loss that counts labels",
                                       trains<&RecipeFacts::counts_labels>};
inline constexpr Feature kMeetsInForward{
    "a layer that needs all replicas in forward (SyncBatchNorm)",
    trains<&RecipeFacts::meets_in_forward>};
inline constexpr Feature kMeasured{
    "measures (`--noise-scale`, `--gradient-norm`)",
    [](const Asked& a) { return first_of(a.recipe.measures) != nullptr; },
    [](const Asked& a) { return std::string(first_of(a.recipe.measures)->flag); }};

// ---- its rate ----

inline constexpr Feature kLargeBatch{"--large-batch", trains<&RecipeFacts::large_batch>};
inline constexpr Feature kRateOfBase{"--large-batch with base_rate",
                                     trains<&RecipeFacts::rate_of_base>};
inline constexpr Feature kLearningRate{"--learning-rate", trains<&RecipeFacts::rate_given>};
inline constexpr Feature kSchedule{
    "--schedule", [](const Asked& a) { return !a.recipe.schedule.empty(); },
    [](const Asked& a) { return "--schedule " + a.recipe.schedule; }};
inline constexpr Feature kWarmUp{"--warm-up", trains<&RecipeFacts::warms_up>};
inline constexpr Feature kOnPlateau{"--reduce-on-plateau", trains<&RecipeFacts::rate_on_plateau>};

// ---- how ----

template <auto field>
bool fits(const Asked& a) {
  return a.fit.*field;
}

// Also where it is not known yet.
template <auto field>
bool may_be(const Asked& a) {
  return (a.fit.*field).value_or(true);
}

inline constexpr Feature kAccumulate{
    "--accumulate", [](const Asked& a) { return a.fit.accumulate > 1; },
    [](const Asked& a) { return fmt::format("accumulate {}", a.fit.accumulate); }};
inline constexpr Feature kMicrobatches{
    "--microbatches", [](const Asked& a) { return a.fit.microbatches > 1; },
    [](const Asked& a) { return fmt::format("microbatches {}", a.fit.microbatches); }};
inline constexpr Feature kInParts{
    "microbatches, and stages or blocks of layers",
    [](const Asked& a) { return a.fit.microbatches > 1 || a.fit.in_parts; }};
inline constexpr Feature kReplacesDamaged{"damaged samples that are replaced (on_bad)",
                                          fits<&FitFacts::replaces_damaged>};
inline constexpr Feature kValidationSplit{"validation_split", fits<&FitFacts::splits_validation>};
inline constexpr Feature kValidation{"validation", fits<&FitFacts::validates>};
inline constexpr Feature kResize{"resize", fits<&FitFacts::resizes>};
inline constexpr Feature kRestoresBest{"restore_best_weights", fits<&FitFacts::restores_best>};
inline constexpr Feature kDecides{"callbacks that decide, `--nan end`",
                                  [](const Asked& a) { return !a.fit.decides.empty(); },
                                  [](const Asked& a) { return a.fit.decides; }};

// ---- flags of `tutti train`, which only what was typed tells, and what gives them a use ----

inline constexpr Feature kServersFlag{"--servers"};
inline constexpr Feature kRestarts{"--restarts"};
inline constexpr Feature kNoBackups{"--no-backups"};
inline constexpr Feature kSnapshots{
    "--snapshots",
    [](const Asked& a) { return a.machine.snapshots && !a.machine.snapshots->empty(); },
    [](const Asked& a) { return "--snapshots " + *a.machine.snapshots; }};
inline constexpr Feature kRestore{"--restore"};
inline constexpr Feature kRecordOrder{"--record-order"};
inline constexpr Feature kReplayOrder{"--replay-order"};
inline constexpr Feature kSnapshotEvery{"--snapshot-every"};
inline constexpr Feature kSnapshotsKept{"--snapshots-kept"};
inline constexpr Feature kPipeline{"--pipeline"};
inline constexpr Feature kCut{"--cut"};
inline constexpr Feature kRecompute{"--recompute"};
inline bool typed(const Asked& a, std::string_view flag) {
  return std::ranges::any_of(a.strategy.typed, [&](std::string_view word) {
    return word.substr(0, word.find(' ')) == flag;
  });
}
inline constexpr Feature kRecomputeTyped{"--recompute",
                                         [](const Asked& a) { return typed(a, "--recompute"); }};
inline constexpr Feature kDenseKernelTyped{
    "--dense-kernel", [](const Asked& a) { return typed(a, "--dense-kernel"); }};
inline constexpr Feature kSlowWorker{"--slow-worker", fits<&FitFacts::slows>};
inline constexpr Feature kResume{"--resume"};
inline constexpr Feature kCheckpointEvery{"--checkpoint-every"};
inline constexpr Feature kKeepBest{"--keep-best"};
inline constexpr Feature kKeepCheckpoints{"--keep-checkpoints"};
inline constexpr Feature kDiskLimit{"--disk-limit"};
inline constexpr Feature kBestBy{"--best-by"};
inline constexpr Feature kGrace{"--grace"};
inline constexpr Feature kLoaderMemory{"--loader-memory"};
inline constexpr Feature kAhead{"--ahead"};

inline constexpr Feature kWritesSnapshots{
    "`--snapshots` of servers", [](const Asked& a) {
      return served(a) && (!a.machine.snapshots || !a.machine.snapshots->empty());
    }};
inline constexpr Feature kRecomputes{"stages or blocks, or a part of a stage", [](const Asked& a) {
                                       return a.strategy.tensor_blocks > 1 || in_model_parts(a) ||
                                              a.fit.recomputes_part.value_or(true);
                                     }};
inline constexpr Feature kCheckpoints{"`--out`, without servers", may_be<&FitFacts::checkpoints>};
inline constexpr Feature kBestKept{"`--keep-best`", may_be<&FitFacts::best_kept>};
inline constexpr Feature kSomethingToEnd{
    "several processes that this command starts, or `--out`, without servers", [](const Asked& a) {
      return (of_several_processes(a) && !a.machine.launched) || a.fit.checkpoints.value_or(true);
    }};
inline constexpr Feature kRateOfOptimizer{
    "a schedule that takes it (not `piecewise_constant`)",
    [](const Asked& a) { return !a.recipe.schedule.starts_with("piecewise_constant"); }};
inline constexpr Feature kLoadsAhead{"`--workers` of 1 or more", may_be<&FitFacts::loads_ahead>};

}  // namespace tutti::detail::features
