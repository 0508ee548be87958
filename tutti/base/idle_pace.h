/// IdlePace: work beside other work that comes first, until somebody waits for it.
///
/// The thread that works asks for its turn() before each small piece. The turn is given by a thread
/// of class SCHED_IDLE, which runs only while a core has nothing else to do. The working thread
/// itself keeps its class: Linux lets nobody but root take a thread out of SCHED_IDLE again, and
/// whoever waited for one would wait for a core that may never be idle.
/// Thread rule: one thread takes turns; hurry() may be called from any.
#pragma once

#include <functional>
#include <memory>

#include "tutti/base/deadline.h"

namespace tutti {

class IdlePace {
 public:
  /// patience    from now on; once it is over turn() waits no more
  /// find_idle   returns when a core is idle; called in a thread of class SCHED_IDLE. Tests alone
  ///             give one: being run is sign enough
  explicit IdlePace(Millis patience, std::function<void()> find_idle = {});
  /// Waits for nobody; the other thread ends when it is next run.
  ~IdlePace();
  IdlePace(const IdlePace&) = delete;

  /// Returns when a core is idle, and at once after hurry().
  void turn();
  /// From now on turn() waits no more.
  void hurry() noexcept;

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;  // with the thread, which may end later
  const Deadline patience_;
};

}  // namespace tutti
