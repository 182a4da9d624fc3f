#include "e2e/run/resume_changed.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>

#include <numbers>
#include <regex>
#include <set>

#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/io/safetensors.h"

namespace vlmtrain::e2e {

namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

TEST_F(ResumeChangedTest, FinishedRunContinuesWithMoreSteps) {
  train_well(settings("run", 8));
  EXPECT_THAT(refused(2, settings("run", 12)),
              AllOf(HasSubstr("steps (training.max_steps or training.epochs): was 8, is 12"),
                    HasSubstr("training.resume=changed resumes with the new settings")));
  EXPECT_EQ(step_lines("run/metrics.jsonl").size(), 8U);

  const Result result = train(changed(settings("run", 12)));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto steps = step_lines("run/metrics.jsonl");
  ASSERT_EQ(steps.size(), 12U);
  for (size_t i = 0; i < steps.size(); ++i) EXPECT_EQ(steps[i]["step"], i + 1);
  EXPECT_EQ(steps.back()["total_steps"], 12);
  ASSERT_EQ(messages("run", "changed").size(), 1U);
  EXPECT_THAT(messages("run", "changed").front(),
              AllOf(HasSubstr("step 8: "), HasSubstr("steps (training.max_steps or training.epochs): 8 → 12"),
                    Not(HasSubstr("start at zero"))));
  EXPECT_THAT(result.err, HasSubstr("8 → 12"));
  EXPECT_THAT(read_text(folder() / "run/report.html"), HasSubstr("8 → 12"));
  EXPECT_THAT(read_text(folder() / "run/config.yaml"), AllOf(HasSubstr("max_steps: 12"), HasSubstr("resume: auto")));

  // The schedule equals that of a run with these steps from the beginning.
  train_well(settings("whole", 12));
  const auto uninterrupted = rates("whole"), run = rates("run");
  EXPECT_TRUE(std::equal(uninterrupted.begin() + 8, uninterrupted.end(), run.begin() + 8));
  EXPECT_NE(uninterrupted[5], run[5]);
  // It also resumes without training.resume=changed.
  train_well(settings("run", 12));
  EXPECT_EQ(messages("run", "changed").size(), 1U);
}

TEST_F(ResumeChangedTest, TheScheduleCanBeginAtTheChange) {
  const Settings course{"training.schedule_from=change", "training.lr_scheduler=linear", "training.warmup_ratio=0.25"};
  train_well(settings("run", 4));
  train_well(changed(settings("run", 12, course)));
  const auto run = rates("run");
  ASSERT_EQ(run.size(), 12U);
  // Eight steps: two of warm-up, then six down to zero.
  const std::vector<double> expected{0.5, 1, 1, 5 / 6.0, 4 / 6.0, 3 / 6.0, 2 / 6.0, 1 / 6.0};
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(run[4 + i], 1e-3 * expected[i], 1e-15) << i;

  // Changes outside the schedule keep it.
  remove_later_checkpoints("run", 8);
  auto decayed = course;
  decayed.emplace_back("training.weight_decay=0.1");
  train_well(changed(settings("run", 12, decayed)));
  EXPECT_EQ(rates("run"), run);
  EXPECT_THAT(messages("run", "changed").back(), HasSubstr("training.weight_decay: 0 → 0.1"));
}

struct Change {
  const char* name;
  std::vector<std::string> before;
  std::vector<std::string> after;
};

class ChangedRunTest : public ResumeChangedTest, public testing::WithParamInterface<Change> {};

/// Interrupted after the change and resumed without training.resume=changed, the run equals one
/// that was not interrupted.
TEST_P(ChangedRunTest, ResumesExactly) {
  write_other_records("other.json", 7);
  train_well(settings("whole", 6, GetParam().before));
  const auto after = settings("", 14, GetParam().after);
  const auto in = [&](const std::string& dir) {
    auto all = after;
    all.front() = "output.dir=" + dir;
    return all;
  };
  copy_run("whole", "pieces");
  train_well(changed(in("whole")));
  train_well(changed(in("pieces")));
  for (const int step : {12, 8}) {
    remove_later_checkpoints("pieces", step);
    train_well(in("pieces"));
    expect_same("whole", "pieces", 14);
  }
  EXPECT_EQ(messages("whole", "changed").size(), 1U);
  EXPECT_EQ(messages("pieces", "changed").size(), 1U);
}

INSTANTIATE_TEST_SUITE_P(
    With, ChangedRunTest,
    testing::Values(
        Change{"another_course",
               {},
               {"training.learning_rate=5e-4", "training.lr_scheduler=linear", "training.schedule_from=change"}},
        Change{"other_data", {}, {"data.train=other.json", "training.global_batch_size=2"}},
        Change{"another_optimizer", {}, {"training.optimizer=muon", "training.no_weight_decay=[embed_tokens]"}},
        Change{"another_precision_of_muon",
               {"training.optimizer=muon"},
               {"training.optimizer=muon", "training.precision=bf16"}},
        Change{"another_precision", {}, {"training.precision=bf16", "training.optimizer_states=8bit"}},
        Change{"a_frozen_tower",
               {"training.precision=bf16", "output.dtype=fp16"},
               {"training.precision=bf16", "output.dtype=fp16", "model.freeze_vision_tower=true"}},
        Change{"a_thawed_tower", {"model.freeze_vision_tower=true", "output.dtype=bf16"}, {"output.dtype=bf16"}},
        Change{"dropout",
               {"lora.rank=4", "model.quantization=nf4"},
               {"lora.rank=4", "lora.dropout=0.2", "model.freeze_projector=true"}}),
    [](const auto& instance) { return instance.param.name; });

TEST_F(ResumeChangedTest, ChangedWithoutChangesDoesNothing) {
  train_well(settings("whole", 12));
  const auto never_begun = train(changed(settings("pieces", 12)));
  ASSERT_EQ(never_begun.exit_code, 0) << "an empty folder: " << never_begun.err;
  remove_later_checkpoints("pieces", 8);
  train_well(changed(settings("pieces", 12, {"data.num_workers=1"})));
  expect_same("whole", "pieces", 12);
  EXPECT_TRUE(messages("pieces", "changed").empty());
  EXPECT_EQ(messages("pieces", "resumed").size(), 1U);
  EXPECT_EQ(json_file("whole/checkpoints/step-12/trainer_state/state.json")["fingerprint"],
            json_file("pieces/checkpoints/step-12/trainer_state/state.json")["fingerprint"]);
}

TEST_F(ResumeChangedTest, AnotherDatasetStartsWithItsOwnLedger) {
  write_other_records("other.json", 7);
  train_well(settings("run", 2));
  const Settings b{"training.max_steps=auto", "training.epochs=2", "data.train=other.json"};
  const Result result = train(changed(settings("run", 2, b)));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  // Two passes over seven samples are four steps, after the two earlier ones.
  const auto samples = step_lines("run/samples.jsonl");
  ASSERT_EQ(samples.size(), 6U);
  EXPECT_EQ(step_lines("run/metrics.jsonl").back()["total_steps"], 6);
  EXPECT_DOUBLE_EQ(step_lines("run/metrics.jsonl")[2]["epoch"], 4 / 7.0);
  train_well(settings("fresh", 2, b));
  const auto fresh = step_lines("fresh/samples.jsonl");
  ASSERT_EQ(fresh.size(), 4U);
  for (size_t i = 0; i < fresh.size(); ++i) EXPECT_EQ(samples[i + 2]["ids"], fresh[i]["ids"]);

  EXPECT_EQ(json_file("run/ledger.json")["dataset"], "other.json");
  EXPECT_EQ(json_file("run/ledger.json")["samples"], 7);
  EXPECT_EQ(json_file("run/ledger.json")["used"], 7);
  const auto old_ledger = json_file("run/ledger-to-step-2.json");
  EXPECT_EQ(old_ledger["dataset"], "train.json");
  EXPECT_EQ(old_ledger["used"], 8);
  EXPECT_EQ(old_ledger["not_reached"], kRecords - 8);
  EXPECT_THAT(messages("run", "changed").front(),
              AllOf(HasSubstr("data.train: train.json → other.json"), HasSubstr("samples in data.train: 11 → 7"),
                    HasSubstr("ledger-to-step-2.json")));
  // The run is complete, and reports that no steps remain for another change.
  auto more = b;
  more.emplace_back("training.weight_decay=0.5");
  EXPECT_THAT(
      refused(2, changed(settings("run", 2, more))),
      AllOf(HasSubstr("has completed 6 steps"), HasSubstr("training.epochs=2 adds no more"), HasSubstr("raise")));
}

TEST_F(ResumeChangedTest, WarnsAboutARewrittenDataset) {
  train_well(settings("run", 4));
  const Result unchanged = train(settings("run", 8, {"training.resume=changed"}));
  ASSERT_EQ(unchanged.exit_code, 0) << unchanged.err;
  EXPECT_THAT(unchanged.err, Not(HasSubstr("changed since the run last read them")));
  auto rewritten = records();
  rewritten[2]["conversations"][1]["value"] = "Another answer.";
  write_records(rewritten);
  const Result result = train(settings("run", 12, {"training.resume=changed"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("train.json: 1 of 11 samples changed since the run last read them"));
}

/// A change that no checkpoint has yet needs training.resume=changed again.
TEST_F(ResumeChangedTest, KillBeforeTheFirstCheckpointLosesOnlyTheChange) {
  auto before = settings("whole", 4);
  train_well(before);
  copy_run("whole", "pieces");
  const auto in = [&](const std::string& dir) { return settings(dir, 24, {"output.save_steps=0"}); };
  train_well(changed(in("whole")));
  Process process(folder(), train_arguments(changed(in("pieces"))));
  wait_until(process, [&] { return split_lines(read_text(folder() / "pieces/metrics.jsonl")).size() > 5; });
  process.send(SIGKILL);
  process.wait();
  EXPECT_THAT(refused(2, in("pieces")), HasSubstr("training.resume=changed"));
  train_well(changed(in("pieces")));
  expect_same("whole", "pieces", 24);
}

TEST_F(ResumeChangedTest, NewlyFrozenPartKeepsItsWeights) {
  const auto tower_differs = [&](const std::filesystem::path& a, const std::filesystem::path& b) {
    const io::CheckpointTensors first(a), second(b);
    std::set<bool> differ;
    for (const auto& name : first.names()) {
      if (name.find("vision_model.encoder.layers") == std::string::npos) continue;
      differ.insert(!at::equal(first.tensor(name), second.tensor(name).to(first.tensor(name).scalar_type())));
    }
    return differ == std::set<bool>{true};
  };
  for (const char* const precision : {"training.precision=fp32", "training.precision=bf16"}) {
    const std::string dir = std::string("run-") + precision;
    train_well(settings(dir, 4, {precision, "model.freeze_projector=true"}));
    ASSERT_TRUE(tower_differs(get_checkpoint_folder(dir, 4), checkpoint())) << "the tower has not changed";
    const Result result =
        train(changed(settings(dir, 8, {precision, "model.freeze_projector=true", "model.freeze_vision_tower=true"})));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.err, Not(HasSubstr("start at zero")));
    const io::CheckpointTensors before(get_checkpoint_folder(dir, 4)), after(get_checkpoint_folder(dir, 8));
    for (const auto& name : before.names()) {
      const bool is_frozen =
          name.find("vision_model") != std::string::npos || name.find("connector") != std::string::npos;
      if (!is_frozen) continue;
      EXPECT_TRUE(at::equal(before.tensor(name), after.tensor(name))) << name;
    }
    // Trained again, the part starts with these weights and new moments.
    const Result repeated = train(changed(settings(dir, 9, {precision, "model.freeze_projector=true"})));
    ASSERT_EQ(repeated.exit_code, 0) << repeated.err;
    EXPECT_THAT(messages(dir, "changed").back(), HasSubstr("start at zero"));
    const auto state = [&](int step) {
      return json_file(dir + "/checkpoints/step-" + std::to_string(step) + "/trainer_state/state.json");
    };
    EXPECT_EQ(state(8)["settled_parts"], nlohmann::json::array({"model.freeze_vision_tower"}));
    EXPECT_EQ(state(9)["settled_parts"], nlohmann::json::array());
  }
}

/// Weights that are trained in 16 bits from now on keep the fp32 values of the checkpoint.
TEST_F(ResumeChangedTest, PrecisionChangesKeepTheWeights) {
  train_well(settings("run", 4));
  train_well(changed(settings("run", 5, {"training.precision=bf16", "training.learning_rate=0"})));
  const io::CheckpointTensors before(get_checkpoint_folder("run", 4)), after(get_checkpoint_folder("run", 5));
  for (const auto& name : before.names()) EXPECT_TRUE(at::equal(before.tensor(name), after.tensor(name))) << name;
}

TEST_F(ResumeChangedTest, FixedKeysSuggestANewRun) {
  train_well(settings("full", 4));
  EXPECT_THAT(refused(2, changed(settings("full", 8, {"training.seed=3"}))),
              AllOf(HasSubstr("training.seed cannot change within a run"),
                    HasSubstr("model.path=full/checkpoints/step-4"), Not(HasSubstr("resume=changed"))));
  EXPECT_THAT(refused(2, changed(settings("full", 8, {"lora.rank=4"}))), HasSubstr("lora.rank cannot change"));

  train_well(settings("lora", 4, {"lora.rank=4", "model.freeze_vision_tower=true"}));
  EXPECT_THAT(refused(2, changed(settings("lora", 8, {"lora.rank=8", "model.freeze_vision_tower=true"}))),
              AllOf(HasSubstr("lora.rank cannot change"), HasSubstr("model.adapter=lora/checkpoints/step-4"),
                    HasSubstr("vlmtrain merge --adapter lora/checkpoints/step-4")));
  EXPECT_THAT(
      refused(2, changed(settings("lora", 8, {"lora.rank=4"}))),
      AllOf(HasSubstr("model.freeze_vision_tower: was true, is false"), HasSubstr("has no adapters in that part")));
  for (const char* const dir : {"full", "lora"}) EXPECT_EQ(step_lines(std::string(dir) + "/metrics.jsonl").size(), 4U);
}

TEST_F(ResumeChangedTest, FrozenAdaptersStayUnchanged) {
  train_well(settings("run", 4, {"lora.rank=4"}));
  const Settings frozen{"lora.rank=4", "model.freeze_vision_tower=true"};
  train_well(changed(settings("run", 8, frozen)));
  remove_later_checkpoints("run", 8);
  train_well(changed(settings("run", 12, frozen)));
  const io::SafetensorsFile before(get_checkpoint_folder("run", 4) / "adapter_model.safetensors");
  const io::SafetensorsFile after(get_checkpoint_folder("run", 12) / "adapter_model.safetensors");
  ASSERT_EQ(before.names(), after.names());
  for (const auto& name : before.names()) {
    const bool is_frozen = name.find("vision_model") != std::string::npos;
    EXPECT_EQ(at::equal(before.tensor(name), after.tensor(name)), is_frozen) << name;
  }
}

TEST_F(ResumeChangedTest, GradNormResumesWithTheSameTasks) {
  auto with_tasks = records();
  for (size_t i = 0; i < with_tasks.size(); ++i) with_tasks[i]["task"] = i % 2 == 0 ? "even" : "odd";
  write_records(with_tasks);
  const auto weight = [this](const std::string& dir, size_t step) {
    return step_lines(dir + "/metrics.jsonl").at(step - 1)["tasks"]["even"]["weight"].get<double>();
  };
  const Settings gradnorm{"training.task_weighting=gradnorm", "training.gradnorm_learning_rate=0.2"};
  train_well(settings("run", 6, gradnorm));
  train_well(changed(settings("run", 8, {gradnorm[0], gradnorm[1], "training.weight_decay=0.1"})));
  EXPECT_NE(weight("run", 6), 1);
  EXPECT_NE(weight("run", 7), 1) << "the learned weight is lost";
  train_well(settings("other", 6));
  train_well(changed(settings("other", 8, gradnorm)));
  EXPECT_EQ(weight("other", 7), 1);
  EXPECT_THAT(messages("other", "changed").front(), HasSubstr("GradNorm's weights are reset"));
}

TEST_F(ResumeChangedTest, ResumesARunOfAnOlderVersion) {
  train_well(settings("whole", 8));
  train_well(settings("pieces", 8));
  remove_later_checkpoints("pieces", 4);
  const auto file = get_checkpoint_folder("pieces", 4) / "trainer_state/state.json";
  auto state = nlohmann::ordered_json::parse(read_text(file));
  EXPECT_FALSE(state.contains("changed_at")) << "an unchanged run has no changed_at";
  state["fingerprint"].erase("training.schedule_from");
  state["fingerprint"].erase("weights in model.path");
  write_text(file, state.dump());
  std::filesystem::remove(file.parent_path() / "checksums.json");
  train_well(settings("pieces", 8));
  expect_same("whole", "pieces", 8);
}

TEST_F(ResumeChangedTest, RunFolderResolvesToItsNewestCheckpoint) {
  train_well(settings("run", 8, {"lora.rank=4"}));
  const std::string newest = "run/checkpoints/step-8";
  const auto eval = [&](const std::string& checkpoint) {
    Result result = run({"eval", "--config", "train.yaml", "--checkpoint", checkpoint, "--device", "cpu", "--json"});
    result.out = std::regex_replace(result.out, std::regex("\"seconds\":[^,]*,"), "");  // durations differ between runs
    return result;
  };
  const auto generate = [&](const std::string& checkpoint) {
    return run(
        {"generate", "--checkpoint", checkpoint, "--prompt", "What?", "--device", "cpu", "--max-new-tokens", "4"});
  };
  const auto merge = [&](const std::string& adapter, const std::string& out) {
    return run({"merge", "--adapter", adapter, "--out", out, "--json"});
  };
  for (const auto& [run_path, checkpoint_path] :
       {std::pair{eval("run"), eval(newest)}, std::pair{generate("run/"), generate(newest)}}) {
    EXPECT_EQ(run_path.exit_code, 0) << run_path.err;
    EXPECT_EQ(run_path.out, checkpoint_path.out);
    EXPECT_THAT(run_path.err, HasSubstr("is the folder of a run; using its newest checkpoint, run/"));
    EXPECT_THAT(run_path.err, HasSubstr("checkpoints/step-8"));
    EXPECT_THAT(checkpoint_path.err, Not(HasSubstr("folder of a run")));
  }
  const Result merged = merge("run", "merged");
  ASSERT_EQ(merged.exit_code, 0) << merged.err;
  EXPECT_THAT(nlohmann::json::parse(merged.out)["adapter"].get<std::string>(), EndsWith("checkpoints/step-8"));
  ASSERT_EQ(merge(newest, "merged_too").exit_code, 0);
  EXPECT_EQ(read_text(folder() / "merged/model.safetensors"), read_text(folder() / "merged_too/model.safetensors"));

  std::filesystem::remove_all(folder() / "run/checkpoints");
  const Result none = eval("run");
  EXPECT_EQ(none.exit_code, 4);
  EXPECT_THAT(none.err, HasSubstr("run: is the folder of a run without a checkpoint"));
}

}  // namespace

}  // namespace vlmtrain::e2e
