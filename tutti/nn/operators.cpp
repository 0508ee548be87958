#include "tutti/nn/detail/operators.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <type_traits>
#include <variant>

#include "tutti/nn/detail/operator_json.h"
#include "tutti/nn/detail/operators_activations.h"
#include "tutti/nn/detail/operators_along_sequences.h"
#include "tutti/nn/detail/operators_dense.h"
#include "tutti/nn/detail/operators_elementwise.h"
#include "tutti/nn/detail/operators_images.h"
#include "tutti/nn/detail/operators_lambda.h"
#include "tutti/nn/detail/operators_pools.h"
#include "tutti/nn/detail/operators_recurrent.h"
#include "tutti/nn/detail/operators_sequence_pools.h"
#include "tutti/nn/detail/operators_sequences.h"
#include "tutti/nn/detail/operators_shape.h"
#include "tutti/nn/detail/operators_transposed.h"

namespace tutti::nn::detail {
namespace {

template <class O>
constexpr Operator row_of() {
  using Said = OperatorOf<O>;
  static_assert(std::tuple_size_v<decltype(Said::fields)> == num_fields<O>(),
                "a member of the struct is not among its fields");
  return {
      .facts =
          {
              .kind = Said::kind,
              .infer = [](const Op& op,
                          const Site& site) { return Said::infer(*std::get_if<O>(&op), site); },
              .takes_channels_last = Said::takes_channels_last,
              .of_values = std::is_base_of_v<OfValues, Said>,
              .lower = [](const Op& op,
                          const NodeLowering& to) { return Said::lower(*std::get_if<O>(&op), to); },
              .to_onnx =
                  [](const Op& op, const NodeToOnnx& to) {
                    return Said::to_onnx(*std::get_if<O>(&op), to);
                  },
              .to_json =
                  [](const Op& op) { return fields_json(*std::get_if<O>(&op), Said::fields); },
              .from_json = [](const Json& json) -> Op {
                return op_of_fields<O>(json, Said::fields);
              },
          },
      .state = [](const Op& op, int place) { return Said::state(*std::get_if<O>(&op), place); },
      .run = [](const Op& op, const Running& in) { return Said::run(*std::get_if<O>(&op), in); },
      .plan = Said::plan,
  };
}

template <class... Os>
constexpr std::array<Operator, sizeof...(Os)> table_of(std::type_identity<std::variant<Os...>>) {
  return {row_of<Os>()...};
}

// In the order of Op.
constexpr auto kOperators = table_of(std::type_identity<Op>{});

}  // namespace

const Operator& operator_of(const Op& op) noexcept { return kOperators[op.index()]; }
const OperatorFacts& facts_of(const Op& op) noexcept { return operator_of(op).facts; }

const OperatorFacts* facts_of_kind(std::string_view kind) noexcept {
  const auto row =
      std::ranges::find(kOperators, kind, [](const Operator& o) { return o.facts.kind; });
  return row == kOperators.end() ? nullptr : &row->facts;
}

std::vector<std::string> all_kinds() {
  std::vector<std::string> kinds;
  for (const Operator& row : kOperators) kinds.emplace_back(row.facts.kind);
  return kinds;
}

}  // namespace tutti::nn::detail
