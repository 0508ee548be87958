// The fuzzer's corpus and seeded mutations of it, with the ordinary compiler: what every build
// runs. A find ends the process; run with --gtest_filter and the seed below to see it again.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <set>
#include <vector>

#include "tests/fuzz/net_parsers.h"

namespace tutti {
namespace {

using Bytes = std::vector<uint8_t>;

std::vector<Bytes> corpus() {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator("tests/fuzz/corpus")) {
    paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<Bytes> inputs;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    inputs.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return inputs;
}

/// One to four changes: a byte, a bit, a cut, a doubled piece, or an extreme number.
Bytes mutated(Bytes input, std::mt19937& random) {
  const auto pick = [&](size_t below) { return below == 0 ? 0 : random() % below; };
  for (size_t change = 1 + pick(4); change > 0 && input.size() > 1; --change) {
    const size_t at = 1 + pick(input.size() - 1);  // the first byte chooses the parser
    switch (pick(5)) {
      case 0: input[at] = static_cast<uint8_t>(random()); break;
      case 1: input[at] = static_cast<uint8_t>(input[at] ^ (1U << pick(8))); break;
      case 2: input.resize(at); break;
      case 3: {
        const Bytes piece(input.begin() + static_cast<std::ptrdiff_t>(at), input.end());
        input.insert(input.end(), piece.begin(), piece.end());
        break;
      }
      default: {
        constexpr uint8_t kExtremes[] = {0, 1, 0x7f, 0x80, 0xff};
        std::fill_n(input.begin() + static_cast<std::ptrdiff_t>(at),
                    std::min<size_t>(4, input.size() - at), kExtremes[pick(5)]);
      }
    }
  }
  if (input.size() > 20'000) input.resize(20'000);
  return input;
}

TEST(FuzzReplay, TheCorpusReachesEveryParser) {
  std::set<size_t> reached;
  for (const Bytes& input : corpus()) {
    test::parse_as_from_network(input);
    if (input.size() > 1) reached.insert(input[0] % test::parser_names().size());
  }
  EXPECT_EQ(reached.size(), test::parser_names().size());
}

TEST(FuzzReplay, SeededMutationsOfTheCorpus) {
  std::mt19937 random(20'261'121);
  const std::vector<Bytes> inputs = corpus();
  ASSERT_FALSE(inputs.empty());
  for (int round = 0; round < 20'000; ++round) {
    test::parse_as_from_network(mutated(inputs[random() % inputs.size()], random));
  }
}

TEST(FuzzReplay, BytesOfNoOrigin) {
  std::mt19937 random(20'261'122);
  for (int round = 0; round < 5'000; ++round) {
    Bytes input(random() % 300);
    for (uint8_t& byte : input) byte = static_cast<uint8_t>(random());
    test::parse_as_from_network(input);
  }
}

}  // namespace
}  // namespace tutti
