// `tutti train`: what is answered before it trains.
#include "tutti/base/array.h"
#include "tutti/data/safetensors.h"
#include "tutti/data/share_schedule.h"

#include "tests/unit/wrong_words/refused.h"

namespace tutti::test {
namespace {

const Words kMlp = {"train", "mlp", "--data", kDoodles};

TEST(WrongTrain, ModelDataAndNumbers) {
  const TempFolder folder;
  const std::string empty = folder / "empty", broken = folder / "broken";
  std::filesystem::create_directory(empty);
  std::filesystem::create_directory(broken);
  put_bytes(std::filesystem::path(broken) / "cat.npy", "this is no array");
  put_bytes(folder / "file", "");
  const std::string under_file = folder / "file/inside";
  expect_refused(
      {"train"},
      {{{"doodle_cmn", "--data", kDoodles},
        {"unknown model \"doodle_cmn\"", "did you mean \"doodle_cnn\"?"}},
       {{"--data", kDoodles}, {"MODEL"}},
       {"mlp", {"--data"}},
       {{"linear_regression", "--data", kDoodles}, {"linear_regression"}},
       {"mlp --data not/there", {"not/there"}},
       {{"mlp", "--data", empty}, {"empty"}},
       {{"mlp", "--data", broken}, {"cat.npy"}},
       {{"mlp", "--data", broken, "--strategy", "multi_worker", "--replicas", "2"}, {"cat.npy"}},
       {"mlp --data not/there --strategy mirrored --replicas 1025 --batch-size 2048",
        {"--replicas 1025", "1 to 1024", "mirrored"}}});
  expect_refused(
      kMlp,
      {{"--strategy mirored", {"did you mean \"mirrored\"?"}},
       {"--strategy tpu --plugin xla", {"plugin", "cpu"}},
       {"--optimizer adan", {"did you mean \"adam\"?"}},
       {"--optimizer muon --clip-norm 1", {"--clip-norm", "muon"}},
       {"--optimizer muon --parameter-group *:weight_decay=0", {"--parameter-group", "muon"}},
       {"--optimizer muon --optimizer-options others=x*", {"--optimizer-options", "x*"}},
       {"--optimizer adafactor --shard state --replicas 2", {"optimizer adafactor", "--shard"}},
       {"--optimizer muon --strategy tpu --plugin cpu", {"optimizer muon", "elementwise"}},
       {"--replicas 0", {"--replicas", "got \"0\"", "1 to 4096"}},
       {"--replicas -2", {"--replicas", "got \"-2\""}},
       {"--replicas two", {"--replicas", "got \"two\""}},
       {"--replicas 1000000", {"--replicas", "1 to 4096"}},
       {"--epochs 0", {"--epochs", "got \"0\""}},
       {"--epochs 1.5", {"--epochs", "got \"1.5\""}},
       {"--batch-size -1", {"--batch-size", "got \"-1\""}},
       {"--batch-size 99999999", {"--batch-size 99999999", "25000"}},
       {"--learning-rate nan", {"--learning-rate", "above 0"}},
       {"--learning-rate -1", {"--learning-rate", "got \"-1\""}},
       {"--max-steps 0", {"--max-steps"}},
       {"--threads 0", {"--threads"}},
       {"--time-limit 0", {"--time-limit"}},
       {"--seed -7", {"--seed"}},
       {"--device mps", {"--device: tutti does not compute on GPUs of Apple"}},
       {"--device rocm", {"--device: tutti does not compute on GPUs of AMD"}},
       {"--device cudda", {"did you mean \"cuda\"?"}},
       {"--device cuda:1,1", {"--device: cuda:1 is named twice"}},
       {"--device cuda:1000", {"device"}},
       {"--memory-limit 100", {"--memory-limit 100", "--device cpu uses none"}},
       {"--memory-limit 0", {"--memory-limit", "got \"0\""}},
       {"--nan stpo", {"did you mean \"stop\"?"}},
       {"--epocs 3", {"did you mean \"--epochs\"?"}},
       {"--epoch 3", {"unknown flag \"--epoch\"; here it is --epochs E: "}},
       {"--lr 0.1", {"unknown flag \"--lr\"; here it is --learning-rate R: "}},
       {"--batch 32", {"unknown flag \"--batch\"; here it is --batch-size "}},
       {"--gpus 2", {"unknown flag \"--gpus\"; here it is --device WHERE: "}},
       {"--resume", {"--resume under one_device: ", "--out DIR"}},
       {"--precision float16", {"--precision float16: ", "CUDA", "use bfloat16"}},
       {"--precision float16 --strategy multi_worker", {"--precision float16: "}},
       {"--precision bfloat", {"did you mean \"bfloat16\"?"}},
       {"--accumulate 0", {"--accumulate", "1 to 1000000"}},
       {"--accumulate 2 --strategy parameter_server --staleness 1",
        {"--accumulate 2", "--staleness 1", "larger batch"}},
       {"--take 0", {"--take", "got \"0\""}},
       {"--take 25001", {"--take 25001", "25000"}},
       {"--take 10 --batch-size 128", {"--batch-size 128", "10 training samples"}},
       {"--replicas 4 --reduction-shape 2x3", {"2x3", "6", "4"}},
       {"--reduction-shape 2by3", {"2by3"}},
       {"--strategy mirrored --reduction-shape 2x3", {"one_device"}},
       {"--algorithm-table t.json", {"t.json", "one_device"}},
       {"--strategy mirrored --outer-momentum 0.9",
        {"--outer-momentum 0.9 under mirrored", "--local-steps H"}},
       {"--strategy mirrored --local-steps 4 --compression bf16",
        {"--local-steps 4", "exchange no gradients"}},
       {"--strategy mirrored --local-steps 4 --shard state", {"--local-steps 4", "for itself"}},
       {"--strategy mirrored --local-steps 4 --outer-nesterov",
        {"--outer-nesterov", "momentum above 0"}},
       {"--strategy parameter_server --local-steps 4", {"--local-steps 4", "--staleness"}},
       {"--communication rign", {"--communication", "did you mean \"ring\"?"}},
       {"--strategy mirrored --communication tree",
        {"--communication tree", "threads of one", "take auto or shm"}},
       {"--strategy parameter_server --communication tcp",
        {"--communication tcp under parameter_server"}},
       {"--strategy multi_worker --communication nccl",
        {"--communication nccl", "NCCL", "--device cuda"}},
       {"--strategy multi_worker --algorithm-table not/there", {"not/there"}},
       {"--json /not/there/x.json", {"--json", "/not/there/x.json"}},
       {{"--out", under_file}, {"--out", "file/inside"}},
       {"--out /proc/nothing", {"--out", "/proc/nothing"}},
       {{"--out", ""}, {"--out", "name"}},
       {{"--json", ""}, {"--json", "name"}},
       {"--json=", {"--json"}}});
}

// 24,999 samples, then one.
TEST(WrongTrain, ABatchNormOfOneSample) {
  expect_refused({"train"}, {{{"resnet18", "--data", kDoodles, "--batch-size", "24999"},
                              {"layer4", "1 sample", "batch size of"}}});
}

TEST(WrongTrain, ValuesOfFitsOptions) {
  const TempFolder folder;
  expect_refused(
      kMlp,
      {{"--schedule cosin", {"--schedule", "did you mean \"cosine\"?"}},
       {"--large-batch base=0", {"--large-batch", "base = 0"}},
       {"--large-batch bas=1", {"--large-batch", "base"}},
       {"--noise-scale", {"noise_scale", "two replicas or more"}},
       {"--warm-up 5 --max-steps 5", {"--warm-up 5", "5 steps"}},
       {"--early-stopping patiance=3", {"--early-stopping", "did you mean \"patience\"?"}},
       {"--early-stopping monitor=val_acuracy", {"did you mean \"val_accuracy\"?"}},
       {"--class-weight cot=2", {"--class-weight", "did you mean \"cat\"?"}},
       {"--metrics f2", {"--metrics", "f1"}},
       {"--metrics accuracy,acuracy", {"\"acuracy\"; did you mean \"accuracy\"?"}},
       {"--parameter-group *.bais:weight_decay=0", {"--parameter-group *.bais", "no parameter"}},
       {"--clip-norm 0", {"--clip-norm", "above 0"}},
       {"--clip-norm 1 --strategy parameter_server", {"clipping of gradients", "server"}},
       {"--steps-per-epoch 1000", {"--steps-per-epoch 1000", "196 steps"}},
       {"--keep-best 2", {"--keep-best 2 under one_device: ", "--out DIR"}},
       {{"--out", folder / "o", "--keep-best", "2", "--best-by", "val_los"}, {"\"val_loss\"?"}},
       {"--verbose 3", {"--verbose", "0 to 2"}},
       {"--loss-scaling initial=2 --strategy parameter_server", {"--loss-scaling"}}});
}

TEST(WrongTrain, Checkpoints) {
  const TempFolder folder;
  const std::string out = folder / "o";
  expect_refused(kMlp, {{"--resume", {"--resume under ", "--out"}},
                        {"--checkpoint-every 5", {"--checkpoint-every 5 under ", "--out"}},
                        {{"--strategy", "parameter_server", "--resume", "--out", out},
                         {"--snapshots", "--restore"}}});
}

TEST(WrongTrain, WhatIsFrozen) {
  expect_refused(kMlp, {{"--freeze linear_1,linear_3",
                         {"--freeze: no parameter", "\"linear_3\"", "did you mean \"linear_1\"?"}},
                        {"--freeze linear_1,", {"--freeze: no parameter to freeze fits \"\""}},
                        {"--freeze *", {"--freeze *: is all of mlp"}}});
}

TEST(WrongTrain, WeightsToBeginWith) {
  const TempFolder folder;
  const std::string file = folder / "w.safetensors";
  put_bytes(folder / "text", "no weights");
  data::write_safetensors(file, {{"linear_1.weight", Array::zeros(DType::float32, {2, 3})}});
  expect_refused(kMlp,
                 {{"--from not/there", {"--from not/there: no weights are there", "--out"}},
                  {{"--from", folder.path()}, {"no weights are there"}},
                  {{"--from", folder / "text"}, {"text"}},
                  {{"--from", file},
                   {"does not fit the model", "\"linear_1.weight\" is float32 [2, 3] in the file",
                    "--from " + file + " takes a network whole"}},
                  {{"--from", file, "--strategy", "parameter_server", "--restore", "s"},
                   {"--from " + file + " with --restore"}}});
}

TEST(WrongTrain, Shares) {
  const TempFolder folder;
  const auto file_of = [&](const std::string& name, const std::string& text) {
    put_bytes(folder / name, text);
    return "file:" + (folder / name).string();
  };
  const data::ShareSchedule nothing{{{5, {20, 0}}}}, too_unlike{{{5, {1000, 1}}}}, fine;
  expect_refused(
      {"train", "mlp", "--data", kDoodles, "--take", "150", "--replicas", "2"},
      {{"--shares 2,0", {"got \"0\", expected a number above 0 for each replica"}},
       {"--shares fast", {"by-speed, by-speed:RECORD or file:PATH"}},
       {"--shares 2,1,1", {"got 3 ([2, 1, 1]) for 2 replicas"}},
       {"--shares 1000,1", {"leave replica 1 of 2 none of the 128 rows"}},
       {"--shares 1000,1 --strategy multi_worker", {"larger batch, or fewer replicas"}},
       {"--shares by-speed", {"under one_device the replicas take turns"}},
       {"--shares by-speed --strategy parameter_server", {"use mirrored, multi_worker"}},
       {"--shares by-speed --strategy mirrored --batch-size 1", {"expected 2 or more"}},
       {"--shares by-speed:/no/such/file --strategy multi_worker", {"/no/such/file"}},
       {"--shares file:/no/such/file", {"/no/such/file"}},
       {{"--shares", file_of("a", "{}")}, {"format is not there"}},
       {{"--shares", file_of("b", nothing.to_json(2))}, {"that of replica 1 is 0, expected 1 to"}},
       {{"--shares", file_of("c", too_unlike.to_json(2)), "--strategy", "mirrored"},
        {"the shares from step 5 on [1000, 1] leave replica 1 of 2"}},
       {{"--shares", file_of("d", fine.to_json(3))}, {"replicas is 3, but here are 2"}}});
}

TEST(WrongTrain, Meshes) {
  const Words model = {"train", "doodle_cnn", "--data", kDoodles};
  expect_refused(
      model + Words{"--strategy", "mirrored"},
      {{"--replicas 6 --mesh data=2,stage=2,tensor=2", {"needs 8 replicas, got 6"}},
       {"--mesh data=2,stages=2", {"unknown axis \"stages\"", "did you mean \"stage\"?"}},
       {"--mesh stage=0", {"--mesh stage=0", "expected stage=N"}},
       {"--mesh stage=2,stage=2", {"stage is there twice"}},
       {"--mesh shard=2", {"axis shard", "--shard state, gradients or parameters"}},
       {"--mesh stage=2 --pipeline 1f1bb", {"did you mean \"1f1b\"?"}},
       {"--mesh stage=2 --pipeline interleaved:x", {"expected NAME or interleaved:CHUNKS"}},
       {"--mesh stage=2 --cut conv2", {"no layer \"conv2\"", "did you mean \"conv2d_1\"?"}},
       {"--mesh stage=2 --pipeline interleaved:2 --microbatches 3",
        {"3 microbatches do not divide by 2 ranks", "use 2 or 4"}},
       {"--mesh stage=2 --recompute some", {"\"some\" matches no layer"}},
       {"--recompute every:0", {"expected every:K"}},
       {"--recompute blocks", {"the model has no blocks", "every:K"}},
       {"--mesh stage=2 --microbatches 0", {"--microbatches", "1 to 4096"}},
       {"--mesh tensor=2 --tensor-blocks 0", {"--tensor-blocks"}},
       {"--mesh stage=2 --optimizer lamb", {"optimizer lamb", "elementwise rule"}},
       {"--mesh stage=2 --optimizer muon", {"optimizer muon", "elementwise rule"}},
       {"--mesh stage=2 --device cuda", {"device"}},
       {"--mesh stage=2 --precision bfloat16", {"float32 in this version"}},
       {"--mesh stage=2 --accumulate 2", {"more microbatches in place of it"}},
       {"--mesh stage=2 --loss-scaling initial=8", {"losses are not scaled"}},
       {"--mesh stage=2 --on-bad replace", {"leave on_bad out"}}},
      Before::words);
  // One device has all stages, and looks at the names too.
  expect_refused(model, {{"--mesh stage=2 --cut conv2", {"did you mean \"conv2d_1\"?"}}},
                 Before::words);
}

TEST(WrongTrain, Servers) {
  const Words kServed = {"--strategy", "parameter_server", "--replicas", "2"};
  expect_refused(
      kMlp + Words{"--max-steps", "3"} + kServed,
      {{"--staleness -1", {"--staleness -1", "from 0 (synchronous) on", "inf"}},
       {"--staleness abc", {"--staleness abc"}},
       {"--staleness 99999999999999999999", {"--staleness 99999999999999999999"}},
       {"--servers 0", {"--servers", "got \"0\"", "1 to"}},
       {"--staleness inf --drop-slowest 1",
        {"--drop-slowest 1", "--staleness inf", "only synchronous steps"}},
       {"--staleness inf --on-lost-worker wait",
        {"--on-lost-worker wait", "--staleness inf", "out of step"}},
       {"--optimizer lamb", {"optimizer lamb", "parts of the parameters", "central_storage"}},
       {"--optimizer lars", {"optimizer lars"}},
       {"--optimizer muon", {"optimizer muon", "parts of parameters", "mirrored"}},
       {"--optimizer adafactor", {"optimizer adafactor", "mirrored"}},
       {"--drop-slowest 1 --on-lost-worker continue",
        {"--on-lost-worker continue", "--drop-slowest 1"}},
       {"--restarts 1", {"--restarts 1", "--on-lost-worker continue or wait"}},
       {"--on-lost-worker stop", {"--on-lost-worker", "stop"}},
       {"--drop-slowest 2", {"--drop-slowest 2", "expected 0 to 1"}},
       {"--scale-by-staleness", {"--scale-by-staleness", "never stale"}},
       {"--delay-compensation 0.5", {"--delay-compensation 0.5", "never stale"}},
       {"--partition nonsense", {"--partition nonsense", "fixed:4"}},
       {"--partition fixed:0", {"--partition fixed:0", "parts is 0", "1 or more"}},
       {"--partition fixed:100000", {"--partition fixed:100000", ".weight\"", "has 128"}},
       {"--partition fixed:", {"--partition"}},
       {"--placement greedi", {"did you mean \"greedy\"?"}},
       {"--reduction all_reduce", {"--reduction all_reduce", "no reduction"}},
       {"--compression bf16", {"--compression bf16: ", "no compression"}}});
  expect_refused(
      kMlp + Words{"--max-steps", "3"},
      {{"--strategy mirrored --on-lost-worker wait",
        {"--on-lost-worker wait under mirrored", "this strategy has none"}},
       {"--strategy multi_worker --restarts 3",
        {"--restarts 3 under multi_worker: ", "`tutti run --restarts R tutti train ...`"}},
       {"--strategy mirrored --partition fixed:2", {"mirrored", "parameter_server"}},
       {"--strategy mirrored --servers 2", {"mirrored", "--servers", "parameter_server"}},
       {"--strategy central_storage --staleness 2",
        {"central_storage", "--staleness", "parameter_server"}},
       {"--strategy central_storage --reduction all_reduce", {"central_storage", "use mirrored"}}});
}

}  // namespace
}  // namespace tutti::test
