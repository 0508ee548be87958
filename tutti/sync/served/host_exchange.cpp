#include "tutti/sync/served/detail/host_exchange.h"

#include <algorithm>
#include <cstring>

#include "tutti/base/detail/check.h"
#include "tutti/base/event.h"
#include "tutti/base/threads.h"
#include "tutti/comm/group/host_view.h"
#include "tutti/sync/served/detail/piece_places.h"

namespace tutti::detail {
namespace {

constexpr int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

std::unique_ptr<std::atomic<int64_t>[]> counters(size_t count) {
  return std::make_unique<std::atomic<int64_t>[]>(count);
}

}  // namespace

bool HostExchange::possible(const World& world, int num_workers) {
  if (world.groups[0].size() == world.local) return false;  // of this process alone
  const std::vector<int>& per_host = world.shape.replicas_per_host();
  const HostView view = host_view(world.groups[0]);
  return view.num_hosts == std::ssize(per_host) && view.num_hosts < num_workers &&
         view.inside.size() == per_host.at(view.host);
}

HostExchange::HostExchange(const World& world, const Slots& layout, const ps::Spec& spec,
                           int worker, ps::Inputs own)
    : world_(world),
      layout_(layout),
      spec_(spec),
      worker_(worker),
      own_(std::move(own)),
      carriers_(spec),
      host_(carriers_.hosts().at(carriers_.host_of(worker))),
      inside_(world.local),
      ready_(counters(spec.pieces.size())),
      carried_(counters(spec.pieces.size())),
      here_(counters(spec.pieces.size())) {
  allocate();
  find_sources();
}

HostExchange::~HostExchange() {
  {
    std::unique_lock lock(mutex_);
    // All that the thread waits for has a deadline.
    changed_.wait(lock, [&] { return got_ == wanted_ || failure_ || !thread_.joinable(); });
    ends_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

// ---- memory ----

// Without `memory` it says only how long it is.
HostExchange::Board HostExchange::board_of(int worker, std::byte* memory) const {
  Board board{.sums = ps::partial_sums(spec_.shape, worker * world_.local, world_.local)};
  const auto take = [&](int64_t bytes) {
    std::byte* const at = memory == nullptr ? nullptr : memory + board.num_bytes;
    board.num_bytes += aligned(bytes);
    return at;
  };
  const auto num_sums = std::ssize(board.sums);
  board.notes = reinterpret_cast<Note*>(take(std::ssize(spec_.pieces) * sizeof(Note)));
  for (int piece = 0; piece < std::ssize(spec_.pieces); ++piece) {
    const bool carries = carriers_.carries(worker, piece);
    const ps::Piece& about = spec_.pieces[piece];
    board.used.push_back(reinterpret_cast<uint8_t*>(take(num_sums * std::ssize(about.segments))));
    board.gradients.push_back(take(carries ? 0 : num_sums * about.num_bytes));
  }
  return board;
}

// Every worker's board is in the part of its first replica; behind that of the first worker is the
// storage.
void HostExchange::allocate() {
  const int64_t own = board_of(worker_, nullptr).num_bytes + (is_first() ? layout_.total_bytes : 0);
  std::vector<SharedParts> parts(world_.local);
  for_each_local(world_, [&](int local) {
    inside_[local] = host_view(world_.groups[local]).inside;
    parts[local] = inside_[local].allocate(local == 0 ? own : 0, world_.time_limit);
    auto workers = inside_[local].split(local == 0 ? 0 : -1, 0, world_.time_limit);
    if (workers) workers_ = *workers;
  });
  memory_ = parts[0];
  for (int i = 0; i < host_.count; ++i)
    boards_.push_back(board_of(host_.first + i,
                               static_cast<std::byte*>(memory_.parts.at(i * world_.local).data)));
  values_ = static_cast<std::byte*>(memory_.parts[0].data) + boards_.front().num_bytes;
}

void HostExchange::find_sources() {
  sources_.resize(spec_.shape.replicas());
  for (int i = 0; i < host_.count; ++i)
    for (int sum = 0; sum < std::ssize(boards_[i].sums); ++sum)
      sources_[boards_[i].sums[sum].rank] = {host_.first + i, sum};
  sums_ = ps::partial_sums(spec_.shape, host_.first * world_.local, host_.count * world_.local);
}

// ---- gradients ----

void HostExchange::push(int piece, int64_t step, double learning_rate,
                        const std::function<bool()>& has_all) {
  learning_rate_ = learning_rate;
  const int64_t cut = client_->enter(step, entered_ != step && has_all());
  entered_ = step;
  if (carries(piece))
    ready_[piece].store(step + 1, std::memory_order_release);
  else
    publish(piece, step, learning_rate, cut);
  for (int other = 0; other < std::ssize(spec_.pieces); ++other)
    if (carries(other)) try_carry(other);
}

// Nobody reads this board any more: parameters of this step have come, so the sums of the one
// before were pushed.
void HostExchange::publish(int number, int64_t step, double learning_rate, int64_t cut) {
  const ps::Piece& piece = spec_.pieces[number];
  Board& board = boards_[worker_ - host_.first];
  const auto parts = ps::add_parts(spec_.shape, piece, board.sums, own_, board.gradients[number]);
  uint8_t* used = board.used[number];
  for (const ps::Part& part : parts) used = std::ranges::copy(part.used, used).out;
  Note& note = board.notes[number];
  note.learning_rate = learning_rate;
  note.cut = cut;
  note.steps.store(step + 1, std::memory_order_release);
  emit("host.push", {{"piece", int64_t{number}}, {"step", step}});
}

bool HostExchange::all_there(int piece, int64_t step) const {
  for (int i = 0; i < host_.count; ++i)
    if (host_.first + i != worker_ &&
        boards_[i].notes[piece].steps.load(std::memory_order_acquire) != step + 1)
      return false;
  return true;
}

void HostExchange::try_carry(int piece) {
  const int64_t steps = ready_[piece].load(std::memory_order_acquire);
  int64_t done = carried_[piece].load(std::memory_order_relaxed);
  if (done == steps || !all_there(piece, steps - 1)) return;
  // Several threads may see that it is complete.
  if (carried_[piece].compare_exchange_strong(done, steps)) carry(piece, steps - 1);
}

// What a replica of this worker has counts as it is; of another worker's, the sums on its board.
const void* HostExchange::input_of(const ps::Piece& piece, int number, int rank,
                                   const ps::Segment& segment) const {
  if (rank / world_.local == worker_) return own_(rank, segment);
  const Source& source = sources_[rank];
  if (source.worker < 0) return nullptr;
  const Board& board = boards_[source.worker - host_.first];
  const auto place = source.sum * std::ssize(piece.segments) + (&segment - piece.segments.data());
  if (board.used[number][place] == ps::Part::left_out) return nullptr;
  return board.gradients[number] + source.sum * piece.num_bytes + segment.offset_bytes;
}

void HostExchange::carry(int number, int64_t step) {
  const ps::Piece& piece = spec_.pieces[number];
  double learning_rate = learning_rate_;
  for (int i = 0; i < host_.count; ++i) {
    if (host_.first + i == worker_) continue;
    const Note& note = boards_[i].notes[number];
    if (i == 0) learning_rate = note.learning_rate;
    // What it has put here is behind its mark.
    if (note.cut > 0) client_->mark_with_host(note.cut, step, Deadline(world_.time_limit));
  }
  const int64_t bytes = piece.num_bytes * std::ssize(sums_);
  const auto memory = client_->allocate(bytes);
  ps::PushOrder order{.piece = number, .step = step, .learning_rate = learning_rate};
  order.parts = ps::add_parts(
      spec_.shape, piece, sums_,
      [&](int rank, const ps::Segment& segment) { return input_of(piece, number, rank, segment); },
      memory.get());
  order.payload = {{memory.get(), static_cast<size_t>(bytes)}, memory};
  client_->push(std::move(order));
}

void HostExchange::meet(int replica, const Deadline& deadline) {
  inside_.at(replica).barrier(std::max(deadline.left(), Millis{1}));
}

void HostExchange::finish() {
  for (int piece = 0; piece < std::ssize(spec_.pieces); ++piece)
    if (carries(piece)) try_carry(piece);
}

int HostExchange::whose_gradient(int number) const {
  for (int i = 0; i < host_.count; ++i) {
    if (host_.first + i == worker_) continue;
    const auto num_used = std::ssize(boards_[i].sums) * std::ssize(spec_.pieces[number].segments);
    const std::span used(boards_[i].used[number], num_used);
    if (std::ranges::find(used, ps::Part::not_finite) != used.end()) return host_.first + i;
  }
  return worker_;
}

// ---- parameters ----

void HostExchange::meet_all() {
  for_each_local(world_, [&](int local) { inside_[local].barrier(world_.time_limit); });
}

int64_t HostExchange::start(ps::Client& client) {
  client_ = &client;
  const int pieces = static_cast<int>(spec_.pieces.size());
  // Also who carries nothing is told where the job stands: with the first piece.
  const auto asks = [&](int piece) { return piece == 0 || carries(piece); };
  for (int piece = 0; piece < pieces; ++piece)
    if (asks(piece)) client.pull(piece, 0);
  for (int piece = 0; piece < pieces; ++piece)
    if (asks(piece)) write(piece, 0);
  meet_all();
  const int64_t first = client.first_step();
  for (int piece = 0; piece < pieces; ++piece) here_[piece] = first;
  wanted_ = got_ = first;
  thread_ = start_thread("parameters of the servers", [this] { receive_steps(); });
  return first;
}

void HostExchange::write(int number, int64_t step) {
  client_->fetch(number, step, Deadline(world_.time_limit), [&](const ps::Bytes& values) {
    if (carries(number)) spread(layout_, spec_.pieces[number], values, values_);
  });
}

void HostExchange::next(int64_t step) {
  const std::lock_guard lock(mutex_);
  wanted_ = step;
  changed_.notify_all();
}

void HostExchange::receive_steps() {
  std::unique_lock lock(mutex_);
  try {
    while (true) {
      changed_.wait(lock, [&] { return ends_ || wanted_ > got_; });
      if (ends_) return;
      const int64_t step = wanted_;
      lock.unlock();
      receive(step);
      lock.lock();
      got_ = step;
      changed_.notify_all();
    }
  } catch (const std::exception& error) {
    if (!lock.owns_lock()) lock.lock();
    failure_ = std::current_exception();
    changed_.notify_all();
    lock.unlock();
    workers_.abort(error.what());  // they cannot go on either
  }
}

// In the order of use, which is about that in which they come.
void HostExchange::receive(int64_t step) {
  for (int piece = 0; piece < std::ssize(spec_.pieces); ++piece) {
    if (carries(piece)) {
      write(piece, step);
      hand_on(piece);
    } else {
      hear_of(piece);
    }
    {
      const std::lock_guard lock(mutex_);
      here_[piece].store(step, std::memory_order_release);
    }
    changed_.notify_all();
    emit("host.arrived", {{"piece", int64_t{piece}}, {"step", step}});
  }
}

void HostExchange::hand_on(int piece) {
  int64_t number = piece;
  for (int other = 0; other < workers_.size(); ++other)
    if (other != workers_.rank())
      workers_.send(span_of(std::span(&number, 1)), other, 0, world_.time_limit)
          .wait(world_.time_limit);
}

void HostExchange::hear_of(int piece) {
  int64_t number = -1;
  // Who carries it may wait for another host, and says for whom: a little earlier.
  const Millis limit = world_.time_limit + Millis{1'000};
  workers_.recv(span_of(std::span(&number, 1)), carrier(piece) - host_.first, 0, limit).wait(limit);
  TUTTI_CHECK(number == piece, "worker {} hands on piece {} instead of {}", carrier(piece), number,
              piece);
}

void HostExchange::fill(int piece, int64_t step) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return arrived(piece, step) || failure_; });
  if (!arrived(piece, step)) std::rethrow_exception(failure_);
}

void HostExchange::give_up() noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (got_ == wanted_) return;
  }
  std::string why = "this worker has given up";
  try {
    client_->require_no_failure();
    client_->give_up(why);
  } catch (const std::exception& error) {
    why = error.what();
  }
  workers_.abort(why);
}

}  // namespace tutti::detail
