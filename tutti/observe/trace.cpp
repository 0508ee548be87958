#include "tutti/observe/trace.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "tutti/base/detail/pause_meter.h"
#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/json.h"
#include "tutti/base/log.h"

namespace tutti {
namespace {

OrderedJson json_of(const Field::Value& value) {
  return std::visit([](const auto& known) { return OrderedJson(known); }, value);
}

std::filesystem::path file_of_worker(std::filesystem::path file, int worker) {
  if (worker == 0) return file;
  const std::string name =
      fmt::format("{}.{}{}", file.stem().string(), worker, file.extension().string());
  return file.replace_filename(name);
}

}  // namespace

Trace::Trace(int process, std::string name) : process_(process), name_(std::move(name)) {}

void Trace::on_event(const Event& event) noexcept {
  try {
    keep(event);
  } catch (const std::exception&) {
    const std::lock_guard lock(mutex_);
    ++left_out_;
  }
}

void Trace::keep(const Event& event) {
  using Micro = std::chrono::duration<double, std::micro>;
  // By the clock that the processes of a machine share: with pauses, unlike Clock.
  const auto when = event.when.time_since_epoch() + detail::paused_so_far();
  Entry entry{.begin_us = Micro(when).count(), .name = std::string(event.name)};
  OrderedJson arguments = OrderedJson::object();
  for (const Field& field : event.fields) {
    if (field.name != "us") {
      arguments[std::string(field.name)] = json_of(field.value);
    } else if (const auto* const us = std::get_if<double>(&field.value)) {
      entry.length_us = *us;
      entry.begin_us -= *us;
    }
  }
  entry.arguments = dump_json(arguments);
  const std::lock_guard lock(mutex_);
  if (entries_.size() == kMostEvents) {
    ++left_out_;
    return;
  }
  entry.thread = threads_.try_emplace(gettid(), static_cast<int>(threads_.size())).first->second;
  entries_.push_back(std::move(entry));
}

std::string Trace::json() const {
  const std::lock_guard lock(mutex_);
  std::vector<const Entry*> sorted;
  for (const Entry& entry : entries_) sorted.push_back(&entry);
  std::ranges::stable_sort(sorted, {}, &Entry::begin_us);
  std::string text = fmt::format(
      "{{\"displayTimeUnit\":\"ms\",\"leftOut\":{},\"traceEvents\":[\n"
      "{{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":{},\"tid\":0,\"args\":{{\"name\":{}}}}}",
      left_out_, process_, dump_json(OrderedJson(name_)));
  for (const Entry* const entry : sorted) {
    const std::string length = entry->length_us < 0
                                   ? R"("ph":"i","s":"t")"
                                   : fmt::format(R"("ph":"X","dur":{:.3f})", entry->length_us);
    text += fmt::format(",\n{{\"name\":{},{},\"ts\":{:.3f},\"pid\":{},\"tid\":{},\"args\":{}}}",
                        dump_json(OrderedJson(entry->name)), length, entry->begin_us, process_,
                        entry->thread, entry->arguments);
  }
  return text + "\n]}\n";
}

RunningTrace::RunningTrace(const std::filesystem::path& file, int worker)
    : file_(file_of_worker(file, worker)) {
  require_writable(file_, "trace");
  trace_ = std::make_shared<Trace>(worker, fmt::format("worker {}", worker));
  add_sink(trace_);
}

void RunningTrace::end() {
  const std::shared_ptr<Trace> trace = std::exchange(trace_, nullptr);
  if (!trace) return;
  remove_sink(trace);
  try {
    write_file_atomically(file_, trace->json());
  } catch (const Error& error) {
    throw Error(fmt::format("the trace is lost: {}", error.what()));
  }
}

RunningTrace::~RunningTrace() {
  try {
    end();
  } catch (const std::exception& error) {
    log(LogLevel::error, "{}", error.what());
  }
}

std::shared_ptr<RunningTrace> trace_by_environment(const std::function<int()>& worker) {
  static std::mutex mutex;
  static std::weak_ptr<RunningTrace> running;
  const char* const file = std::getenv(kTraceVariable);
  if (file == nullptr || *file == 0) return nullptr;
  const std::lock_guard lock(mutex);
  auto trace = running.lock();
  if (!trace) running = trace = std::make_shared<RunningTrace>(file, worker());
  return trace;
}

}  // namespace tutti
