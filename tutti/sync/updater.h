/// Updater: from n gradients to one update. The waist between strategies and everything under them.
///
/// Each replica meets it on its own, since with stale updates there is no common step: step() hands
/// in its gradients, and returns when parameters new enough are where its forward reads them. What
/// some updaters can and others cannot is in parts().
///
/// Four exist: *shared*, the fused step over one parameter storage a host; *replicated*,
/// all-reduce and then a step on every replica (any torch::optim::Optimizer); *local*, steps of
/// every replica's own, and now and then the mean of what they have learnt; *served*, parameter
/// servers. docs/design/fused_step.md, docs/design/parameter_server.md.
#pragma once

#include <torch/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/comm/schedule/schedule_choice.h"
#include "tutti/optim/recipe.h"
#include "tutti/ps/spec/sparse_spec.h"
#include "tutti/sync/averaged_parameters.h"
#include "tutti/sync/local_options.h"
#include "tutti/sync/replicated_options.h"
#include "tutti/sync/served_options.h"
#include "tutti/sync/slots.h"
#include "tutti/sync/updater_parts.h"
#include "tutti/sync/vote.h"
#include "tutti/sync/world.h"

namespace torch::optim {
class Optimizer;
}

namespace tutti {

/// One replica's parameters by name, each once, in one order for all replicas.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

namespace detail {
class GradientListener;
}

/// What an updater keeps beside the parameters, between steps: for checkpoints.
struct UpdaterState {
  std::string kind;  ///< the rule's name; "torch" for a torch optimizer
  int64_t version = 0;
  double learning_rate = 0;
  /// By names of its own; equal on all workers. May be the updater's memory, on a device too: read
  /// it before the next step, or have it copied behind what is queued (HostCopies).
  NamedTensors tensors{};
  /// What each replica keeps for itself (gradients that compression has held back): of the local
  /// replicas from state(); of all that there were, in rank order, for restore().
  std::vector<NamedTensors> replicas{};
};

/// Off where backward has collectives of its own on the group of the replicas, or is over: in what
/// order these and the exchanges came would depend on each replica's graph. And where replicas take
/// turns: of a step that ends before all have had theirs nothing is to stay.
enum class Overlap : uint8_t { off, on };

/// Where an updater stands, as one local replica sees it.
struct UpdaterView {
  const std::vector<at::Tensor>& parameters;  ///< in the order of gradients in step()
  const Slots& layout;                        ///< of these
  int64_t version = 0;                        ///< updates applied so far
  double learning_rate = 0;                   ///< of the next
};

/// Thread rule: replica r calls begin, step and ready from its own thread, all others from the
/// thread that runs the strategy, between steps. Gradients are summed over replicas, never
/// averaged.
class Updater {
 public:
  virtual ~Updater() = default;

  /// Gets replica `replica` ready for its next forward: at the begin of Strategy::run, and by
  /// Model::fit. Where workers are not in step step() does not wait for parameters, since who
  /// waited there for a slower worker would keep from it what it needs (a batch); this does.
  /// Forgets what has been handed in of a step that ended, with an error, before all had: this
  /// replica's, and by the first of those that take turns all of theirs.
  virtual void ready(int replica, const Deadline& deadline) { (void)replica, (void)deadline; }

  /// Gets ready for a backward pass of local replica `replica`: its gradients must be cleared.
  /// Throws UsageError naming the parameter when one is not (a second backward() in a step).
  /// `overlap` on: gradients may go to the other replicas while it goes on, as they become ready.
  /// Returns who takes gradients of the pass before it is over; null: nobody.
  virtual detail::GradientListener* begin(int replica, Overlap overlap) = 0;

  /// Hands in the gradients of local replica `replica`: one tensor a parameter, in the order of
  /// parameters(), undefined where unused. A parameter unused on all replicas is skipped, one
  /// unused on some counts as zero there; unused on all, of which some compute: UsageError. Where
  /// they meet in it all learn what all have said (Verdict).
  ///
  /// Returns when this replica's operators read parameters of an update with this part. Replicas
  /// that take turns do not wait: the update is made by the last of them. Served,
  /// and shared over several hosts, parameters may still be on their way (LateParameters), and come
  /// before the first operator that reads them; what goes wrong until then is thrown by that
  /// operator, and by every later call here. Throws UsageError naming the parameter when a gradient
  /// is sparse, part of a graph, or of another shape or dtype; PeerLost, Timeout.
  virtual Verdict step(int replica, std::span<const at::Tensor> gradients, const Vote& vote,
                       const Deadline& deadline) = 0;

  virtual UpdaterView view(int replica) const = 0;
  const std::vector<at::Tensor>& parameters(int replica) const { return view(replica).parameters; }
  const Slots& layout(int replica = 0) const { return view(replica).layout; }
  int64_t version() const { return view(0).version; }
  double learning_rate() const { return view(0).learning_rate; }

  /// From the next update on; rank 0's value counts. UsageError unless it is finite and >= 0.
  virtual void set_learning_rate(double learning_rate) = 0;

  /// Throws Error when a death in the middle of an update left old and new values mixed.
  virtual void require_whole() const = 0;

  /// Bytes of gradients that a replica sent in the last step, on average; in turn: would have sent.
  virtual int64_t wire_bytes_per_step() const = 0;

  virtual UpdaterState state() const;  ///< UsageError where it is elsewhere: on servers
  /// Goes on from that, with these parameters, in the order of step(). Each replica gets what it
  /// kept for itself; what those have held back that are no more goes to replica 0, so that no
  /// gradient is lost. Collective over workers, who all give the same; between steps. Throws
  /// UsageError that names what does not fit.
  virtual void restore(const UpdaterState& state, const NamedTensors& parameters);

  /// Goes on in another world of thread replicas, with version, parameters and state kept.
  /// `replicas` are the local replicas of the new world; the first ones are those of the old.
  /// What compression has kept back on a replica that leaves is added to replica 0's, so that no
  /// gradient is lost. Between steps. UsageError where this updater cannot go on there.
  ///
  /// On devices the new world may be one of several processes, with groups of its own, and the old
  /// one may have failed; then collective over the new one's workers, each of which comes from the
  /// old. Where a failure may have cut the last update off, or has come between two updates, every
  /// step throws as require_whole() does until restore() of a checkpoint.
  virtual void rebind(const World& world, std::vector<NamedTensors> replicas) = 0;

  const UpdaterParts& parts() const noexcept { return parts_; }
  /// Null where all replicas have the same parameters.
  virtual AveragedParameters* averaged() noexcept { return nullptr; }

 protected:
  UpdaterParts parts_;  ///< an updater says which it has, between steps
};

/// Makes a torch optimizer over one replica's parameters; called once per local replica.
using TorchOptimizerFactory =
    std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>;

/// The fused step. Moves the parameters of all replicas into one storage (rank 0's values win),
/// optimizer state beside it. float32 and float64 on the CPU. Collective over workers.
std::shared_ptr<Updater> make_shared_updater(const World& world, const optim::Recipe& recipe,
                                             std::vector<NamedTensors> replicas);

/// How gradients on devices are added up over processes.
struct DeviceSums {
  /// any: as the groups' engine adds (NCCL), while backward goes on where a process has one
  /// replica. fixed: in the reduction shape, after backward, with the bits of one process.
  Order order = Order::any;
  int64_t bucket_bytes = 25 << 20;       ///< gradients of this size are added at once
  int64_t first_bucket_bytes = 1 << 20;  ///< small, so that adding starts early
};

/// The fused step where all replicas compute on devices: parameters lie on each device (once, where
/// all of a process share one), each replica adds its slice of the gradients of its process there,
/// then of all processes (World::device_groups), and updates it; the others of the process copy it.
/// Nobody waits for a device; hosts meet once a step. sgd, adam, adamw.
std::shared_ptr<Updater> make_device_updater(const World& world, const optim::Recipe& recipe,
                                             std::vector<NamedTensors> replicas,
                                             const DeviceSums& sums = {});
/// Whether it can: what else there is updates on the CPU (make_staged_updater). `why` in words.
bool can_update_on_devices(const World& world, const optim::Recipe& recipe, std::string* why);

/// Makes an updater of parameters on the CPU.
using UpdaterFactory = std::function<std::shared_ptr<Updater>(std::vector<NamedTensors>)>;

/// For replicas on devices that update on the CPU: what `make` makes updates copies of the
/// parameters there; gradients go there by pinned memory, new values come back. Each replica waits
/// for its own gradients once a step. For jobs of CPUs and GPUs together, parameter servers, rules
/// that no device has, and variables that are to lie on the CPU; sums and updates have the bits
/// that replicas on CPUs with these gradients give.
std::shared_ptr<Updater> make_staged_updater(const World& world, std::vector<NamedTensors> replicas,
                                             const UpdaterFactory& make);

/// All-reduce, then a step on every replica, with a torch optimizer or with one of our rules.
std::shared_ptr<Updater> make_replicated_updater(const World& world, TorchOptimizerFactory factory,
                                                 std::vector<NamedTensors> replicas,
                                                 const ReplicatedOptions& options = {});
std::shared_ptr<Updater> make_replicated_updater(const World& world, const optim::Recipe& recipe,
                                                 std::vector<NamedTensors> replicas,
                                                 const ReplicatedOptions& options = {});

/// Each replica updates parameters of its own by its own gradients, as often as `local` says, then
/// all take the mean of their changes (averaged()). Nothing but votes is exchanged between.
/// Parameters on the CPU.
std::shared_ptr<Updater> make_local_updater(const World& world, TorchOptimizerFactory factory,
                                            std::vector<NamedTensors> replicas,
                                            const LocalUpdates& local);
std::shared_ptr<Updater> make_local_updater(const World& world, const optim::Recipe& recipe,
                                            std::vector<NamedTensors> replicas,
                                            const LocalUpdates& local);

/// Parameter servers, which hold and update the parameters. `world` is that of replicas in sync: of
/// all workers when the staleness is 0, else of this worker alone; `shape` is that of all replicas.
/// Worker 0's values win. Throws UsageError when workers disagree, naming both, and for a recipe
/// that is more than an elementwise rule: a server has parts of tensors; what Client does. `tables`
/// are embedding tables that the servers hold beside; SparseTables pushes to them.
std::shared_ptr<Updater> make_served_updater(const World& world, const optim::Recipe& recipe,
                                             std::vector<NamedTensors> replicas,
                                             const ServedPlace& place, const ServedOptions& options,
                                             std::vector<ps::SparseTableSpec> tables = {});

}  // namespace tutti
