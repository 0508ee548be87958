// What of the fused step is done before and behind it.
//
// While backward goes on a stretch is updated, or over several hosts added for this one and sent,
// as soon as all replicas of the host have its gradient, which then lies in cache still. The same
// operations on the same numbers as at the end.
//
// Over several hosts sums of what the next forward pass needs late are still on their way behind
// step(), and whoever adds them updates it. A step is made of the same numbers, and parameters are
// read when they are written (BeforeUse), whenever that is.

#include <algorithm>
#include <thread>

#include "tutti/comm/engine/debug_mode.h"
#include "tutti/sync/shared/detail/shared_updater.h"

namespace tutti::detail {

GradientListener* SharedUpdater::listener(int replica) {
  Lane& lane = lanes_.at(replica);
  // Of a step that ends before all have had their turn nothing is to stay.
  if (world_.on_thread_of(replica).size() > 1) return nullptr;
  // Norms are of all gradients, and over hosts sums are on their way until all have agreed: then
  // gradients are copied as they come, where they are, and the update is made at the end.
  if (plan_.needs_sums() || plan_.measures() || lane.sums) return lane.hooks.listener();
  // What would be an error, or what hooks of the user are to see whole, is found at the end.
  for (size_t i = 0; i < lane.parameters.size(); ++i) {
    const at::Tensor& parameter = lane.parameters[i];
    if (parameter.requires_grad() != layout_.slots[i].trained || has_hooks(parameter))
      return nullptr;
  }
  return &lane.early;
}

bool SharedUpdater::take_early(int replica, const at::Tensor& parameter,
                               const at::Tensor& gradient) {
  Lane& lane = lanes_[replica];
  const auto found = lane.places.find(parameter.unsafeGetTensorImpl());
  // What autograd would add to, or give no gradient, is autograd's.
  if (found == lane.places.end() || !parameter.requires_grad() || parameter.grad().defined())
    return false;
  const int place = found->second;
  Gradients& mine = gradients_[lane.rank];
  publish(replica, place, gradient);
  mine.used[place] = 1;
  mine.ready[place].store(lane.step + 1, std::memory_order_release);
  lane.taken[place] = 1;
  return true;
}

// What came last first: it is in cache. Whoever leaves the step out has no gradient ready, so that
// nobody else updates anything before all know of it.
void SharedUpdater::update_what_is_ready(Lane& lane) {
  for (size_t i = 0; i < lane.stretches.size(); ++i) {
    const Stretch& stretch = lane.stretches[i];
    if (lane.updated[i] != 0 || lane.taken[stretch.parameter] == 0) continue;
    if (!is_ready(stretch.parameter, lane.step + 1)) continue;
    const optim::Rule& rule = plan_.rule(stretch.parameter);
    const double rate = plan_.rate(stretch.parameter, header_->learning_rate.load());
    header_->begun.store(ended() + 1, std::memory_order_release);
    apply_stretch(lane, stretch, rule.next(lane.scalars[stretch.parameter], rate));
    lane.updated[i] = 1;
  }
}

// Of several hosts: a gradient has been copied to where the others of this one find it.
void SharedUpdater::tell(int replica, int parameter) {
  Lane& lane = lanes_[replica];
  Gradients& mine = gradients_[lane.rank];
  mine.used[parameter] = 1;
  mine.ready[parameter].store(lane.step + 1, std::memory_order_release);
  add_what_is_ready(lane);
}

void SharedUpdater::add_what_is_ready(Lane& lane) {
  for (auto stretch = lane.stretches.rbegin(); stretch != lane.stretches.rend(); ++stretch) {
    const int parameter = stretch->parameter;
    if (lane.summed[parameter] == 0 && lane.copied[parameter] != 0 &&
        is_ready(parameter, lane.step + 1))
      add_for_host(lane, parameter);
  }
}

// While others are still on their way, of whom one may need this core. Not for ever: the barrier
// says who has not come.
void SharedUpdater::update_while_waiting(Lane& lane) {
  constexpr Millis kPatience{2};
  const Deadline deadline(kPatience);
  const auto all_pushed = [&] {
    return std::ranges::all_of(gradients_, [&](const Gradients& gradients) {
      return gradients.ready[layout_.slots.size()].load(std::memory_order_acquire) == lane.step + 1;
    });
  };
  const auto left = [&] {
    for (size_t i = 0; i < lane.stretches.size(); ++i) {
      const int parameter = lane.stretches[i].parameter;
      if (lane.tells ? lane.copied[parameter] != 0 && lane.summed[parameter] == 0
                     : lane.taken[parameter] != 0 && lane.updated[i] == 0)
        return !all_pushed();  // whoever has pushed marks nothing more
    }
    return false;
  };
  const auto go_on = [&] { lane.tells ? add_what_is_ready(lane) : update_what_is_ready(lane); };
  for (go_on(); left() && !deadline.passed(); go_on()) std::this_thread::yield();
}

bool SharedUpdater::is_ready(int parameter, int64_t step) const {
  for (const Gradients& gradients : gradients_)
    if (gradients.ready[parameter].load(std::memory_order_acquire) != step) return false;
  return true;
}

// ---- behind it ----

// Norms are of all sums; and where replicas take turns nobody computes beside.
bool SharedUpdater::can_be_late() const {
  if (!several_hosts() || plan_.needs_sums() || plan_.measures()) return false;
  if (!world_.job_ranks.empty()) return false;  // of a mesh: its parts complete nothing
  const HostView& view = lanes_[0].view;
  const int64_t piece = world_.piece_bytes != 0 ? world_.piece_bytes : piece_bytes(view.num_hosts);
  return world_.on_thread_of(0).size() == 1 && view.rails[0].engine().can_be_lent() &&
         layout_.trained_bytes() / view.num_slices > piece;
}

void SharedUpdater::update_by_pieces(Lane& lane) {
  plan_.advance(lane.scalars, lane.used, lane.learning_rate);
  const int64_t step = lane.step + 1;
  HostSums& sums = *lane.sums;
  const auto is_late = [&](const HostSums::Part& part) { return sums.is_of_rest(part.piece); };
  const auto count = static_cast<int>(layout_.slots.size());
  for (int i = 0; i < count; ++i) {
    // One more, for what is written here.
    const auto late = std::ranges::count_if(sums.parts_of(i), is_late);
    lane.unwritten[static_cast<size_t>(i)] = static_cast<int>(late) + 1;
  }
  poison_late(lane);
  sums.add_rest_late(
      [this, &lane, step](int piece) {
        for (const Stretch& stretch : lane.sums->stretches_of(piece)) write(lane, stretch, step);
      },
      world_.time_limit);
  for (int i = 0; i < count; ++i) {
    for (const HostSums::Part& part : sums.parts_of(i))
      if (!is_late(part) && lane.used[static_cast<size_t>(i)] != 0)
        apply_stretch(lane, part.stretch, lane.scalars[static_cast<size_t>(i)]);
    write(lane, {i, 0, 0}, step);
  }
}

// Debug mode: whoever reads such memory by itself, without require_ready(), finds NaN.
void SharedUpdater::poison_late(Lane& lane) {
  lane.hidden.clear();
  if (!debug_mode()) return;
  for (int i = 0; i < static_cast<int>(layout_.slots.size()); ++i)
    for (const HostSums::Part& part : lane.sums->parts_of(i)) {
      if (!lane.sums->is_of_rest(part.piece)) continue;
      const std::span<std::byte> values = values_of(part.stretch);
      lane.hidden[{i, part.stretch.begin}].assign(values.begin(), values.end());
      std::ranges::fill(values, std::byte{0xff});
    }
}

std::span<std::byte> SharedUpdater::values_of(const Stretch& stretch) const {
  const ParameterSlot& slot = layout_.slots[static_cast<size_t>(stretch.parameter)];
  const int64_t width = size_of(slot.dtype);
  return {values_ + slot.offset_bytes + stretch.begin * width,
          static_cast<size_t>((stretch.end - stretch.begin) * width)};
}

void SharedUpdater::write(Lane& lane, const Stretch& stretch, int64_t step) {
  const auto parameter = static_cast<size_t>(stretch.parameter);
  if (const auto hidden = lane.hidden.find({stretch.parameter, stretch.begin});
      hidden != lane.hidden.end() && stretch.end > stretch.begin)
    std::ranges::copy(hidden->second, values_of(stretch).begin());
  if (lane.used[parameter] != 0 && stretch.end > stretch.begin)
    apply_stretch(lane, stretch, lane.scalars[parameter]);
  if (lane.unwritten[parameter].fetch_sub(1) == 1)
    gradients_[lane.rank].written[parameter].store(step, std::memory_order_release);
}

// From what each replica of this host has told before the last barrier: of its next step.
bool SharedUpdater::rests_here() const {
  return std::ranges::any_of(gradients_, [](const Gradients& gradients) {
    return gradients.rests->load(std::memory_order_relaxed) != 0;
  });
}

bool SharedUpdater::is_written(int parameter) const {
  return std::ranges::all_of(gradients_, [&](const Gradients& gradients) {
    return gradients.written[parameter].load(std::memory_order_acquire) == late_step_;
  });
}

void SharedUpdater::expect_late(int64_t version) {
  late_step_ = lanes_[0].step + 1;
  late_version_ = version;
  late_stands_ = false;
  late_->expect();
}

void SharedUpdater::watch_late(int replica) {
  if (replica == 0) {
    for (int i = 0; i < static_cast<int>(layout_.slots.size()); ++i)
      if (is_written(i)) late_->require(i);
    late_stands_ = true;
    if (late_->all_ready()) complete();
  }
  late_->watch();
}

void SharedUpdater::throw_not_written(int parameter) const {
  std::vector<int> silent;
  for (size_t i = 0; i < gradients_.size(); ++i)
    if (gradients_[i].written[parameter].load(std::memory_order_acquire) != late_step_)
      silent.push_back(world_.first_rank - lanes_[0].rank + static_cast<int>(i));
  throw Timeout(fmt::format("parameter \"{}\" was not updated within {} ms: silent: rank{} {}",
                            layout_.slots[static_cast<size_t>(parameter)].name,
                            world_.time_limit.count(), silent.size() == 1 ? "" : "s",
                            fmt::join(silent, ", ")));
}

// Each of the threads that need it: the one that moves sums does the work.
void SharedUpdater::await_written(int parameter) {
  constexpr std::chrono::microseconds kNap{50};
  constexpr Millis kLook{1};
  if (is_written(parameter)) return;
  const Deadline deadline(limit_here(world_.time_limit));
  const auto own = std::ranges::find(lanes_, std::this_thread::get_id(), &Lane::thread);
  TimePoint next_look = Clock::now();
  while (!is_written(parameter)) {
    for (Lane& lane : lanes_) lane.sums->rethrow_failure();
    if (own != lanes_.end() && Clock::now() >= next_look) {
      next_look = Clock::now() + kLook;
      own->view.rails[0].engine().look_after();
      own->view.inside.engine().nudge();
      const std::string lost = own->view.inside.engine().lost_member();
      if (!lost.empty() && !is_written(parameter)) throw PeerLost(lost);  // it may have ended since
    }
    if (deadline.passed() && !is_written(parameter)) throw_not_written(parameter);
    std::this_thread::sleep_for(kNap);
  }
}

// What has gone wrong; else all that can come does, so that who has thrown in between keeps a whole
// update, and what he has thrown.
void SharedUpdater::rethrow_failure() const {
  if (late_version_.load() == 0 || !late_stands_.load()) return;
  late_->rethrow_failure();
  try {
    late_->require_all();
  } catch (const std::exception&) {  // it is torn, and marked so
  }
}

void SharedUpdater::complete() {
  int64_t version = late_version_.load();
  if (version == 0) return;
  late_->require_all();
  header_->ended.store(version, std::memory_order_release);
  late_version_.compare_exchange_strong(version, 0);
}

// Before use is before an operator's; code that reads memory by itself has computed on old values.
void SharedUpdater::note_unread(Lane& lane) {
  for (size_t i = 0; i < lane.unread.size(); ++i)
    lane.unread[i] = late_version_.load() != 0 && !late_->ready(static_cast<int>(i)) ? 1 : 0;
}

}  // namespace tutti::detail
