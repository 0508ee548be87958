#include "tutti/ps/client/client.h"

#include <mutex>

#include "tutti/base/error.h"
#include "tutti/base/event.h"
#include "tutti/ps/client/detail/client_work.h"
#include "tutti/ps/values/compute.h"

namespace tutti::ps {

Client::Client(const ClientOptions& options, const Credentials& credentials, const Spec& spec,
               Initial initial, Restore restore)
    : work_(std::make_unique<Work>(options, credentials, spec, std::move(initial),
                                   std::move(restore))) {
  const Deadline deadline(options.limit);
  std::unique_lock lock(work_->mutex_);
  work_->wait_for(lock, deadline, [&] { return work_->state_.view().number > 0; });
}

Client::~Client() = default;

const Spec& Client::spec() const noexcept { return work_->state_.spec(); }

int64_t Client::enter(int64_t step, bool has_all) {
  const std::lock_guard lock(work_->mutex_);
  work_->require_no_failure();
  return work_->state_.enter(step, has_all);
}

void Client::mark_with_host(int64_t cut, int64_t step, const Deadline& deadline) {
  std::unique_lock lock(work_->mutex_);
  work_->wait_for(lock, deadline, [&] { return work_->state_.knows_cut(cut); });
  work_->state_.mark_with_host(cut, step);
  work_->send_here();
}

std::shared_ptr<std::byte> Client::allocate(int64_t bytes) { return work_->heap_->allocate(bytes); }

void Client::push(PushOrder order) {
  const std::lock_guard lock(work_->mutex_);
  work_->require_no_failure();
  emit("ps.push", {{"piece", int64_t{order.piece}},
                   {"step", order.step},
                   {"bytes", order.payload.size()},
                   {"worker", int64_t{work_->options_.worker}}});
  work_->state_.push(std::move(order));
  work_->send_here();
}

void Client::pull(int piece, int64_t step) {
  const std::lock_guard lock(work_->mutex_);
  work_->require_no_failure();
  work_->arrived_.at(piece) = {};
  work_->state_.pull(piece, step);
  work_->send_here();
}

void Client::fetch(int piece, int64_t step, const Deadline& deadline,
                   const std::function<void(const Bytes& values)>& take) {
  std::unique_lock lock(work_->mutex_);
  Work::Arrived& place = work_->arrived_.at(piece);
  const TimePoint began = events_wanted() ? Clock::now() : TimePoint{};
  while (true) {
    work_->wait_for(lock, deadline, [&] { return place.step >= step && work_->state_.may_read(); });
    const Work::Arrived taken = place;
    lock.unlock();
    if (began != TimePoint{})
      emit("ps.waited",
           {{"piece", int64_t{piece}},
            {"step", step},
            {"worker", int64_t{work_->options_.worker}},
            {"us", std::chrono::duration<double, std::micro>(Clock::now() - began).count()}});
    take(taken.values);
    lock.lock();
    // Values that lie in a server's memory are its own to change once it does not hear of us.
    if (place.step < step) continue;
    place.values = {};
    return;
  }
}

int64_t Client::first_step() const {
  const std::lock_guard lock(work_->mutex_);
  return work_->state_.first_step();
}

int64_t Client::version(int piece) const {
  const std::lock_guard lock(work_->mutex_);
  return work_->state_.version(piece);
}

bool Client::arrived(int piece, int64_t step) const {
  const std::lock_guard lock(work_->mutex_);
  return work_->arrived_.at(piece).step >= step;
}

AskedRows Client::sparse_pull(int table, std::span<const uint64_t> keys, int64_t step) {
  const Spec& spec = this->spec();
  const SparseTableSpec& about = spec.tables.at(table);
  const auto batch = work_->batch_of(table, keys);
  std::vector<Bytes> payloads;
  for (int i = 0; i < spec.num_partitions; ++i) payloads.push_back(batch->payload_of_keys(i));
  // All of it will be written.
  const auto memory =
      Compute::plain().allocate(batch->num_keys() * about.width * size_of(about.dtype));
  Array rows = Array::view(memory.get(), about.dtype, {batch->num_keys(), about.width}, memory);
  const std::lock_guard lock(work_->mutex_);
  work_->require_no_failure();
  const int64_t pull = work_->state_.sparse_pull(table, step, std::move(payloads));
  work_->arriving_.emplace(pull, Work::ArrivingRows{batch, rows});
  work_->send_here();
  return {pull, std::move(rows)};
}

Array Client::sparse_fetch(const AskedRows& asked, const Deadline& deadline) {
  std::unique_lock lock(work_->mutex_);
  work_->wait_for(lock, deadline, [&] { return !work_->state_.waits_for_rows(asked.pull); });
  return asked.rows;
}

void Client::sparse_push(int table, std::span<const uint64_t> keys, MemorySpan gradients,
                         int64_t step, double learning_rate) {
  const Spec& spec = this->spec();
  const SparseTableSpec& about = spec.tables.at(table);
  if (gradients.dtype != about.dtype || gradients.num_elements != std::ssize(keys) * about.width)
    throw UsageError(fmt::format(
        "embedding table \"{}\": sparse_push of {} keys: got {} {}; expected {} {}", about.name,
        keys.size(), gradients.num_elements, tutti::name_of(gradients.dtype),
        std::ssize(keys) * about.width, tutti::name_of(about.dtype)));
  const auto batch = work_->batch_of(table, keys);
  SparseOrder order{table, step, learning_rate, std::vector<Bytes>(spec.num_partitions)};
  for (int i = 0; i < spec.num_partitions; ++i) {
    const int64_t bytes = batch->payload_bytes(i);
    if (bytes == 0) continue;
    const auto memory = allocate(bytes);
    batch->gather(i, static_cast<const std::byte*>(gradients.data), memory.get());
    order.payloads[i] = {{memory.get(), static_cast<size_t>(bytes)}, memory};
  }
  const std::lock_guard lock(work_->mutex_);
  work_->require_no_failure();
  work_->state_.sparse_push(std::move(order));
  work_->send_here();
}

void Client::require_no_failure() const {
  const std::lock_guard lock(work_->mutex_);
  work_->require_no_failure();
}

void Client::give_up(const std::string& why) {
  const std::lock_guard lock(work_->mutex_);
  if (work_->failure_.empty()) work_->failure_ = why;
  work_->changed_.notify_all();
  work_->streams_.wake();
}

void Client::wait_until_settled(const Deadline& deadline) {
  std::unique_lock lock(work_->mutex_);
  work_->wait_for(lock, deadline, [&] { return work_->state_.num_unsettled() == 0; });
}

Lease Client::lease(const LeaseRequest& request, const Deadline& deadline) {
  std::unique_lock lock(work_->mutex_);
  if (work_->options_.replay && !request.agreed.empty() && !std::exchange(work_->compared_, true))
    require_same_program(*work_->options_.replay, request.agreed);
  work_->require_no_failure();
  work_->state_.ask_lease(request);
  work_->send_here();
  work_->wait_for(lock, deadline, [&] { return work_->state_.lease().has_value(); });
  return *work_->state_.lease();
}

Brought Client::meet(int64_t step, std::span<const std::byte> value, const Deadline& deadline) {
  std::unique_lock lock(work_->mutex_);
  work_->require_no_failure();
  work_->state_.bring(step, Bytes::copy_of(value));
  work_->send_here();
  work_->wait_for(lock, deadline, [&] { return work_->state_.brought().has_value(); });
  return *work_->state_.brought();
}

ClientCounts Client::counts() const {
  const std::lock_guard lock(work_->mutex_);
  return work_->state_.counts();
}

ServerCounts Client::server_counts(const Deadline& deadline) {
  std::unique_lock lock(work_->mutex_);
  work_->counts_.clear();
  const int partitions = work_->state_.spec().num_partitions;
  for (int partition = 0; partition < partitions; ++partition) work_->state_.ask_counts(partition);
  work_->send_here();
  work_->wait_for(lock, deadline,
                  [&] { return static_cast<int>(work_->counts_.size()) == partitions; });
  ServerCounts all{.bytes_pushed = work_->streams_.bytes_sent(),
                   .bytes_pulled = work_->streams_.bytes_received()};
  for (const auto& [partition, text] : work_->counts_) {
    const PartitionCounts counts = counts_from(text);
    if (counts.updates >= all.counts.updates) all.counts = counts;
  }
  return all;
}

}  // namespace tutti::ps
