#include "tutti/sync/on_devices/detail/captured_steps.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tutti/base/error.h"
#include "tutti/base/log.h"

namespace tutti::detail {
namespace {

thread_local bool captures = false;

/// While it lives, this thread captures.
struct Capturing {
  Capturing() { captures = true; }
  ~Capturing() { captures = false; }
};

// "[128, 1, 28, 28], [128]".
std::string shapes_of(at::TensorList inputs) {
  std::vector<std::string> words;
  for (const at::Tensor& input : inputs) words.push_back(c10::str(input.sizes()));
  return fmt::format("{}", fmt::join(words, ", "));
}

}  // namespace

bool captures_step() noexcept { return captures; }

CapturedSteps::CapturedSteps(std::shared_ptr<StepCapture> updater, DeviceQueue queue)
    : updater_(std::move(updater)), queue_(std::move(queue)) {
  updater_->begin_captures();
}

CapturedSteps::Kind CapturedSteps::kind_of(at::TensorList inputs) {
  Kind kind;
  for (const at::Tensor& input : inputs) {
    kind.push_back(input.sizes().vec());
    kind.back().push_back(static_cast<int64_t>(input.scalar_type()));
  }
  return kind;
}

std::vector<at::Tensor> CapturedSteps::run(at::TensorList inputs, const Step& step) {
  for (size_t i = 0; i < inputs.size(); ++i)
    if (!inputs[i].defined() || inputs[i].device() != queue_.device())
      throw UsageError(fmt::format(
          "step_graph: input {} is {}, expected a tensor on {}, where the step is done again", i,
          inputs[i].defined() ? "on " + inputs[i].device().str() : "undefined",
          queue_.device().str()));
  updater_->before_step(0);
  const Kind kind = kind_of(inputs);
  if (graph_ && kind == captured_) {
    replay(inputs);
    updater_->replayed(0);
    return outputs_;
  }
  const int before = seen_[kind]++;
  if (!graph_ && before >= kWarmUp) return capture(inputs, step);
  if (graph_ && go_without_.insert(kind).second)
    log(LogLevel::info, "step_graph: inputs {} go on without it; it is of {}", shapes_of(inputs),
        shapes_of(inputs_));
  return step(inputs);
}

std::vector<at::Tensor> CapturedSteps::capture(at::TensorList inputs, const Step& step) {
  inputs_.clear();
  for (const at::Tensor& input : inputs) inputs_.push_back(input.detach().clone());
  graph_ = make_step_graph(queue_);
  try {
    const Capturing here;
    graph_->capture([&] { outputs_ = step(inputs_); });
  } catch (const std::exception& error) {
    forget();
    throw Error(
        fmt::format("step_graph: the step cannot be captured: {}\n  a captured step makes the host "
                    "wait for nothing and draws no random numbers; leave out --step-graph",
                    error.what()));
  }
  captured_ = kind_of(inputs);
  updater_->captured(0);
  log(LogLevel::info, "step_graph: from now on inputs {} are one graph", shapes_of(inputs));
  graph_->replay();  // the step that was captured
  return outputs_;
}

void CapturedSteps::replay(at::TensorList inputs) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < inputs.size(); ++i) inputs_[i].copy_(inputs[i], /*non_blocking=*/true);
  graph_->replay();
}

void CapturedSteps::forget() {
  graph_.reset();
  inputs_.clear();
  outputs_.clear();
  seen_.clear();
  go_without_.clear();
}

}  // namespace tutti::detail
