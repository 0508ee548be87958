// Two workers that were given different flags of `tutti train`: they are refused, or train the bits
// of two that were given the same. TUTTI_TEST_EVERY_FLAG tries all of them; else a few.
#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <map>
#include <regex>
#include <set>

#include "tests/jobs/command_line/user_data.h"
#include "tests/jobs/program.h"

namespace tutti::test {
namespace {

// What they train, if nothing else is said.
enum class Of { table, photos, drawings, text, stages, served };

const char* const kOther = "was asked for something else than worker 0";
const char* const kModels = "the models of rank 0 and rank 1 differ";
const char* const kServers = "does not train what";
const char* const kLaunchers = "this job's servers are its launcher's; say it there";
const char* const kEqual = "=";   // both train, with the bits of workers that agree
const char* const kEither = "*";  // as this machine can

struct Row {
  std::string flag;
  Words here, there;  // of worker 0 and worker 1; empty: it is not given
  std::string says = kOther;
  Of of = Of::table;
  Words both = {};      // beside
  bool always = false;  // not only where all are tried
};

Row always(Row row) {
  row.always = true;
  return row;
}

Row beside(Words both, Row row) {
  row.both = std::move(both);
  return row;
}

class Disagreements : public testing::Test {
 protected:
  Disagreements() {
    put_table("a.csv", "x", "y");
    put_table("swapped.csv", "y", "x");
    put_photos(folder_ / "photos", 16);
    std::string text;
    for (int i = 0; i < 400; ++i) text += "to be or not to be, that is " + std::to_string(i % 7);
    put_bytes(folder_ / "text.txt", text);
    put_bytes(folder_ / "table.json", R"({"tutti_algorithms": 1, "rows": []})");
  }

  void put_table(const std::string& name, const std::string& even, const std::string& odd) {
    std::string text = "a,b,kind,sort\n";
    for (int i = 0; i < 80; ++i)
      text += std::to_string(i * 7 % 10) + "," + std::to_string(i * 3 % 8) + "," +
              (i % 2 == 0 ? even : odd) + "," + (i % 3 == 0 ? "p" : "q") + "\n";
    put_bytes(folder_ / name, text);
  }

  std::string in(const std::string& name) const { return folder_ / name; }

  Words base(Of of) const {
    Words first = {"mlp", "--data", in("a.csv"), "--target", "kind"};
    if (of == Of::photos) first = {"mlp", "--data", in("photos"), "--image-size", "8"};
    if (of == Of::drawings) first = {"mlp", "--data", "examples/data/strokes"};
    if (of == Of::text)
      first =
          words_of("gpt --context 8 --layers 1 --features 8 --heads 2 --data " + in("text.txt"));
    return first +
           words_of(
               "--batch-size 16 --epochs 2 --max-steps 2 --threads 1 --seed 7 --time-limit 10") +
           Words{"--strategy", of == Of::served ? "parameter_server" : "multi_worker"} +
           words_of(of == Of::stages ? "--mesh stage=2" : "");
  }

  std::vector<Row> job_rows() const;
  std::vector<Row> training_rows() const;
  std::vector<Row> rows() const {
    std::vector<Row> all = job_rows();
    std::ranges::move(training_rows(), std::back_inserter(all));
    return all;
  }
  CommandResult train(const Row& row, const Words& here, const Words& there) const;
  std::string agreed_weights(const Row& row);

  TempFolder folder_;
  std::map<Words, std::string> weights_;  // of workers that agree, by what they were given
};

// `words` with a flag, in place of what they have of it.
Words with(Words words, const Words& flag) {
  if (flag.empty()) return words;
  if (const auto at = std::ranges::find(words, flag[0]); at != words.end())
    words.erase(at, at + std::ssize(flag));
  return words + flag;
}

CommandResult Disagreements::train(const Row& row, const Words& here, const Words& there) const {
  const auto command = [&](const Words& flag) {
    std::string line = "exec " TUTTI_PROGRAM " train";
    for (const std::string& word : with(with(base(row.of), row.both), flag))
      line += " '" + word + "'";
    return line;
  };
  std::filesystem::remove(folder_ / "figures.json");
  std::filesystem::remove_all(folder_ / "out");
  return tutti(Words{"run", "-n", "2"} + words_of(row.of == Of::served ? "--servers 1" : "") +
               Words{"sh", "-c",
                     "if [ \"$TUTTI_WORKER\" = 1 ]; then " + command(there) + "; else " +
                         command(here) + "; fi"});
}

// Of two that were given what worker 0 was.
std::string Disagreements::agreed_weights(const Row& row) {
  std::string& weights = weights_[with(with(base(row.of), row.both), row.here)];
  if (!weights.empty()) return weights;
  const auto result = train(row, row.here, row.here);
  EXPECT_EQ(result.exit_code, 0) << row.flag << ", the same on both: " << result.err << result.out;
  if (result.exit_code == 0) weights = sha_of(json_in(folder_ / "figures.json"));
  return weights;
}

std::vector<Row> Disagreements::job_rows() const {
  return {
      // ---- data ----
      always({"--data", {"--data", in("a.csv")}, {"--data", in("swapped.csv")}}),
      {"--seed", {}, {"--seed", "8"}},
      {"--batch-size", {}, {"--batch-size", "8"}},
      {"--validation", {"--validation", in("a.csv")}, {"--validation", in("swapped.csv")}},
      {"--validation-split", {"--validation-split", "0.25"}, {"--validation-split", "0.5"}},
      {"--image-size", {}, {"--image-size", "16"}, kModels, Of::photos},
      {"--augment", {}, {"--augment"}, kOther, Of::photos},
      {"--strokes", {}, {"--strokes", "strokes_to_bitmap(28, line 3)"}, kOther, Of::drawings},
      {"--classes", {}, {"--classes", "kaggle"}, kModels, Of::drawings},
      {"--target", {}, {"--target", "sort"}},
      {"--columns", {"--columns", "a"}, {"--columns", "b"}},
      {"--without", {"--without", "a"}, {"--without", "b"}},
      {"--categorical", {}, {"--categorical", "b"}, kModels},
      {"--missing", {"--missing", "7"}, {"--missing", "6"}},
      {"--header", {}, {"--header", "no"}, "\"kind\""},
      {"--decimal", {}, {"--decimal", ","}, kEither},
      {"--context", {}, {"--context", "16"}, kModels, Of::text},
      {"--stride", {}, {"--stride", "4"}, kOther, Of::text},
      // ---- optimizer ----
      {"--optimizer", {}, {"--optimizer", "lamb"}},
      {"--learning-rate", {}, {"--learning-rate", "0.5"}},
      {"--weight-decay", {}, {"--weight-decay", "0.5"}},
      {"--optimizer-options", {}, {"--optimizer-options", "beta1=0.5"}},
      {"--clip-value", {}, {"--clip-value", "0.5"}},
      {"--clip-norm", {}, {"--clip-norm", "0.5"}},
      {"--clip-global-norm", {}, {"--clip-global-norm", "0.5"}},
      {"--parameter-group", {}, {"--parameter-group", "*.bias:learning_rate_factor=2"}},
      // ---- strategy ----
      {"--strategy", {}, {"--strategy", "mirrored"}, "rank 1"},
      {"--replicas", {}, {"--replicas", "4"}, "asks for 1 replicas a worker, worker 1 for 2"},
      {"--mesh", {}, {"--mesh", "data=2"}},
      {"--shard", {}, {"--shard", "state"}},
      always({"--shares", {"--shares", "1,2"}, {"--shares", "2,1"}}),
      {"--tensor-blocks", {}, {"--tensor-blocks", "2"}},
      {"--reduction-shape", {}, {"--reduction-shape", "2"}, "under one_device alone"},
      {"--device", {}, {"--device", "auto"}, kEither},
      {"--plugin", {}, {"--plugin", "cpu"}, "--strategy tpu"},
      {"--memory-limit", {}, {"--memory-limit", "100"}, "GPU"},
      {"--deterministic", {}, {"--deterministic"}, "--deterministic under multi_worker"},
      {"--threads", {}, {"--threads", "2"}},
      {"--dense-kernel", {"--dense-kernel", "blas"}, {"--dense-kernel", "onednn"}},
      {"--time-limit", {}, {"--time-limit", "11"}, kEqual},
      {"--grace", {}, {"--grace", "3"}, "no checkpoint to write"},
      // ---- reduction ----
      {"--reduction", {}, {"--reduction", "all_reduce"}},
      {"--sum-order", {}, {"--sum-order", "fixed"}, kEither},
      {"--engine", {}, {"--engine", "hier"}, "--engine hier"},
      always({"--communication", {}, {"--communication", "ring"}}),
      {"--piece-mib", {}, {"--piece-mib", "0.5"}},
      {"--compression", {}, {"--compression", "bf16"}},
      beside({"--compression", "bf16"}, {"--compression-start", {}, {"--compression-start", "1"}}),
      {"--local-steps", {"--local-steps", "2"}, {"--local-steps", "3"}},
      beside({"--local-steps", "2"}, {"--local-start", {}, {"--local-start", "1"}}),
      beside({"--local-steps", "2"},
             {"--outer-learning-rate", {}, {"--outer-learning-rate", "0.5"}}),
      beside({"--local-steps", "2"}, {"--outer-momentum", {}, {"--outer-momentum", "0.5"}}),
      beside({"--local-steps", "2", "--outer-momentum", "0.5"},
             {"--outer-nesterov", {}, {"--outer-nesterov"}}),
      {"--algorithm-table", {}, {"--algorithm-table", in("table.json")}, kEither},
      // ---- parameter servers ----
      {"--servers", {}, {"--servers", "2"}, "the launcher of this job said 1", Of::served},
      {"--staleness", {"--staleness", "1"}, {"--staleness", "2"}, kServers, Of::served},
      {"--drop-slowest", {}, {"--drop-slowest", "1"}, kOther, Of::served},
      {"--on-lost-worker",
       {"--on-lost-worker", "continue"},
       {"--on-lost-worker", "wait"},
       kServers,
       Of::served},
      {"--restarts", {}, {"--restarts", "1"}, "--restarts", Of::served},
      {"--scale-by-staleness",
       {},
       {"--scale-by-staleness"},
       kServers,
       Of::served,
       {"--staleness", "1"}},
      {"--delay-compensation",
       {},
       {"--delay-compensation", "0.5"},
       kServers,
       Of::served,
       {"--staleness", "1"}},
      {"--host-sums", {}, {"--host-sums", "off"}, kOther, Of::served},
      {"--no-backups", {}, {"--no-backups"}, kLaunchers, Of::served},
      {"--record-order", {}, {"--record-order", in("order")}, kLaunchers, Of::served},
      {"--replay-order", {}, {"--replay-order", in("order")}, kLaunchers, Of::served},
      {"--placement", {}, {"--placement", "round_robin"}, kOther, Of::served},
      {"--partition", {}, {"--partition", "fixed:2"}, kOther, Of::served},
      {"--snapshots", {}, {"--snapshots", in("snapshots")}, kLaunchers, Of::served},
      {"--snapshot-every", {}, {"--snapshot-every", "9"}, "--snapshot-every", Of::served},
      {"--snapshots-kept", {}, {"--snapshots-kept", "9"}, "--snapshots-kept", Of::served},
      {"--restore", {}, {"--restore", in("snapshots")}, kLaunchers, Of::served},
  };
}

std::vector<Row> Disagreements::training_rows() const {
  const Words out = {"--out", in("out")};
  const Words best = {"--out", in("out"), "--keep-best", "1"};
  return {
      // ---- model gpt ----
      {"--layers", {}, {"--layers", "2"}, kModels, Of::text},
      always({"--heads", {}, {"--heads", "4"}, kOther, Of::text}),
      {"--features", {}, {"--features", "16"}, kModels, Of::text},
      {"--dropout", {"--dropout", "0.1"}, {"--dropout", "0.5"}, kOther, Of::text},
      {"--own-head", {}, {"--own-head"}, kModels, Of::text},
      // ---- loader ----
      {"--workers", {}, {"--workers", "0"}, kEqual},
      {"--loader-memory", {}, {"--loader-memory", "64"}, kEqual},
      {"--ahead", {}, {"--ahead", "1"}, kEqual},
      {"--on-bad", {}, {"--on-bad", "replace"}},
      // ---- training ----
      {"--epochs", {}, {"--epochs", "3"}},
      {"--max-steps", {}, {"--max-steps", "1"}},
      {"--steps-per-epoch", {}, {"--steps-per-epoch", "1"}},
      {"--accumulate", {}, {"--accumulate", "2"}},
      {"--microbatches", {}, {"--microbatches", "2"}},
      {"--pipeline", {}, {"--pipeline", "gpipe"}, "ranks", Of::stages, {"--microbatches", "2"}},
      {"--cut", {"--cut", "linear_1"}, {"--cut", "relu_1"}, "rank", Of::stages},
      {"--recompute", {}, {"--recompute", "full"}, kEither, Of::stages},
      {"--precision", {}, {"--precision", "bfloat16"}},
      {"--steps-per-execution", {}, {"--steps-per-execution", "2"}, "--strategy tpu"},
      {"--loss-scaling", {}, {"--loss-scaling", "initial=1024"}},
      {"--noise-scale", {}, {"--noise-scale"}},
      {"--gradient-norm", {}, {"--gradient-norm"}},
      {"--step-graph", {}, {"--step-graph"}, "--step-graph under multi_worker"},
      {"--take", {"--take", "48"}, {"--take", "32"}},
      {"--from", {}, {"--from", in("table.json")}},
      {"--lora", {"--lora", "linear_1:rank=1"}, {"--lora", "linear_1:rank=1,alpha=2"}},
      {"--freeze", {}, {"--freeze", "linear_1"}},
      {"--eval-model", {}, {"--eval-model", "net.pt2"}, "is for a model of a .pt2 file"},
      {"--class-weight", {}, {"--class-weight", "x=2"}},
      {"--metrics", {}, {"--metrics", "f1"}},
      {"--validation-freq", {}, {"--validation-freq", "2"}},
      {"--nan", {}, {"--nan", "end"}},
      {"--stop-after", {}, {"--stop-after", "1000"}, kEqual},
      {"--verbose", {}, {"--verbose", "0"}, kEqual},
      {"--slow-worker", {}, {"--slow-worker", "1:1.5"}, kEqual},
      {"--schedule", {}, {"--schedule", "cosine"}},
      {"--warm-up", {}, {"--warm-up", "1"}},
      {"--large-batch", {}, {"--large-batch", "base=8"}},
      // ---- callbacks: the chief's decide for all ----
      {"--early-stopping",
       {"--early-stopping", "patience=1"},
       {"--early-stopping", "patience=2"},
       kEqual},
      {"--reduce-on-plateau",
       {"--reduce-on-plateau", "patience=1"},
       {"--reduce-on-plateau", "patience=2"},
       kEqual},
      {"--model-checkpoint",
       {"--model-checkpoint", "path=" + in("m.safetensors")},
       {"--model-checkpoint", "path=" + in("n.safetensors")},
       kEqual},
      {"--csv-log", {"--csv-log", in("m.csv")}, {"--csv-log", in("n.csv")}, kEqual},
      {"--tensorboard", {"--tensorboard", in("m")}, {"--tensorboard", in("n")}, kEqual},
      // ---- outputs and checkpoints ----
      {"--out", {"--out", in("m_out")}, {"--out", in("n_out")}, "the same folder"},
      beside(out, {"--checkpoint-every", {}, {"--checkpoint-every", "1"}}),
      beside(out, {"--keep-checkpoints", {}, {"--keep-checkpoints", "1"}}),
      beside(out, {"--keep-best", {}, {"--keep-best", "1"}}),
      beside(best, {"--best-by", {}, {"--best-by", "val_accuracy"}}),
      beside(out, {"--resume", {}, {"--resume"}}),
      beside(out, {"--disk-limit", {}, {"--disk-limit", "500"}, kEqual}),
      always({"--json", {"--json", in("figures.json")}, {"--json", in("other.json")}, kEqual}),
      {"--trace", {"--trace", in("m.trace")}, {"--trace", in("n.trace")}, kEqual},
  };
}

// What was said of the worker that failed first, in one line.
std::string reason_in(std::string words) {
  const size_t at = words.rfind(" exited with code ");
  if (at != std::string::npos) words.erase(0, at + 1);
  std::ranges::replace(words, '\n', ' ');
  return words.substr(0, 240);
}

std::set<std::string> flags_of_help() {
  const auto help = tutti({"train", "--help"});
  static const std::regex kFlag("\n  (?:-\\w,)?(--[a-z-]+)");
  std::set<std::string> flags;
  for (std::sregex_iterator at(help.out.begin(), help.out.end(), kFlag), end; at != end; ++at)
    flags.insert((*at)[1]);
  flags.erase("--help");
  return flags;
}

TEST_F(Disagreements, EveryFlagHasARow) {
  std::set<std::string> told;
  for (const Row& row : rows()) EXPECT_TRUE(told.insert(row.flag).second) << row.flag;
  EXPECT_EQ(told, flags_of_help());
}

TEST_F(Disagreements, AreRefusedOrChangeNoBit) {
  const bool every = std::getenv("TUTTI_TEST_EVERY_FLAG") != nullptr;
  const Words figures = {"--json", in("figures.json")};
  for (Row row : rows()) {
    if (!row.always && !every) continue;
    SCOPED_TRACE(row.flag);
    if (row.flag != "--json") row.both.insert(row.both.end(), figures.begin(), figures.end());
    const auto result = train(row, row.here, row.there);
    const bool may_train = row.says == kEqual || row.says == kEither;
    const bool trained = result.exit_code == 0;
    if (every)
      std::printf("%s: %s\n", row.flag.c_str(),
                  trained ? "trained" : reason_in(result.err).c_str());
    if (trained && may_train) {
      EXPECT_EQ(sha_of(json_in(folder_ / "figures.json")), agreed_weights(row));
      continue;
    }
    EXPECT_NE(row.says, kEqual) << result.err << result.out;
    EXPECT_FALSE(trained) << result.out;
    if (!may_train) {
      EXPECT_THAT(result.err, HasSubstr(row.says)) << result.out;
    }
  }
}

}  // namespace
}  // namespace tutti::test
