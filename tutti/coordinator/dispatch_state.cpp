#include "tutti/coordinator/dispatch_state.h"

#include <algorithm>
#include <utility>

#include "tutti/base/detail/check.h"

namespace tutti::coordinator {

int64_t DispatchState::schedule(std::string step, ps::Bytes arguments) {
  TUTTI_CHECK(!full() && !failed(), "{} tasks wait", waiting_.size());
  ++counts_.scheduled;
  waiting_.push_back({++last_number_, std::move(step), std::move(arguments)});
  const int64_t number = last_number_;
  give_out();
  return number;
}

void DispatchState::give_out() {
  while (!free_.empty() && !waiting_.empty()) {
    const int worker = free_.front();
    free_.pop_front();
    const Task& task = running_[worker] = std::move(waiting_.front());
    waiting_.pop_front();
    give_(worker, task);
  }
}

void DispatchState::come(int worker, const std::string& name) {
  lose(worker, "came again");
  workers_[worker] = name;
  free_.push_back(worker);
  give_out();
}

void DispatchState::lose(int worker, const std::string& ending) {
  const auto lost = workers_.find(worker);
  if (lost == workers_.end()) return;
  ++counts_.workers_lost;
  last_lost_ = fmt::format("{} {}", lost->second, ending);
  workers_.erase(lost);
  std::erase(free_, worker);
  const auto held = running_.find(worker);
  if (held == running_.end()) return;
  Task task = std::move(held->second);
  running_.erase(held);
  if (failed()) {
    end(task, {Outcome::Kind::cancelled, {}, *error_});
    return;
  }
  ++counts_.repeated;
  waiting_.push_front(std::move(task));
  give_out();
}

const Task* DispatchState::running(int worker) const {
  const auto found = running_.find(worker);
  return found == running_.end() ? nullptr : &found->second;
}

std::optional<Task> DispatchState::take_running(int worker, int64_t number) {
  const auto found = running_.find(worker);
  if (found == running_.end() || found->second.number != number) return std::nullopt;
  Task task = std::move(found->second);
  running_.erase(found);
  free_.push_back(worker);
  return task;
}

void DispatchState::done(int worker, int64_t number, ps::Bytes result) {
  const auto task = take_running(worker, number);
  if (!task) return;
  end(*task, {Outcome::Kind::done, std::move(result), ""});
  give_out();
}

void DispatchState::fail(int worker, int64_t number, const std::string& words) {
  const auto task = take_running(worker, number);
  if (!task) return;
  const std::string all =
      fmt::format("step \"{}\" on {}: {}", task->step, workers_.at(worker), words);
  end(*task, {Outcome::Kind::failed, {}, all});
  set_error(all);
}

void DispatchState::give_up(const std::string& words) { set_error(words); }

void DispatchState::set_error(const std::string& words) {
  if (!failed()) error_ = words;
  while (!waiting_.empty()) {
    end(waiting_.front(), {Outcome::Kind::cancelled, {}, *error_});
    waiting_.pop_front();
  }
}

std::string DispatchState::take_error() {
  TUTTI_CHECK(failed() && !runs(), "{} tasks run", running_.size());
  return *std::exchange(error_, std::nullopt);
}

void DispatchState::end(const Task& task, const Outcome& outcome) {
  switch (outcome.kind) {
    case Outcome::Kind::done: ++counts_.done; break;
    case Outcome::Kind::failed: ++counts_.failed; break;
    case Outcome::Kind::cancelled: ++counts_.cancelled; break;
  }
  end_(task.number, outcome);
}

}  // namespace tutti::coordinator
