#include "tutti/coordinator/remote_worker.h"

#include <map>

#include "tutti/base/error.h"
#include "tutti/base/suggest.h"
#include "tutti/coordinator/detail/step.h"

namespace tutti {
namespace coordinator {
namespace {

struct Registry {
  std::map<std::string, Step> steps;
  std::string objection;  // nobody would catch an error at namespace scope
  bool closed = false;
};

Registry& registry() {
  static Registry all;
  return all;
}

}  // namespace

void register_step(Step step) {
  Registry& all = registry();
  const auto known = all.steps.find(step.name);
  if (known != all.steps.end() && known->second.function == step.function) return;
  if (all.closed)
    throw UsageError(
        fmt::format("remote: \"{}\" is named inside coordinate(), where workers never come: name "
                    "it at namespace scope, const auto step = tutti::remote(\"{}\", ...)",
                    step.name, step.name));
  if (known != all.steps.end())
    all.objection =
        fmt::format("remote: two functions are named \"{}\"; give each its own name", step.name);
  all.steps.emplace(step.name, std::move(step));
}

const Step& step_named(const std::string& name) {
  const auto& steps = registry().steps;
  const auto known = steps.find(name);
  if (known != steps.end()) return known->second;
  std::vector<std::string> names;
  for (const auto& [other, step] : steps) names.push_back(other);
  throw UsageError(unknown_message("step", name, names));
}

void close_registration() {
  registry().closed = true;
  if (!registry().objection.empty()) throw UsageError(registry().objection);
}

}  // namespace coordinator

RemoteWorker::~RemoteWorker() {
  while (!kept_.empty()) kept_.pop_back();
}

void* RemoteWorker::find(const std::string& key) const {
  for (const Kept& kept : kept_)
    if (kept.key == key) return kept.value.get();
  return nullptr;
}

void* RemoteWorker::add(const std::string& key, std::shared_ptr<void> value) {
  kept_.push_back({key, std::move(value)});
  return kept_.back().value.get();
}

void* RemoteWorker::per_worker(coordinator::ValueReader& reader, const char* type) {
  reader.kind('p');
  const int64_t number = reader.number();
  const std::string factory = coordinator::Codec<std::string>::read(reader);
  const std::string key = fmt::format("#{} by {}", number, factory);
  if (void* const known = find(key)) return known;
  const coordinator::Step& step = coordinator::step_named(factory);
  if (!step.make || step.type != type)
    throw Error(fmt::format("\"{}\" does not make what this step takes", factory));
  return add(key, step.make(*this));
}

}  // namespace tutti
