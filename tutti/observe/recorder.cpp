#include "tutti/observe/recorder.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tutti/base/error.h"

namespace tutti {
namespace {

const Recorded::Value& value_of(const Recorded& event, std::string_view field) {
  const auto found = event.fields.find(field);
  if (found == event.fields.end())
    throw Error(fmt::format("event {} has no field \"{}\"", event.name, field));
  return found->second;
}

template <class T>
const T& typed_value(const Recorded& event, std::string_view field, const char* type) {
  const T* const value = std::get_if<T>(&value_of(event, field));
  if (value == nullptr)
    throw Error(fmt::format("event {}: \"{}\" is no {}", event.name, field, type));
  return *value;
}

}  // namespace

int64_t Recorded::number(std::string_view field) const {
  return typed_value<int64_t>(*this, field, "whole number");
}
double Recorded::real(std::string_view field) const {
  return typed_value<double>(*this, field, "number");
}
const std::string& Recorded::text(std::string_view field) const {
  return typed_value<std::string>(*this, field, "text");
}

class Recorder::Kept final : public Sink {
 public:
  explicit Kept(std::vector<std::string> areas) : areas_(std::move(areas)) {}

  void on_event(const Event& event) noexcept override {
    const auto fits = [&](const std::string& area) { return event.name.starts_with(area); };
    if (std::ranges::none_of(areas_, fits)) return;
    Recorded one{.name = std::string(event.name), .when_us = since(event.when), .fields = {}};
    for (const Field& field : event.fields)
      std::visit(
          [&](const auto& value) {
            if constexpr (std::is_same_v<std::decay_t<decltype(value)>, std::string_view>)
              one.fields.emplace(field.name, std::string(value));
            else
              one.fields.emplace(field.name, value);
          },
          field.value);
    const std::scoped_lock lock(mutex_);
    if (events_.size() < kMostEvents)
      events_.push_back(std::move(one));
    else
      ++left_out_;
  }

  std::vector<Recorded> take() {
    const std::scoped_lock lock(mutex_);
    if (left_out_ > 0)
      throw Error(
          fmt::format("{} events; at most {} are recorded", kMostEvents + left_out_, kMostEvents));
    std::ranges::stable_sort(events_, {}, &Recorded::when_us);
    return std::move(events_);
  }

 private:
  double since(TimePoint when) const {
    return std::chrono::duration<double, std::micro>(when - began_).count();
  }

  const std::vector<std::string> areas_;
  const TimePoint began_ = Clock::now();
  std::mutex mutex_;  // guards what follows
  std::vector<Recorded> events_;
  size_t left_out_ = 0;
};

Recorder::Recorder(std::vector<std::string> areas)
    : kept_(std::make_shared<Kept>(std::move(areas))) {
  add_sink(kept_);
}

Recorder::~Recorder() { remove_sink(kept_); }

std::vector<Recorded> Recorder::end() {
  remove_sink(kept_);
  return kept_->take();
}

}  // namespace tutti
