// `tutti show`: what no screen holds, and other wrong words, before a job starts.
#include "tests/unit/wrong_words/refused.h"

namespace tutti::test {
namespace {

TEST(WrongShow, BeyondAScreenIsAnErrorThatSaysWhatToTry) {
  expect_refused(
      {"show"},
      {{"ring -n 500", {"-n: got 500, expected 2 to 12, what a screen holds; try -n 5"}},
       {"ring -n 1", {"-n: got 1, expected 2 to 12"}},
       {"ring -n 0", {"got \"0\"; expected a whole number"}},
       {"ring -n five", {"got \"five\"; expected a whole number"}},
       {"ring --bytes 2G", {"--bytes: got 2G, expected one size from 1 to 1G; try 4M"}},
       {"ring --bytes 1,2", {"--bytes: got 1,2, expected one size"}},
       {"ring --svg /not/there/x.svg", {"--svg", "/not/there"}},
       {"ring --json /not/there/x", {"--json", "/not/there"}},
       {"parameter-server -n 500", {"-n: got 500, expected 1 to 12", "try -n 3"}},
       {"parameter-server -n 4 --servers 10",
        {"--servers: got 10, expected 1 to 9", "--servers 1"}},
       {"parameter-server --staleness some", {"--staleness"}},
       {"sync --steps 100", {"--steps: got 100, expected 1 to 12", "try --steps 3"}},
       {"async --staleness 0",
        {"--staleness: got 0, expected 1 or more, or inf", "tutti show sync"}},
       {"async --staleness -1", {"--staleness"}},
       {"hierarchy --hosts 500", {"--hosts: got 500, expected 2 to 6"}},
       {"hierarchy --hosts 4 --ranks-per-host 4", {"--ranks-per-host: got 4, expected 2 to 3"}},
       {"t1-t2 mlp -n 500", {"-n: got 500, expected 2 to 12"}},
       {"t1-t2 mpl", {"did you mean \"mlp\"?"}},
       {"t1-t2 mlp --data not/there", {"not/there"}},
       {"scaling mlp --replicas 2,1", {"--replicas: got 2,1, expected numbers that ascend"}},
       {"scaling mlp --replicas 1,2,3,4,5,6,7,8,9,10,11,12,13",
        {"got 13 numbers, expected at most 12", "tutti bench scale"}},
       {"scaling mlp --data not/there", {"not/there"}},
       {"scaling", {"MODEL"}},
       {"pipeline -n 500", {"-n: got 500, expected 2 to 12", "tutti plan pipeline"}},
       {"pipeline --microbatches 99", {"--microbatches: got 99, expected 1 to 32"}},
       {"pipeline --schedule 1f1", {"did you mean \"1f1b\"?"}},
       {"pipeline -n 3 --microbatches 4 --schedule interleaved", {"interleaved"}}});
}

TEST(WrongShow, BenchScaleDrawsNumbersThatAscend) {
  expect_refused({"bench"}, {{{"scale", "--model", "mlp", "--data", kDoodles, "--replicas", "2,1",
                               "--svg", "drawing.svg"},
                              {"--svg: got --replicas 2,1, expected numbers that ascend"}}});
}

}  // namespace
}  // namespace tutti::test
