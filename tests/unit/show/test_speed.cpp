// `tutti show t1-t2` and `scaling`: figures by hand, and the parts of their pictures.
#include "tutti/cli/show/speed.h"

#include "tests/unit/show/shown_files.h"

namespace tutti::cli {
namespace {

TEST(ShowT1T2, AStepHidesAtBestTheShorterOfBoth) {
  const Shown shown = t1_t2_shown({.model = "wide",
                                   .replicas = 2,
                                   .gradient_bytes = 1000,
                                   .t1_ms = 8,
                                   .t2_ms = 2,
                                   .compute_ms = 9,
                                   .sync_ms = 3,
                                   .step_ms = 12.5});
  EXPECT_EQ(shown.figures.at("t2_over_t1").get<double>(), 0.25);
  EXPECT_EQ(shown.figures.at("all_hidden_ms").get<double>(), 8);
  EXPECT_EQ(shown.figures.at("none_hidden_ms").get<double>(), 10);
  ASSERT_EQ(shown.drawing.bars.size(), 4u);
  // One step that was measured: half a millisecond before it computes.
  EXPECT_EQ(shown.drawing.bars[2].begin, 500);
  EXPECT_EQ(shown.drawing.bars[2].end, 9500);
  EXPECT_EQ(shown.drawing.bars[3].begin, 9500);
  EXPECT_EQ(shown.drawing.bars[3].end, 12500);
  EXPECT_EQ(shown.drawing.ticks.back().at, 12500);
  EXPECT_THAT(shown.drawing.notes.back(), HasSubstr("the median one"));
}

TEST(ShowScaling, TheIdealIsTheFirstTimesReplicas) {
  ScaleFlags flags;
  flags.step.job.model = "mlp";
  const Shown shown =
      scaling_shown(flags, {{1, 100, 101, 0.99}, {2, 180, 200, 0.9}, {4, 300, 390, 0.77}});
  const OrderedJson& rows = shown.figures.at("rows");
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows.at(2).at("ideal_images_per_second").get<double>(), 400);
  EXPECT_EQ(rows.at(2).at("speedup").get<double>(), 3);
  EXPECT_EQ(rows.at(1).at("efficiency").get<double>(), 0.9);
  EXPECT_EQ(shown.frames.size(), 3u);
  EXPECT_THAT(shown.frames[2], HasSubstr("       4          300    3.00x #"));
  EXPECT_THAT(shown.svg, HasSubstr("ideal: as many times the first"));
}

TEST(ShowScaling, SpeedsAreChecked) {
  using drawings::Speeds;
  EXPECT_THAT(message_of<UsageError>([] { drawings::svg(Speeds{}); }), HasSubstr("0 numbers"));
  EXPECT_THAT(message_of<UsageError>([] {
                drawings::svg(Speeds{.title = "", .speeds = {{2, 1, 0}, {1, 1, 0}}, .notes = {}});
              }),
              HasSubstr("ascend"));
  EXPECT_THAT(message_of<UsageError>(
                  [] { drawings::text(Speeds{.title = "", .speeds = {{1, 0, 0}}, .notes = {}}); }),
              HasSubstr("above 0"));
}

TEST(ShowScaling, APlaceOfABarIsItsShareOfTheHighest) {
  const drawings::Speeds speeds{.title = "t", .speeds = {{1, 100, 0}, {2, 150, 0}}, .notes = {}};
  const std::string text = drawings::text(speeds, 76);  // 40 cells for the ideal of 200
  EXPECT_EQ(text,
            "replicas     images/s  speedup\n"
            "       1          100    1.00x " +
                std::string(20, '#') + "|\n" + "       2          150    1.50x " +
                std::string(30, '#') + std::string(10, ' ') + "|\n" +
                "# measured, | ideal, : as many that never talk\n");
}

}  // namespace
}  // namespace tutti::cli
