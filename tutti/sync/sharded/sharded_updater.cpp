// A step of ranks that own slices: buckets of gradients go to their owners, each updates its part,
// new values come back. Glossary: shard_layout.h. docs/design/shards.md.
#include "tutti/sync/sharded/detail/sharded_updater.h"

#include <fmt/format.h>

#include <algorithm>

#include "tutti/comm/compression/coder.h"

namespace tutti {

namespace detail {

template <class Visit>
void SlicesUpdater::for_each_used(const Lane& lane, const Visit& visit) const {
  const auto used = lane.gradients->used();
  for (int bucket = 0; bucket < shards_->num_buckets(); ++bucket)
    for (const OwnedPiece& piece : shards_->part(bucket, lane.owner()).pieces)
      if (used[static_cast<size_t>(piece.stretch.parameter)] != 0)
        visit(piece, shards_->bucket(bucket).dtype, lane.gradients->sum_of(piece),
              piece.stretch.end - piece.stretch.begin);
}

GradientListener* SlicesUpdater::begin(int replica, Overlap overlap) {
  Lane& lane = lanes_.at(static_cast<size_t>(replica));
  require_not_torn(lane);
  require_cleared(layout_, lane.parameters);
  lane.gradients->begin(overlap == Overlap::on);
  return overlap == Overlap::on ? lane.gradients->listener() : nullptr;
}

Verdict SlicesUpdater::step(int replica, std::span<const at::Tensor> gradients, const Vote& vote,
                            const Deadline& deadline) {
  Lane& lane = lanes_.at(static_cast<size_t>(replica));
  meet(replica, Until::all_done);
  lane.gradients->finish(gradients, vote);
  lane.learning_rate = learning_rate_;  // rank 0's counts
  lane.learning_rate_work =
      lane.all.broadcast({&lane.learning_rate, 1, DType::float64}, 0, world_.time_limit);
  const Verdict verdict = lane.gradients->wait();
  lane.learning_rate_work.wait(std::min(world_.time_limit, deadline.limit()));
  if (!verdict.left_out) {
    lane.torn = true;
    plan_.advance(lane.scalars, lane.gradients->used(), lane.learning_rate);
    clip(lane);
    measure(lane);
    update_and_gather(lane);
    bump_versions(lane.parameters);
    version_ = ++lane.version;  // every lane writes the same value
    lane.torn = false;
  }
  lane.gradients->end_step();
  return verdict;
}

// Each block has one owner, and to the squares of the others are added zeros.
void SlicesUpdater::clip(Lane& lane) {
  if (plan_.clips_values())
    for_each_used(lane, [&](const OwnedPiece&, DType dtype, void* sum, int64_t count) {
      plan_.clip_values(dtype, sum, count);
    });
  if (!plan_.clips_norms()) return;
  std::ranges::fill(lane.squares, 0.0);
  for_each_used(lane, [&](const OwnedPiece& piece, DType dtype, const void* sum, int64_t count) {
    const auto [parameter, begin, end] = piece.stretch;
    optim::square_blocks(dtype, sum, count,
                         std::span(lane.squares).subspan(plan_.block_at(parameter, begin)));
  });
  lane.owners.all_reduce_now(tutti::span_of(std::span(lane.squares)), ReduceOp::sum,
                             world_.time_limit);
  const std::vector<double> scales = plan_.scales(lane.squares, lane.gradients->used());
  for_each_used(lane, [&](const OwnedPiece& piece, DType dtype, void* sum, int64_t count) {
    scale_gradient(dtype, sum, count, scales[static_cast<size_t>(piece.stretch.parameter)]);
  });
}

void SlicesUpdater::measure(Lane& lane) {
  if (!plan_.measures()) return;
  std::ranges::fill(lane.measured, optim::Squares());
  for_each_used(lane, [&](const OwnedPiece& piece, DType dtype, const void* sum, int64_t count) {
    const auto [parameter, begin, end] = piece.stretch;
    plan_.rule(parameter).measure(
        dtype, lane.value_of(piece), sum, states_of(lane, piece), count,
        lane.scalars[static_cast<size_t>(parameter)],
        std::span(lane.measured).subspan(plan_.block_at(parameter, begin)));
  });
  static_assert(sizeof(optim::Squares) == 2 * sizeof(double));
  lane.owners.all_reduce_now({lane.measured.data(), 2 * std::ssize(lane.measured), DType::float64},
                             ReduceOp::sum, world_.time_limit);
}

// New values of a bucket travel while the next is updated; or are gathered when they are read.
void SlicesUpdater::update_and_gather(Lane& lane) {
  const auto used = lane.gradients->used();
  std::vector<Work> works;
  for (int bucket = 0; bucket < shards_->num_buckets(); ++bucket) {
    const OwnedPart& own = shards_->part(bucket, lane.owner());
    for (const OwnedPiece& piece : own.pieces)
      if (used[static_cast<size_t>(piece.stretch.parameter)] != 0) update(lane, piece);
    if (lane.units) continue;
    const MemorySpan all = shards_->span_of(bucket, lane.row());
    works.push_back(
        lane.owners.all_gather({lane.row() + own.row_bytes, own.num_elements, all.dtype}, all,
                               shards_->counts(bucket), world_.time_limit));
    works.front().test();
  }
  for (Work& work : works) work.wait(world_.time_limit);
  if (lane.units) lane.units->give_back();
}

void SlicesUpdater::ready(int replica, const Deadline&) {
  const Lane& lane = lanes_.at(static_cast<size_t>(replica));
  if (!lane.units) return;
  if (lane.units->whole()) lane.units->take_slice();  // between runs anybody may write to them
  lane.units->give_back();
}

void SlicesUpdater::meet(int replica, Until until) {
  const Lane& lane = lanes_.at(static_cast<size_t>(replica));
  if (!lane.units) return;
  switch (until) {
    case Until::action_ends: return lane.units->after_action();
    case Until::all_done: return lane.units->follow();
    case Until::whole: return lane.units->gather_all();
  }
}

void SlicesUpdater::fail(int replica, const std::string& reason) noexcept {
  Lane& lane = lanes_[static_cast<size_t>(replica)];
  lane.owners.abort(reason);
  if (lane.units) lane.rounds.abort(reason);
}

void SlicesUpdater::update(Lane& lane, const OwnedPiece& piece) {
  const auto [parameter, begin, end] = piece.stretch;
  plan_.rule(parameter).update(
      layout_.slots[static_cast<size_t>(parameter)].dtype, lane.value_of(piece),
      lane.gradients->sum_of(piece), states_of(lane, piece), end - begin,
      lane.scalars[static_cast<size_t>(parameter)], plan_.trust(parameter, lane.measured));
}

std::vector<void*> SlicesUpdater::states_of(const Lane& lane, const OwnedPiece& piece) const {
  std::vector<void*> states;
  for (const Array& slice : lane.states)
    states.push_back(static_cast<std::byte*>(slice.data()) + piece.slice_bytes);
  return states;
}

void SlicesUpdater::require_not_torn(const Lane& lane) const {
  if (lane.torn)
    throw Error(fmt::format(
        "the parameters of replica {} are torn: update {} was cut off by a lost replica and left "
        "old and new values mixed; go on from the last checkpoint",
        world_.first_rank + static_cast<int>(&lane - lanes_.data()), lane.version + 1));
}

void SlicesUpdater::require_whole() const {
  for (const Lane& lane : lanes_) require_not_torn(lane);
  for (const Lane& lane : lanes_)
    if (lane.units && !lane.units->whole())
      throw Error(
          "the parameters are in slices: an error ended a run before they were gathered again; go "
          "on from the last checkpoint");
}

int64_t SlicesUpdater::wire_bytes_per_step() const {
  const int64_t bytes = layout_.trained_bytes();
  if (lanes_[0].owners.size() < world_.size) return sum_wire_bytes(bytes, world_.size);
  return (world_.size - 1) * bytes / world_.size;
}

ShardBytes SlicesUpdater::bytes(int replica) const {
  const Lane& lane = lanes_.at(static_cast<size_t>(replica));
  ShardBytes bytes{.parameters = lane.frozen_bytes, .gradients = lane.gradients->bytes()};
  bytes.parameters += lane.units ? lane.units->bytes() : lane.values.num_bytes();
  for (const Array& slice : lane.states) bytes.state += slice.num_bytes();
  return bytes;
}

}  // namespace detail

std::shared_ptr<ShardedUpdater> make_sharded_updater(const World& world,
                                                     const optim::Recipe& recipe,
                                                     std::vector<NamedTensors> replicas,
                                                     const ShardedOptions& options) {
  return std::make_shared<detail::SlicesUpdater>(world, recipe, std::move(replicas), options);
}

}  // namespace tutti
