#include "tutti/comm/compression/compression.h"

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/suggest.h"
#include "tutti/base/typed.h"
#include "tutti/comm/compression/coders.h"

namespace tutti {
namespace {

using Kind = Compression::Kind;

// In the order of Kind: what is typed.
const std::vector<std::string> kWords = {"none", "bf16", "fp16", "topk", "onebit", "powersgd"};

constexpr int kMostRanks = 256;

template <class Number>
Number number_of(std::string_view text, std::string_view number) {
  const auto value = number_in<Number>(number);
  if (!value)
    throw UsageError(fmt::format(
        "compression \"{}\": \"{}\" is no number; expected topk:0.01 or powersgd:4", text, number));
  return *value;
}

}  // namespace

Compression compression_from(std::string_view text) {
  const size_t colon = text.find(':');
  const std::string_view word = text.substr(0, colon);
  const auto found = std::find(kWords.begin(), kWords.end(), word);
  if (found == kWords.end()) throw UsageError(unknown_message("compression", word, kWords));
  Compression compression{.kind = static_cast<Kind>(found - kWords.begin())};
  if (colon != std::string_view::npos) {
    const std::string_view number = text.substr(colon + 1);
    if (compression.kind == Kind::top_k) {
      compression.ratio = number_of<double>(text, number);
    } else if (compression.kind == Kind::power_sgd) {
      compression.rank = number_of<int>(text, number);
    } else {
      throw UsageError(fmt::format(
          "compression \"{}\": {} takes no number; topk:RATIO and powersgd:RANK do", text, word));
    }
  }
  check_compression(compression);
  return compression;
}

std::string to_string(const Compression& compression) {
  const std::string& word = kWords[static_cast<size_t>(compression.kind)];
  if (compression.kind == Kind::top_k) return fmt::format("{}:{}", word, compression.ratio);
  if (compression.kind == Kind::power_sgd) return fmt::format("{}:{}", word, compression.rank);
  return word;
}

void check_compression(const Compression& compression) {
  const auto require = [](bool right, std::string_view field, auto value,
                          std::string_view expected) {
    if (!right)
      throw UsageError(fmt::format("compression: {} = {}; expected {}", field, value, expected));
  };
  const bool extra = compression.kind == Kind::one_bit || compression.kind == Kind::power_sgd;
  if (extra && !detail::extra_coders_available())
    throw UsageError(fmt::format(
        "compression {} is not in this build (TUTTI_WITH_EXTRAS=OFF); bf16, fp16 and topk are",
        kWords[static_cast<size_t>(compression.kind)]));
  if (compression.kind == Kind::top_k)
    require(compression.ratio > 0 && compression.ratio <= 1, "ratio", compression.ratio,
            "0 < ratio <= 1");
  if (compression.kind == Kind::power_sgd)
    require(compression.rank >= 1 && compression.rank <= kMostRanks, "rank", compression.rank,
            "1 to 256");
  require(compression.start_step >= 0, "start_step", compression.start_step, "0 or more");
  require(compression.min_elements >= 1, "min_elements", compression.min_elements, "1 or more");
}

bool compresses(const Compression& compression, DType dtype, std::span<const int64_t> shape) {
  if (!compression.on() || dtype != DType::float32) return false;
  int64_t elements = 1;
  for (int64_t length : shape) elements *= length;
  if (elements < compression.min_elements) return false;
  // Indices travel as 32 bits.
  if (compression.kind == Kind::top_k) return elements <= std::numeric_limits<uint32_t>::max();
  if (compression.kind != Kind::power_sgd) return true;
  if (shape.size() < 2) return false;
  const auto [rows, columns] = detail::matrix_of(shape);
  return detail::factor_rank(compression, rows, columns) * (rows + columns) < rows * columns;
}

std::string describe(const Compression& compression) {
  const std::array words = {
      std::string("none"),
      std::string("bfloat16 on the wire, summed in float32"),
      std::string("float16 on the wire, summed in float32"),
      fmt::format("top_k: {:.4g} % of the elements, with error feedback", 100 * compression.ratio),
      std::string("one_bit: a sign an element and a scale a block, with error feedback"),
      fmt::format("power_sgd of rank {}, with error feedback", compression.rank)};
  std::string text = words[static_cast<size_t>(compression.kind)];
  if (!compression.on()) return text;
  if (compression.start_step > 0) text += fmt::format(", from step {} on", compression.start_step);
  return text + fmt::format("; tensors of fewer than {} elements{} stay uncompressed",
                            compression.min_elements,
                            compression.kind == Kind::power_sgd ? " or one dimension" : "");
}

}  // namespace tutti
