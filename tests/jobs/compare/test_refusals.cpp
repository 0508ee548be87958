// What tutti_bench refuses before it works, and its help, in this process.
#include "tutti/cli/arguments.h"

#include "bench/compare/commands.h"
#include "tests/support/expect.h"

namespace tutti::bench {
namespace {

using Words = std::vector<std::string>;

void run(const Words& words) {
  cli::Command program("tutti_bench");
  add_compare(program);
  add_scale(program);
  add_all_reduce(program);
  add_servers(program);
  cli::parse(program, words);
}

TEST(BenchCommands, RefuseBadInput) {
  const struct {
    Words words;
    const char* answer;
  } cases[] = {
      {{"servers", "--engine", "tpc"}, "did you mean \"tcp\"?"},
      {{"servers", "--servers", "0"}, "--servers"},
      {{"servers", "--workers", "0"}, "--workers"},
      {{"servers", "--bytes", "0"}, "above 0"},
      {{"servers", "--bytes", "6"}, "--bytes: 6"},
      {{"servers", "--staleness", "0,-1"}, "--staleness"},
      {{"servers", "--rounds", "0"}, "--rounds"},
      {{"servers", "--rows", "0"}, "--rows"},
      {{"servers", "--rows", "8000"}, "--keys: 4096 of each of 2 workers"},
      {{"servers", "--json", "/not/there/x"}, "/not/there/x"},
      {{"compare", "--models", "mlp,cmn"}, "did you mean \"cnn\"?"},
      {{"compare", "--models", "resnet19"}, "did you mean \"resnet18\"?"},
      {{"compare", "--ranks", "2"}, "it is of --all-reduce"},
      {{"compare", "--all-reduce", "--ranks", "1"}, "--ranks"},
      {{"scale", "--models", "mlp"}, "\"mlp\""},
      {{"scale", "--models", "lstn"}, "did you mean \"lstm\"?"},
      {{"scale", "--replicas", "1,4096"}, "need a core each"},
      {{"scale", "--replicas", "0"}, "--replicas"},
      {{"compare", "--rounds", "0"}, "--rounds"},
      {{"compare", "--json", ""}, "--json"},
      {{"compare", "--all-reduce", "--models", "mlp"}, "--models mlp: "},
      {{"compare", "--quick", "--rounds", "5"}, "--rounds 5: "},
      {{"servers", "--width", "64"}, "--width 64: "},
      {{"servers", "--keys", "4096"}, "--keys 4096: "},
      {{"servers", "--rows", "100000", "--bytes", "1M"}, "--bytes 1M: "},
      {{"all-reduce", "--engine", "mpi"}, "beside shm and tcp"},
      {{"all-reduce", "--order", "any"}, "shm adds in one order alone"},
  };
  for (const auto& c : cases)
    EXPECT_THAT(message_of<UsageError>([&] { run(c.words); }), HasSubstr(c.answer))
        << testing::PrintToString(c.words);
}

TEST(BenchCommands, ShowExamples) {
  for (const char* name : {"compare", "scale", "all-reduce", "servers"}) {
    testing::internal::CaptureStdout();
    run({name, "--help"});
    EXPECT_THAT(testing::internal::GetCapturedStdout(),
                HasSubstr("  tutti_bench " + std::string(name)));
  }
}

}  // namespace
}  // namespace tutti::bench
