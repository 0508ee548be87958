/// The templates of BasicJson; the rest of it is compiled once, in json.cpp. Included by
/// tutti/base/json.h alone, behind the class.
#pragma once

namespace tutti {

template <bool sorted>
template <class Value>
class BasicJson<sorted>::Iterator {
 public:
  using value_type = BasicJson;
  using difference_type = std::ptrdiff_t;
  Iterator() = default;
  Iterator(Value* element, const Member* member) : element_(element), member_(member) {}
  Value& operator*() const {
    return member_ == nullptr ? *element_ : const_cast<Value&>(member_->second);
  }
  Value* operator->() const { return &**this; }
  const std::string& key() const { return member_->first; }
  Value& value() const { return **this; }
  Iterator& operator++() {
    if (member_ == nullptr)
      ++element_;
    else
      ++member_;
    return *this;
  }
  Iterator operator++(int) {
    Iterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const Iterator&) const = default;
  iterator writable() const { return {const_cast<BasicJson*>(element_), member_}; }

 private:
  Value* element_ = nullptr;
  const Member* member_ = nullptr;
};

template <bool sorted>
template <detail::ToJson T>
BasicJson<sorted>::BasicJson(const T& value) : BasicJson() {
  if constexpr (std::is_same_v<T, bool>) {
    set(value);
  } else if constexpr (std::is_floating_point_v<T>) {
    set(static_cast<double>(value));
  } else if constexpr (std::is_unsigned_v<T>) {
    set(static_cast<uint64_t>(value));
  } else if constexpr (std::is_integral_v<T> || std::is_enum_v<T>) {
    set(static_cast<int64_t>(value));
  } else if constexpr (detail::JsonText<T>) {
    set(std::string(value));
  } else if constexpr (detail::JsonMap<T>) {
    Object members;
    for (const auto& [key, element] : value) members.emplace_back(key, BasicJson(element));
    if constexpr (sorted) std::ranges::sort(members, {}, &Member::first);
    value_ = std::move(members);
  } else if constexpr (detail::JsonTuple<T>) {
    *this = array();
    std::apply([this](const auto&... parts) { (push_back(BasicJson(parts)), ...); }, value);
  } else {
    *this = array();
    for (const std::ranges::range_value_t<const T>& element : value) push_back(BasicJson(element));
  }
}

template <bool sorted>
template <class T>
T BasicJson<sorted>::get() const {
  if constexpr (detail::is_json<T>) {
    return *this;
  } else if constexpr (std::is_same_v<T, bool>) {
    return boolean();
  } else if constexpr (std::is_enum_v<T>) {
    return static_cast<T>(get<int64_t>());
  } else if constexpr (std::is_floating_point_v<T>) {
    if (const auto* whole = std::get_if<int64_t>(&value_)) return static_cast<T>(*whole);
    if (const auto* whole = std::get_if<uint64_t>(&value_)) return static_cast<T>(*whole);
    double number;
    number_to(number);
    return static_cast<T>(number);
  } else if constexpr (std::is_integral_v<T>) {
    using Whole = std::conditional_t<std::is_unsigned_v<T>, uint64_t, int64_t>;
    Whole number;
    number_to(number);
    return static_cast<T>(number);
  } else if constexpr (std::is_same_v<T, std::string>) {
    return text();
  } else if constexpr (detail::JsonMap<T>) {
    if (!is_object()) fail_type("object");
    T all;
    for (const auto& [key, value] : items())
      all.emplace(key, value.template get<typename T::mapped_type>());
    return all;
  } else if constexpr (detail::JsonTuple<T>) {
    return T(at(0).template get<typename T::first_type>(),
             at(1).template get<typename T::second_type>());
  } else {
    T all;
    for (const BasicJson& element : elements())
      all.insert(all.end(), element.template get<std::ranges::range_value_t<T>>());
    return all;
  }
}

extern template class BasicJson<true>;
extern template class BasicJson<false>;

}  // namespace tutti
