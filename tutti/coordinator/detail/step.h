/// Functions that are known by name, without their types, and how arguments reach them.
/// Thread rule: registration in one thread, before coordinate(); the rest is const.
#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>

#include "tutti/coordinator/detail/values.h"
#include "tutti/coordinator/remote_worker.h"

namespace tutti::coordinator {

/// A registered function without its type.
struct Step {
  std::string name;
  std::string type;
  void (*function)() = nullptr;
  /// Reads the arguments, runs, writes the result. Empty: its result cannot travel.
  std::function<void(RemoteWorker&, ValueReader&, ValueWriter&)> run{};
  /// Makes a per-worker value. Empty: it takes arguments.
  std::function<std::shared_ptr<void>(RemoteWorker&)> make{};
};

/// Throws UsageError once coordinate() has begun: other processes would not know it.
void register_step(Step step);
/// Throws UsageError that names the nearest one.
const Step& step_named(const std::string& name);
/// From now on register_step() takes no new ones. Throws UsageError when two functions had one
/// name.
void close_registration();

template <class Parameter>
concept OfWorker =
    std::is_lvalue_reference_v<Parameter> && !std::is_const_v<std::remove_reference_t<Parameter>>;
template <class Parameter>
concept Takable = OfWorker<Parameter> || Sendable<std::decay_t<Parameter>>;

/// How an argument for a parameter of that type is written and read.
template <class Parameter>
struct Argument {
  using Value = std::decay_t<Parameter>;
  using Held = Value;
  template <class Given>
  static void write(ValueWriter& writer, const Given& given) {
    static_assert(std::convertible_to<const Given&, Value>,
                  "schedule: this argument is not what the step takes; a RemoteValue is none: "
                  "fetch() it first");
    Codec<Value>::write(writer, static_cast<Value>(given));
  }
  static Held read(RemoteWorker&, ValueReader& reader) { return Codec<Value>::read(reader); }
};
template <OfWorker Parameter>
struct Argument<Parameter> {
  using Value = std::remove_reference_t<Parameter>;
  using Held = Value&;
  template <class Given>
  static void write(ValueWriter& writer, const Given& given) {
    static_assert(std::same_as<Given, PerWorker<Value>>,
                  "schedule: where a step takes a T& it is given a PerWorker<T>");
    writer.kind('p');
    writer.number(given.number());
    Codec<std::string>::write(writer, given.factory());
  }
  static Held read(RemoteWorker& worker, ValueReader& reader) {
    return *static_cast<Value*>(worker.per_worker(reader, typeid(Value).name()));
  }
};

template <class Result, class... Parameters, class Call>
Step step_of(std::string name, void (*function)(), Call call) {
  static_assert((Takable<Parameters> && ...),
                "remote: a step takes tensors, numbers, strings, vectors and tuples of them, and "
                "per-worker values as T&");
  Step step{.name = std::move(name), .type = typeid(Result).name(), .function = function};
  if constexpr (std::is_void_v<Result> || Sendable<Result>)
    step.run = [call](RemoteWorker& worker, ValueReader& reader, ValueWriter& writer) {
      std::tuple<typename Argument<Parameters>::Held...> held{
          Argument<Parameters>::read(worker, reader)...};
      reader.end();
      const auto run = [&](auto&&... each) -> Result {
        return call(worker, std::forward<decltype(each)>(each)...);
      };
      if constexpr (std::is_void_v<Result>)
        std::apply(run, std::move(held));
      else
        Codec<Result>::write(writer, std::apply(run, std::move(held)));
    };
  if constexpr (sizeof...(Parameters) == 0 && !std::is_void_v<Result>)
    step.make = [call](RemoteWorker& worker) -> std::shared_ptr<void> {
      return std::make_shared<Result>(call(worker));
    };
  return step;
}

/// A function, or a lambda that captures nothing.
template <class Function>
concept Captureless = requires(Function function) {
  requires std::is_function_v<std::remove_pointer_t<decltype(+function)>>;
};

}  // namespace tutti::coordinator
