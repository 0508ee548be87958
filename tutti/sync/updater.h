/// Updater: from n gradients to one update. The waist between strategies and everything under them.
///
/// Each replica meets it on its own, since with stale updates there is no common step: push() hands
/// in its part, acquire() returns when parameters new enough are where its forward reads them.
///
/// Three exist: *shared*, the fused step over one parameter storage a host; *replicated*,
/// all-reduce and then a step on every replica (any torch::optim::Optimizer); *served*, parameter
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
#include "tutti/optim/loss_scale.h"
#include "tutti/optim/recipe.h"
#include "tutti/ps/spec/sparse_spec.h"
#include "tutti/sync/replicated_options.h"
#include "tutti/sync/served_options.h"
#include "tutti/sync/slots.h"
#include "tutti/sync/world.h"

namespace torch::optim {
class Optimizer;
}

namespace tutti {

/// One replica's parameters by name, each once, in one order for all replicas.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

class GradientMeter;
namespace ps {
class Client;
}
namespace detail {
class DeviceLossScale;
class GradientListener;
}  // namespace detail

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
/// order these and the exchanges came would depend on each replica's graph.
enum class Overlap : uint8_t { off, on };

/// Thread rule: replica r calls push and acquire from its own thread, all others from the thread
/// that runs the strategy, between steps. Gradients are summed over replicas, never averaged.
class Updater {
 public:
  virtual ~Updater() = default;

  /// Gets ready for a backward pass of local replica `replica`: its gradients must be cleared.
  /// Throws UsageError naming the parameter when one is not (a second backward() in a step).
  /// `overlap` on: gradients may go to the other replicas while it goes on, as they become ready.
  virtual void begin(int replica, Overlap overlap) = 0;

  /// Who takes gradients of a backward pass that has begun, before it is over; null: nobody.
  virtual detail::GradientListener* listener(int replica) {
    (void)replica;
    return nullptr;
  }

  /// Where replicas take turns: forgets what some of them have pushed of a step that ended, with an
  /// error, before all had. Between steps; nothing elsewhere, where such a world has failed.
  virtual void forget_step() {}

  /// Hands in the gradients of local replica `replica`: one tensor a parameter, in the order of
  /// parameters(), undefined where unused. weight 0: it had no samples and its gradients are left
  /// out. A parameter unused on all replicas is skipped, one unused on some counts as zero there.
  /// weight NaN: all replicas leave the step out, as they learn where they meet in it, and no
  /// version is made; not with servers. Other weights, and no gradient on any: UsageError.
  /// Returns the version that contains this part. Throws UsageError naming the parameter when a
  /// gradient is sparse, part of a graph, or of another shape or dtype; PeerLost, Timeout.
  virtual int64_t push(int replica, std::span<const at::Tensor> gradients, double weight) = 0;

  /// On a device, where the host does not wait for what it would need to know: this step is left
  /// out on all replicas, as with weight NaN, when `bad` (one element, on the replica's device) of
  /// any is not 0; and so are all later ones, until forget_left_out(). Before push(). Versions
  /// count on. Throws UsageError elsewhere: whoever is not on a device knows, and says it by the
  /// weight.
  virtual void leave_out_if(int replica, const at::Tensor& bad);
  /// How many updates that left out, which no longer count in version(). Waits; between runs.
  virtual int64_t forget_left_out() { return 0; }

  /// Returns when this replica's operators read parameters of version `at_least` or newer. Replicas
  /// that take turns do not wait: the update is made by the last push of the step. Served: they may
  /// still be on their way, and come before the first operator that reads them (before_use.h);
  /// what goes wrong until then is thrown by that operator, and by every later call here.
  virtual void acquire(int replica, int64_t at_least, const Deadline& deadline) = 0;

  /// Gets the parameters of replica `replica` ready for its next forward. Where workers are not in
  /// step acquire() does not wait, since who waited there for a slower worker would keep from it
  /// what it needs (a batch); this does. Called at the begin of Strategy::run and by Model::fit.
  virtual void prepare(int replica, const Deadline& deadline) { (void)replica, (void)deadline; }

  /// Returns when all parameters that acquire() and prepare() have let on their way are there: for
  /// whoever reads them other than by operators. Called at the end of Strategy::run. Each replica
  /// from its own thread, or one thread between runs. Throws what went wrong on the way.
  virtual void complete() {}
  /// In a run, before replicas of which some compute nothing meet otherwise than by push(): from
  /// each. Those that still compute may need the others, to gather parameters.
  virtual void meet(int replica) { (void)replica; }
  /// The same after each action of a pipeline, whose ranks wait for each other too, done or not:
  /// who is in meet(), push() or end_run() meanwhile stays in it.
  virtual void after_action(int replica) { (void)replica; }
  /// At the end of Strategy::run, from each replica's own thread: parameters become whole.
  virtual void end_run(int replica) { (void)replica; }
  /// A run's function threw on that replica, for whom nobody is to wait. Any thread; never throws.
  virtual void fail(int replica, const std::string& why) noexcept { (void)replica, (void)why; }
  virtual void rethrow_failure() const {}  ///< throws that; nothing when nothing did

  virtual void refresh() {}  ///< gets the newest parameters of all workers; between runs

  /// From now on losses are multiplied by that, where scale_of() is not null; between steps.
  virtual void scale_losses(const optim::LossScale& scale) { (void)scale; }
  /// The scale that a replica's device keeps, by which steps are left out; null: the host does it.
  virtual detail::DeviceLossScale* scale_of(int replica) const {
    (void)replica;
    return nullptr;
  }

  /// Steps that a device makes again by itself (CapturedSteps): from now on such may come. False
  /// where they cannot; then nothing changes.
  virtual bool capture_steps() { return false; }
  /// Before each step then, however it is made: what the host decides of it goes to the device.
  virtual void before_step(int replica) { (void)replica; }
  /// The last step was captured; replayed() counts others like it.
  virtual void captured(int replica) { (void)replica; }
  virtual void replayed(int replica) { (void)replica; }

  virtual int64_t version() const = 0;  ///< updates applied so far

  /// From the next update on; rank 0's value counts. UsageError unless it is finite and >= 0.
  virtual void set_learning_rate(double learning_rate) = 0;
  virtual double learning_rate() const = 0;

  /// Throws Error when a death in the middle of an update left old and new values mixed.
  virtual void require_whole() const = 0;

  /// The parameters of one local replica, in the order of gradients in push().
  virtual const std::vector<at::Tensor>& parameters(int replica) const = 0;
  virtual const Layout& layout() const = 0;

  /// Bytes of gradients that a replica sent in the last step, on average; in turn: would have sent.
  virtual int64_t wire_bytes_per_step() const = 0;

  virtual ps::Client* client() { return nullptr; }  ///< null where there are no servers
  /// What measures the gradients of its updates; null where it cannot.
  virtual GradientMeter* meter() { return nullptr; }

  virtual UpdaterState state() const;  ///< UsageError where it is elsewhere: on servers
  /// Goes on from that, with these parameters, in the order of push(). Each replica gets what it
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

  /// World::shares are these from the next step on. Slices of the fused step follow inside a host,
  /// where that moves nothing; others stay whose they are. No bit depends on it. Between steps.
  virtual void share_out(const std::vector<double>& shares) { (void)shares; }
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
