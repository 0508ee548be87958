// Collectives of the tcp engine: from an operation to a schedule, and its steps one by one.
#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>

#include "tutti/base/detail/check.h"
#include "tutti/base/event.h"
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

bool overlap(const MemorySpan& a, const MemorySpan& b) {
  const std::less<const void*> before;
  return before(a.data, bytes_of(b) + b.num_bytes()) && before(b.data, bytes_of(a) + a.num_bytes());
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
  entry.done = false;
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
    fail_unexpected(peer_at_work_, frame.got, number_at_work_, frame.expected_length);
  }
}

// The first that is not done is moved first: others wait for it.
bool TcpEngine::advance_collectives() {
  bool moved = false;
  for (uint64_t n = completed_; n < submitted_ && n < completed_ + lanes_.size(); ++n) {
    LinkLane& lane = lane_of(n);
    if (entry_of(n).done) continue;
    if (!lane.begun) {
      if (!may_begin(n)) break;
      begin_operation(lane, n);
    }
    moved |= advance_lane(lane);
    while (completed_ < submitted_ && entry_of(completed_).done) ++completed_;
  }
  return moved;
}

// Sums go on beside each other where none touches what another reads or writes.
bool TcpEngine::may_begin(uint64_t number) const {
  const Operation& next = entry_of(number).operation;
  for (uint64_t n = completed_; n < number; ++n) {
    if (entry_of(n).done) continue;
    const Operation& other = entry_of(n).operation;
    if (next.collective != Collective::all_reduce || other.collective != Collective::all_reduce ||
        overlap(next.output, other.output))
      return false;
  }
  return true;
}

bool TcpEngine::advance_lane(LinkLane& lane) {
  bool moved = false;
  while (lane.round < lane.schedule.num_rounds()) {
    for (size_t i = 0; i < lane.steps.size() && lane.steps_left > 0; ++i)
      if (lane.states[i] != StepState::done) moved |= advance_step(lane, i);
    if (lane.steps_left > 0) return moved;
    finish_round(lane);
    moved = true;
    if (++lane.round < lane.schedule.num_rounds()) load_round(lane);
  }
  lane.begun = false;
  entry_of(lane.number).done = true;
  return true;
}

// Steps of one peer and direction wait for each other, in order.
bool TcpEngine::advance_step(LinkLane& lane, size_t i) {
  const Step& step = lane.steps[i];
  peer_at_work_ = step.peer;
  number_at_work_ = lane.number;
  PeerStreams& streams = lane.streams[static_cast<size_t>(step.peer)];
  const bool sends = step.action == Step::Action::send;
  if (lane.states[i] == StepState::idle) {
    if (sends ? streams.sending() : streams.receiving()) return false;
    const int64_t bytes = step.count * lane.element_bytes;
    if (sends)
      streams.start_send(lane.place(step.space, step.begin), bytes, data_header(lane));
    else
      streams.start_receive(sink_of(lane, step), bytes, data_header(lane));
    lane.states[i] = StepState::moving;
    if (!lane.began.empty()) lane.began[i] = Clock::now();
  }
  const bool moved = move_bytes(streams, sends);
  if (sends ? streams.sending() : streams.receiving()) return moved;
  lane.states[i] = StepState::done;
  --lane.steps_left;
  if (!lane.began.empty()) tell(lane, i);
  if (!sends) {
    const Entry& entry = entry_of(lane.number);
    Known& known = known_[static_cast<size_t>(step.peer)];
    if (!known.called || known.number <= lane.number)
      known = {
          .called = true, .number = lane.number, .call = entry.call, .elements = entry.elements};
  }
  return true;
}

// A step that has bytes, as an event from when it could begin: a receive that waits has begun.
void TcpEngine::tell(const LinkLane& lane, size_t i) const {
  const Step& step = lane.steps[i];
  const double us = std::chrono::duration<double, std::micro>(Clock::now() - lane.began[i]).count();
  emit(step.action == Step::Action::send ? "tcp.sent" : "tcp.received",
       {{"group", std::string_view(options_.key)},
        {"rank", int64_t{rank_}},
        {"peer", int64_t{step.peer}},
        {"number", static_cast<int64_t>(lane.number)},
        {"round", lane.round},
        {"begin", step.begin},
        {"bytes", step.count * lane.element_bytes},
        {"us", us}});
}

bool TcpEngine::move_bytes(PeerStreams& streams, bool sends) {
  try {
    return sends ? streams.send() : streams.receive();
  } catch (const Error& broken) {  // closed; or TLS: its bytes were changed on the way
    fail_lost(peer_at_work_, broken.what());
  }
}

FrameHeader TcpEngine::data_header(const LinkLane& lane) const {
  const Entry& entry = entry_of(lane.number);
  return {.kind = FrameKind::data,
          .call = entry.call,
          .aux = fingerprint_,
          .number = lane.number,
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

Problem TcpEngine::problem_of(LinkLane& lane) {
  const Entry& entry = entry_of(lane.number);
  const Operation& operation = entry.operation;
  // all_gather and gather are told the counts of their output, the others those of their input.
  const bool gathers =
      operation.collective == Collective::all_gather || operation.collective == Collective::gather;
  fill_offsets(lane.input_offsets, gathers ? operation.output_counts : operation.input_counts);
  if (operation.collective == Collective::all_to_all)
    fill_offsets(lane.output_offsets, operation.output_counts);
  else
    lane.output_offsets = lane.input_offsets;
  const Algorithm algorithm = choose(question_of(entry), options_.table);
  return {.collective = operation.collective,
          .algorithm = algorithm,
          .rank = rank_,
          .size = size_,
          .root = operation.root,
          .num_elements = lane.input_offsets.empty() ? entry.elements : lane.input_offsets.back(),
          .input_offsets = lane.input_offsets,
          .output_offsets = lane.output_offsets,
          .chunk_elements = chunk_elements(algorithm, lane.element_bytes),
          .shape_tree = &tree_};
}

void TcpEngine::begin_operation(LinkLane& lane, uint64_t number) {
  const Operation& operation = entry_of(number).operation;
  lane.number = number;
  lane.element_bytes = size_of(dtype_of(operation));
  lane.output = bytes_of(operation.output);
  lane.input = works_in_place(operation.collective) ? lane.output : bytes_of(operation.input);
  lane.schedule = Schedule(problem_of(lane));
  counter_.count(operation, static_cast<size_t>(lane.schedule.problem().algorithm));
  lane.buffers = operation.collective == Collective::all_reduce ? &lane.own : &alone_;
  grow(lane.buffers->scratch, lane.schedule.scratch_elements() * lane.element_bytes);
  const int64_t kept = lane.schedule.kept_elements() * lane.element_bytes;
  lane.kept_stride = (kept + kLineBytes - 1) / kLineBytes * kLineBytes;
  if (kept > 0) grow(lane.buffers->kept, lane.kept_stride * (size_ - 1));
  lane.round = 0;
  lane.begun = true;
  if (lane.schedule.num_rounds() > 0) load_round(lane);
}

void TcpEngine::load_round(LinkLane& lane) {
  lane.schedule.round(lane.round, lane.steps);
  lane.states.assign(lane.steps.size(), StepState::idle);
  lane.steps_left = 0;
  lane.began.clear();
  if (events_wanted()) lane.began.resize(lane.steps.size());
  for (size_t i = 0; i < lane.steps.size(); ++i) {
    if (is_local(lane.steps[i].action))
      lane.states[i] = StepState::done;
    else
      ++lane.steps_left;
  }
}

void TcpEngine::finish_round(LinkLane& lane) {
  for (const Step& step : lane.steps)
    if (is_local(step.action)) finish_step(lane, step);
}

void TcpEngine::finish_step(LinkLane& lane, const Step& step) {
  const Operation& operation = entry_of(lane.number).operation;
  std::byte* const to = lane.place(step.space, step.begin);
  const bool divides = step.last && !operation.partial && operation.reduce == ReduceOp::mean;
  if (step.action == Step::Action::copy) {
    const std::byte* const from = lane.place(step.operand, step.from);
    if (to != from) std::memmove(to, from, static_cast<size_t>(step.count * lane.element_bytes));
  } else if (step.action == Step::Action::combine) {
    static const ReductionShape pair = ReductionShape::flat(2);
    const DType dtype = operation.output.dtype;
    const void* const both[2] = {to, kept_of(lane, step.peer)};
    reduce_inputs(dtype, partial_op(operation.reduce), pair, both, to, step.count);
    if (divides) finish_partial(dtype, operation.reduce, to, to, step.count, size_);
  } else {
    for (int r = 0; r < size_; ++r)
      reduce_inputs_[static_cast<size_t>(r)] =
          r == rank_ ? lane.place(Space::input, step.from) : kept_of(lane, r);
    // Partial results of a reduce_scatter are wider than the elements that steps count.
    void* const out = operation.collective == Collective::reduce_scatter
                          ? lane.output + step.begin * size_of(operation.output.dtype)
                          : to;
    const auto reduce = operation.partial ? reduce_partial : reduce_inputs;
    reduce(dtype_of(operation), operation.reduce, shape_, reduce_inputs_, out, step.count);
  }
}

std::byte* TcpEngine::LinkLane::place(Space space, int64_t element) const {
  std::byte* const base = space == Space::input    ? input
                          : space == Space::output ? output
                                                   : buffers->scratch.data();
  return base == nullptr ? nullptr : base + element * element_bytes;
}

std::byte* TcpEngine::kept_of(const LinkLane& lane, int rank) const {
  const int64_t index = rank < rank_ ? rank : rank - 1;
  return lane.buffers->kept.data() + index * lane.kept_stride;
}

Sink TcpEngine::sink_of(const LinkLane& lane, const Step& step) const {
  const Operation& operation = entry_of(lane.number).operation;
  if (step.action == Step::Action::keep) return {.to = kept_of(lane, step.peer)};
  Sink sink{.to = lane.place(step.space, step.begin)};
  if (step.action == Step::Action::add) {
    sink.operand = lane.place(step.operand, step.from);
    sink.dtype = operation.output.dtype;
    sink.op = operation.reduce;
    sink.replicas = step.last && !operation.partial ? size_ : 0;
  }
  return sink;
}

}  // namespace tutti::detail::tcp
