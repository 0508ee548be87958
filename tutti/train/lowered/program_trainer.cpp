#include "tutti/train/lowered/program_trainer.h"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/file.h"

namespace tutti {
namespace {

constexpr std::string_view kBytecodeOfMlir = "ML\xEFR";  // how MLIR's begins

std::string words_of_count(size_t count, std::string_view what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

pjrt::ArrayType type_of_array(const Array& array) {
  return {.dtype = array.dtype(), .shape = array.shape()};
}

/// Throws UsageError unless `got` begins with `expected`.
void require_begin_of_main(const std::string& file, std::string_view what,
                           const std::vector<pjrt::ArrayType>& got,
                           const std::vector<pjrt::ArrayType>& expected) {
  if (got.size() < expected.size())
    throw UsageError(fmt::format(
        "program {}: main() has {}, expected at least as many as the {} "
        "that it keeps",
        file, words_of_count(got.size(), what), words_of_count(expected.size(), "array")));
  for (size_t i = 0; i < expected.size(); ++i)
    if (got[i] != expected[i])
      throw UsageError(
          fmt::format("program {}: {} {} of main() is {}, array {} that it keeps {}: "
                      "what is kept stands first, in the same order",
                      file, what, i, words_of(got[i]), i, words_of(expected[i])));
}

std::string code_of_program(const std::filesystem::path& file, int replicas) {
  std::string code = read_file(file);
  if (code.empty())
    throw DataError(
        fmt::format("program {}: the file is empty, expected StableHLO", file.string()));
  if (replicas > 1 && code.starts_with(kBytecodeOfMlir))
    throw UsageError(fmt::format(
        "program {}: {} replicas of bytecode, which does not say here for how many it is; write it "
        "as text, with mhlo.num_replicas = {}",
        file.string(), replicas, replicas));
  return code;
}

pjrt::Program compiled_from(const pjrt::Client& client, const std::filesystem::path& file,
                            const ProgramOptions& options) {
  const std::string code = code_of_program(file, options.replicas);
  const auto words = [&](const Error& error) {
    return fmt::format("program {}: {}", file.string(), error.what());
  };
  try {
    return client.compile(code, {.replicas = options.replicas, .limit = options.limit});
  } catch (const UsageError& error) {
    throw UsageError(words(error));
  } catch (const Timeout& error) {
    throw Timeout(words(error));
  } catch (const Error& error) {
    throw DataError(words(error));
  }
}

}  // namespace

std::vector<std::vector<Array>> ProgramStep::figures(const Deadline& deadline) const {
  results_.wait(deadline);
  std::vector<std::vector<Array>> figures(results_.outputs.size());
  for (size_t replica = 0; replica < figures.size(); ++replica) {
    const auto& outputs = results_.outputs[replica];
    for (size_t i = num_kept_; i < outputs.size(); ++i)
      figures[replica].push_back(outputs[i].to_host(deadline));
  }
  return figures;
}

struct ProgramTrainer::State {
  std::string file;
  pjrt::Client client;
  ProgramOptions options;
  pjrt::Program program;
  std::vector<pjrt::ArrayType> kept;
  std::optional<std::vector<pjrt::ArrayType>>
      arguments;                                   ///< nothing where the plugin does not say them
  std::vector<std::vector<pjrt::Buffer>> devices;  ///< what each replica keeps

  void require_inputs(const std::vector<Array>& inputs, size_t replica) const {
    if (!arguments) return;
    const size_t expected = arguments->size() - kept.size();
    if (inputs.size() != expected)
      throw UsageError(fmt::format("program {}: replica {} got {} for a step, expected {}", file,
                                   replica, words_of_count(inputs.size(), "array"), expected));
    for (size_t i = 0; i < expected; ++i)
      if (const pjrt::ArrayType& type = (*arguments)[kept.size() + i];
          type_of_array(inputs[i]) != type)
        throw UsageError(fmt::format("program {}: input {} of replica {} is {}, expected {}", file,
                                     i, replica, words_of(type_of_array(inputs[i])),
                                     words_of(type)));
  }

  std::vector<pjrt::Buffer> sent(const std::vector<Array>& arrays, size_t replica) const {
    std::vector<pjrt::Buffer> buffers;
    buffers.reserve(arrays.size());
    for (const Array& array : arrays)
      buffers.push_back(client.to_device(array, static_cast<int>(replica)));
    return buffers;
  }
};

ProgramTrainer::ProgramTrainer(pjrt::Client client, const std::filesystem::path& file,
                               const std::vector<Array>& state, ProgramOptions options) {
  if (state.empty())
    throw UsageError(
        fmt::format("program {}: it keeps nothing, expected at least one array", file.string()));
  std::vector<pjrt::ArrayType> kept;
  for (const Array& array : state) kept.push_back(type_of_array(array));
  pjrt::Program program = compiled_from(client, file, options);
  require_begin_of_main(file.string(), "result", program.output_types(), kept);
  auto arguments = program.argument_types();
  if (arguments) require_begin_of_main(file.string(), "argument", *arguments, kept);
  state_ = std::make_unique<State>(State{file.string(),
                                         std::move(client),
                                         options,
                                         std::move(program),
                                         std::move(kept),
                                         std::move(arguments),
                                         {}});
  state_->devices.resize(static_cast<size_t>(options.replicas));
  load(state);
}

ProgramTrainer::~ProgramTrainer() = default;
ProgramTrainer::ProgramTrainer(ProgramTrainer&&) noexcept = default;

ProgramStep ProgramTrainer::step(const std::vector<std::vector<Array>>& inputs) {
  State& s = *state_;
  if (inputs.size() != s.devices.size())
    throw UsageError(fmt::format("program {}: inputs of {}, expected of {}", s.file,
                                 words_of_count(inputs.size(), "replica"), s.devices.size()));
  for (size_t replica = 0; replica < inputs.size(); ++replica)
    s.require_inputs(inputs[replica], replica);
  std::vector<std::vector<pjrt::Buffer>> sent;
  std::vector<std::vector<const pjrt::Buffer*>> lists(inputs.size());
  for (size_t replica = 0; replica < inputs.size(); ++replica) {
    sent.push_back(s.sent(inputs[replica], replica));
    for (const pjrt::Buffer& buffer : s.devices[replica]) lists[replica].push_back(&buffer);
    for (const pjrt::Buffer& buffer : sent[replica]) lists[replica].push_back(&buffer);
  }
  pjrt::Results results = s.program.run(lists, s.options.limit);
  for (size_t replica = 0; replica < inputs.size(); ++replica) {
    const auto& outputs = results.outputs[replica];
    s.devices[replica].assign(outputs.begin(),
                              outputs.begin() + static_cast<std::ptrdiff_t>(s.kept.size()));
  }
  return {std::move(results), s.kept.size()};
}

std::vector<Array> ProgramTrainer::state(int replica) const {
  if (replica < 0 || replica >= state_->options.replicas)
    throw UsageError(fmt::format("program {}: replica {} of {}: they count from 0", state_->file,
                                 replica, state_->options.replicas));
  const Deadline deadline(state_->options.limit);
  std::vector<Array> arrays;
  for (const pjrt::Buffer& buffer : state_->devices[static_cast<size_t>(replica)])
    arrays.push_back(buffer.to_host(deadline));
  return arrays;
}

void ProgramTrainer::load(const std::vector<Array>& state) {
  State& s = *state_;
  if (state.size() != s.kept.size())
    throw UsageError(fmt::format("program {}: got {} to keep, expected {}", s.file,
                                 words_of_count(state.size(), "array"), s.kept.size()));
  for (size_t i = 0; i < state.size(); ++i)
    if (type_of_array(state[i]) != s.kept[i])
      throw UsageError(fmt::format("program {}: array {} to keep is {}, expected {}", s.file, i,
                                   words_of(type_of_array(state[i])), words_of(s.kept[i])));
  auto devices = s.devices;  // all of it, or nothing
  for (size_t replica = 0; replica < devices.size(); ++replica)
    devices[replica] = s.sent(state, replica);
  s.devices = std::move(devices);
}

}  // namespace tutti
