// A run of a program: that it begins, and that its devices are done.

#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/pjrt/c_api/detail/handles.h"
#include "tutti/pjrt/c_api/detail/within.h"

namespace tutti::pjrt {
namespace {

using detail::arguments;

/// Owns what the plugin reads, and what it gives until somebody takes it.
struct Execution {
  std::shared_ptr<detail::ProgramState> program;
  std::vector<std::vector<std::shared_ptr<detail::BufferState>>> inputs;  ///< by replica
  std::vector<std::vector<PJRT_Buffer*>> outputs{};
  std::vector<PJRT_Event*> done{};  ///< in the order of the program's devices

  void operator()();
};

void Execution::operator()() {
  std::vector<std::vector<PJRT_Buffer*>> lists(inputs.size());
  std::vector<PJRT_Buffer* const*> input_lists;
  std::vector<PJRT_Buffer**> output_lists;
  outputs.resize(inputs.size());
  done.resize(inputs.size());
  for (const size_t replica : program->devices) {  // replica r has the client's device r
    for (const auto& input : inputs[replica]) lists[replica].push_back(input->buffer);
    outputs[replica].resize(static_cast<size_t>(program->num_outputs));
    input_lists.push_back(lists[replica].data());
    output_lists.push_back(outputs[replica].data());
  }
  auto how = arguments<PJRT_ExecuteOptions>();
  auto args = arguments<PJRT_LoadedExecutable_Execute_Args>();
  args.executable = program->executable;
  args.options = &how;
  args.argument_lists = input_lists.data();
  args.num_devices = inputs.size();
  args.num_args = inputs[0].size();
  args.output_lists = output_lists.data();
  args.device_complete_events = done.data();
  program->client->api.call(&PJRT_Api::PJRT_LoadedExecutable_Execute,
                            "PJRT_LoadedExecutable_Execute", args);
}

/// A plugin of several processes may wait in there until all of them have begun the program.
void begin_within(Millis limit, const std::shared_ptr<Execution>& run) {
  const auto& client = run->program->client;
  const auto look = [&] { client->require_all("PJRT_LoadedExecutable_Execute"); };
  if (!client->key_values) return (*run)();
  try {
    detail::within(
        limit,
        fmt::format("{}: PJRT_LoadedExecutable_Execute has not come back, or another process has "
                    "not begun this program,",
                    client->api.words()),
        [run] {
          (*run)();
          return true;
        },
        look);
  } catch (const Error&) {
    look();
    throw;
  }
}

void require_lists(const detail::ProgramState& program,
                   const std::vector<std::vector<const Buffer*>>& lists) {
  if (std::ssize(lists) != program.replicas)
    throw UsageError(
        fmt::format("a program of {} replicas takes as many lists of arguments, got {}",
                    program.replicas, lists.size()));
  for (const auto& list : lists)
    if (list.size() != lists[0].size())
      throw UsageError(
          fmt::format("a program takes equally many arguments on each device, got {} and {}",
                      lists[0].size(), list.size()));
}

}  // namespace

int Program::replicas() const { return state_->replicas; }
int Program::num_outputs() const { return state_->num_outputs; }

Results Program::run(const std::vector<std::vector<const Buffer*>>& lists, Millis limit) const {
  require_lists(*state_, lists);
  auto run = std::make_shared<Execution>(Execution{.program = state_, .inputs = {}});
  for (const auto& list : lists) {
    auto& inputs = run->inputs.emplace_back();
    for (const Buffer* buffer : list) inputs.push_back(buffer->state_);
  }
  begin_within(limit, run);

  Results results;
  for (const auto& outputs : run->outputs) {
    std::vector<Buffer>& made = results.outputs.emplace_back();
    for (PJRT_Buffer* buffer : outputs)
      made.push_back(Buffer(std::make_shared<detail::BufferState>(state_->client, buffer)));
  }
  results.done.resize(lists.size());
  for (size_t place = 0; place < lists.size(); ++place)
    results.done[state_->devices[place]] = detail::watch(state_->client, run->done[place]);
  return results;
}

void Results::wait(const Deadline& deadline) const {
  std::string late;
  for (size_t device = 0; device < done.size(); ++device)
    if (!detail::await(*done[device], fmt::format("device {}", device), deadline))
      late += fmt::format("{}{}", late.empty() ? "" : ", ", device);
  if (!late.empty())
    throw Timeout(fmt::format("{}: not done within {} s: device {}{}", done[0]->client->api.words(),
                              std::chrono::duration<double>(deadline.limit()).count(), late,
                              done[0]->client->key_values != nullptr
                                  ? ", or another process has not begun this program"
                                  : ""));
}

}  // namespace tutti::pjrt
