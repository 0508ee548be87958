// Messages of TuttiBackend, and the barrier that is made of them.

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <thread>

#include "tutti/base/log.h"

#include "backend.h"
#include "tensors.h"

namespace tutti::python {
namespace {

using WorkPointer = TuttiBackend::WorkPointer;

// Programs use tags from 0 on.
constexpr int kArrivedTag = -2;
constexpr int kReleasedTag = -3;
constexpr auto kLook = std::chrono::microseconds(50);

// A message of four bytes whose content says nothing.
class Note final : public Call {
 public:
  Note(Collective kind, int other, int tag, Millis limit) {
    is_message = true;
    called_at.function = "tutti:monitored_barrier";
    Operation operation{.collective = kind, .root = other, .tag = tag, .limit = limit};
    (kind == Collective::send ? operation.input : operation.output) = {&word_, 1, DType::int32};
    operations.push_back(operation);
  }

  void finish(std::exception_ptr failure) noexcept override {
    failure_ = std::move(failure);
    done_.store(true, std::memory_order_release);
  }
  bool done() const { return done_.load(std::memory_order_acquire); }
  bool arrived() const { return done() && failure_ == nullptr; }
  const std::exception_ptr& failure() const { return failure_; }

 private:
  int32_t word_ = 0;
  std::exception_ptr failure_;
  std::atomic<bool> done_{false};
};

using Notes = std::vector<std::shared_ptr<Note>>;

void submit(Lane& lane, const std::shared_ptr<Note>& note) {
  lane.submit(note);
  lane.finish_ended();
}

// Until all are done or `deadline` passes.
void wait_for(Lane& lane, const Notes& notes, const Deadline& deadline) {
  const auto all_done = [&] { return std::ranges::all_of(notes, &Note::done); };
  while (!all_done()) {
    lane.advance();
    lane.finish_ended();
    if (all_done() || deadline.passed()) return;
    std::this_thread::sleep_for(kLook);
  }
}

std::string words_of(const Note& note) {
  if (!note.done()) return "no answer";
  try {
    std::rethrow_exception(as_c10d_error(note.failure()));
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
}

void wait_for_release(Lane& lane, Millis limit) {
  const Notes notes{std::make_shared<Note>(Collective::send, 0, kArrivedTag, limit),
                    std::make_shared<Note>(Collective::recv, 0, kReleasedTag, limit)};
  for (const auto& note : notes) submit(lane, note);
  wait_for(lane, notes, Deadline(limit + Millis{1'000}));
  for (const auto& note : notes) {
    if (note->arrived()) continue;
    TORCH_CHECK_WITH(DistBackendError, false, "Rank ", lane.engine().rank(),
                     " successfully reached monitoredBarrier, but received errors while waiting "
                     "for send/recv from rank 0. Please check rank 0 logs for faulty rank.\n",
                     " Original exception: \n", words_of(*note));
  }
}

[[noreturn]] void give_up(Lane& lane, const std::string& words) {
  lane.abort(FailureKind::timeout, words);
  TORCH_CHECK_WITH(DistBackendError, false, words);
}

void count_arrivals(Lane& lane, Millis timeout, bool wait_all_ranks) {
  const int size = lane.engine().size();
  const Deadline deadline(timeout);
  if (timeout <= Millis{0})
    give_up(lane, fmt::format("Rank 0 timed out in monitoredBarrier after {} ms.\n"
                              "No ranks successfully processed in monitoredBarrier.",
                              timeout.count()));
  // Their own limit lies behind the one that is watched here, which names everybody.
  Notes arrivals;
  for (int r = 1; r < size; ++r) {
    arrivals.push_back(
        std::make_shared<Note>(Collective::recv, r, kArrivedTag, timeout + Millis{60'000}));
    submit(lane, arrivals.back());
  }
  wait_for(lane, arrivals, deadline);
  std::vector<int> missing;
  for (int r = 1; r < size; ++r)
    if (!arrivals[static_cast<size_t>(r - 1)]->arrived()) missing.push_back(r);
  if (missing.empty()) return;
  const std::string who = wait_all_ranks ? fmt::format("Ranks {}", fmt::join(missing, ", "))
                                         : fmt::format("Rank {}", missing.front());
  const Note& first = *arrivals[static_cast<size_t>(missing.front() - 1)];
  give_up(lane, fmt::format("[Rank 0]: {} failed to pass monitoredBarrier in {} ms\n"
                            " Original exception: \n{}",
                            who, timeout.count(), words_of(first)));
}

}  // namespace

WorkPointer TuttiBackend::message(Tensors& tensors, Collective kind, int other, int tag) {
  const bool sends = kind == Collective::send;
  const char* const name = sends ? "tutti::send" : "tutti::recv";
  check_one(name, tensors, "message");
  check_dense(name, tensors);
  const at::Tensor& tensor = tensors.front();
  TORCH_CHECK(tensor.is_contiguous(), name, ": input tensor has to be contiguous");
  TORCH_CHECK(tag >= 0, name, ": Tag must be nonnegative");
  const bool anybody = other == kAnyRank;
  const auto type = sends     ? c10d::OpType::SEND
                    : anybody ? c10d::OpType::RECVANYSOURCE
                              : c10d::OpType::RECV;
  const char* const title = sends ? "tutti:send" : anybody ? "tutti:recvAnySource" : "tutti:recv";
  auto started = start(type, title, tensors, {tensors}, c10d::kUnsetTimeout);
  started.call->is_message = true;
  Operation operation{.collective = kind, .root = other, .tag = tag, .limit = started.limit};
  const at::Tensor data =
      started.call->keep(sends ? contiguous(tensor) : contiguous_room(tensor));
  (sends ? operation.input : operation.output) = bytes_of(data);
  if (!sends) {
    operation.source = &started.call->source;
    if (data.data_ptr() != tensor.data_ptr()) started.call->copy_back(tensor.detach(), data);
  }
  started.call->operations.push_back(operation);
  return launch(std::move(started), false);
}

WorkPointer TuttiBackend::send(Tensors& tensors, int to, int tag) {
  TORCH_CHECK(to >= 0 && to < size_, "tutti::send: invalid rank ", to);
  return message(tensors, Collective::send, to, tag);
}

WorkPointer TuttiBackend::recv(Tensors& tensors, int from, int tag) {
  TORCH_CHECK(from >= 0 && from < size_, "tutti::recv: invalid rank ", from);
  return message(tensors, Collective::recv, from, tag);
}

WorkPointer TuttiBackend::recvAnysource(Tensors& tensors, int tag) {
  return message(tensors, Collective::recv, kAnyRank, tag);
}

// Everybody tells rank 0 and waits for its word, which it gives when all have told.
void monitored_barrier(Lane& lane, Millis timeout, Millis limit, bool wait_all_ranks) {
  if (lane.engine().rank() != 0) return wait_for_release(lane, limit);
  count_arrivals(lane, timeout, wait_all_ranks);
  Notes releases;
  for (int r = 1; r < lane.engine().size(); ++r) {
    releases.push_back(std::make_shared<Note>(Collective::send, r, kReleasedTag, limit));
    submit(lane, releases.back());
  }
  wait_for(lane, releases, Deadline(limit + Millis{1'000}));
  for (const auto& note : releases)
    if (!note->arrived() && note->done()) std::rethrow_exception(as_c10d_error(note->failure()));
}

}  // namespace tutti::python
