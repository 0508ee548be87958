/// The members of operators' structs by name: a part of the one table of operators (operators.h),
/// by which graph_json.h writes and reads them. Not for users. Thread rule: constants.
#pragma once

#include <cstddef>
#include <string_view>
#include <tuple>
#include <utility>

namespace tutti::nn::detail {

/// A member, and its name in files: the same.
template <class O, class T>
struct Field {
  std::string_view name;
  T O::* member;
};
template <class O, class T>
Field(const char*, T O::*) -> Field<O, T>;

/// Of an operator that is told nothing.
struct NoFields {
  static constexpr std::tuple<> fields{};
};

/// Stands for a member of any type where members are counted.
struct AnyField {
  template <class T>
  operator T() const;  // NOLINT(google-explicit-constructor)
};

template <class O, size_t... I>
consteval bool takes_fields(std::index_sequence<I...>) {
  return requires { O{(static_cast<void>(I), AnyField{})...}; };
}

inline constexpr size_t kMostFields = 7;

/// How many members it has.
template <class O, size_t N = kMostFields + 1>
consteval size_t num_fields() {
  if constexpr (N == 0 || takes_fields<O>(std::make_index_sequence<N>()))
    return N;
  else
    return num_fields<O, N - 1>();
}

}  // namespace tutti::nn::detail
