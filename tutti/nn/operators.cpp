#include "tutti/nn/detail/operators.h"

#include <array>
#include <type_traits>
#include <variant>

#include "tutti/nn/detail/operators_dense.h"
#include "tutti/nn/detail/operators_elementwise.h"
#include "tutti/nn/detail/operators_images.h"
#include "tutti/nn/detail/operators_pools.h"
#include "tutti/nn/detail/operators_sequences.h"
#include "tutti/nn/detail/operators_shape.h"

namespace tutti::nn::detail {
namespace {

template <class O>
constexpr Operator row_of() {
  using Said = OperatorOf<O>;
  return {
      .facts =
          {
              .kind = Said::kind,
              .infer = [](const Op& op,
                          const Site& site) { return Said::infer(*std::get_if<O>(&op), site); },
              .takes_channels_last = Said::takes_channels_last,
              .lower = [](const Op& op,
                          const NodeLowering& to) { return Said::lower(*std::get_if<O>(&op), to); },
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

}  // namespace tutti::nn::detail
