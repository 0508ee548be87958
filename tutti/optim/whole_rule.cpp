#include "tutti/optim/whole_rule.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>

#include "tutti/base/error.h"
#include "tutti/base/suggest.h"
#include "tutti/base/typed.h"
#include "tutti/optim/recipe.h"

namespace tutti::optim {
namespace {

// In the order of WholeRule::Options.
constexpr std::array<std::string_view, std::variant_size_v<WholeRule::Options>> kWholeNames = {
    "muon", "adafactor"};

// Written so that NaN fails it.
void require_whole_field(bool in_range, std::string_view rule, std::string_view field, double value,
                         std::string_view range) {
  if (in_range) return;
  throw UsageError(
      fmt::format("optimizer {}: {} = {} is out of range; expected {}", rule, field, value, range));
}

// A tensor's arithmetic is in its own type: what float32 makes 0 or infinite is no such number.
bool is_positive_float(double value) { return value > 0 && fits_float32(value); }
bool is_zero_or_positive_float(double value) { return value >= 0 && fits_float32(value); }

void validate_whole(const MuonOptions& o) {
  const auto require = [](bool in_range, std::string_view field, double value,
                          std::string_view range) {
    require_whole_field(in_range, "muon", field, value, range);
  };
  require(is_positive_float(o.learning_rate), "learning_rate", o.learning_rate, kFloat32Range);
  require(o.momentum >= 0 && o.momentum < 1, "momentum", o.momentum, "0 <= momentum < 1");
  require(!o.nesterov || o.momentum > 0, "momentum", o.momentum,
          "momentum > 0 when nesterov is on");
  require(o.steps >= 1 && o.steps < 100, "steps", static_cast<double>(o.steps), "1 to 99");
  require(is_positive_float(o.epsilon), "epsilon", o.epsilon, kFloat32Range);
  require(is_zero_or_positive_float(o.weight_decay), "weight_decay", o.weight_decay,
          "a finite number >= 0");
  try {
    adamw(o.adamw);
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("optimizer muon, for what is no matrix: {}", error.what()));
  }
}

void validate_whole(const AdafactorOptions& o) {
  const auto require = [](bool in_range, std::string_view field, double value,
                          std::string_view range) {
    require_whole_field(in_range, "adafactor", field, value, range);
  };
  require(is_positive_float(o.learning_rate), "learning_rate", o.learning_rate, kFloat32Range);
  require(o.beta2_decay >= -10 && o.beta2_decay <= 0, "beta2_decay", o.beta2_decay, "-10 to 0");
  require(o.epsilon1 >= 0 && o.epsilon1 <= 1, "epsilon1", o.epsilon1, "0 to 1");
  require(is_positive_float(o.epsilon2), "epsilon2", o.epsilon2, kFloat32Range);
  require(o.clip >= 1 && fits_float32(o.clip), "clip", o.clip, "a finite number >= 1");
  require(is_zero_or_positive_float(o.weight_decay), "weight_decay", o.weight_decay,
          "a finite number >= 0");
}

}  // namespace

WholeRule::WholeRule(Options options) : options_(std::move(options)) {
  std::visit([](const auto& chosen) { validate_whole(chosen); }, options_);
}

std::string_view WholeRule::name() const noexcept { return kWholeNames[options_.index()]; }

double WholeRule::learning_rate() const noexcept {
  return std::visit([](const auto& chosen) { return chosen.learning_rate; }, options_);
}

std::string WholeRule::words() const {
  std::string words(name());
  std::visit(
      [&](const auto& chosen) {
        visit_whole_fields(chosen, [&](const char* field, auto value) {
          words += fmt::format(" {} {}", field, value);
        });
      },
      options_);
  if (const auto* const muon = std::get_if<MuonOptions>(&options_))
    words += fmt::format(" others [{}]", fmt::join(muon->others, ", "));
  return words;
}

std::string WholeRule::more_than_a_rule() const {
  return fmt::format("optimizer {}, which needs whole parameters", name());
}

void WholeRule::require_fitting(std::span<const std::string> parameters) const {
  const auto* const muon = std::get_if<MuonOptions>(&options_);
  if (muon == nullptr) return;
  const std::vector<std::string> usual = MuonOptions().others;
  for (const std::string& pattern : muon->others)
    if (std::ranges::find(usual, pattern) == usual.end() &&
        std::ranges::none_of(parameters,
                             [&](const std::string& name) { return fits(pattern, name); }))
      throw UsageError(fmt::format(
          "optimizer muon: others \"{}\" fits no parameter; expected a pattern of some of: {}",
          pattern, fmt::join(parameters, ", ")));
}

const std::vector<std::string>& whole_rule_names() {
  static const std::vector<std::string> names(kWholeNames.begin(), kWholeNames.end());
  return names;
}

WholeRule whole_rule_by_name(std::string_view name) {
  if (name == kWholeNames[0]) return WholeRule(MuonOptions());
  if (name == kWholeNames[1]) return WholeRule(AdafactorOptions());
  throw UsageError(unknown_message("optimizer", name, whole_rule_names()));
}

}  // namespace tutti::optim
