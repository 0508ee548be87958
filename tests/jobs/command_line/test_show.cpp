// `tutti show` of a model: its children train.
#include "tests/jobs/program.h"

namespace tutti::test {
namespace {

TEST(Show, T1T2OfAModel) {
  const TempFolder folder;
  const auto result =
      run_command({TUTTI_PROGRAM, "show", "t1-t2", "mlp", "--data", kDoodles, "--steps", "4",
                   "--svg", folder / "d.svg", "--json", folder / "f.json"},
                  {}, Millis{120'000});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json figures = json::parse(get_bytes(folder / "f.json"));
  EXPECT_EQ(figures.at("show"), "t1_t2");
  EXPECT_EQ(figures.at("gradient_bytes"), 4 * (784 * 128 + 128 + 128 * 10 + 10));
  for (const char* name : {"t1_ms", "t2_ms", "compute_ms", "step_ms"})
    EXPECT_GT(figures.at(name).get<double>(), 0) << name;
  EXPECT_LE(figures.at("compute_ms").get<double>() + figures.at("sync_ms").get<double>(),
            figures.at("step_ms").get<double>() + 1e-6)
      << "of one step";
  EXPECT_THAT(get_bytes(folder / "d.svg"), HasSubstr("mlp, 2 replicas: t1 and t2"));
}

TEST(Show, ScalingOfAModel) {
  const TempFolder folder;
  const auto result = run_command(
      Words{TUTTI_PROGRAM} + words_of("show scaling mlp --replicas 1,2 --steps 4") +
          Words{"--data", kDoodles, "--svg", folder / "d.svg", "--json", folder / "f.json"},
      {}, Millis{120'000});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json rows = json_in(folder / "f.json").at("rows");
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[1].at("ideal_images_per_second"),
            2 * rows[0].at("images_per_second").get<double>());
  const std::string picture = get_bytes(folder / "d.svg");
  EXPECT_THAT(picture, HasSubstr("mlp under mirrored"));
  EXPECT_THAT(picture, HasSubstr(">1.00x<"));
}

}  // namespace
}  // namespace tutti::test
