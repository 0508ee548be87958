/// Queues of tasks, and when each runs: streams are queues, events are marks in them.
///
/// Each host wait runs, on the thread that waits, what it waits for; so no thread waits for
/// another, but for what that one has yet to queue (enqueue_attempt). A wait of one queue for
/// another is recorded after what it waits for was queued: there are no rings. Knows nothing of
/// LibTorch.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>

namespace tutti::test::fake_cuda {

constexpr int kMostDevices = 16;
/// Streams of a device: the default one is 0, the others are those of two pools, of the usual and
/// of a higher priority. Streams made by CUDA's runtime interface have the numbers behind.
constexpr int kPoolStreams = 32;
constexpr int kStreams = 1 + 2 * kPoolStreams;

/// The one lock. Held while tasks run, so a thread may take it again.
std::recursive_mutex& lock_of_all();
using Lock = std::lock_guard<std::recursive_mutex>;

struct Queue;  ///< lives until the process ends

/// The queue of a stream. `stream` >= 0.
Queue& queue_of(int device, int stream);

/// All that was in a queue at some time: the first `upto` of its tasks.
struct Mark {
  Queue* queue = nullptr;
  uint64_t upto = 0;
};

/// Adds a task. `name` is of static duration, or lives as long as the process: errors carry it.
void enqueue(Queue& queue, std::string_view name, std::function<void()> task);
/// Adds a task that may have to be tried several times: the queue stands until `done` returns true,
/// as at a kernel that waits for other devices. It may run other queues.
void enqueue_attempt(Queue& queue, std::string_view name, std::function<bool()> done);
/// What comes later in `queue` runs after `mark`.
void enqueue_wait(Queue& queue, const Mark& mark);
Mark mark_of(Queue& queue);

/// Where the queue is being captured (fake_cuda::Graph): keeps `free` until the graph is gone, and
/// returns true.
bool frees_with_graph(Queue& queue, std::function<void()> free);

/// Whether all before the mark has run; nothing runs here.
bool reached(const Mark& mark);
/// The same as a poll does it: time passes, one task may run. Throws TaskError.
bool query(const Mark& mark);
bool is_empty(Queue& queue);
/// Runs what it can of what is before the mark; returns whether that was all.
bool try_to_reach(const Mark& mark);

/// A wait of the host. `what`: for the error. Throws WouldHang, TaskError. The calling thread does
/// not hold the lock: another thread may have to queue something before this ends.
void wait_for(const Mark& mark, std::string_view what);
void wait_for_device(int device, std::string_view what);

/// Whether the test leaves this wait of a queue, or this record_stream, out; asked once a call.
bool block_is_left_out();
bool record_is_left_out();

/// Whether nothing is queued on any device.
bool all_are_empty();

/// A count of how an operator was served; see Counts.
void count_deferred();
void count_synchronous(std::string_view operator_name);
void count_copy();

}  // namespace tutti::test::fake_cuda
