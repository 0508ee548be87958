#include "backend.h"

#include <ATen/ATen.h>
#include <Python.h>
#include <unistd.h>

#include "tutti/base/log.h"

#include "place.h"
#include "progress.h"
#include "tensors.h"

namespace tutti::python {
namespace {

// What shutdown gives operations that nobody waited for; a peer may still need their data.
constexpr Millis kDrainLimit{10'000};

// Lets other threads have the interpreter while this one waits, if this one holds it.
class WithoutInterpreter {
 public:
  WithoutInterpreter()
      : state_(Py_IsInitialized() != 0 && PyGILState_Check() != 0 ? PyEval_SaveThread() : nullptr) {
  }
  ~WithoutInterpreter() {
    if (state_ != nullptr) PyEval_RestoreThread(state_);
  }
  WithoutInterpreter(const WithoutInterpreter&) = delete;
  WithoutInterpreter& operator=(const WithoutInterpreter&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace

TuttiBackend::TuttiBackend(Group group, BackendFacts facts)
    : c10d::Backend(facts.rank, facts.size),
      lane_(std::make_shared<Lane>(std::move(group))),
      name_(std::move(facts.name)),
      job_(std::move(facts.job)),
      pid_(getpid()),
      options_(c10::make_intrusive<Options>("tutti", facts.timeout)),
      devices_(fmt::format("rank {}", facts.rank)) {}

TuttiBackend::~TuttiBackend() {
  if (getpid() == pid_)
    drain();
  else  // a forked child: the group is the parent's, whom its end would take out of it
    (void)std::make_unique<std::shared_ptr<Lane>>(lane_).release();
}

std::string TuttiBackend::engine_name() const { return std::string(lane_->engine().name()); }

Millis TuttiBackend::limit_of(std::chrono::milliseconds timeout) const {
  if (timeout == c10d::kUnsetTimeout) timeout = options_->timeout;
  return std::max(timeout, Millis{1});
}

TuttiBackend::Started TuttiBackend::start(c10d::OpType type, const char* title, Tensors inputs,
                                          TensorLists outputs, std::chrono::milliseconds timeout) {
  const at::Device device = device_of(title, inputs, outputs);
  const Millis limit = limit_of(timeout);
  Tensors held;  // until they are copied; of the CPU's tensors each call keeps what it uses
  if (!device.is_cpu()) held = inputs;
  WorkFacts facts{type, title, std::move(inputs), std::move(outputs), ++sequence_, device};
  auto work = c10::make_intrusive<TuttiWork>(rank_, std::move(facts), lane_);
  auto call = std::make_shared<TensorCall>(work);
  call->called_at = place_of_caller(title);
  Started started{std::move(work), std::move(call), limit, nullptr};
  if (device.is_cpu()) return started;
  for (auto& input : held) started.call->keep(std::move(input));
  started.call->way = std::make_unique<DeviceWay>(
      devices_.queues_on(device), limit,
      fmt::format("the tensors of {}, call {} of group \"{}\" (half of its timeout)", title,
                  started.work->getSequencenumber(), name_));
  started.on_queue = std::make_unique<OnQueue>(started.call->way->to_host());
  return started;
}

TuttiBackend::WorkPointer TuttiBackend::launch(Started started, bool somebody_waits) {
  if (started.call->way != nullptr) started.call->way->mark_copies();
  started.on_queue.reset();
  lane_->submit(std::move(started.call));
  lane_->finish_ended();
  // A caller that will wait moves the operation itself, and wakes the progress thread if it must.
  if (!somebody_waits && lane_->busy()) Progress::instance().watch(lane_);
  return std::move(started.work);
}

void TuttiBackend::drain() noexcept {
  const WithoutInterpreter released;
  if (lane_->drain(Deadline(std::min<Millis>(kDrainLimit, options_->timeout)))) return;
  lane_->abort(FailureKind::aborted,
               fmt::format("group \"{}\" was destroyed with operations open", name_));
  lane_->drain(Deadline(Millis{1'000}));
}

void TuttiBackend::shutdown() { drain(); }

void TuttiBackend::abort() {
  lane_->abort(FailureKind::aborted, fmt::format("the program aborted group \"{}\"", name_));
  const WithoutInterpreter released;
  lane_->drain(Deadline(Millis{1'000}));
}

#ifdef TUTTI_TORCH_2_11
c10d::ErrorType TuttiBackend::getError() {
  const auto kind = lane_->failure_kind();
  if (!kind) return c10d::ErrorType::SUCCESS;
  if (*kind == FailureKind::timeout) return c10d::ErrorType::TIMEOUT;
  return *kind == FailureKind::peer_lost ? c10d::ErrorType::REMOTE_ERROR
                                         : c10d::ErrorType::COMM_ERROR;
}
#endif

void TuttiBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  const auto timeout = options.timeout == c10d::kUnsetTimeout ? options_->timeout : options.timeout;
  const WithoutInterpreter released;
  monitored_barrier(*lane_, timeout, limit_of(c10d::kUnsetTimeout), wait_all_ranks);
}

}  // namespace tutti::python
