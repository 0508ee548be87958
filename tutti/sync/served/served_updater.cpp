// Parameter servers under the waist: gradients of the local replicas are added, piece by piece as
// backward makes them, and pushed; parameters come back piece by piece.
//
// One storage holds the parameters of all replicas of this worker, or of its host
// (host_exchange.h). It is written only when all of them have pushed, since until then one may
// still read it; and each piece not before an operator needs it.

#include <torch/nn/module.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <optional>
#include <string>

#include "tutti/base/array.h"
#include "tutti/base/detail/check.h"
#include "tutti/base/event.h"
#include "tutti/cluster/rendezvous/job_links.h"
#include "tutti/net/tls.h"
#include "tutti/ps/client/client.h"
#include "tutti/ps/values/partial_sums.h"
#include "tutti/sync/before_use.h"
#include "tutti/sync/detail/gradients.h"
#include "tutti/sync/detail/ready_buckets.h"
#include "tutti/sync/served/detail/host_exchange.h"
#include "tutti/sync/served/detail/piece_places.h"
#include "tutti/sync/served/detail/served_spec.h"
#include "tutti/sync/served/detail/training_number.h"
#include "tutti/sync/updater.h"

namespace tutti {
namespace {

class ServedUpdater final : public Updater, public LateParameters {
 public:
  ServedUpdater(const World& world, const optim::Rule& rule, std::vector<NamedTensors> replicas,
                const ServedPlace& place, const ServedOptions& options,
                std::vector<ps::SparseTableSpec> tables)
      : world_(world),
        place_(place),
        layout_(Slots::of(detail::slots_of(replicas.at(0)))),
        spec_(detail::served_spec(world, rule, layout_, place, options, std::move(tables))),
        learning_rate_(rule.learning_rate()) {
    if (const ps::Carriers carriers(spec_);
        carriers.hosts()[carriers.host_of(place.worker)].count > 1)
      host_ = std::make_unique<detail::HostExchange>(world, layout_, spec_, place.worker, own());
    place_values(replicas);
    find_pieces();
    connect();
    parts_ = {.late = this, .client = client_.get()};
    step_ = host_ ? host_->start(*client_) : acquire_all(0);
  }

  ~ServedUpdater() override;

  void ready(int replica, const Deadline& deadline) override;
  detail::GradientListener* begin(int replica, Overlap overlap) override;
  Verdict step(int replica, std::span<const at::Tensor> gradients, const Vote& vote,
               const Deadline& deadline) override;
  void complete() override;
  void rethrow_failure() const override {
    late_->rethrow_failure();
    client_->require_no_failure();
  }
  void refresh() override;

  UpdaterView view(int replica) const override {
    return {lanes_.at(replica).parameters, layout_, step_, learning_rate_};
  }
  void set_learning_rate(double learning_rate) override {
    optim::require_learning_rate(learning_rate);
    learning_rate_ = learning_rate;
  }
  void require_whole() const override { late_->rethrow_failure(); }
  int64_t wire_bytes_per_step() const override;
  void rebind(const World&, std::vector<NamedTensors>) override {
    throw UsageError("a world with parameter servers cannot be resized while it runs");
  }

 private:
  // What a local replica keeps for itself.
  struct Lane {
    std::vector<at::Tensor> parameters;
    std::vector<at::Tensor> gradients;  // contiguous; undefined: not used
    std::vector<uint8_t> ready;         // handed in, by parameter
    detail::ReadyHooks hooks;
    bool armed = false;
    bool pushed = false;
  };

  void place_values(std::vector<NamedTensors>& replicas);
  void find_pieces();
  void connect();
  ps::Bytes initial(int piece) const;
  // Where the gradients of this worker's replicas lie.
  ps::Inputs own() const {
    return [this](int rank, const ps::Segment& segment) { return input_of(rank, segment); };
  }
  const void* input_of(int rank, const ps::Segment& segment) const;
  int first_rank() const {
    return spec_.staleness.synchronous() ? world_.first_rank : place_.worker * world_.local;
  }
  // Where a segment lies in the storage.
  std::byte* at(const ps::Segment& segment, const ps::Piece& piece) const {
    return values_ + detail::offset_of(layout_, piece, segment);
  }
  void hand_in(int replica, int parameter, const at::Tensor& gradient);
  /// The rest of a replica's; returns the version that contains them.
  int64_t hand_in_all(int replica, std::span<const at::Tensor> gradients, PartInStep part);
  void require_was_read(int parameter) const;
  void push_piece(int piece);
  int64_t acquire_all(int64_t step);
  bool arrived(int piece) const;
  void copy_piece(int piece, int64_t step, const Deadline& deadline);
  int num_pieces() const { return static_cast<int>(spec_.pieces.size()); }
  void fill(int piece);
  void require_trained(int replica, PartInStep part);
  void take(int replica, int64_t at_least, const Deadline& deadline);
  void wait_for_push_of_all(std::unique_lock<std::mutex>& lock, int replica, int64_t at_least,
                            const Deadline& deadline);
  void go_on_where_others_are();
  void finish_step();

  const World world_;
  const ServedPlace place_;
  const Slots layout_;
  const ps::Spec spec_;
  std::vector<ps::PartialSum> sums_;
  std::vector<std::vector<int>> pieces_of_;      // by parameter
  std::unique_ptr<std::atomic<int>[]> missing_;  // by piece: gradients of this step
  std::byte* values_ = nullptr;                  // parameters, by the layout's offsets
  std::shared_ptr<const void> values_owner_;
  std::vector<Lane> lanes_;
  std::atomic<double> learning_rate_;
  std::atomic<int64_t> step_{0};
  std::atomic<bool> trained_{false};  // a step had gradients, of some replica

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  int pushed_ = 0;
  std::array<uint8_t, 2> told_{};  // by those that have pushed: require_trained()
  bool failed_ = false;            // parameters did not come
  std::optional<detail::TrainingNumber> number_;
  std::unique_ptr<ps::Client> client_;
  std::unique_ptr<detail::HostExchange> host_;  // with others of the host; null: by itself
  std::unique_ptr<detail::BeforeUse> late_;     // parameters of step_; its parts are pieces
};

// What was pushed is to get through; but of a step that not all have done, nothing does.
ServedUpdater::~ServedUpdater() {
  // What is not through waits for a worker that may never come again.
  if (spec_.on_lost_worker == ps::OnLostWorker::wait && std::uncaught_exceptions() > 0) return;
  const bool in_step =
      std::ranges::any_of(lanes_, [](const Lane& lane) { return lane.armed || lane.pushed; });
  if (in_step && spec_.staleness.synchronous()) {
    if (host_) host_->give_up();
    return;
  }
  try {
    client_->wait_until_settled(Deadline(world_.time_limit));
  } catch (const Error&) {
    // Whoever trains was told before, in step().
  }
}

int64_t ServedUpdater::wire_bytes_per_step() const {
  const ps::Carriers carriers(spec_);
  int64_t bytes = 0;
  for (int piece = 0; piece < num_pieces(); ++piece)
    if (carriers.carries(place_.worker, piece)) bytes += spec_.pieces[piece].num_bytes;
  return bytes;
}

void ServedUpdater::place_values(std::vector<NamedTensors>& replicas) {
  if (host_) {
    values_ = host_->values();
    values_owner_ = host_->owner();
  } else {
    const Array memory = Array::zeros(DType::uint8, {layout_.total_bytes});
    values_ = static_cast<std::byte*>(memory.data());
    values_owner_ = memory.owner();
  }
  if (!host_ || host_->is_first())
    for (size_t i = 0; i < layout_.slots.size(); ++i) {
      const at::Tensor source = replicas[0][i].second.detach().contiguous();
      std::memcpy(values_ + layout_.slots[i].offset_bytes, source.data_ptr(), source.nbytes());
    }
  if (host_) host_->meet_all();
  lanes_ = std::vector<Lane>(world_.local);
  for (int local = 0; local < world_.local; ++local) {
    Lane& lane = lanes_[local];
    for (size_t i = 0; i < layout_.slots.size(); ++i) {
      at::Tensor parameter = replicas[local][i].second;
      const ParameterSlot& slot = layout_.slots[i];
      parameter.set_data(detail::view_memory(values_ + slot.offset_bytes, slot, values_owner_));
      lane.parameters.push_back(std::move(parameter));
    }
    lane.gradients.resize(layout_.slots.size());
    lane.ready.assign(layout_.slots.size(), 0);
    lane.hooks = detail::ReadyHooks(
        lane.parameters,
        [this, local](int parameter) {
          Lane& mine = lanes_[local];
          if (mine.armed) hand_in(local, parameter, mine.parameters[parameter].grad());
        },
        true);
  }
}

void ServedUpdater::find_pieces() {
  sums_ = ps::partial_sums(spec_.shape, first_rank(), world_.local);
  pieces_of_.resize(layout_.slots.size());
  for (int piece = 0; piece < num_pieces(); ++piece)
    for (const ps::Segment& segment : spec_.pieces[piece].segments)
      if (pieces_of_[segment.variable].empty() || pieces_of_[segment.variable].back() != piece)
        pieces_of_[segment.variable].push_back(piece);
  missing_ = std::make_unique<std::atomic<int>[]>(spec_.pieces.size());
  finish_step();
  std::vector<detail::BeforeUse::Range> ranges;
  for (int number = 0; number < num_pieces(); ++number)
    for (const ps::Segment& segment : spec_.pieces[number].segments) {
      const std::byte* const begin = at(segment, spec_.pieces[number]);
      const int64_t bytes = segment.count() * size_of(spec_.pieces[number].dtype);
      ranges.push_back({begin, begin + bytes, number});
    }
  late_ = std::make_unique<detail::BeforeUse>(std::move(ranges), num_pieces(),
                                              [this](int piece) { fill(piece); });
}

void ServedUpdater::connect() {
  const Token token = require_token("parameter servers");
  number_.emplace(place_, job_of_token(token));
  ps::ClientOptions options{.worker = place_.worker,
                            .training = number_->number(),
                            .view_service = place_.view_service,
                            .limit = world_.time_limit,
                            .poll = place_.poll,
                            .replay = detail::replayed_order(spec_, place_.coordinated),
                            .assigns = place_.coordinated};
  if (host_)
    options.whose_gradient = [host = host_.get()](int piece) {
      return host->whose_gradient(piece);
    };
  client_ = std::make_unique<ps::Client>(
      options, Credentials{token, job_of_token(token), tls_from_environment()}, spec_,
      [this](int piece) { return initial(piece); }, detail::restore_of(spec_, place_.worker));
  number_->joined();
}

ps::Bytes ServedUpdater::initial(int number) const {
  const ps::Piece& piece = spec_.pieces[number];
  std::vector<std::byte> bytes(piece.num_bytes);
  for (const ps::Segment& segment : piece.segments)
    std::memcpy(bytes.data() + segment.offset_bytes, at(segment, piece),
                segment.count() * size_of(piece.dtype));
  return ps::Bytes::copy_of(bytes);
}

detail::GradientListener* ServedUpdater::begin(int replica, Overlap overlap) {
  Lane& lane = lanes_.at(replica);
  detail::require_cleared(layout_, lane.parameters);
  lane.armed = true;
  return overlap == Overlap::on ? lane.hooks.listener() : nullptr;
}

// The piece whose last gradient this is leaves at once, while backward goes on.
void ServedUpdater::hand_in(int replica, int parameter, const at::Tensor& gradient) {
  Lane& lane = lanes_[replica];
  const ParameterSlot& slot = layout_.slots[parameter];
  if (lane.ready[parameter] != 0) detail::throw_second_gradient(slot);
  lane.ready[parameter] = 1;
  if (gradient.defined()) {
    detail::check_gradient(slot, gradient);
    require_was_read(parameter);
    lane.gradients[parameter] = gradient.contiguous();
  }
  // Who is waited for begins with the parameters of one step: so no piece may be two steps ahead.
  if (spec_.on_lost_worker == ps::OnLostWorker::wait) complete();
  for (const int piece : pieces_of_[parameter])
    if (missing_[piece].fetch_sub(1, std::memory_order_acq_rel) == 1) push_piece(piece);
}

// Before use is before an operator's; code that reads memory by itself has computed on old values.
void ServedUpdater::require_was_read(int parameter) const {
  for (const int piece : pieces_of_[parameter]) {
    if (late_->ready(piece)) continue;
    late_->rethrow_failure();
    detail::throw_unread(layout_.slots[parameter]);
  }
}

// Servers answer each part of the parameters for itself: there is nothing that all would learn.
Verdict ServedUpdater::step(int replica, std::span<const at::Tensor> gradients, const Vote& vote,
                            const Deadline& deadline) {
  const int64_t next = hand_in_all(replica, gradients, vote.part);
  const Deadline anew(
      deadline.limit());  // what it has waited for until here had a limit of its own
  if (spec_.staleness.synchronous()) take(replica, next, anew);
  if (place_.coordinated) client_->wait_until_settled(anew);
  return {};
}

int64_t ServedUpdater::hand_in_all(int replica, std::span<const at::Tensor> gradients,
                                   PartInStep part) {
  Lane& lane = lanes_.at(replica);
  if (lane.pushed) detail::throw_took_part_twice(world_.first_rank + replica);
  // What was not used is still on its way, and is not needed any more; the next is.
  complete();
  lane.armed = false;
  for (size_t i = 0; i < lane.parameters.size(); ++i)
    if (lane.ready[i] == 0)
      hand_in(replica, static_cast<int>(i), part != kAbstains ? gradients[i] : at::Tensor());
  if (!trained_) require_trained(replica, part);
  const std::lock_guard lock(mutex_);
  lane.pushed = true;
  if (++pushed_ == world_.local) changed_.notify_all();
  return step_ + 1;
}

// Servers have parts of the parameters, of which one may be without a gradient. So the replicas
// that meet tell each other, until one has had some; those of one worker at least do.
void ServedUpdater::require_trained(int replica, PartInStep part) {
  const bool any = std::ranges::any_of(lanes_.at(replica).gradients, &at::Tensor::defined);
  std::array<uint8_t, 2> told{any, part};
  bool all = true;
  if (spec_.drop_slowest == 0) {
    Group all_here = world_.groups[replica];
    all_here.all_reduce_now(span_of(std::span(told)), ReduceOp::max, world_.time_limit);
  } else {
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < told.size(); ++i) told[i] = told_[i] |= told[i];
    all = pushed_ + 1 == world_.local;
  }
  if (told[0] != 0) trained_ = true;
  if (all) detail::require_any_gradient(layout_, PartInStep{told[1]}, trained_);
}

const void* ServedUpdater::input_of(int rank, const ps::Segment& segment) const {
  const at::Tensor& gradient = lanes_[rank - first_rank()].gradients[segment.variable];
  if (!gradient.defined()) return nullptr;
  return static_cast<const std::byte*>(gradient.data_ptr()) +
         segment.begin * size_of(layout_.slots[segment.variable].dtype);
}

void ServedUpdater::push_piece(int number) {
  if (host_)
    return host_->push(number, step_, learning_rate_, [this] { return late_->all_ready(); });
  const ps::Piece& piece = spec_.pieces[number];
  const int64_t bytes = piece.num_bytes * std::ssize(sums_);
  const auto memory = client_->allocate(bytes);
  ps::PushOrder order{.piece = number, .step = step_, .learning_rate = learning_rate_};
  order.parts = ps::add_parts(spec_.shape, piece, sums_, own(), memory.get());
  order.payload = {{memory.get(), static_cast<size_t>(bytes)}, memory};
  client_->push(std::move(order));
}

// ---- parameters come ----

// First those that the last push has asked for.
void ServedUpdater::refresh() {
  ready(0, Deadline(world_.time_limit));
  complete();
  if (!host_) acquire_all(step_);
}

int64_t ServedUpdater::acquire_all(int64_t step) {
  for (int piece = 0; piece < num_pieces(); ++piece) client_->pull(piece, step);
  for (int piece = 0; piece < num_pieces(); ++piece)
    copy_piece(piece, step, Deadline(world_.time_limit));
  return client_->first_step();
}

void ServedUpdater::copy_piece(int number, int64_t step, const Deadline& deadline) {
  client_->fetch(number, step, deadline, [&](const ps::Bytes& values) {
    detail::spread(layout_, spec_.pieces[number], values, values_);
  });
}

bool ServedUpdater::arrived(int piece) const {
  return host_ ? host_->arrived(piece, step_) : client_->arrived(piece, step_);
}

void ServedUpdater::fill(int piece) {
  try {
    if (host_)
      host_->fill(piece, step_);
    else
      copy_piece(piece, step_, Deadline(world_.time_limit));
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failed_ = true;
    changed_.notify_all();
    throw;
  }
}

void ServedUpdater::complete() { late_->require_all(); }

void ServedUpdater::ready(int replica, const Deadline& deadline) {
  if (!spec_.staleness.synchronous()) take(replica, step_ + 1, deadline);
  late_->watch();
}

// Once all local replicas have pushed, the storage is to be written; what has come already is
// written here, by all of them, the rest before its use.
void ServedUpdater::take(int replica, int64_t at_least, const Deadline& deadline) {
  {
    std::unique_lock lock(mutex_);
    // Another one may have begun the step for this one, too.
    if (lanes_.at(replica).pushed) wait_for_push_of_all(lock, replica, at_least, deadline);
    if (lanes_.at(replica).pushed && step_ < at_least) {
      if (host_) host_->finish();
      finish_step();
      step_ = at_least;
      late_->expect();
      if (host_) host_->next(step_);
      changed_.notify_all();
    }
  }
  if (spec_.drop_slowest > 0) return go_on_where_others_are();
  for (int piece = 0; piece < num_pieces(); ++piece)
    if (!late_->ready(piece) && arrived(piece)) late_->require(piece);
  late_->watch();
}

// Whoever came too late for a round; only the parameters tell.
void ServedUpdater::go_on_where_others_are() {
  complete();
  int64_t least = client_->version(0);
  for (int piece = 1; piece < num_pieces(); ++piece)
    least = std::min(least, client_->version(piece));
  const std::lock_guard lock(mutex_);
  step_ = std::max(step_.load(), least);
}

void ServedUpdater::wait_for_push_of_all(std::unique_lock<std::mutex>& lock, int replica,
                                         int64_t at_least, const Deadline& deadline) {
  if (host_) {
    lock.unlock();
    host_->meet(replica, deadline);
    lock.lock();
    return late_->rethrow_failure();
  }
  const auto done = [&] { return pushed_ == world_.local || step_ >= at_least; };
  if (!changed_.wait_until(lock, deadline.at(), [&] { return done() || failed_; }))
    throw Timeout(fmt::format("a replica of worker {} waited {} ms for the others of its worker",
                              place_.worker, deadline.limit().count()));
  late_->rethrow_failure();
}

// Everything is as before the first gradient of the next step.
void ServedUpdater::finish_step() {
  for (size_t piece = 0; piece < spec_.pieces.size(); ++piece) missing_[piece] = 0;
  for (size_t i = 0; i < pieces_of_.size(); ++i)
    for (const int piece : pieces_of_[i]) missing_[piece] += world_.local;
  for (Lane& lane : lanes_) {
    detail::bump_versions(lane.parameters);
    for (at::Tensor& gradient : lane.gradients) gradient.reset();
    std::ranges::fill(lane.ready, uint8_t{0});
    lane.pushed = false;
  }
  pushed_ = 0;
  told_ = {};
}

}  // namespace

std::shared_ptr<Updater> make_served_updater(const World& world, const optim::Recipe& recipe,
                                             std::vector<NamedTensors> replicas,
                                             const ServedPlace& place, const ServedOptions& options,
                                             std::vector<ps::SparseTableSpec> tables) {
  if (const std::string more = recipe.more_than_a_rule(); !more.empty())
    throw UsageError(fmt::format(
        "parameter_server: {}: a server has parts of the parameters only; use mirrored, "
        "multi_worker or central_storage",
        more));
  return std::make_shared<ServedUpdater>(world, recipe.rule(), std::move(replicas), place, options,
                                         std::move(tables));
}

}  // namespace tutti
