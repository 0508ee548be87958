// The program `tutti` itself, `run`, `doctor` and `checkpoint`: what is answered to wrong words.
#include "tests/unit/wrong_words/refused.h"

namespace tutti::test {
namespace {

TEST(WrongCommands, AreAnsweredWithTheNearest) {
  expect_refused(
      {},
      {{"rnu -n 2 true", {"tutti: unknown command \"rnu\"; did you mean \"run\"?"}},
       {"bench stpe", {"did you mean \"step\"?"}},
       {{"data", "verfy", kDoodles}, {"did you mean \"verify\"?"}},
       {"doctro", {"did you mean \"doctor\"?"}},
       {"run --grase 3 true", {"tutti run: unknown flag \"--grase\"; did you mean \"--grace\"?"}},
       {"run --on-lost-worker contniue true", {"did you mean \"continue\"?"}},
       {"doctor --jsno", {"tutti doctor: unknown flag \"--jsno\"; did you mean \"--json\"?"}},
       {"run --np 2 true", {"unknown flag \"--np\"; here it is --workers N: "}},
       {"run -np 2 true", {"unknown flag \"-np\"; here it is --workers N: "}},
       {"run --gpus 2 true", {"unknown flag \"--gpus\"; here it is --workers N: "}},
       {"run -n two true -x", {"got \"two\"; expected a whole number, 1 to 1024"}},
       {"run -n two true", {"got \"two\"; expected a whole number, 1 to 1024"}},
       {"run -n 0 true", {"got \"0\"; expected a whole number, 1 to 1024"}},
       {"run -n -3 true", {"got \"-3\"; expected a whole number, 1 to 1024"}},
       {"run -n 1025 true", {"got \"1025\"; expected a whole number, 1 to 1024"}},
       {"run -n 99999999999 true", {"expected a whole number, 1 to 1024"}},
       {"run --nodes x true", {"expected a whole number, 1 to"}},
       {"run --restarts 1 --servers 1 --on-lost-worker end true",
        {"--restarts 1 and --on-lost-worker end with servers"}},
       {"run --restarts -1 true", {"--restarts"}},
       {"run --grace -1 true", {"0 to 86400 seconds"}},
       {"run --grace nan true", {"0 to 86400 seconds"}},
       {"run -n 2", {"no program to start"}},
       {"run -n 2 --", {"no program to start"}},
       {"run --nodes 2 true", {"without --rendezvous HOST:PORT"}},
       {"run ./not/there", {"No such file or directory"}},
       {"run slep 3", {"PATH"}},
       {"run /etc/passwd", {"not executable"}},
       {{}, {"tutti: "}}});
}

TEST(WrongCommands, Checkpoints) {
  const TempFolder folder;
  const std::string nothing = folder / "nothing";
  expect_refused({"checkpoint"},
                 {{{"ls", nothing}, {"no checkpoint there"}},
                  {{"convert", nothing, "x.pt"}, {".safetensors"}}},
                 Before::words);
}

}  // namespace
}  // namespace tutti::test
