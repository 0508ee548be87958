/// What may travel between a coordinator and its workers, and its bytes: numbers, strings, arrays,
/// and vectors, pairs and tuples of them. Tensors: strategy/remote_data.h.
///
/// Every value is preceded by a letter for its kind, so that bytes that were meant for something
/// else are found out. Thread rule: one thread at a time per writer or reader.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "tutti/base/array.h"

namespace tutti::coordinator {

class ValueWriter {
 public:
  void kind(char letter) { bytes_.push_back(letter); }
  void number(int64_t value);
  void real(double value);
  void raw(const void* from, int64_t num_bytes);
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

/// Throws Error, naming both kinds, for bytes that are not what is asked for, or end too early.
class ValueReader {
 public:
  explicit ValueReader(std::span<const std::byte> bytes) : left_(bytes) {}

  void kind(char letter);
  int64_t number();
  double real();
  /// A number of things that take at least `least_bytes` each, as long as the bytes that are left
  /// can hold them.
  int64_t count(int64_t least_bytes = 1);
  void raw(void* to, int64_t num_bytes);
  void end() const;

 private:
  std::span<const std::byte> left_;
};

/// Codec<T>: write(ValueWriter&, const T&) and read(ValueReader&) -> T, for each T that may travel.
template <class T>
struct Codec {};

template <class T>
concept Sendable = requires(ValueWriter& writer, ValueReader& reader, const T& value) {
  Codec<T>::write(writer, value);
  { Codec<T>::read(reader) } -> std::same_as<T>;
};

template <std::integral T>
struct Codec<T> {
  static void write(ValueWriter& writer, T value) {
    writer.kind('i');
    writer.number(static_cast<int64_t>(value));
  }
  static T read(ValueReader& reader) {
    reader.kind('i');
    return static_cast<T>(reader.number());
  }
};

template <std::floating_point T>
  requires(sizeof(T) <= sizeof(double))
struct Codec<T> {
  static void write(ValueWriter& writer, T value) {
    writer.kind('r');
    writer.real(value);
  }
  static T read(ValueReader& reader) {
    reader.kind('r');
    return static_cast<T>(reader.real());
  }
};

template <>
struct Codec<std::string> {
  static void write(ValueWriter& writer, const std::string& value);
  static std::string read(ValueReader& reader);
};

/// The elements arrive in fresh memory that starts on a 64-byte line.
template <>
struct Codec<Array> {
  static void write(ValueWriter& writer, const Array& value);
  static Array read(ValueReader& reader);
};

template <Sendable T>
struct Codec<std::vector<T>> {
  static void write(ValueWriter& writer, const std::vector<T>& values) {
    writer.kind('v');
    writer.number(std::ssize(values));
    for (const auto& value : values) Codec<T>::write(writer, value);
  }
  static std::vector<T> read(ValueReader& reader) {
    reader.kind('v');
    const int64_t count = reader.count();
    std::vector<T> values;
    for (int64_t i = 0; i < count; ++i) values.push_back(Codec<T>::read(reader));
    return values;
  }
};

template <Sendable... T>
struct Codec<std::tuple<T...>> {
  static void write(ValueWriter& writer, const std::tuple<T...>& values) {
    writer.kind('t');
    writer.number(sizeof...(T));
    std::apply([&](const T&... each) { (Codec<T>::write(writer, each), ...); }, values);
  }
  static std::tuple<T...> read(ValueReader& reader) {
    reader.kind('t');
    require_count(sizeof...(T), reader.number());
    return std::tuple<T...>{Codec<T>::read(reader)...};
  }
  /// Throws Error when a tuple of another length came.
  static void require_count(int64_t expected, int64_t got);
};

template <Sendable First, Sendable Second>
struct Codec<std::pair<First, Second>> {
  static void write(ValueWriter& writer, const std::pair<First, Second>& value) {
    Codec<std::tuple<First, Second>>::write(writer, value);
  }
  static std::pair<First, Second> read(ValueReader& reader) {
    auto [first, second] = Codec<std::tuple<First, Second>>::read(reader);
    return {std::move(first), std::move(second)};
  }
};

/// Throws Error.
[[noreturn]] void wrong_count(int64_t expected, int64_t got);

template <Sendable... T>
void Codec<std::tuple<T...>>::require_count(int64_t expected, int64_t got) {
  if (expected != got) wrong_count(expected, got);
}

}  // namespace tutti::coordinator
