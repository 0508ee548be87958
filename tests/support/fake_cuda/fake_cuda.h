/// A CUDA for a LibTorch without one: devices of host memory, whose work runs late and out of
/// order.
///
/// Linking the library (target tutti_fake_cuda, file libtorch_cuda.so) makes "cuda" a device of
/// this process; a program that opens libtorch_cuda.so itself, before its first call of torch, gets
/// it with LD_LIBRARY_PATH. Tensors, modules, autograd, optimizers, autocast, streams, events,
/// pinned memory, peer copies, generators, graphs and allocator settings work; results have the
/// bits of the CPU's kernels, which do the work. No cuDNN, cuBLAS workspaces, NCCL, sparse tensors.
///
/// What a queue holds runs when something forces it, or earlier: that is the Order. Memory that
/// nobody has written holds NaN (whole numbers: -1), and freed memory becomes NaN where its own
/// stream comes to the release. So a wait or a record_stream that is missing gives NaN or old
/// values, in some order.
///
/// Environment, read when the library is loaded, for programs that cannot call these functions:
///   FAKE_CUDA_DEVICES          as set_devices(); 2 unless told
///   FAKE_CUDA_ORDER            eager, lazy (unless told) or seed:N
///   FAKE_CUDA_MEMORY_MB        memory of each device, as set_memory()
///   FAKE_CUDA_STICK            DEVICE:AFTER_TASKS, as stick()
///   FAKE_CUDA_FAIL_ALLOCATION  DEVICE:NTH, as fail_allocation()
///   FAKE_CUDA_REPORT           file that gets counts() and synchronous_operators() at exit
///
/// Thread rule: all functions may be called from any thread. There is one lock, held while a task
/// runs; a predicate of leave_out_* is asked without it, on the thread that makes the call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace tutti::test::fake_cuda {

/// False where this LibTorch is too old for the fake, or has a CUDA: the other functions throw
/// then, and tests are skipped (FakeCudaTest).
bool available();

/// Tells how many devices there are, 0 to 16. Before the first tensor on one: autograd starts its
/// threads by this number.
void set_devices(int devices);
int devices();

enum class Order {
  eager,   ///< each task runs as soon as it is queued
  lazy,    ///< nothing runs until a wait of the host needs it (or 16,384 tasks are in a queue)
  random,  ///< each queue has a pace of its own, drawn from the seed: lazy, eager, or by chance
};

/// Runs what is queued, forgets errors of tasks, and changes the order. At start: lazy.
void set_order(Order order, uint64_t seed = 0);

/// As after set_order(Order::lazy), with nothing stuck, left out or about to fail, 1 GiB of memory
/// a device and no limit below it.
void reset();

/// Runs all that is queued, on devices that are not stuck. No host wait: errors stay for the next
/// one.
void run_all();

struct Counts {
  uint64_t tasks = 0;        ///< queued, of any kind; waits and released memory included
  uint64_t deferred = 0;     ///< operators that were queued
  uint64_t synchronous = 0;  ///< operators that ran at once, since their results' shapes or values
                             ///< were needed
  uint64_t copies = 0;       ///< copy_ and its kin
  /// Times that a thread of the host had to wait for a device: synchronize*(), a copy that blocks,
  /// item(), a synchronous operator. A query is none.
  uint64_t host_waits = 0;

  Counts operator-(const Counts& before) const;
};

/// Since the library was loaded.
Counts counts();

/// "aten::nonzero x 3" of each operator that ran at once, sorted.
std::vector<std::string> synchronous_operators();

/// From now on an event's wait is left out of the queue wherever `asked` returns true. It is called
/// by the thread that asks for the wait, so that a test may read what that thread is about to do
/// from a thread-local variable of the tested code. Empty: no wait is left out. autograd's own
/// waits are asked for too.
void leave_out_blocks(std::function<bool()> asked);

/// The same for record_stream.
void leave_out_records(std::function<bool()> asked);

/// After `after_tasks` more of its tasks a device runs nothing, as one that hangs: its events do
/// not become ready, and a host wait without a limit throws WouldHang. unstick() lets it go on.
void stick(int device, uint64_t after_tasks = 0);
void unstick(int device);

/// A host wait without a limit that would never end: the device, or one that it waits for, is
/// stuck.
class WouldHang : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A task threw, as a device-side assertion: thrown by the first host wait or query of an event
/// that reaches it, once. Names the operator.
class TaskError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A graph: what a stream is given while it is captured, which does not run then, and runs with
/// each replay. Memory freed meanwhile is NaN from there on, in each replay too, and serves nobody
/// else until the graph is gone. A host wait for a stream that is being captured throws TaskError.
class Graph {
 public:
  Graph();
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  /// Once. `stream`: the number of the stream, c10::Stream::id().
  void capture(int device, int stream, const std::function<void()>& work);
  void replay();

  struct Kept;

 private:
  std::unique_ptr<Kept> kept_;
};

/// Memory of a device in bytes, of which allocations of CUDA tensors take multiples of 512; 1 GiB
/// unless told. What has been freed on the host counts as free, as with CUDA's caching allocator.
/// More than the total or than per_process_memory_fraction of it is a c10::OutOfMemoryError.
void set_memory(int device, size_t total_bytes);

/// The nth allocation of a device from now on (1: the next) throws c10::OutOfMemoryError.
void fail_allocation(int device, uint64_t nth);

}  // namespace tutti::test::fake_cuda
