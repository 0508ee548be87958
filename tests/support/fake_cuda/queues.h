/// Queues of tasks, and when each runs: streams are queues, events are marks in them.
///
/// Each host wait runs, on the thread that waits, what it waits for; so no thread waits for
/// another. A wait of one queue for another is recorded after what it waits for was queued: there
/// are no rings.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>

namespace tutti::test::fake_cuda {

constexpr int kMostDevices = 16;
/// Streams of a device: the default one is 0, the others are handed out in turn, as CUDA's pool.
constexpr int kStreams = 33;

/// The one lock. Held while tasks run, so a thread may take it again.
std::recursive_mutex& lock_of_all();
using Lock = std::lock_guard<std::recursive_mutex>;

struct Queue;  ///< lives until the process ends

/// The queue of a stream. `stream` is below kStreams.
Queue& queue_of(int device, int stream);

/// All that was in a queue at some time: the first `upto` of its tasks.
struct Mark {
  Queue* queue = nullptr;
  uint64_t upto = 0;
};

/// Adds a task. `name` is of static duration, or lives as long as the process: errors carry it.
void enqueue(Queue& queue, std::string_view name, std::function<void()> task);
/// What comes later in `queue` runs after `mark`.
void enqueue_wait(Queue& queue, const Mark& mark);
Mark mark_of(Queue& queue);

/// Whether all before the mark has run; nothing runs here.
bool reached(const Mark& mark);
/// The same as a poll does it: time passes, one task may run. Throws TaskError.
bool query(const Mark& mark);
bool is_empty(Queue& queue);

/// A wait of the host. `what`: for the error. Throws WouldHang, TaskError.
void wait_for(const Mark& mark, std::string_view what);
void wait_for_device(int device, std::string_view what);

/// Whether nothing is queued on any device.
bool all_are_empty();

/// A count of how an operator was served; see Counts.
void count_deferred();
void count_synchronous(std::string_view operator_name);
void count_copy();

}  // namespace tutti::test::fake_cuda
