#include <cstdlib>
#include <string>

#include "tutti/base/cpu_variant.h"

#include "tests/support/expect.h"

namespace tutti {
namespace {

TEST(CpuVariant, BaselineRunsEverywhereAndTheLastIsChosen) {
  const auto runnable = runnable_variants();
  ASSERT_FALSE(runnable.empty());
  EXPECT_EQ(runnable.front(), CpuVariant::baseline);
  EXPECT_EQ(choose_variant(""), runnable.back());
  for (CpuVariant variant : runnable) EXPECT_EQ(choose_variant(name_of(variant)), variant);
  EXPECT_LE(runnable.size(), kHasX86Variants ? 3u : 1u);
}

TEST(CpuVariant, EnvironmentDecides) {
  const char* wanted = std::getenv("TUTTI_CPU_VARIANT");
  EXPECT_EQ(best_variant(), choose_variant(wanted == nullptr ? "" : wanted));
}

TEST(CpuVariant, UnknownNamesAndMissingInstructionsAreUsageErrors) {
  EXPECT_THAT(message_of<UsageError>([&] { choose_variant("avx51"); }),
              AllOf(HasSubstr("TUTTI_CPU_VARIANT"), HasSubstr("avx51"),
                    HasSubstr("did you mean \"avx512\"")));
  if (runnable_variants().back() != CpuVariant::avx512) {
    EXPECT_THROW(choose_variant("avx512"), UsageError);
  }
}

}  // namespace
}  // namespace tutti
