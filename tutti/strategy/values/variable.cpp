#include "tutti/strategy/values/variable.h"

#include <fmt/ranges.h>

#include <map>

#include "tutti/base/agreed_lines.h"
#include "tutti/base/error.h"
#include "tutti/comm/engine/reduce_kernels.h"
#include "tutti/sync/tensors.h"

namespace tutti {
namespace {

using Aggregation = VariableAggregation;

std::string kind_words(const at::Tensor& tensor) {
  if (!tensor.defined()) return "an undefined tensor";
  return fmt::format("{} [{}]", c10::toString(tensor.scalar_type()),
                     fmt::join(tensor.sizes(), ", "));
}

}  // namespace

struct Variable::State final : WorldMember {
  State(Strategy strategy_in, VariableOptions options_in)
      : strategy(std::move(strategy_in)), options(std::move(options_in)) {}

  bool on_read() const { return options.synchronization == VariableSynchronization::on_read; }

  [[noreturn]] void refuse(const std::string& why) const {
    throw UsageError(fmt::format("variable \"{}\": {}", options.name, why));
  }

  void require_like(const at::Tensor& value) const {
    if (!value.defined() || value.sizes() != like.sizes() ||
        value.scalar_type() != like.scalar_type())
      refuse(fmt::format("got {}, expected {}", kind_words(value), kind_words(like)));
  }

  void require_outside(const char* method) const {
    if (ReplicaContext::current() != nullptr)
      refuse(fmt::format("{} inside run(); there use local(replica) and assign(replica, value)",
                         method));
  }

  // Rank 0's; collective over workers.
  at::Tensor first_of(const at::Tensor& value) {
    if (strategy.membership().alone()) return value;
    const std::vector<at::Tensor> rows(static_cast<size_t>(strategy.world().local),
                                       value.unsqueeze(0));
    return strategy.gather(PerReplica<at::Tensor>(rows, strategy.world().first_rank))[0];
  }

  at::Tensor read() {
    if (!on_read() || strategy.world().size == 1) return copies[0].clone();
    const PerReplica<at::Tensor> all(copies, strategy.world().first_rank);
    switch (options.aggregation) {
      case Aggregation::sum: return strategy.reduce(ReduceOp::sum, all);
      case Aggregation::mean: return strategy.reduce(ReduceOp::mean, all);
      case Aggregation::only_first_replica: return first_of(copies[0]).clone();
      case Aggregation::none: break;
    }
    refuse("read() of several replicas' copies needs an aggregation; it has none");
  }

  // The copy of replica `rank` with which read() is `value`.
  at::Tensor share_of(const at::Tensor& value, int rank) const {
    const int replicas = strategy.world().size;
    const bool divides = on_read() && options.aggregation == Aggregation::sum;
    if (!divides || value.scalar_type() == at::kBool) return value.clone();  // a sum of bools is or
    if (value.is_floating_point()) {
      const at::Tensor share = value / replicas;
      const at::Tensor sum =
          combined(std::vector<at::Tensor>(static_cast<size_t>(replicas), share));
      return at::where(sum == value, share, rank == 0 ? value : at::zeros_like(value));
    }
    const at::Tensor least = at::div(value, replicas, "floor");
    return (least + (value - least * replicas > rank)).to(value.scalar_type());
  }

  void set(const at::Tensor& value) {
    copies.clear();
    for (int local = 0; local < strategy.world().local; ++local)
      copies.push_back(share_of(value.detach(), strategy.world().first_rank + local));
  }

  // `adds` by replica. A sum of values some of which replace and some add would leave unlike
  // copies.
  void require_one_call(std::span<const uint8_t> adds) const {
    const auto other = std::ranges::find_if(adds, [&](uint8_t one) { return one != adds[0]; });
    if (other == adds.end()) return;
    const auto call = [](uint8_t add) { return add != 0 ? "assign_add" : "assign"; };
    throw Mismatch(fmt::format(
        "variable \"{}\": replica {} calls {}, replica 0 {}; on_write copies are always equal, so "
        "all replicas make one call",
        options.name, other - adds.begin(), call(*other), call(adds[0])));
  }

  // Of what the replicas give; collective over them. Under on_write alone.
  at::Tensor aggregated(ReplicaContext& replica, const at::Tensor& value, bool adds) {
    at::Tensor sum = value.detach().clone(at::MemoryFormat::Contiguous);
    if (replica.num_replicas_in_sync() == 1) return sum;
    const Millis limit = replica.time_limit();
    Group& group = replica.group_of_all(fmt::format("variable \"{}\"", options.name));
    uint8_t own = adds ? 1 : 0;
    std::vector<uint8_t> calls(static_cast<size_t>(group.size()));
    group.all_gather(span_of(std::span(&own, 1)), span_of(std::span(calls)), limit).wait(limit);
    require_one_call(calls);
    if (options.aggregation == Aggregation::only_first_replica)
      group.broadcast(span_of(sum), 0, limit).wait(limit);
    else
      group.all_reduce(span_of(sum), reduce_op(), limit).wait(limit);
    return sum;
  }

  ReduceOp reduce_op() const {
    return options.aggregation == Aggregation::mean ? ReduceOp::mean : ReduceOp::sum;
  }

  // Of one value a replica, all of which are here.
  at::Tensor combined(const std::vector<at::Tensor>& each) const {
    if (options.aggregation == Aggregation::only_first_replica ||
        options.aggregation == Aggregation::none)
      return each[0];
    std::vector<at::Tensor> values;
    std::vector<const void*> inputs;
    for (const at::Tensor& value : each) {
      values.push_back(value.contiguous());
      inputs.push_back(values.back().const_data_ptr());
    }
    const at::Tensor sum = at::empty_like(values[0]);
    reduce_inputs(dtype_of(sum.scalar_type()), reduce_op(), shape, inputs, sum.data_ptr(),
                  sum.numel());
    return sum;
  }

  void require_own(const ReplicaContext& replica) const {
    strategy.require_own(replica, fmt::format("variable \"{}\"", options.name));
  }

  void write(ReplicaContext& replica, const at::Tensor& value, bool adds) {
    require_own(replica);
    require_like(value);
    const auto local = static_cast<size_t>(replica.local_rank());
    if (on_read()) return apply(local, value.detach(), adds);
    if (options.aggregation == Aggregation::none && replica.num_replicas_in_sync() > 1)
      refuse(
          fmt::format("{} replicas assign to it, and it has no aggregation; choose sum, mean or "
                      "only_first_replica",
                      replica.num_replicas_in_sync()));
    const World& world = strategy.world();
    if (!world.in_turn() || world.size == 1)
      return apply(local, aggregated(replica, value, adds), adds);
    given.resize(copies.size());
    given_adds.resize(copies.size());
    if (given[local].defined())
      refuse("replicas that take turns (one_device) may assign to it once a run()");
    given[local] = value.detach().clone(at::MemoryFormat::Contiguous);
    given_adds[local] = adds ? 1 : 0;
  }

  void apply(size_t local, const at::Tensor& value, bool adds) {
    const at::NoGradGuard no_grad;
    copies[local] = adds ? copies[local] + value : value.clone();
  }

  void in_run(Moment moment, int local) override {
    if (moment == Moment::begins && local == 0) given.clear();  // of a run() that failed
    if (moment == Moment::ends) take_given(local);
  }

  // Replicas that take turns have all had theirs.
  void take_given(int local) {
    if (given.empty() || local + 1 < strategy.world().local) return;
    const std::vector<at::Tensor> each = given;
    for (size_t r = 0; r < each.size(); ++r)
      if (!each[r].defined())
        refuse(fmt::format("replica {} has not assigned to it in this run(), others have", r));
    require_one_call(given_adds);
    const at::Tensor value = combined(each);
    given.clear();
    for (size_t r = 0; r < copies.size(); ++r) apply(r, value, given_adds[0] != 0);
  }

  // What read() gave stays; copies without an aggregation become replica 0's.
  void rebind(const World& world) override {
    const at::Tensor value = on_read() ? combined(copies) : copies[0];
    shape = world.shape;
    set(value);
  }

  Strategy strategy;
  VariableOptions options;
  at::Tensor like;                  // of what shape and dtype values are
  std::vector<at::Tensor> copies;   // by local replica
  std::vector<at::Tensor> given;    // by local replica, of this run; where they take turns
  std::vector<uint8_t> given_adds;  // and whether to add it
  ReductionShape shape = strategy.reduction_shape();  // of `copies`
};

Variable::Variable(Strategy strategy, const at::Tensor& initial, const VariableOptions& options)
    : state_(std::make_shared<State>(std::move(strategy), options)) {
  State& state = *state_;
  state.require_outside("made");
  if (!initial.defined()) state.refuse("the initial value is undefined");
  if (options.aggregation == Aggregation::mean && !initial.is_floating_point())
    state.refuse(fmt::format("a mean of {}; expected a floating dtype", kind_words(initial)));
  if (!state.strategy.world().in_turn())
    state.strategy.require_meeting(fmt::format("variable \"{}\"", options.name));
  state.like = initial.detach();
  // Every copy begins as the value itself, a sum too.
  for (int local = 0; local < state.strategy.world().local; ++local)
    state.copies.push_back(state.first_of(initial.detach()).clone());
  state.strategy.follow(state_);
}

at::Tensor Variable::local(const ReplicaContext& replica) const {
  state_->require_own(replica);
  return state_->copies.at(static_cast<size_t>(replica.local_rank()));
}

void Variable::assign(ReplicaContext& replica, const at::Tensor& value) {
  state_->write(replica, value, false);
}

void Variable::assign_add(ReplicaContext& replica, const at::Tensor& delta) {
  state_->write(replica, delta, true);
}

at::Tensor Variable::read() {
  state_->require_outside("read()");
  return state_->read();
}

void Variable::assign(const at::Tensor& value) {
  state_->require_outside("assign(value)");
  state_->require_like(value);
  state_->set(state_->first_of(value.detach()));
}

void Variable::update(const std::function<void(at::Tensor& copy)>& fn) {
  State& state = *state_;
  state.require_outside("update()");
  const at::NoGradGuard no_grad;
  for (at::Tensor& copy : state.copies) {
    at::Tensor changed = copy.clone();
    fn(changed);
    state.require_like(changed);
    copy = changed;
  }
  for (size_t local = 1; local < state.copies.size() && !state.on_read(); ++local)
    if (!at::equal(state.copies[local], state.copies[0]))
      throw Mismatch(fmt::format(
          "variable \"{}\": after update() the copies of replicas {} and {} differ; on_write "
          "copies are always equal",
          state.options.name, state.strategy.world().first_rank,
          state.strategy.world().first_rank + static_cast<int>(local)));
}

const VariableOptions& Variable::options() const noexcept { return state_->options; }

// ---- reductions to where they are wanted ----

at::Tensor reduce_to(Strategy& strategy, ReduceOp op, const PerReplica<at::Tensor>& values,
                     at::Device device) {
  return strategy.reduce(op, values).to(device);
}

at::Tensor reduce_to(Strategy& strategy, ReduceOp op, const PerReplica<at::Tensor>& values,
                     Variable& destination) {
  at::Tensor sum = strategy.reduce(op, values);
  destination.assign(sum);
  return sum;
}

namespace {

// Those of one local replica, one behind the other.
at::Tensor flat_of(const std::vector<ReduceTo>& pairs, const std::vector<size_t>& places,
                   int local) {
  std::vector<at::Tensor> flat;
  for (const size_t place : places) {
    const at::Tensor &own = pairs[place].values.local(local), &first = pairs[place].values.local(0);
    if (!own.defined() || own.sizes() != first.sizes() || own.scalar_type() != first.scalar_type())
      throw UsageError(
          fmt::format("batch_reduce_to: value {} of {}: replica {} has {}, replica {} has {}; "
                      "expected one dtype "
                      "and shape",
                      place + 1, pairs.size(), pairs[place].values.first_rank() + local,
                      kind_words(own), pairs[place].values.first_rank(), kind_words(first)));
    flat.push_back(own.detach().reshape({-1}).cpu());
  }
  return at::cat(flat);
}

// What all workers must give alike, a line a value.
std::string words_of(const std::vector<ReduceTo>& pairs) {
  AgreedLines lines;
  for (size_t i = 0; i < pairs.size(); ++i) {
    std::vector<std::string> kinds;
    for (const at::Tensor& value : pairs[i].values.values()) {
      std::string kind = kind_words(value);
      if (kinds.empty() || kinds.back() != kind) kinds.push_back(std::move(kind));
    }
    lines.add(fmt::format("value {}", i + 1), fmt::format("{}", fmt::join(kinds, ", ")));
  }
  return lines.text();
}

}  // namespace

std::vector<at::Tensor> batch_reduce_to(Strategy& strategy, ReduceOp op,
                                        const std::vector<ReduceTo>& pairs) {
  const int local = strategy.world().local;
  if (!strategy.membership().alone())
    strategy.membership().require_same("batch_reduce_to", words_of(pairs));
  std::map<at::ScalarType, std::vector<size_t>> alike;
  for (size_t i = 0; i < pairs.size(); ++i) {
    const auto& values = pairs[i].values.values();
    if (static_cast<int>(values.size()) != local || !values[0].defined())
      throw UsageError(fmt::format(
          "batch_reduce_to: value {} of {}: {} tensors, expected one of each of {} replicas here",
          i + 1, pairs.size(), values.size(), local));
    alike[values[0].scalar_type()].push_back(i);
  }
  std::vector<at::Tensor> sums(pairs.size());
  for (const auto& [dtype, places] : alike) {
    std::vector<at::Tensor> each;
    for (int one = 0; one < local; ++one) each.push_back(flat_of(pairs, places, one));
    const at::Tensor all =
        strategy.reduce(op, PerReplica<at::Tensor>(std::move(each), strategy.world().first_rank));
    int64_t begin = 0;
    for (const size_t place : places) {
      const at::Tensor& like = pairs[place].values.local(0);
      sums[place] =
          all.narrow(0, begin, like.numel()).reshape(like.sizes()).to(pairs[place].device);
      begin += like.numel();
    }
  }
  return sums;
}

}  // namespace tutti
