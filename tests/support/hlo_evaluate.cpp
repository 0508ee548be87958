#include "tests/support/hlo_evaluate.h"

#include <algorithm>
#include <ranges>
#include <string>
#include <string_view>
#include <utility>

#include "tutti/base/deadline.h"
#include "tutti/pjrt/plugin.h"

#include "tests/support/expect.h"

namespace tutti::test {
namespace {

constexpr int kDevices = 2;
constexpr Millis kLimit{120'000};

template <class T>
Array array_with(std::vector<int64_t> shape, const std::vector<T>& elements) {
  Array array = Array::zeros(dtype_of<T>(), std::move(shape));
  std::ranges::copy(elements, array.as<T>().begin());
  return array;
}

}  // namespace

std::string cpu_plugin() {
  // As CMake lists folders.
  std::vector<std::string> folders;
  for (const auto folder : std::views::split(std::string_view(TUTTI_SITE_PACKAGES), ';'))
    folders.emplace_back(folder.begin(), folder.end());
  return pjrt::find_plugin("cpu", folders);
}

pjrt::Client cpu_client() {
  return pjrt::Client::open(cpu_plugin(), {.options = pjrt::options_for("cpu", kDevices)});
}

void Evaluated::SetUp() {
  if (!pjrt::available() || refusal_of<UsageError>([] { cpu_plugin(); }) != "")
    GTEST_SKIP() << "needs PJRT's header and its plugin for CPUs (tools/setup --pjrt)";
}

Array array_of(std::vector<int64_t> shape, const std::vector<float>& elements) {
  return array_with(std::move(shape), elements);
}

Array array_of(std::vector<int64_t> shape, const std::vector<int32_t>& elements) {
  return array_with(std::move(shape), elements);
}

std::vector<float> floats_of(const Array& array) {
  const auto elements = array.as<float>();
  return {elements.begin(), elements.end()};
}

struct Evaluation::State {
  pjrt::Client client;
  pjrt::Program program;
};

Evaluation::Evaluation(const hlo::Program& program)
    : Evaluation(program.text(), program.replicas()) {}

Evaluation::Evaluation(std::string_view text, int replicas) {
  const pjrt::Client client = cpu_client();
  state_ = std::make_unique<State>(State{client, client.compile(text, {.replicas = replicas})});
}

Evaluation::Evaluation(Evaluation&&) noexcept = default;
Evaluation::~Evaluation() = default;

std::vector<std::vector<Array>> Evaluation::run(
    const std::vector<std::vector<Array>>& arguments) const {
  std::vector<std::vector<pjrt::Buffer>> buffers(arguments.size());
  std::vector<std::vector<const pjrt::Buffer*>> lists(arguments.size());
  for (size_t replica = 0; replica < arguments.size(); ++replica) {
    for (const Array& argument : arguments[replica])
      buffers[replica].push_back(state_->client.to_device(argument, static_cast<int>(replica)));
    for (const pjrt::Buffer& buffer : buffers[replica]) lists[replica].push_back(&buffer);
  }
  const Deadline deadline(kLimit);
  const pjrt::Results results = state_->program.run(lists);
  results.wait(deadline);
  std::vector<std::vector<Array>> arrays(results.outputs.size());
  for (size_t replica = 0; replica < arrays.size(); ++replica)
    for (const pjrt::Buffer& output : results.outputs[replica])
      arrays[replica].push_back(output.to_host(deadline));
  return arrays;
}

std::vector<Array> evaluate(const hlo::Program& program, const std::vector<Array>& arguments) {
  return std::move(Evaluation(program).run({arguments})[0]);
}

}  // namespace tutti::test
