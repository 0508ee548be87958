#include "tutti/base/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include <nlohmann/json.hpp>

namespace tutti {
namespace {

[[noreturn]] void fail_depth(std::string_view before, int most_depth) {
  const size_t line_begin = before.rfind('\n') + 1;  // npos + 1 is 0
  throw JsonError(fmt::format("line {}, column {}: arrays and objects are nested deeper than {}",
                              std::ranges::count(before, '\n') + 1, before.size() - line_begin + 1,
                              most_depth));
}

/// Throws where `text` opens an array or object more than `most_depth` deep. Whether it is JSON
/// otherwise is not looked at. nlohmann's reader takes any depth, but what walks over a value goes
/// as deep as the text says: a line of 100,000 brackets would end the process by the overflow of
/// its stack.
void require_json_depth(std::string_view text, int most_depth) {
  const auto opens = [](char letter) { return letter == '[' || letter == '{'; };
  // Of most texts this is all: a loop that the compiler makes wide.
  if (std::ranges::count_if(text, opens) <= most_depth) return;
  int depth = 0;
  bool quoted = false;
  for (size_t at = 0; at < text.size(); ++at) {
    const char letter = text[at];
    if (quoted) {
      if (letter == '\\') ++at;
      quoted = letter != '"';
    } else if (letter == '"') {
      quoted = true;
    } else if (opens(letter)) {
      if (++depth > most_depth) fail_depth(text.substr(0, at), most_depth);
    } else if (letter == ']' || letter == '}') {
      --depth;
    }
  }
}

/// nlohmann's words without the name of its class.
std::string words_of(const nlohmann::json::exception& error) {
  const std::string_view what = error.what();
  const size_t end = what.find("] ");
  return std::string(what.starts_with('[') && end != what.npos ? what.substr(end + 2) : what);
}

/// A key that came twice has its first place and its last value, as nlohmann's objects have it, or
/// is refused.
template <class Object>
void settle(Object& members, bool sorted, bool once = false) {
  std::vector<size_t> by_key(members.size());
  std::iota(by_key.begin(), by_key.end(), size_t{0});
  const auto key_of = [&](size_t i) -> const std::string& { return members[i].first; };
  std::ranges::stable_sort(by_key, {}, key_of);
  std::vector<size_t> kept;
  for (const size_t i : by_key) {
    if (kept.empty() || key_of(kept.back()) != key_of(i)) {
      kept.push_back(i);
    } else {
      if (once) throw JsonError(fmt::format("key \"{}\" is there twice", key_of(i)));
      members[kept.back()].second = std::move(members[i].second);
    }
  }
  if (!sorted) std::ranges::sort(kept);
  if (std::ranges::is_sorted(kept) && kept.size() == members.size()) return;
  Object all;
  for (const size_t i : kept) all.push_back(std::move(members[i]));
  members = std::move(all);
}

}  // namespace

namespace detail {

/// What nlohmann's reader calls as it goes through a text.
template <class J>
class JsonReader {
 public:
  JsonReader(const KeepObject<J>& keep, bool once) : keep_(keep), once_(once) {}

  bool null() { return add({}); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(int64_t value) { return add(value); }
  bool number_unsigned(uint64_t value) { return add(value); }
  bool number_float(double value, const std::string& /*as_written*/) { return add(value); }
  bool string(std::string& value) { return add(std::move(value)); }
  bool binary(std::vector<uint8_t>& /*not in text*/) { return false; }

  bool start_array(size_t /*unknown*/) { return open(typename J::Array{}); }
  bool start_object(size_t /*unknown*/) { return open(typename J::Object{}); }
  bool key(std::string& key) {
    std::get<typename J::Object>(open_.back().value_).emplace_back(std::move(key), J());
    return true;
  }
  bool end_array() { return add(take_last()); }
  bool end_object() {
    J object = take_last();
    settle(std::get<typename J::Object>(object.value_), std::is_same_v<J, Json>, once_);
    if (!keep_ || keep_(static_cast<int>(open_.size()), object)) return add(std::move(object));
    if (!open_.empty() && open_.back().is_object())
      std::get<typename J::Object>(open_.back().value_).pop_back();
    return true;
  }

  bool parse_error(size_t byte, const std::string& /*last*/,
                   const nlohmann::json::exception& error) {
    if (dynamic_cast<const nlohmann::json::parse_error*>(&error) == nullptr)
      throw JsonError(words_of(error));  // a number that no type holds
    throw JsonSyntaxError(words_of(error), byte);
  }

  J take() { return std::move(whole_); }

 private:
  template <class Container>
  bool open(Container container) {
    open_.emplace_back().value_ = std::move(container);
    return true;
  }
  J take_last() {
    J last = std::move(open_.back());
    open_.pop_back();
    return last;
  }
  bool add(J value) {
    if (open_.empty())
      whole_ = std::move(value);
    else if (auto* array = std::get_if<typename J::Array>(&open_.back().value_))
      array->push_back(std::move(value));
    else
      std::get<typename J::Object>(open_.back().value_).back().second = std::move(value);
    return true;
  }

  const KeepObject<J>& keep_;
  const bool once_;
  std::vector<J> open_;  // the arrays and objects around what comes next
  J whole_;
};

}  // namespace detail

namespace {

template <class J>
nlohmann::ordered_json nlohmanns(const J& json) {
  if (json.is_array()) {
    auto all = nlohmann::ordered_json::array();
    for (const J& element : json) all.push_back(nlohmanns(element));
    return all;
  }
  if (json.is_object()) {
    nlohmann::ordered_json::object_t all;  // a vector: nothing is looked for in it
    all.reserve(json.size());
    for (const auto& [key, value] : json.items()) all.emplace_back(key, nlohmanns(value));
    return all;
  }
  if (json.is_string()) return json.text();
  if (json.is_boolean()) return json.template get<bool>();
  if (json.is_number_unsigned()) return json.template get<uint64_t>();
  if (json.is_number_integer()) return json.template get<int64_t>();
  if (json.is_number_float()) return json.template get<double>();
  return nullptr;
}

template <class J>
std::string dumped(const J& json, int indent, bool ascii,
                   nlohmann::ordered_json::error_handler_t not_utf8) {
  try {
    return nlohmanns(json).dump(indent, ' ', ascii, not_utf8);
  } catch (const nlohmann::json::exception& error) {
    throw JsonError(words_of(error));
  }
}

}  // namespace

template <bool sorted>
BasicJson<sorted>::BasicJson() noexcept = default;
template <bool sorted>
BasicJson<sorted>::BasicJson(std::nullptr_t) noexcept {}
template <bool sorted>
BasicJson<sorted>::BasicJson(const BasicJson& other) = default;
template <bool sorted>
BasicJson<sorted>::BasicJson(BasicJson&& other) noexcept : value_(std::move(other.value_)) {
  other.value_ = std::monostate();
}
template <bool sorted>
BasicJson<sorted>& BasicJson<sorted>::operator=(const BasicJson& other) {
  return *this = BasicJson(other);  // which may be a part of this
}
template <bool sorted>
BasicJson<sorted>& BasicJson<sorted>::operator=(BasicJson&& other) noexcept {
  auto value = std::exchange(other.value_, std::monostate());
  value_ = std::move(value);
  return *this;
}
template <bool sorted>
BasicJson<sorted>::~BasicJson() = default;

template <bool sorted>
BasicJson<sorted>::BasicJson(std::initializer_list<BasicJson> list) {
  const auto is_member = [](const BasicJson& element) {
    return element.is_array() && element.size() == 2 && element.front().is_string();
  };
  if (!std::ranges::all_of(list, is_member)) {
    value_ = Array(list);
    return;
  }
  value_ = Object();
  for (const BasicJson& element : list)
    if (!contains(element.front().text())) (*this)[element.front().text()] = element.back();
}

template <bool sorted>
BasicJson<sorted>::BasicJson(const BasicJson<!sorted>& other) {
  if (other.is_array()) {
    value_ = Array(other.begin(), other.end());
  } else if (other.is_object()) {
    auto& members = value_.template emplace<Object>();
    for (const auto& [key, value] : other.items()) members.emplace_back(key, value);
    settle(members, sorted);
  } else if (other.is_string()) {
    value_ = other.text();
  } else if (other.is_boolean()) {
    value_ = other.template get<bool>();
  } else if (other.is_number_unsigned()) {
    value_ = other.template get<uint64_t>();
  } else if (other.is_number_integer()) {
    value_ = other.template get<int64_t>();
  } else if (other.is_number_float()) {
    value_ = other.template get<double>();
  }
}

template <bool sorted>
BasicJson<sorted> BasicJson<sorted>::array(std::initializer_list<BasicJson> elements) {
  BasicJson json;
  json.value_ = Array(elements);
  return json;
}
template <bool sorted>
BasicJson<sorted> BasicJson<sorted>::object() {
  BasicJson json;
  json.value_ = Object();
  return json;
}

template <bool sorted>
const char* BasicJson<sorted>::type_name() const noexcept {
  constexpr const char* kNames[] = {"null",   "boolean", "number", "number",
                                    "number", "string",  "array",  "object"};
  return kNames[value_.index()];
}

template <bool sorted>
size_t BasicJson<sorted>::size() const noexcept {
  if (const auto* array = std::get_if<Array>(&value_)) return array->size();
  if (const auto* object = std::get_if<Object>(&value_)) return object->size();
  return is_null() ? 0 : 1;
}

template <bool sorted>
void BasicJson<sorted>::set(bool value) noexcept {
  value_ = value;
}
template <bool sorted>
void BasicJson<sorted>::set(int64_t value) noexcept {
  value_ = value;
}
template <bool sorted>
void BasicJson<sorted>::set(uint64_t value) noexcept {
  value_ = value;
}
template <bool sorted>
void BasicJson<sorted>::set(double value) noexcept {
  value_ = value;
}
template <bool sorted>
void BasicJson<sorted>::set(std::string value) noexcept {
  value_ = std::move(value);
}

template <bool sorted>
void BasicJson<sorted>::fail_type(const char* expected) const {
  throw JsonError(fmt::format("type must be {}, but is {}", expected, type_name()));
}

template <bool sorted>
bool BasicJson<sorted>::boolean() const {
  if (!is_boolean()) fail_type("boolean");
  return std::get<bool>(value_);
}
template <bool sorted>
void BasicJson<sorted>::number_to(int64_t& value) const {
  if (is_number_float()) {
    const double number = std::get<double>(value_);
    if (!(number >= -0x1p63 && number < 0x1p63))
      throw JsonError(fmt::format("{} is no whole number of 64 bits", number));
    value = static_cast<int64_t>(number);
  } else if (is_number_unsigned()) {
    value = static_cast<int64_t>(std::get<uint64_t>(value_));
  } else if (is_number_integer()) {
    value = std::get<int64_t>(value_);
  } else {
    fail_type("number");
  }
}
template <bool sorted>
void BasicJson<sorted>::number_to(uint64_t& value) const {
  int64_t whole = 0;
  number_to(whole);
  value = static_cast<uint64_t>(whole);
}
template <bool sorted>
void BasicJson<sorted>::number_to(double& value) const {
  if (is_number_float())
    value = std::get<double>(value_);
  else if (is_number_unsigned())
    value = static_cast<double>(std::get<uint64_t>(value_));
  else if (is_number_integer())
    value = static_cast<double>(std::get<int64_t>(value_));
  else
    fail_type("number");
}

template <bool sorted>
const std::string& BasicJson<sorted>::text() const {
  if (!is_string()) fail_type("string");
  return std::get<std::string>(value_);
}
template <bool sorted>
const typename BasicJson<sorted>::Array& BasicJson<sorted>::elements() const {
  if (!is_array()) fail_type("array");
  return std::get<Array>(value_);
}
template <bool sorted>
const typename BasicJson<sorted>::Object& BasicJson<sorted>::items() const {
  static const Object kNone;
  if (is_null()) return kNone;
  if (!is_object()) fail_type("object");
  return std::get<Object>(value_);
}

template <bool sorted>
const typename BasicJson<sorted>::Member* BasicJson<sorted>::lookup(
    std::string_view key) const noexcept {
  const auto* object = std::get_if<Object>(&value_);
  if (object == nullptr) return nullptr;
  auto found = object->begin();
  if constexpr (sorted) {
    found = std::ranges::lower_bound(*object, key, {}, &Member::first);
    if (found != object->end() && found->first != key) found = object->end();
  } else {
    found = std::ranges::find(*object, key, &Member::first);
  }
  return found == object->end() ? nullptr : &*found;
}
template <bool sorted>
const BasicJson<sorted>* BasicJson<sorted>::member_of_object(std::string_view key) const {
  if (!is_object()) fail_type("object");
  const Member* found = lookup(key);
  return found == nullptr ? nullptr : &found->second;
}
template <bool sorted>
const BasicJson<sorted>& BasicJson<sorted>::at(std::string_view key) const {
  const BasicJson* found = member_of_object(key);
  if (found == nullptr) throw JsonError(fmt::format("key '{}' not found", key));
  return *found;
}
template <bool sorted>
BasicJson<sorted>& BasicJson<sorted>::at(std::string_view key) {
  return const_cast<BasicJson&>(std::as_const(*this).at(key));
}
template <bool sorted>
const BasicJson<sorted>& BasicJson<sorted>::element(size_t index) const {
  const Array& all = elements();
  if (index >= all.size()) throw JsonError(fmt::format("array index {} is out of range", index));
  return all[index];
}
template <bool sorted>
BasicJson<sorted>& BasicJson<sorted>::operator[](std::string_view key) {
  if (is_null()) value_ = Object();
  if (!is_object()) fail_type("object");
  if (const Member* found = lookup(key)) return const_cast<BasicJson&>(found->second);
  auto& members = std::get<Object>(value_);
  auto place = members.end();
  if constexpr (sorted) place = std::ranges::lower_bound(members, key, {}, &Member::first);
  return members.emplace(place, std::string(key), BasicJson())->second;
}

template <bool sorted>
void BasicJson<sorted>::push_back(BasicJson element) {
  if (is_null()) value_ = Array();
  if (!is_array()) fail_type("array");
  std::get<Array>(value_).push_back(std::move(element));
}
template <bool sorted>
void BasicJson<sorted>::erase(std::string_view key) {
  if (!is_object()) fail_type("object");
  std::erase_if(std::get<Object>(value_),
                [&](const Member& member) { return member.first == key; });
}
template <bool sorted>
void BasicJson<sorted>::update(const BasicJson& other) {
  for (const auto& [key, value] : other.items()) (*this)[key] = value;
}

template <bool sorted>
typename BasicJson<sorted>::const_iterator BasicJson<sorted>::begin() const {
  if (const auto* object = std::get_if<Object>(&value_)) return {nullptr, object->data()};
  if (is_null()) return {};
  return {elements().data(), nullptr};
}
template <bool sorted>
typename BasicJson<sorted>::const_iterator BasicJson<sorted>::end() const {
  if (const auto* object = std::get_if<Object>(&value_))
    return {nullptr, object->data() + object->size()};
  if (is_null()) return {};
  return {elements().data() + elements().size(), nullptr};
}
template <bool sorted>
typename BasicJson<sorted>::iterator BasicJson<sorted>::begin() {
  return std::as_const(*this).begin().writable();
}
template <bool sorted>
typename BasicJson<sorted>::iterator BasicJson<sorted>::end() {
  return std::as_const(*this).end().writable();
}
template <bool sorted>
typename BasicJson<sorted>::const_iterator BasicJson<sorted>::find(std::string_view key) const {
  const Member* found = lookup(key);
  return found == nullptr ? end() : const_iterator(nullptr, found);
}

template <bool sorted>
std::string BasicJson<sorted>::dump(int indent) const {
  return dumped(*this, indent, false, nlohmann::ordered_json::error_handler_t::strict);
}

template <bool sorted>
bool BasicJson<sorted>::equals(const BasicJson& other) const noexcept {
  const auto same = [](const auto& a, const auto& b) {
    using A = std::decay_t<decltype(a)>;
    using B = std::decay_t<decltype(b)>;
    constexpr auto is_whole = []<class T>(std::type_identity<T>) {
      return std::is_same_v<T, int64_t> || std::is_same_v<T, uint64_t>;
    };
    constexpr bool whole_a = is_whole(std::type_identity<A>());
    constexpr bool whole_b = is_whole(std::type_identity<B>());
    if constexpr (whole_a && whole_b)
      return std::cmp_equal(a, b);
    else if constexpr (whole_a && std::is_same_v<B, double>)
      return static_cast<double>(a) == b;
    else if constexpr (whole_b && std::is_same_v<A, double>)
      return a == static_cast<double>(b);
    else if constexpr (std::is_same_v<A, B>)
      return a == b;
    else
      return false;
  };
  return std::visit(same, value_, other.value_);
}

template class BasicJson<true>;
template class BasicJson<false>;

namespace {

template <class J>
J parsed(std::string_view text, int most_depth, const KeepObject<J>& keep, bool once) {
  require_json_depth(text, most_depth);
  detail::JsonReader<J> reader(keep, once);
  nlohmann::ordered_json::sax_parse(text, &reader);
  return reader.take();
}

}  // namespace

template <class J>
J parse_json(std::string_view text, int most_depth,
             const std::type_identity_t<KeepObject<J>>& keep) {
  return parsed(text, most_depth, keep, false);
}
template Json parse_json(std::string_view, int, const KeepObject<Json>&);
template OrderedJson parse_json(std::string_view, int, const KeepObject<OrderedJson>&);

Json parse_json_once(std::string_view text, int most_depth) {
  return parsed<Json>(text, most_depth, {}, true);
}

bool is_json(std::string_view text) { return nlohmann::json::accept(text); }

template <bool sorted>
std::string dump_json(const BasicJson<sorted>& json, int indent) {
  return json.dump(indent);
}
template std::string dump_json(const Json&, int);
template std::string dump_json(const OrderedJson&, int);

template <bool sorted>
std::string dump_json_lossy(const BasicJson<sorted>& json, int indent, bool ascii) {
  return dumped(json, indent, ascii, nlohmann::ordered_json::error_handler_t::replace);
}
template std::string dump_json_lossy(const Json&, int, bool);
template std::string dump_json_lossy(const OrderedJson&, int, bool);

}  // namespace tutti
