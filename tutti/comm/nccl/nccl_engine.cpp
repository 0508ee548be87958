#include "tutti/comm/nccl/nccl_engine.h"

#include <algorithm>
#include <thread>

#include "tutti/base/detail/check.h"
#include "tutti/base/log.h"

namespace tutti::detail::nccl {
namespace {

// A destructor gives the others this long to come to the end too.
constexpr Millis kEndLimit{5000};
// How long kernels that were told to give up are waited for.
constexpr Millis kDrain{1000};
constexpr auto kNap = std::chrono::microseconds(50);
// Polls before a wait naps: a kernel of a small operation takes some ten microseconds.
constexpr int kPolls = 200;

cudaStream_t cuda_stream(Stream stream) {
  // An opaque handle of floor 0.
  return reinterpret_cast<cudaStream_t>(stream.handle);  // NOLINT(performance-no-int-to-ptr)
}

}  // namespace

ncclConfig_t nonblocking_config() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return config;
}

ncclResult_t settle(ncclComm_t comm, const Deadline& deadline) {
  for (int polls = 0;; ++polls) {
    ncclResult_t state = ncclInProgress;
    const ncclResult_t asked = ncclCommGetAsyncError(comm, &state);
    if (asked != ncclSuccess) return asked;
    if (state != ncclInProgress || deadline.passed()) return state;
    if (polls > kPolls) std::this_thread::sleep_for(kNap);
  }
}

NcclEngine::NcclEngine(ncclComm_t comm, int rank, int size, int device)
    : rank_(rank), size_(size), device_(device), shape_(ReductionShape::flat(size)), comm_(comm) {
  const OnDevice here(device_);
  check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  check_cuda(cudaMalloc(&token_, sizeof(int32_t)), "cudaMalloc");
  check_cuda(cudaMemsetAsync(token_, 0, sizeof(int32_t), stream_), "cudaMemsetAsync");
}

NcclEngine::~NcclEngine() {
  try {
    const OnDevice here(device_);
    finish_batches();
    if (!batches_.empty())
      store_failure(
          FailureKind::peer_lost,
          fmt::format("rank {} left the group in the middle of {}", rank_, oldest_words()));
    {
      const std::scoped_lock lock(mutex_);
      if (comm_ != nullptr) {
        const Deadline deadline(kEndLimit);
        (void)ncclCommFinalize(comm_);
        if (settle(comm_, deadline) == ncclSuccess)
          (void)ncclCommDestroy(comm_);
        else
          (void)ncclCommAbort(comm_);
      }
    }
    (void)cudaFree(token_);
    (void)cudaStreamDestroy(stream_);
  } catch (const std::exception& error) {
    log(LogLevel::warning, "leaving a group of engine nccl: {}", error.what());
  }
}

// Whoever had a stream wait for them has not asked whether they are done.
void NcclEngine::finish_batches() {
  const Deadline deadline(kEndLimit);
  for (int polls = 0; !failure_.happened(); ++polls) {
    move_batches();
    if (batches_.empty() || deadline.passed()) return;
    if (polls > kPolls) std::this_thread::sleep_for(kNap);
  }
}

Ticket NcclEngine::submit(std::span<const Operation> batch) {
  throw_if_failed();
  if (batch.empty()) return submitted_;
  std::vector<Event> ready;
  for (const Operation& operation : batch) {
    refuse_what_nccl_has_not(operation);
    counter_.count(operation);
    for (Event& one : mark_of(operation)) ready.push_back(std::move(one));
  }
  return submit_after(batch, std::move(ready));
}

std::vector<Event> NcclEngine::mark_of(const Operation& operation) const {
  const OnDevice here(device_);
  std::vector<Event> marks;
  for (const MemorySpan* span : {&operation.input, &operation.output}) {
    if (span->data == nullptr) continue;
    marks.emplace_back();
    marks.back().record(cuda_stream(span->place.stream));
  }
  return marks;
}

Ticket NcclEngine::submit_after(std::span<const Operation> batch, std::vector<Event> ready) {
  Batch added{.operations = {batch.begin(), batch.end()}, .ready = std::move(ready)};
  added.limit = batch[0].limit;
  for (const Operation& operation : batch) added.limit = std::min(added.limit, operation.limit);
  return enqueue(std::move(added));
}

Ticket NcclEngine::copy(const MemorySpan& to, const MemorySpan& from, Millis limit) {
  return enqueue({.to = to, .from = from, .limit = limit});
}

Ticket NcclEngine::enqueue(Batch batch) {
  throw_if_failed();
  const OnDevice here(device_);
  batch.deadline = time_after(batch.limit);
  batches_.push_back(std::move(batch));
  ++submitted_;
  advance();
  return submitted_;
}

void NcclEngine::advance() {
  throw_if_failed();
  look_at_state();
  try {
    move_batches();
  } catch (const CallError& error) {
    look_at_state();  // a peer that was lost in between is one
    fail(FailureKind::aborted, error.what());
  }
}

// Moves every batch as far as it goes without waiting.
void NcclEngine::move_batches() {
  for (Batch& batch : batches_) {
    if (batch.stage == Batch::queued && !launch(batch)) break;
    if (batch.stage == Batch::launched) {
      ncclResult_t state = ncclSuccess;
      {
        const std::scoped_lock lock(mutex_);
        if (comm_ == nullptr) break;
        check(ncclCommGetAsyncError(comm_, &state), "ncclCommGetAsyncError");
      }
      // Until NCCL is done the kernels are not on the stream, and an event would come before them;
      // of an error, which the next look finds, none may ever come.
      if (state != ncclSuccess) break;
      batch.done.record(stream_);
      batch.stage = Batch::recorded;
      ++recorded_;
    }
  }
  while (!batches_.empty() && batches_.front().stage == Batch::recorded &&
         batches_.front().done.reached()) {
    batches_.pop_front();
    ++completed_;
  }
}

bool NcclEngine::launch(Batch& batch) {
  for (const Event& ready : batch.ready) ready.hold(stream_, "what the caller has queued");
  const std::scoped_lock lock(mutex_);
  if (comm_ == nullptr) return false;
  if (batch.operations.empty()) {
    copy_here(batch.to, batch.from);
    batch.stage = Batch::launched;
    return true;
  }
  check(ncclGroupStart(), "ncclGroupStart");
  try {
    for (const Operation& operation : batch.operations) call(operation);
  } catch (...) {
    (void)ncclGroupEnd();
    throw;
  }
  check(ncclGroupEnd(), "ncclGroupEnd");
  batch.stage = Batch::launched;
  return true;
}

void NcclEngine::wait(const std::function<bool()>& reached, const Deadline& deadline) {
  const OnDevice here(device_);
  for (int polls = 0; !reached(); ++polls) {
    advance();
    if (reached()) return;
    look(deadline);
    if (polls > kPolls) std::this_thread::sleep_for(kNap);
  }
}

// Throws when the oldest batch's limit or the caller's has passed.
void NcclEngine::look(const Deadline& deadline) {
  if (batches_.empty()) return;
  const Batch& oldest = batches_.front();
  const bool own = Clock::now() >= oldest.deadline;
  if (!own && !deadline.passed()) return;
  const char* const stage = oldest.stage == Batch::recorded ? "it is on the device's stream"
                                                            : "NCCL is still connecting ranks";
  fail(FailureKind::timeout,
       fmt::format("not done within its limit of {} ms; {}; NCCL does not tell which ranks are "
                   "behind\n  look at what the other ranks are doing, or give a longer limit",
                   (own ? oldest.limit : deadline.limit()).count(), stage));
}

void NcclEngine::progress(Ticket ticket, const Deadline& deadline) {
  TUTTI_CHECK(ticket <= submitted_, "ticket {} of {}", ticket, submitted_);
  wait([&] { return completed_ >= ticket; }, deadline);
}

bool NcclEngine::poll(Ticket ticket) {
  if (completed_ >= ticket) return true;
  const OnDevice here(device_);
  advance();
  if (completed_ >= ticket) return true;
  look(Deadline(kLongestLimit));
  return false;
}

void NcclEngine::nudge() {
  const OnDevice here(device_);
  advance();
}

void NcclEngine::run(const Operation& operation) {
  progress(submit({&operation, 1}), Deadline(kLongestLimit));
}

void NcclEngine::wait_on(Ticket ticket, Stream stream) {
  wait([&] { return completed_ >= ticket || is_recorded(ticket); }, Deadline(kLongestLimit));
  if (const Batch* batch = batch_of(ticket)) {
    const OnDevice here(device_);
    batch->done.hold(cuda_stream(stream), "the operation of NCCL");
  }
}

NcclEngine::Batch* NcclEngine::batch_of(Ticket ticket) {
  return ticket <= completed_ ? nullptr : &batches_[ticket - completed_ - 1];
}

// Errors that NCCL met since: a peer that is gone, a network that failed.
void NcclEngine::look_at_state() {
  ncclResult_t state = ncclSuccess;
  {
    const std::scoped_lock lock(mutex_);
    if (comm_ == nullptr) return;
    const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state);
    if (asked != ncclSuccess) state = asked;
  }
  if (state == ncclSuccess || state == ncclInProgress) return;
  fail(state == ncclRemoteError ? FailureKind::peer_lost : FailureKind::aborted,
       fmt::format("NCCL met an error: {}\n  look first at the other ranks' logs, then at NCCL's "
                   "(NCCL_DEBUG=WARN)",
                   ncclGetErrorString(state)));
}

void NcclEngine::check(ncclResult_t code, const char* call) {
  if (code == ncclSuccess || code == ncclInProgress) return;
  throw CallError(
      fmt::format("{}: {}: {}", call, ncclGetErrorString(code), ncclGetLastError(comm_)));
}

void NcclEngine::abort(FailureKind kind, const std::string& text) noexcept {
  store_failure(kind, kind == FailureKind::aborted
                          ? "aborted by rank " + std::to_string(rank_) + ": " + text
                          : text);
}

// Ends what runs on the device too: ncclCommAbort makes NCCL's kernels give up.
void NcclEngine::store_failure(FailureKind kind, const std::string& text) noexcept {
  if (!failure_.keep(kind, text)) return;
  const std::scoped_lock lock(mutex_);
  if (comm_ != nullptr) (void)ncclCommAbort(std::exchange(comm_, nullptr));
}

void NcclEngine::throw_if_failed() {
  failure_.rethrow([this] {
    give_up_buffers();
    return fmt::format("{}, rank {} of {} (nccl): ", oldest_words(), rank_, size_);
  });
}

// The program takes its buffers back: kernels that were told to give up have to be off the device.
void NcclEngine::give_up_buffers() {
  const Deadline deadline(kDrain);
  while (cudaStreamQuery(stream_) == cudaErrorNotReady && !deadline.passed())
    std::this_thread::sleep_for(kNap);
}

void NcclEngine::fail(FailureKind kind, const std::string& text) {
  store_failure(kind, text);
  throw_if_failed();
  check_failed(__FILE__, __LINE__, "failure_", text);
}

std::string NcclEngine::oldest_words() const {
  if (batches_.empty()) return fmt::format("after operation #{}", submitted_);
  const auto& operations = batches_.front().operations;
  return fmt::format("{} #{}", operations.empty() ? "copy" : name_of(operations[0].collective),
                     completed_ + 1);
}

// As settle(), for a call of this engine; abort() may come between.
void NcclEngine::wait_until_settled(const ncclComm_t& comm, const Deadline& deadline) {
  ncclResult_t state = ncclInProgress;
  for (int polls = 0;; ++polls) {
    throw_if_failed();
    {
      const std::scoped_lock lock(mutex_);
      if (comm_ != nullptr) check(ncclCommGetAsyncError(comm, &state), "ncclCommGetAsyncError");
    }
    if (state == ncclSuccess) return;
    if (state != ncclInProgress)
      fail(FailureKind::aborted, std::string("split: ") + ncclGetErrorString(state));
    if (deadline.passed())
      fail(FailureKind::timeout,
           fmt::format("split: not all ranks came within {} ms", deadline.limit().count()));
    if (polls > kPolls) std::this_thread::sleep_for(kNap);
  }
}

std::shared_ptr<Engine> NcclEngine::split(int color, int key, Millis limit) {
  const Deadline deadline(limit);
  // NCCL splits a communicator on which nothing is under way.
  wait([&] { return completed_ == submitted_; }, deadline);
  throw_if_failed();
  const OnDevice here(device_);
  // NCCL writes the new communicator from a thread of its own, after the call has returned.
  ncclComm_t& part = parts_.emplace_back(nullptr);
  int part_rank = 0;
  int part_size = 0;
  try {
    {
      const std::scoped_lock lock(mutex_);
      ncclConfig_t config = nonblocking_config();
      check(ncclCommSplit(comm_, color < 0 ? NCCL_SPLIT_NOCOLOR : color, key, &part, &config),
            "ncclCommSplit");
    }
    wait_until_settled(comm_, deadline);
    if (color < 0) return nullptr;
    wait_until_settled(part, deadline);
    check(ncclCommUserRank(part, &part_rank), "ncclCommUserRank");
    check(ncclCommCount(part, &part_size), "ncclCommCount");
  } catch (const CallError& error) {
    fail(FailureKind::aborted, error.what());
  }
  return std::make_shared<NcclEngine>(part, part_rank, part_size, device_);
}

SharedParts NcclEngine::allocate(int64_t /*bytes*/, Millis /*limit*/) {
  throw UsageError(
      fmt::format("allocate, rank {} of {}: devices share no memory under engine \"nccl\"; use "
                  "memory of each rank's own",
                  rank_, size_));
}

}  // namespace tutti::detail::nccl
