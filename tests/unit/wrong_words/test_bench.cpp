// `tutti bench`: what is answered before it measures.
#include "tests/unit/wrong_words/refused.h"

namespace tutti::test {
namespace {

TEST(WrongBench, WordsAndNumbers) {
  expect_refused(
      {"bench"},
      {{{"step", "--model", "mpl", "--data", kDoodles}, {"did you mean \"mlp\"?"}},
       {{"step", "--model", "mlp", "--data", kDoodles, "--steps", "0"}, {"--steps"}},
       {{"step", "--model", "mlp", "--data", kDoodles, "--stesp", "9"},
        {"did you mean \"--steps\"?"}},
       {"step --model mlp --data not/there", {"not/there"}},
       {{"step", "--model", "mlp", "--data", kDoodles, "--strategy", "mirrored", "--replicas", "9",
         "--batch-size", "8"},
        {"9 replicas"}},
       {{"step", "--model", "mlp", "--data", kDoodles, "--json", "/not/there/x"}, {"/not/there/x"}},
       {{"scale", "--model", "mlp", "--data", kDoodles, "--replicas", "1,,2"}, {"1,,2"}},
       {{"scale", "--model", "mlp", "--data", kDoodles, "--replicas", "0"}, {"--replicas"}},
       {"all-reduce --engine shn", {"did you mean \"shm\"?"}},
       {"all-reduce --engine nccl", {"not in this version"}},
       {"all-reduce --engine hier", {"tutti run"}},
       {"all-reduce --collective all_gahter", {"did you mean \"all_gather\"?"}},
       {"all-reduce --order any", {"shm adds in one order alone"}},
       {"all-reduce --order some", {"order"}},
       {"all-reduce --streams 2", {"--streams 2: shm has none"}},
       {"all-reduce --engine tcp --streams 0", {"--streams"}},
       {"all-reduce --algorithm-table x", {"tcp and hier have"}},
       {"all-reduce --engine tcp --algorithm-table not/there", {"not/there"}},
       {"all-reduce --memory mine", {"memory"}},
       {"all-reduce --memory own", {"--memory own: threads see each other's memory"}},
       {"all-reduce --memory own --engine tcp", {"--memory own: of shm alone"}},
       {"all-reduce --peers", {"tutti_bench all-reduce"}},
       {"ps --servers 1", {"tutti_bench servers"}},
       {"compare --quick --rounds 2", {"tutti_bench compare"}},
       {"tune --ranks 1", {"2 to 64"}},
       {"tune --ranks 2,2", {"each number once"}},
       {"tune --bytes 0", {"above 0"}},
       {"tune --out /not/there/x", {"/not/there/x"}},
       {"all-reduce --engine solo --ranks 2", {"solo"}},
       {"all-reduce --ranks 0", {"--ranks"}},
       {"all-reduce --bytes 8,1KB", {"1KB"}},
       {"all-reduce --bytes 7", {"7"}},
       {{"step", "--model", "mlp", "--data", kDoodles, "--json", ""}, {"--json"}},
       {{"scale", "--model", "mlp", "--data", kDoodles, "--json", ""}, {"--json"}},
       {{"all-reduce", "--json", ""}, {"--json"}},
       {"scale --model mlp --data not/there --replicas 1,1025", {"1 to 1024"}},
       {{"step", "--model", "resnet18", "--data", kDoodles, "--strategy", "mirrored", "--replicas",
         "2", "--batch-size", "2"},
        {"batch size of 4"}},
       {{"step", "--model", "resnet18", "--data", kDoodles, "--strategy", "independent",
         "--replicas", "2", "--batch-size", "2"},
        {"batch size of 4"}},
       {{"step", "--model", "mlp", "--data", kDoodles, "--strategy", "parameter_server",
         "--unfused"},
        {"--unfused"}}});
}

TEST(WrongBench, ReductionsAndCompressions) {
  expect_refused(
      {"bench", "step", "--model", "mlp", "--data", kDoodles},
      {{"--compression power-sgd:4", {"did you mean \"powersgd\"?"}},
       {"--compression topk:2", {"expected 0 < ratio <= 1"}},
       {"--reduction allreduce", {"did you mean \"all_reduce\"?"}},
       {"--compression onebit --strategy independent", {"nothing that could be compressed"}}});
}

}  // namespace
}  // namespace tutti::test
