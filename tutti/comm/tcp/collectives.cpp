// Collectives of the tcp engine: from an operation to a schedule, and its steps one by one.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "tutti/base/detail/check.h"
#include "tutti/comm/engine/detail/call.h"
#include "tutti/comm/engine/detail/spans.h"
#include "tutti/comm/engine/reduce_kernels.h"
#include "tutti/comm/tcp/tcp_engine.h"

namespace tutti::detail::tcp {
namespace {

// Pairwise exchange keeps a chunk of every peer at once: together they stay in a core's cache, as
// far as chunks do not get too small for the wire. Every chunk is a round, so one of a peer is
// larger than what is added while more of it comes.
constexpr int64_t kKeptBytes = 1 << 20;
constexpr int64_t kChunksARound = 2;
constexpr int64_t kSmallestChunk = 16 << 10;
constexpr size_t kFirstEntries = 64;

bool is_local(Step::Action action) {
  return action == Step::Action::combine || action == Step::Action::reduce ||
         action == Step::Action::copy;
}

// The input is the output where an operation works in place.
bool works_in_place(Collective collective) {
  return collective == Collective::all_reduce || collective == Collective::reduce ||
         collective == Collective::broadcast;
}

void grow(std::vector<std::byte>& memory, int64_t bytes) {
  if (static_cast<int64_t>(memory.size()) < bytes) memory.resize(static_cast<size_t>(bytes));
}

}  // namespace

TcpEngine::Entry& TcpEngine::add_entry(const Operation& operation) {
  if (submitted_ - completed_ == entries_.size()) {
    std::vector<Entry> larger(std::max(kFirstEntries, entries_.size() * 2));
    for (uint64_t n = completed_; n < submitted_; ++n)
      larger[n % larger.size()] = std::move(entry_of(n));
    entries_ = std::move(larger);
  }
  Entry& entry = entry_of(submitted_++);
  entry.operation = operation;
  entry.call = pack_call(operation);
  entry.elements = call_elements(operation, size_);
  entry.deadline.reset();
  return entry;
}

Ticket TcpEngine::submit(std::span<const Operation> batch) {
  require_own();
  const bool messages = !batch.empty() && is_message(batch.front().collective);
  if (messages) {
    throw_if_failed();
    ++batches_;
  }
  for (const Operation& operation : batch) {
    if (is_message(operation.collective) != messages)
      throw UsageError("submit: a batch holds collectives alone or messages alone");
    if (!messages) {
      add_entry(operation).deadline = time_after(operation.limit);
      continue;
    }
    try {
      if (operation.collective == Collective::send)
        messages_.post_send(operation, batches_, num_messages_++);
      else
        messages_.post_recv(operation, batches_, num_messages_++);
    } catch (const WrongLength& wrong) {
      fail(FailureKind::mismatch, wrong.text);
    }
  }
  const Ticket ticket = messages ? batches_ << 1 | 1 : submitted_ << 1;
  waited_for_ = ticket;
  throw_if_failed();
  advance();
  return ticket;
}

void TcpEngine::run(const Operation& operation) {
  require_own();
  if (is_message(operation.collective)) {
    progress(submit({&operation, 1}), Deadline(operation.limit));
    return;
  }
  add_entry(operation);
  wait_until_done(submitted_ << 1, nullptr);
}

bool TcpEngine::advance() {
  try {
    return advance_collectives();
  } catch (const BadFrame& bad) {
    fail_lost(peer_at_work_, fmt::format("{} sent what is no frame of this engine: {}",
                                         control_.name(peer_at_work_), bad.why));
  } catch (const UnexpectedFrame& frame) {
    fail_unexpected(peer_at_work_, frame.got, frame.expected_length);
  }
}

bool TcpEngine::advance_collectives() {
  bool moved = false;
  while (completed_ < submitted_) {
    if (!begun_) begin_operation();
    if (round_ == schedule_.num_rounds()) {
      complete_operation();
      moved = true;
      continue;
    }
    for (size_t i = 0; i < steps_.size() && steps_left_ > 0; ++i)
      if (states_[i] != StepState::done) moved |= advance_step(i);
    if (steps_left_ > 0) return moved;
    finish_round();
    moved = true;
    if (++round_ < schedule_.num_rounds()) load_round();
  }
  return moved;
}

// Steps of one peer and direction wait for each other, in order.
bool TcpEngine::advance_step(size_t i) {
  const Step& step = steps_[i];
  peer_at_work_ = step.peer;
  PeerStreams& streams = streams_[static_cast<size_t>(step.peer)];
  const bool sends = step.action == Step::Action::send;
  if (states_[i] == StepState::idle) {
    if (sends ? streams.sending() : streams.receiving()) return false;
    const int64_t bytes = step.count * element_bytes_;
    if (sends)
      streams.start_send(place(step.space, step.begin), bytes, data_header());
    else
      streams.start_receive(sink_of(step), bytes, data_header());
    states_[i] = StepState::moving;
  }
  const bool moved = move_bytes(streams, sends);
  if (sends ? streams.sending() : streams.receiving()) return moved;
  states_[i] = StepState::done;
  --steps_left_;
  if (!sends) {
    const Entry& entry = entry_of(completed_);
    Known& known = known_[static_cast<size_t>(step.peer)];
    known = {.called = true, .number = completed_, .call = entry.call, .elements = entry.elements};
  }
  return true;
}

bool TcpEngine::move_bytes(PeerStreams& streams, bool sends) {
  try {
    return sends ? streams.send() : streams.receive();
  } catch (const Error& broken) {  // closed; or TLS: its bytes were changed on the way
    fail_lost(peer_at_work_, broken.what());
  }
}

FrameHeader TcpEngine::data_header() const {
  const Entry& entry = entry_of(completed_);
  return {.kind = FrameKind::data,
          .call = entry.call,
          .aux = fingerprint_,
          .number = completed_,
          .elements = entry.elements};
}

Question TcpEngine::question_of(const Entry& entry) const {
  const Operation& operation = entry.operation;
  const DType dtype = dtype_of(operation);
  // With counts of its own no rank knows whether the others have something to move.
  const bool unknown =
      operation.collective == Collective::all_to_all && !operation.input_counts.empty();
  return {.collective = operation.collective,
          .num_bytes = unknown ? kSmallestChunk : entry.elements * size_of(dtype),
          .ranks = size_,
          .order = options_.order,
          .partials = accumulator_of(dtype) == dtype,
          .flat_shape = flat_shape_};
}

void TcpEngine::fill_offsets(std::vector<int64_t>& offsets,
                             const std::vector<int64_t>& counts) const {
  offsets.clear();
  if (counts.empty()) return;
  offsets.push_back(0);
  for (int64_t count : counts) offsets.push_back(offsets.back() + count);
}

int64_t TcpEngine::chunk_elements(Algorithm algorithm, int64_t element_bytes) const {
  int64_t bytes = options_.chunk_bytes;
  if (algorithm == Algorithm::pairwise || algorithm == Algorithm::direct)
    bytes = std::min(kChunksARound * bytes, std::max(kSmallestChunk, kKeptBytes / (size_ - 1)));
  return std::max<int64_t>(1, bytes / kLineBytes * kLineBytes / element_bytes);
}

Problem TcpEngine::problem_of(const Entry& entry) {
  const Operation& operation = entry.operation;
  // all_gather and gather are told the counts of their output, the others those of their input.
  const bool gathers =
      operation.collective == Collective::all_gather || operation.collective == Collective::gather;
  fill_offsets(input_offsets_, gathers ? operation.output_counts : operation.input_counts);
  if (operation.collective == Collective::all_to_all)
    fill_offsets(output_offsets_, operation.output_counts);
  else
    output_offsets_ = input_offsets_;
  const Algorithm algorithm = choose(question_of(entry), options_.table);
  return {.collective = operation.collective,
          .algorithm = algorithm,
          .rank = rank_,
          .size = size_,
          .root = operation.root,
          .num_elements = input_offsets_.empty() ? entry.elements : input_offsets_.back(),
          .input_offsets = input_offsets_,
          .output_offsets = output_offsets_,
          .chunk_elements = chunk_elements(algorithm, element_bytes_),
          .shape_tree = &tree_};
}

void TcpEngine::begin_operation() {
  const Entry& entry = entry_of(completed_);
  const Operation& operation = entry.operation;
  element_bytes_ = size_of(dtype_of(operation));
  output_ = bytes_of(operation.output);
  input_ = works_in_place(operation.collective) ? output_ : bytes_of(operation.input);
  schedule_ = Schedule(problem_of(entry));
  grow(scratch_, schedule_.scratch_elements() * element_bytes_);
  const int64_t kept = schedule_.kept_elements() * element_bytes_;
  kept_stride_ = (kept + kLineBytes - 1) / kLineBytes * kLineBytes;
  if (kept > 0) grow(kept_, kept_stride_ * (size_ - 1));
  round_ = 0;
  begun_ = true;
  if (schedule_.num_rounds() > 0) load_round();
}

void TcpEngine::load_round() {
  schedule_.round(round_, steps_);
  states_.assign(steps_.size(), StepState::idle);
  steps_left_ = 0;
  for (size_t i = 0; i < steps_.size(); ++i) {
    if (is_local(steps_[i].action))
      states_[i] = StepState::done;
    else
      ++steps_left_;
  }
}

void TcpEngine::finish_round() {
  for (const Step& step : steps_)
    if (is_local(step.action)) finish_step(step);
}

void TcpEngine::finish_step(const Step& step) {
  const Operation& operation = entry_of(completed_).operation;
  std::byte* const to = place(step.space, step.begin);
  const bool divides = step.last && !operation.partial && operation.reduce == ReduceOp::mean;
  if (step.action == Step::Action::copy) {
    const std::byte* const from = place(step.operand, step.from);
    if (to != from) std::memmove(to, from, static_cast<size_t>(step.count * element_bytes_));
  } else if (step.action == Step::Action::combine) {
    static const ReductionShape pair = ReductionShape::flat(2);
    const DType dtype = operation.output.dtype;
    const void* const both[2] = {to, kept_of(step.peer)};
    reduce_inputs(dtype, partial_op(operation.reduce), pair, both, to, step.count);
    if (divides) finish_partial(dtype, operation.reduce, to, to, step.count, size_);
  } else {
    for (int r = 0; r < size_; ++r)
      reduce_inputs_[static_cast<size_t>(r)] =
          r == rank_ ? place(Space::input, step.from) : kept_of(r);
    // Partial results of a reduce_scatter are wider than the elements that steps count.
    void* const out = operation.collective == Collective::reduce_scatter
                          ? output_ + step.begin * size_of(operation.output.dtype)
                          : to;
    const auto reduce = operation.partial ? reduce_partial : reduce_inputs;
    reduce(dtype_of(operation), operation.reduce, shape_, reduce_inputs_, out, step.count);
  }
}

void TcpEngine::complete_operation() {
  begun_ = false;
  ++completed_;
}

std::byte* TcpEngine::place(Space space, int64_t element) const {
  std::byte* const base = space == Space::input    ? input_
                          : space == Space::output ? output_
                                                   : const_cast<std::byte*>(scratch_.data());
  return base == nullptr ? nullptr : base + element * element_bytes_;
}

std::byte* TcpEngine::kept_of(int rank) const {
  const int64_t index = rank < rank_ ? rank : rank - 1;
  return const_cast<std::byte*>(kept_.data()) + index * kept_stride_;
}

Sink TcpEngine::sink_of(const Step& step) const {
  const Operation& operation = entry_of(completed_).operation;
  if (step.action == Step::Action::keep) return {.to = kept_of(step.peer)};
  Sink sink{.to = place(step.space, step.begin)};
  if (step.action == Step::Action::add) {
    sink.operand = place(step.operand, step.from);
    sink.dtype = operation.output.dtype;
    sink.op = operation.reduce;
    sink.replicas = step.last && !operation.partial ? size_ : 0;
  }
  return sink;
}

}  // namespace tutti::detail::tcp
