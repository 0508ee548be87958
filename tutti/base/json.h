/// JSON that others wrote or read: in files, in the environment, between processes. A Json keeps
/// the keys of its objects sorted, an OrderedJson as they came; else they are the same. A number is
/// an int64, uint64 or double, as it was written.
///
/// nlohmann reads and writes the text, in json.cpp alone: its headers, and what a compiler makes of
/// them, cost each source that sees them two seconds. Thread rule: values, and pure functions.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <ranges>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "tutti/base/detail/json_types.h"

namespace tutti {

/// Text that is no JSON or too deep; a value that has another type than was asked for, or has not
/// what was asked for.
class JsonError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Text that is no JSON: what() has line and column.
class JsonSyntaxError final : public JsonError {
 public:
  JsonSyntaxError(const std::string& what, size_t at) : JsonError(what), byte(at) {}
  const size_t byte;  ///< from 1 on
};

/// A value: null, a boolean, a number, a string, an array or an object. Each copy is of its own.
/// What asks for something that it is not, or has not, throws JsonError, which says what it is.
template <bool sorted>
class BasicJson {
 public:
  using Array = std::vector<BasicJson>;
  using Member = std::pair<std::string, BasicJson>;
  using Object = std::vector<Member>;

  BasicJson() noexcept;                // null
  BasicJson(std::nullptr_t) noexcept;  // NOLINT(google-explicit-constructor)
  /// An object where each element is an array of a text and a value, else an array.
  BasicJson(std::initializer_list<BasicJson> list);
  BasicJson(const BasicJson<!sorted>& other);  // NOLINT(google-explicit-constructor)
  /// Of a number, an enum's too, a text, a tuple or a range; a map is an object.
  template <detail::ToJson T>
  BasicJson(const T& value);  // NOLINT(google-explicit-constructor)
  BasicJson(const BasicJson& other);
  BasicJson(BasicJson&& other) noexcept;
  BasicJson& operator=(const BasicJson& other);
  BasicJson& operator=(BasicJson&& other) noexcept;
  ~BasicJson();

  static BasicJson array(std::initializer_list<BasicJson> elements = {});
  static BasicJson object();

  bool is_null() const noexcept { return is<std::monostate>(); }
  bool is_boolean() const noexcept { return is<bool>(); }
  bool is_number() const noexcept { return is_number_integer() || is_number_float(); }
  bool is_number_integer() const noexcept { return is<int64_t>() || is<uint64_t>(); }
  bool is_number_unsigned() const noexcept { return is<uint64_t>(); }
  bool is_number_float() const noexcept { return is<double>(); }
  bool is_string() const noexcept { return is<std::string>(); }
  bool is_array() const noexcept { return is<Array>(); }
  bool is_object() const noexcept { return is<Object>(); }
  /// "null", "boolean", "number", "string", "array" or "object".
  const char* type_name() const noexcept;

  /// Elements of an array or members of an object; 1 for a scalar, 0 for null.
  size_t size() const noexcept;
  bool empty() const noexcept { return size() == 0; }

  /// The value as a T: a number (a fraction is cut off), an enum, a text, a pair, a range or a map.
  template <class T>
  T get() const;
  template <class T>
  void get_to(T& value) const {
    value = get<T>();
  }
  template <class T>
    requires(!detail::is_json<T> && !std::is_pointer_v<T> && !std::is_same_v<T, char> &&
             !std::is_same_v<T, std::nullptr_t> && !std::is_same_v<T, std::string_view> &&
             !std::is_same_v<T, std::initializer_list<char>>)
  operator T() const {  // NOLINT(google-explicit-constructor)
    return get<T>();
  }
  const std::string& text() const;  ///< of a string
  const Array& elements() const;
  const Object& items() const;  ///< none of null

  bool contains(std::string_view key) const noexcept { return lookup(key) != nullptr; }
  const BasicJson& at(std::string_view key) const;
  BasicJson& at(std::string_view key);
  template <std::integral I>
  const BasicJson& at(I index) const {
    return element(static_cast<size_t>(index));
  }
  const BasicJson& operator[](std::string_view key) const { return at(key); }
  /// A literal; what is built in takes one for the array that a number is an index of.
  const BasicJson& operator[](const char* key) const { return at(key); }
  /// A member that is not there comes with null; null becomes an object.
  BasicJson& operator[](std::string_view key);
  BasicJson& operator[](const char* key) { return (*this)[std::string_view(key)]; }
  template <std::integral I>
  const BasicJson& operator[](I index) const {
    return at(index);
  }
  template <std::integral I>
  BasicJson& operator[](I index) {
    return const_cast<BasicJson&>(std::as_const(*this).at(index));
  }
  const BasicJson& front() const { return at(0); }
  const BasicJson& back() const { return at(size() - 1); }
  BasicJson& back() { return (*this)[size() - 1]; }
  /// The member of this object, or `otherwise` where it is not there.
  template <class T>
  T value(std::string_view key, T otherwise) const {
    const BasicJson* found = member_of_object(key);
    return found == nullptr ? std::move(otherwise) : found->template get<T>();
  }
  std::string value(std::string_view key, const char* otherwise) const {
    return value(key, std::string(otherwise));
  }

  void push_back(BasicJson element);  ///< null becomes an array
  void erase(std::string_view key);
  /// Takes the members of `other`, in the place of those with their keys.
  void update(const BasicJson& other);

  /// Over the elements of an array or the values of an object; over nothing in null.
  template <class Value>
  class Iterator;
  using iterator = Iterator<BasicJson>;
  using const_iterator = Iterator<const BasicJson>;
  iterator begin();
  iterator end();
  const_iterator begin() const;
  const_iterator end() const;
  const_iterator find(std::string_view key) const;

  /// dump_json() of it.
  std::string dump(int indent = -1) const;

  /// Numbers by their value, whichever types they have.
  friend bool operator==(const BasicJson& a, const BasicJson& b) noexcept { return a.equals(b); }
  template <detail::ToJson T>
  friend bool operator==(const BasicJson& a, const T& b) {
    return a.equals(BasicJson(b));
  }

 private:
  template <class J>
  friend class detail::JsonReader;

  template <class T>
  bool is() const noexcept {
    return std::holds_alternative<T>(value_);
  }
  void set(bool value) noexcept;
  void set(int64_t value) noexcept;
  void set(uint64_t value) noexcept;
  void set(double value) noexcept;
  void set(std::string value) noexcept;
  bool boolean() const;
  void number_to(int64_t& value) const;
  void number_to(uint64_t& value) const;
  void number_to(double& value) const;
  const Member* lookup(std::string_view key) const noexcept;
  const BasicJson* member_of_object(std::string_view key) const;
  const BasicJson& element(size_t index) const;
  bool equals(const BasicJson& other) const noexcept;
  [[noreturn]] void fail_type(const char* expected) const;

  std::variant<std::monostate, bool, int64_t, uint64_t, double, std::string, Array, Object> value_;
};

/// Arrays and objects within one another, unless a format says fewer.
inline constexpr int kMostJsonDepth = 256;

/// Asked at the end of each object, which has so many others and arrays around it: whether to keep
/// it.
template <class J>
using KeepObject = std::function<bool(int depth, J& object)>;

/// The value that `text` is. Throws JsonSyntaxError for what is no JSON, and JsonError, with line
/// and column, for what is nested deeper than `most_depth`.
template <class J = Json>
J parse_json(std::string_view text, int most_depth = kMostJsonDepth,
             const std::type_identity_t<KeepObject<J>>& keep = {});

/// The same of a text whose objects have each key once, which JSON itself does not ask for;
/// JsonError names one that comes again.
Json parse_json_once(std::string_view text, int most_depth = kMostJsonDepth);

/// Whether `text` is JSON, however deep.
bool is_json(std::string_view text);

/// `json` as text: on one line, or with `indent` spaces a level on lines of their own. Throws
/// JsonError for a string that is not UTF-8.
template <bool sorted>
std::string dump_json(const BasicJson<sorted>& json, int indent = -1);

/// The same with U+FFFD for what is not UTF-8; `ascii`: with escapes for all that is not ASCII.
template <bool sorted>
std::string dump_json_lossy(const BasicJson<sorted>& json, int indent = -1, bool ascii = false);

}  // namespace tutti

#include "tutti/base/detail/json_value.h"
