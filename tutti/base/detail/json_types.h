/// What becomes a Json, and out of what a Json is made: a number, a text, a range of them.
#pragma once

#include <concepts>
#include <ranges>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>

namespace tutti {

template <bool sorted>
class BasicJson;
using Json = BasicJson<true>;
using OrderedJson = BasicJson<false>;

namespace detail {

template <class T>
inline constexpr bool is_json = false;
template <bool sorted>
inline constexpr bool is_json<BasicJson<sorted>> = true;

template <class T>
concept JsonText =
    std::convertible_to<const T&, std::string> || std::convertible_to<const T&, std::string_view>;
template <class T>
concept JsonMap = std::ranges::range<T> && requires { typename T::mapped_type; };
template <class T>
concept JsonTuple = requires { std::tuple_size<T>::value; } && !std::ranges::range<T>;
template <class T>
concept ToJson = !is_json<T> && (std::is_arithmetic_v<T> || std::is_enum_v<T> || JsonText<T> ||
                                 JsonTuple<T> || std::ranges::range<const T>);

template <class J>
class JsonReader;

}  // namespace detail

}  // namespace tutti
