// What goes with what.
#include "tutti/strategy/choice/detail/features.h"

namespace tutti::detail::features {

constexpr auto never = Together::never;
constexpr auto needed = Together::needed;

// ---- why ----

constexpr std::string_view kOfGpus = "it is of GPUs, and --device cpu uses none";
constexpr std::string_view kOfServers =
    "it says what parameter servers do, and this strategy has none (--strategy parameter_server)";
constexpr std::string_view kOfStages =
    "it is of stages, and --mesh has none (--mesh stage=2 cuts the model into two)";
constexpr std::string_view kOfCheckpoints =
    "it is of checkpoints, and none are kept (--out DIR keeps them; parameter servers have "
    "snapshots instead: --snapshots DIR, and --restore DIR goes on)";
constexpr std::string_view kOfSnapshots =
    "it is of snapshots, and none are written (--strategy parameter_server --snapshots DIR)";
constexpr std::string_view kOfLoader =
    "it is of batches that are made ahead, and --workers 0 makes none";
constexpr std::string_view kOneCopy =
    "strategy {kind} keeps one storage of the parameters, which tutti's own rules update "
    "(optim::adam() and so on), and this updates a copy a replica";
constexpr std::string_view kToOwners =
    "gradients go to those who own the slices, which tutti's own rules update (optim::adam() and "
    "so "
    "on); {other} is of whole parameters";
constexpr std::string_view kNoMeeting = "replicas of strategy independent do not meet";
constexpr std::string_view kWholeReplicas = "strategy {kind} has whole replicas";
constexpr std::string_view kOfWhole = "{other} is of whole replicas";
constexpr std::string_view kOfParts =
    "it is of whole replicas, and with {other} each rank has a part";
constexpr std::string_view kUnknownSpeed =
    "a layer that needs all replicas in forward (SyncBatchNorm) has them wait for each other, so "
    "that nobody knows how long one computes";
constexpr std::string_view kWholeSteps =
    "strategy tpu compiles whole steps, of which {one} is no part in this version";
constexpr std::string_view kInNumbers = "give shares in numbers (--shares 2,1)";
constexpr std::string_view kOneOfThem = "give one of them";
constexpr std::string_view kUseReplicas = "use mirrored, multi_worker or central_storage";
constexpr std::string_view kUseWorkers = "use mirrored or multi_worker";
constexpr std::string_view kUsePlaces = "use mirrored, multi_worker or one_device";
constexpr std::string_view kNewStrategy =
    "take another Strategy, and go on from a checkpoint there";
constexpr std::string_view kOfFusedStep =
    "it is measured where the fused step adds gradients: on CPUs, by one of tutti's optimizers "
    "(optim::sgd() and so on), without parameter servers, --reduction, --compression, --shard, and "
    "stages or pieces of layers (--mesh)";
constexpr std::string_view kInPieces =
    "it is of sums that the fused step sends between hosts in pieces, and of parameter servers; "
    "with {other} there are none";
constexpr std::string_view kOneOfAll =
    "with --local-steps every replica has all parameters and their state for itself";
constexpr std::string_view kNoGradients =
    "replicas exchange no gradients then, but what they have learnt, every so many updates";
constexpr std::string_view kWholeOnes =
    "replicas average whole models, and with {other} a rank has a part";
constexpr std::string_view kOfLocal =
    "it is of replicas that meet every so many updates (--local-steps H), and here they meet in "
    "each";
constexpr std::string_view kNeverStale = "gradients of synchronous steps ({other}) are never stale";
constexpr std::string_view kOfOneDevice =
    "it is of parameters that one device updates by itself: with sgd, adam or adamw, no reduction, "
    "no embedding tables, not with {other}";

constexpr std::string_view kElementwise = "take an elementwise rule (optim::adamw() and so on)";

constexpr Rule kRules[] = {
    {kMovingShares, never, kGivenShares, "{other} were given beside", kOneOfThem},
    {kBySpeed, never, kSharesOfFile, "{other} was given beside", kOneOfThem},
    {kMovingShares, never, kServers, "strategy parameter_server has steps of its own",
     "use mirrored, multi_worker or central_storage"},
    {kMovingShares, never, kModelParts,
     "with {other} a replica is several ranks, whose stages wait for each other", kInNumbers},
    {kBySpeed, never, kOneDevice,
     "under one_device the replicas take turns on one device and have no speeds of their own",
     "train by what another strategy has recorded: --shares file:PATH"},
    {kBySpeed, never, kShardWithin,
     "{other} has replicas wait for each other within forward and backward, so that nobody knows "
     "how long one computes",
     "take --shard state, or shares in numbers (--shares 2,1)"},
    {kBySpeed, never, kGpus,
     "replicas on GPUs queue their work, and their hosts do not know how long it takes",
     kInNumbers},
    {kBySpeed, never, kMicrobatches, "parts of batches are measured as a whole, not in {other}",
     kInNumbers},
    {kBySpeed, never, kMeetsInForward, kUnknownSpeed, kInNumbers},
    {kShares, never, kIndependent, "replicas of strategy independent share no batch"},

    {kMovingShares, never, kTpu, "devices of one program do not wait for each other's rows",
     kInNumbers},
    {kDevice, never, kTpu, "its devices are those of a plugin", "take --plugin"},
    {kPlugin, needed, kTpu, "it is what compiles for --strategy tpu"},
    {kStepsPerExecution, needed, kTpu, "it is of programs that are compiled (--strategy tpu)"},
    {kCompression, never, kTpu, kWholeSteps, "leave it out"},
    {kReduction, never, kTpu, "the plugin adds gradients, in an order of its own", "leave it out"},
    {kShard, never, kTpu, kWholeSteps, "leave it out"},
    {kMesh, never, kTpu, "it has whole replicas", "take --replicas"},
    {kTensorBlocks, never, kTpu, "it has whole layers", "leave it out"},
    {kWholeRule, never, kTpu, "steps that are compiled update elements", kElementwise},
    {kWholeRule, never, kServers, "servers have parts of parameters",
     "use mirrored or multi_worker, or an elementwise rule (optim::adamw() and so on)"},
    {kWholeRule, never, kCentralStorage, "every replica makes the step on a copy of its own",
     "use mirrored or multi_worker, or an elementwise rule (optim::adamw() and so on)"},
    {kWholeRule, never, kShard, "with {other} nobody has a parameter to update", kElementwise},
    {kWholeRule, never, kModelParts, "with {other} ranks have parts of the model", kElementwise},
    {kWholeRule, never, kGpus, "matrices are multiplied on the CPU in this version",
     "use --device cpu, or an elementwise rule (optim::adamw() and so on)"},
    {kTorchOptimizer, never, kTpu, "it is a function of LibTorch, and strategy tpu compiles steps",
     "take one of tutti's rules (optim::adam() and so on)"},
    {kOwnReduction, never, kTpu, "the plugin adds gradients, in an order of its own",
     "leave it out"},
    {kClipsOrGroups, never, kTpu, kWholeSteps, "leave it out"},
    {kEmbeddingTable, never, kTpu, kWholeSteps, "use nn::Embedding"},
    {kLossScaling, never, kTpu, "bfloat16 has the range of float32", "leave it out"},
    {kMeasured, never, kTpu, kWholeSteps, "leave it out"},
    {kAccumulate, never, kTpu, kWholeSteps, "use a larger batch"},
    {kInParts, never, kTpu, kWholeSteps, "use more devices (--replicas)"},
    {kRecomputeTyped, never, kTpu, "the compiler decides what it computes again", "leave it out"},
    {kDenseKernelTyped, never, kTpu, "the compiler has kernels of its own", "leave it out"},
    {kSlowWorker, never, kTpu, kWholeSteps, "leave it out"},
    {kResize, never, kTpu, "the plugin has as many devices as it has", kNewStrategy},

    {kCompression, never, kServers,
     "strategy parameter_server adds gradients on its servers, so that no compression can be "
     "chosen",
     kUseWorkers},
    {kCompression, never, kCentralStorage,
     "strategy central_storage keeps one copy of the parameters, which the fused step updates",
     "use mirrored"},
    {kCompression, never, kIndependent,
     "replicas of strategy independent send nothing that could be compressed"},
    {kGathering, never, kOtherReduction,
     "it gathers what the replicas send and adds it everywhere, so that {other} would have no part "
     "in it",
     "leave one of the two out"},
    {kCompressionStart, needed, kCompression,
     "it is the first step that is compressed, and --compression is none"},
    {kReduction, needed, kNoServers,
     "strategy parameter_server adds gradients on its servers, so that no reduction can be chosen"},
    {kReduction, never, kCentralStorage,
     "strategy central_storage keeps one copy of the parameters, which the fused step updates",
     "use mirrored"},

    {kShard, never, kServers, "strategy {kind} has parameters and state in one place", kUseWorkers},
    {kShard, never, kCentralStorage, "strategy {kind} has parameters and state in one place",
     kUseWorkers},
    {kShard, never, kIndependent, kNoMeeting},
    {kShard, never, kCompression, kToOwners, "leave one of the two out"},
    {kShard, never, kReduction, kToOwners, "leave one of the two out"},
    {kShard, never, kGpus, "slices are updated on the CPU in this version", "leave --device out"},
    {kShardBucket, needed, kShard,
     "it is of what is cut over the replicas, and nothing is (--shard)"},

    {kShardAxis, needed, kShard, "ranks on axis shard have pieces of the training",
     "say of what, with --shard state, gradients or parameters"},
    {kMesh, never, kIndependent, kNoMeeting},
    {kModelParts, never, kServers, kWholeReplicas, kUsePlaces},
    {kModelParts, never, kCentralStorage, kWholeReplicas, kUsePlaces},
    {kModelParts, never, kCompression, kOfWhole, "leave it out"},
    {kModelParts, never, kOtherReduction, kOfWhole, "leave it out"},
    {kPartsOfRanks, never, kGpus, "stages and pieces of layers are on the CPU in this version",
     "leave --device out"},

    {kSnapshots, never, kDropSlowest,
     "with {other} each server leaves other late steps out, so there is no moment at which all "
     "have "
     "the same",
     "leave one of the two out"},
    {kEmbeddingTable, never, kDelayCompensation,
     "servers do not keep the rows that a worker has pulled, so {other} cannot correct their "
     "gradients",
     "leave one of the two out"},
    {kEmbeddingTable, never, kWaitsForLost,
     "servers do not keep the rows of the step before, with which a worker that comes again would "
     "begin",
     "take --on-lost-worker continue"},
    {kDropSlowest, never, kOutOfStep,
     "only synchronous steps wait for all, so only there can somebody be left out, and here is "
     "{other}",
     "leave one of the two out"},
    {kOnLostWorker, never, kOutOfStep,
     "out of step ({other}) the others always go on without a lost worker, and its batches are "
     "given out again"},
    {kOnLostWorker, never, kDropSlowest,
     "steps that leave workers out ({other}) do not know a lost one from a slow one",
     "give one of the two"},
    {kScaleByStaleness, never, kServersSynchronous, kNeverStale, "take --staleness 1 or more"},
    {kDelayCompensation, never, kServersSynchronous, kNeverStale, "take --staleness 1 or more"},
    {kDelayCompensation, never, kCoordinator,
     "in a job with a coordinator steps go to whichever worker is free"},
    {kBoundedStaleness, never, kCoordinator,
     "in a job with a coordinator steps go to whichever worker is free", "take --staleness inf"},

    {kTorchOptimizer, never, kServers, kOneCopy, "use mirrored or multi_worker"},
    {kTorchOptimizer, never, kCentralStorage, kOneCopy, "use mirrored or multi_worker"},
    {kTorchOptimizer, never, kShard,
     "it is of whole parameters, and with {other} slices are updated "
     "by tutti's own rules (optim::adam() and so on)",
     "leave one of the two out"},
    {kOwnReduction, never, kServers, kOneCopy, kUseWorkers},
    {kOwnReduction, never, kCentralStorage, kOneCopy, "use mirrored or multi_worker"},
    {kOwnReduction, never, kPartsOfRanks, kOfParts, "leave one of the two out"},
    {kOwnReduction, never, kShard, "with {other} gradients go to those who own them",
     "leave one of the two out"},
    {kMoreThanARule, never, kServers, "a server has parts of the parameters only", kUseReplicas},
    {kEmbeddingTable, never, kPartsOfRanks, "a mesh with stages or pieces of layers has none",
     "use nn::Embedding"},
    {kEmbeddingTable, never, kMoreThanARule, "its rows are updated one by one, without {other}",
     "leave one of the two out"},
    {kEmbeddingTable, never, kTorchOptimizer,
     "its rows are updated by tutti's own rules; {other} cannot", "use optim::adagrad() and so on"},
    {kEmbeddingTable, never, kMultiWorker,
     "strategy multi_worker has nobody who keeps its rows for all workers",
     "use parameter_server (tutti run --servers 1 -n 2 PROGRAM ARGS...), or mirrored on one host"},
    {kLossScaling, never, kServers,
     "all replicas leave a step out or none, which parameter servers cannot", kUseReplicas},
    {kLossScaling, never, kEmbeddingTable, "rows of embedding tables are updated without it"},
    {kStepGraph, never, kEmbeddingTable, kOfOneDevice},
    {kStepGraph, never, kTorchOptimizer, kOfOneDevice},
    {kStepGraph, never, kOwnReduction, kOfOneDevice},
    {kStepGraph, never, kCompression, kOfOneDevice},
    {kStepGraph, never, kReduction, kOfOneDevice},
    {kStepGraph, never, kCountsLabels,
     "a step graph divides every step's loss by one number, but this loss by how many labels count "
     "(ignore_label, a class of weight 0)",
     "leave one of them out"},

    {kMeasured, never, kServers, kOfFusedStep, "leave one of them out"},
    {kMeasured, never, kTorchOptimizer, kOfFusedStep, "leave one of them out"},
    {kMeasured, never, kReduction, kOfFusedStep, "leave one of them out"},
    {kMeasured, never, kCompression, kOfFusedStep, "leave one of them out"},
    {kMeasured, never, kSlices, kOfFusedStep, "leave one of them out"},
    {kMeasured, never, kPartsOfRanks, kOfFusedStep, "leave one of them out"},
    {kMeasured, never, kGpus, kOfFusedStep, "leave one of them out"},
    {kPieceSize, never, kTorchOptimizer, kInPieces, "leave it out"},
    {kPieceSize, never, kReduction, kInPieces, "leave it out"},
    {kPieceSize, never, kCompression, kInPieces, "leave it out"},
    {kPieceSize, never, kSlices, kInPieces, "leave it out"},
    {kPieceSize, never, kPartsOfRanks, kInPieces, "leave it out"},
    {kPieceSize, never, kOwnReduction, kInPieces, "leave it out"},
    {kPieceSize, never, kWorkersOnGpus, kInPieces, "leave it out"},
    {kLargeBatch, never, kWarmUp, "it has a warm_up of its own, in epochs, beside {other}",
     kOneOfThem},
    {kLargeBatch, never, kOnPlateau, "it sets the learning rate, as does {other}", kOneOfThem},
    {kRateOfBase, never, kLearningRate,
     "its base_rate is the same, that of the base batch, as {other}", kOneOfThem},
    {kRateOfBase, never, kSchedule,
     "its base_rate is the same, that of the base batch, as in {other}", kOneOfThem},
    {kOnPlateau, never, kSchedule, "it sets the learning rate, as does {other}", kOneOfThem},
    {kOnPlateau, never, kWarmUp, "it sets the learning rate, as does {other}", kOneOfThem},

    {kStepGraph, never, kAccumulate, "a step graph is of steps of one batch, and there is {other}",
     "leave one of them out"},
    {kInParts, never, kAccumulate, "{other} is of batches",
     "take more microbatches in place of it"},
    {kInParts, never, kGpus, "they are on the CPU in this version", "leave the device out"},
    {kInParts, never, kServers, "parameter servers take a gradient a batch", kUsePlaces},
    {kInParts, never, kPrecision, "they are float32 in this version", "leave {other} out"},
    {kInParts, never, kLossScaling, "losses are not scaled there", "leave {other} out"},
    {kInParts, never, kEmbeddingTable, "rows of embedding tables get gradients once a batch",
     "use nn::Embedding"},
    {kInParts, never, kMeetsInForward, "{other} cannot have them there", "take another"},
    {kMeetsInForward, never, kInTurn,
     "under {kind} the replicas take turns on one thread and cannot wait for each other",
     kUseReplicas},
    {kMeetsInForward, never, kNotAllInSteps,
     "not all of its replicas come to every step (--staleness above 0, --drop-slowest, "
     "--on-lost-worker continue or wait)",
     "use --staleness 0 without these, mirrored or multi_worker"},
    {kCountsLabels, never, kSomeMissSteps,
     "it is divided by how many labels of all workers count in the step, and with {other} some may "
     "miss it",
     "leave one of them out"},
    {kFloat16, never, kCpus, "only CUDA devices compute in it",
     "use bfloat16, which has the range of float32 and needs no scaling of losses"},
    {kValidationSplit, never, kValidation, "{other} was given beside", kOneOfThem},
    {kResize, never, kMultiWorker, "workers of {other} stay as many as they are", kNewStrategy},
    {kResize, never, kServers, "workers of {other} stay as many as they are", kNewStrategy},
    {kResize, never, kMesh, "{other} is dealt out once", kNewStrategy},
    {kResize, never, kSlices, "with {other} each replica has a slice of the state", kNewStrategy},
    {kResize, never, kMovingShares, "{other} are of so many replicas",
     "give shares in numbers (--shares 2,1), or take another Strategy"},
    {kReplacesDamaged, never, kPartsOfRanks, "several ranks read a part of a sample",
     "leave on_bad out"},
    {kAccumulate, never, kOutOfStep, "with {other} each batch is an update of its own",
     "use a larger batch"},
    {kRestoresBest, never, kServers, "weights that are on parameter servers cannot be put back",
     "use --model-checkpoint"},
    {kDecides, never, kNotTogether,
     "one worker cannot decide for the others where they do not meet in every step (--staleness "
     "above 0, --drop-slowest, --on-lost-worker continue or wait)",
     "leave it out"},

    {kLocal, never, kTpu, kWholeSteps},
    {kLocal, never, kServers, "servers update the parameters, and there is no replica's own",
     "use --staleness, by which workers need not wait for each other"},
    {kLocal, never, kCentralStorage, kOneOfAll, kUsePlaces},
    {kLocal, never, kIndependent, kNoMeeting},
    {kLocal, never, kGpus, "replicas on GPUs average nothing in this version", "use --device cpu"},
    {kLocal, never, kCompression, kNoGradients, kOneOfThem},
    {kLocal, never, kReduction, kNoGradients, kOneOfThem},
    {kLocal, never, kOwnReduction, kNoGradients, kOneOfThem},
    {kLocal, never, kShard, kOneOfAll, kOneOfThem},
    {kLocal, never, kModelParts, kWholeOnes, kOneOfThem},
    {kLocal, never, kShares, "replicas weigh alike in the mean of what they have learnt",
     "leave --shares out"},
    {kLocal, never, kEmbeddingTable, "the rows of {other} are in one place for all replicas"},
    {kLocal, never, kMeasured, kNoGradients, kOneOfThem},
    {kLocal, never, kLossScaling, "all replicas would leave out what overflows on one", kOneOfThem},
    {kLocal, never, kResize, "each replica has weights and a state of its own", kNewStrategy},
    {kLocal, never, kRestoresBest, "replicas have weights of their own, which differ",
     "use --model-checkpoint"},
    {kLocal, never, kPieceSize, kNoGradients, kOneOfThem},
    {kBytesPerPack, never, kTpu, kWholeSteps, "leave it out"},
    {kBytesPerPack, never, kServers, "what goes to servers has piece_bytes (--piece-mib)",
     "use that"},
    {kBytesPerPack, never, kCentralStorage, "its replicas add up in their memory", "leave it out"},
    {kBytesPerPack, never, kIndependent, kNoMeeting},
    {kBytesPerPack, never, kSlices, "gradients go to their owners in packs of shard_bucket_bytes",
     "use that"},
    {kBytesPerPack, never, kWorkersOnGpus, "NCCL has packs of its own", "leave it out"},
    {kLocal, never, kBytesPerPack, kNoGradients, kOneOfThem},
    {kLocalStart, needed, kLocal, kOfLocal},
    {kOuterRate, needed, kLocal, kOfLocal},
    {kOuterMomentum, needed, kLocal, kOfLocal},
    {kOuterNesterov, needed, kLocal, kOfLocal},
    {kCommunication, needed, kExchanges,
     "it is of gradients that replicas exchange with each other, and those of {kind} do not"},
    {kBetweenProcesses, needed, kMultiWorker,
     "it is between processes, and the replicas of {kind} are threads of one, which share its "
     "memory",
     "take auto or shm, or --strategy multi_worker"},
    {kInHostMemory, never, kGpus,
     "it moves what lies in memory of hosts, and {other} add up where they compute",
     "take auto, nccl or hier"},
    {kByNccl, needed, kNccl,
     "NCCL adds up gradients of several processes on GPUs, and here all replicas are in one, on "
     "the CPU, or without NCCL",
     "take auto, or --strategy multi_worker --device cuda"},
    {kHierarchical, never, kFixedOnGpus,
     "NCCL adds inside each host, in an order of its own, and sums in fixed order are made in "
     "pieces by NCCL between all",
     "take auto or nccl"},
    {kByAlgorithm, never, kTable, "both say by which algorithm sums are made", kOneOfThem},
    {kByAlgorithm, never, kRounded,
     "what it sends on is sums of some replicas, which do not fit into 16 bits",
     "take tcp or auto"},
    {kEngine, never, kCommunication, "both say by what gradients are added up", kOneOfThem},
    {kEngine, needed, kNccl,
     "it adds up the gradients of several processes on GPUs, and here all replicas are in one, or "
     "on the CPU"},
    {kSumOrder, needed, kNcclOrNamed,
     "it is of NCCL, which adds up the gradients of several processes on GPUs, and of engines "
     "between processes that are named (--communication); here the order is always that of the "
     "reduction shape"},
    {kAnyOrder, needed, kMultiWorker,
     "it is of engines between processes; here the order is always that of the reduction shape"},
    {kDeterministic, needed, kMaybeGpus,
     "CPUs give the same bits in every run anyway, and --device cpu uses no GPU"},
    {kMemoryLimit, needed, kMaybeGpus, kOfGpus},
    {kStepGraph, needed, kMaybeGpus, kOfGpus},
    {kReductionShape, needed, kOneDevice,
     "it can be chosen under one_device alone; elsewhere it is where the replicas are"},
    {kTable, needed, kMultiWorker, "this strategy sends nothing between hosts"},
    {kAlone, needed, kOneProcess, "this strategy is of several processes"},
    {kStaleness, needed, kServers, kOfServers},
    {kDropSlowest, needed, kServers, kOfServers},
    {kOnLostWorker, needed, kServers, kOfServers},
    {kScaleByStaleness, needed, kServers, kOfServers},
    {kDelayCompensation, needed, kServers, kOfServers},
    {kPlacement, needed, kServers, kOfServers},
    {kPartition, needed, kServers, kOfServers},
    {kStopIfNotFinite, needed, kServers, kOfServers},
    {kPieceSize, needed, kServersOrMultiWorker,
     "it is of what goes between hosts and to servers (--strategy multi_worker or "
     "parameter_server)"},
    {kHostSums, needed, kServersInStep,
     "it is of parameter servers whose workers are in step, none of which may be left out or lost "
     "(--strategy parameter_server --staleness 0)"},
    {kServersFlag, needed, kServers, kOfServers},
    {kRestarts, needed, kServers,
     "it starts single workers again beside parameter servers, and this strategy has none "
     "(--strategy parameter_server)",
     "leave it out: a job that failed is started again, as a whole, by `tutti run --restarts R "
     "tutti "
     "train ...`, with -n N for --strategy multi_worker"},
    {kRestarts, needed, kGoesOnWithoutLost,
     "in step the job ends with the first worker that is lost",
     "give --on-lost-worker continue or wait; out of step `tutti run --restarts R` starts workers "
     "again"},
    {kNoBackups, needed, kServers, kOfServers},
    {kSnapshots, needed, kServers, kOfServers},
    {kRestore, needed, kServers, kOfServers},
    {kRecordOrder, needed, kServers, kOfServers},
    {kReplayOrder, needed, kServers, kOfServers},
    {kSnapshotEvery, needed, kWritesSnapshots, kOfSnapshots},
    {kSnapshotsKept, needed, kWritesSnapshots, kOfSnapshots},

    {kPipeline, needed, kStages, kOfStages},
    {kCut, needed, kStages, kOfStages},
    {kRecompute, needed, kRecomputes,
     "it is all of a stage, and --mesh has none (blocks, every:K and layers' names need none)"},
    {kResume, needed, kCheckpoints, kOfCheckpoints},
    {kCheckpointEvery, needed, kCheckpoints, kOfCheckpoints},
    {kKeepBest, needed, kCheckpoints, kOfCheckpoints},
    {kKeepCheckpoints, needed, kCheckpoints, kOfCheckpoints},
    {kDiskLimit, needed, kCheckpoints, kOfCheckpoints},
    {kBestBy, needed, kBestKept,
     "it is of the best checkpoints, and none are kept for that (--keep-best K)"},
    {kGrace, needed, kSomethingToEnd,
     "it has to end nobody but itself, and no checkpoint to write (--out DIR, without servers)"},
    {kLearningRate, needed, kRateOfOptimizer,
     "the values of --schedule piecewise_constant are the rates"},
    {kLoaderMemory, needed, kLoadsAhead, kOfLoader},
    {kAhead, needed, kLoadsAhead, kOfLoader},
};

}  // namespace tutti::detail::features

namespace tutti {

std::span<const Rule> rules() { return detail::features::kRules; }

}  // namespace tutti
