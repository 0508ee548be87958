#include "tests/support/fake_cuda/queues.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "tests/support/fake_cuda/fake_cuda.h"

namespace tutti::test::fake_cuda {

struct Task {
  std::string_view name;
  std::function<bool()> run;  // returns whether it is done; empty: a wait for `after`
  Mark after;
};

struct Graph::Kept {
  Queue* queue = nullptr;
  std::vector<Task> tasks;
  std::vector<std::function<void()>> frees;
};

struct Queue {
  Graph::Kept* captured_by = nullptr;
  int device = 0;
  int stream = 0;
  Order pace = Order::lazy;  // in this order of work
  uint64_t queued = 0;
  uint64_t done = 0;
  bool running = false;
  std::deque<Task> tasks;
};

namespace {

// A training step of a large network is about a thousand tasks. CUDA's own queues hold as many,
// then the host waits; ours run their oldest then, so that memory is bounded where nobody waits.
constexpr size_t kMostTasks = 16'384;
constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();

struct Device {
  uint64_t tasks_until_stuck = kNever;
  std::string error;  // of a task; the next host wait throws it
};

struct State {
  std::recursive_mutex mutex;
  std::map<std::pair<int, int>, Queue> queues;
  std::array<Device, kMostDevices> devices;
  Order order = Order::lazy;
  uint64_t seed = 0;
  std::mt19937_64 random;
  Counts counts;
  bool stands = false;  // a task was tried and is not done: another thread has to queue something
  std::map<std::string, uint64_t, std::less<>> synchronous;
};

// Never destroyed: tensors in static variables are freed after every destructor of ours would run.
State& state() {
  static State& all = *std::make_unique<State>().release();
  return all;
}

Order pace_of(int device, int stream) {
  if (state().order != Order::random) return state().order;
  // Half of the queues late: what does not wait for them is far ahead.
  constexpr std::array kPaces{Order::lazy, Order::lazy, Order::eager, Order::random};
  std::mt19937_64 draw(state().seed * 1'000'003 + static_cast<uint64_t>(device * 64 + stream));
  return kPaces.at(draw() % kPaces.size());
}

bool run_task(Queue& queue, const Task& task) {
  try {
    return task.run();
  } catch (const std::exception& failed) {
    auto& error = state().devices.at(queue.device).error;
    if (error.empty()) {
      error = "cuda:" + std::to_string(queue.device) + ", stream " + std::to_string(queue.stream) +
              ": " + std::string(task.name) + " failed when it ran: " + failed.what();
    }
    return true;
  }
}

// Runs what is before `upto`; false where a stuck device is in the way, or a task that is not done.
bool run_until(Queue& queue, uint64_t upto) {
  if (queue.running) return queue.done >= upto;
  queue.running = true;
  while (queue.done < upto) {
    auto& front = queue.tasks.front();
    if (!front.run) {
      if (!run_until(*front.after.queue, front.after.upto)) break;
      queue.tasks.pop_front();
    } else {
      auto& left = state().devices.at(queue.device).tasks_until_stuck;
      if (left == 0) break;
      if (!run_task(queue, front)) {
        state().stands = true;
        break;
      }
      if (left != kNever && left > 0) --left;
      const Task ended = std::move(front);  // what it holds goes when nothing of it is in the queue
      queue.tasks.pop_front();
    }
    ++queue.done;
  }
  queue.running = false;
  return queue.done >= upto;
}

// Something was queued: the order says what runs now.
void pass_time(Queue& grown) {
  if (grown.tasks.size() > kMostTasks) run_until(grown, grown.done + kMostTasks / 2);
  if (state().order == Order::eager) run_until(grown, grown.queued);
  if (state().order != Order::random) return;
  auto& random = state().random;
  for (auto& [_, queue] : state().queues) {
    if (queue.tasks.empty() || queue.pace == Order::lazy) continue;
    if (queue.pace == Order::eager) {
      run_until(queue, queue.queued);
    } else if (random() % 3 == 0) {
      run_until(queue, std::min(queue.queued, queue.done + 1 + random() % 2));
    }
  }
}

void add(Queue& queue, Task task) {
  if (queue.captured_by != nullptr) return queue.captured_by->tasks.push_back(std::move(task));
  queue.tasks.push_back(std::move(task));
  ++queue.queued;
  ++state().counts.tasks;
  // Tasks queue nothing that must run before they end.
  if (!queue.running) pass_time(queue);
}

void throw_error_of(int device) {
  auto& error = state().devices.at(device).error;
  if (!error.empty()) throw TaskError(std::exchange(error, {}));
}

[[noreturn]] void throw_would_hang(const Queue& queue, std::string_view what) {
  std::string stuck;
  for (int device = 0; device < kMostDevices; ++device) {
    if (state().devices.at(device).tasks_until_stuck == 0)
      stuck += " cuda:" + std::to_string(device);
  }
  throw WouldHang(std::string(what) + " on cuda:" + std::to_string(queue.device) + ", stream " +
                  std::to_string(queue.stream) + ", would never end: " +
                  std::to_string(queue.queued - queue.done) + " tasks left; stuck:" + stuck +
                  " (a wait with a deadline asks Event::query until it ends)");
}

void count_host_wait() {
  const Lock lock(lock_of_all());
  ++state().counts.host_waits;
}

// What only another thread can bring about is waited for with patience, and without the lock.
void run_with_patience(const Mark& mark, std::string_view what) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::seconds kPatience{20};
  const auto end = Clock::now() + kPatience;
  for (;;) {
    {
      const Lock lock(lock_of_all());
      state().stands = false;
      if (run_until(*mark.queue, mark.upto)) return throw_error_of(mark.queue->device);
      if (!state().stands || Clock::now() > end) throw_would_hang(*mark.queue, what);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

}  // namespace

std::recursive_mutex& lock_of_all() { return state().mutex; }

Queue& queue_of(int device, int stream) {
  const Lock lock(lock_of_all());
  const auto [at, is_new] = state().queues.try_emplace({device, stream});
  if (is_new) {
    at->second.device = device;
    at->second.stream = stream;
    at->second.pace = pace_of(device, stream);
  }
  return at->second;
}

void enqueue(Queue& queue, std::string_view name, std::function<void()> task) {
  enqueue_attempt(queue, name, [task = std::move(task)] {
    task();
    return true;
  });
}

void enqueue_attempt(Queue& queue, std::string_view name, std::function<bool()> done) {
  const Lock lock(lock_of_all());
  add(queue, {.name = name, .run = std::move(done), .after = {}});
}

void enqueue_wait(Queue& queue, const Mark& mark) {
  const Lock lock(lock_of_all());
  if (mark.queue == &queue || reached(mark)) return;
  add(queue, {.name = "wait", .run = {}, .after = mark});
}

Mark mark_of(Queue& queue) {
  const Lock lock(lock_of_all());
  return {.queue = &queue, .upto = queue.queued};
}

bool reached(const Mark& mark) {
  const Lock lock(lock_of_all());
  return mark.queue == nullptr || mark.queue->done >= mark.upto;
}

bool query(const Mark& mark) {
  const Lock lock(lock_of_all());
  if (mark.queue == nullptr) return true;
  if (!reached(mark)) run_until(*mark.queue, mark.queue->done + 1);
  throw_error_of(mark.queue->device);
  return reached(mark);
}

bool is_empty(Queue& queue) {
  const Lock lock(lock_of_all());
  return queue.tasks.empty();
}

bool try_to_reach(const Mark& mark) {
  const Lock lock(lock_of_all());
  return mark.queue == nullptr || run_until(*mark.queue, mark.upto);
}

void wait_for(const Mark& mark, std::string_view what) {
  count_host_wait();
  if (mark.queue == nullptr) return;
  if (mark.queue->captured_by != nullptr)
    throw TaskError(std::string(what) + ": operation not permitted when stream is capturing");
  run_with_patience(mark, what);
}

void wait_for_device(int device, std::string_view what) {
  count_host_wait();
  std::vector<Mark> marks;
  {
    const Lock lock(lock_of_all());
    for (auto& [_, queue] : state().queues) {
      if (queue.device == device) marks.push_back(mark_of(queue));
    }
  }
  for (const Mark& mark : marks) run_with_patience(mark, what);
}

bool all_are_empty() {
  const Lock lock(lock_of_all());
  return std::all_of(state().queues.begin(), state().queues.end(),
                     [](const auto& named) { return named.second.tasks.empty(); });
}

void count_deferred() {
  const Lock lock(lock_of_all());
  ++state().counts.deferred;
}

void count_synchronous(std::string_view operator_name) {
  const Lock lock(lock_of_all());
  ++state().counts.synchronous;
  const auto at = state().synchronous.find(operator_name);
  if (at == state().synchronous.end()) {
    state().synchronous.emplace(operator_name, 1);
  } else {
    ++at->second;
  }
}

void count_copy() {
  const Lock lock(lock_of_all());
  ++state().counts.copies;
}

bool frees_with_graph(Queue& queue, std::function<void()> free) {
  const Lock lock(lock_of_all());
  if (queue.captured_by == nullptr) return false;
  queue.captured_by->frees.push_back(std::move(free));
  return true;
}

Graph::Graph() : kept_(std::make_unique<Kept>()) {}

Graph::~Graph() {
  const Lock lock(lock_of_all());
  for (auto& free : kept_->frees) enqueue(*kept_->queue, "free", std::move(free));
}

void Graph::capture(int device, int stream, const std::function<void()>& work) {
  kept_->queue = &queue_of(device, stream);
  kept_->queue->captured_by = kept_.get();
  try {
    work();
  } catch (...) {
    kept_->queue->captured_by = nullptr;
    throw;
  }
  kept_->queue->captured_by = nullptr;
}

void Graph::replay() {
  const Lock lock(lock_of_all());
  for (const Task& task : kept_->tasks) add(*kept_->queue, task);
}

void run_all() {
  const Lock lock(lock_of_all());
  for (auto& [_, queue] : state().queues) run_until(queue, queue.queued);
}

void set_order(Order order, uint64_t seed) {
  const Lock lock(lock_of_all());
  run_all();
  for (auto& device : state().devices) device.error.clear();
  state().order = order;
  state().seed = seed;
  state().random.seed(seed);
  for (auto& [_, queue] : state().queues) queue.pace = pace_of(queue.device, queue.stream);
}

Counts counts() {
  const Lock lock(lock_of_all());
  return state().counts;
}

Counts Counts::operator-(const Counts& before) const {
  return {.tasks = tasks - before.tasks,
          .deferred = deferred - before.deferred,
          .synchronous = synchronous - before.synchronous,
          .copies = copies - before.copies,
          .host_waits = host_waits - before.host_waits};
}

std::vector<std::string> synchronous_operators() {
  const Lock lock(lock_of_all());
  std::vector<std::string> all;
  for (const auto& [name, times] : state().synchronous) {
    all.push_back(name + " x " + std::to_string(times));
  }
  return all;
}

void stick(int device, uint64_t after_tasks) {
  const Lock lock(lock_of_all());
  state().devices.at(device).tasks_until_stuck = after_tasks;
}

void unstick(int device) {
  const Lock lock(lock_of_all());
  state().devices.at(device).tasks_until_stuck = kNever;
}

}  // namespace tutti::test::fake_cuda
