#include <cmath>

#include "e2e/brain_scans.h"

namespace vlmtrain::e2e {

namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

/// Runs of a small model for volumes.
class VolumesTest : public BrainScansTest {
 protected:
  using Settings = std::vector<std::string>;

  size_t steps_logged(const std::string& dir) const {
    return split_lines(read_text(folder() / dir / "metrics.jsonl")).size();
  }

  /// Compares losses and norms of two runs with different micro-batches.
  void expect_same_steps(const std::string& a, const std::string& other) const {
    const auto expected = step_lines(a + "/metrics.jsonl"), actual = step_lines(other + "/metrics.jsonl");
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      for (const char* key : {"tokens", "label_tokens", "images", "volumes", "samples"}) {
        EXPECT_EQ(actual[i][key], expected[i][key]) << key << " of step " << i + 1;
      }
      for (const auto& [key, rounding] : {std::pair{"loss", 2e-5}, {"grad_norm", 1e-4}}) {
        const double value = expected[i][key];
        EXPECT_NEAR(actual[i][key].get<double>(), value, rounding * std::abs(value)) << key << " of step " << i + 1;
      }
    }
  }
};

TEST_F(VolumesTest, ThreeTaskRunResumesExactly) {
  const Settings settings{"training.max_steps=6", "data.task_shares={T1: 0.5, T2: 0.3, T3: 0.2}",
                          "training.task_weighting=gradnorm", "training.gradnorm_learning_rate=0.05"};
  const auto with_dir = [&](const std::string& dir) {
    auto all = settings;
    all.push_back("output.dir=" + dir);
    return all;
  };
  train_well(with_dir("whole"));
  Process first(folder(), train_arguments(with_dir("pieces")));
  wait_until(first, [&] { return steps_logged("pieces") >= 2; });
  first.send(SIGTERM);
  EXPECT_EQ(first.wait().exit_code, 75);
  train_well(with_dir("pieces"));
  const auto uninterrupted = step_lines("whole/metrics.jsonl"), resumed = step_lines("pieces/metrics.jsonl");
  ASSERT_EQ(uninterrupted.size(), 6U);
  ASSERT_EQ(resumed.size(), 6U);
  for (size_t i = 0; i < uninterrupted.size(); ++i) {
    for (const char* key : {"loss", "grad_norm", "volumes"}) {
      EXPECT_EQ(uninterrupted[i][key].dump(), resumed[i][key].dump()) << key << " of step " << i + 1;
    }
    EXPECT_EQ(uninterrupted[i]["images"], uninterrupted[i]["volumes"]);
    ASSERT_EQ(uninterrupted[i]["tasks"].size(), 3U) << "all of them in each step";
    for (const auto& [name, task] : uninterrupted[i]["tasks"].items()) {
      EXPECT_GT(task["loss"], 0) << name;
      EXPECT_EQ(task.dump(), resumed[i]["tasks"][name].dump()) << name << " of step " << i + 1;
    }
  }
  EXPECT_NE(uninterrupted[5]["tasks"]["T1"]["weight"], uninterrupted[0]["tasks"]["T1"]["weight"])
      << "GradNorm changes them";
  const std::string weights = "checkpoints/step-6/model.safetensors";
  EXPECT_EQ(read_text(folder() / "whole" / weights), read_text(folder() / "pieces" / weights));
}

TEST_F(VolumesTest, SplitsDoNotChangeAStep) {
  const auto train_in_folder = [&](const std::string& dir, const Settings& more) {
    Settings settings{"training.global_batch_size=8", "output.dir=" + dir};
    settings.insert(settings.end(), more.begin(), more.end());
    train_well(settings);
  };
  train_in_folder("four", {"training.micro_batch_size=4"});
  train_in_folder("one", {"training.micro_batch_size=1"});
  train_in_folder("again", {"training.micro_batch_size=4", "memory.recompute=all"});
  train_in_folder("passes", {"training.micro_batch_size=4", "memory.vision_tiles_per_pass=1"});
  for (const char* dir : {"one", "again", "passes"}) expect_same_steps("four", dir);
}

/// One rank lacks a modality of the other's samples, whose embedding gets no gradient there.
TEST_F(VolumesTest, TwoRanksLearnTheSameAsOneProcess) {
  auto records = brains();
  for (auto& record : records) record.erase("modality");
  records[0]["modality"] = "T2w";
  write_brains(records);
  const Settings settings{"training.max_steps=5", "output.sample_predictions=0"};
  const auto with_dir = [&](const std::string& dir) {
    auto all = settings;
    all.push_back("output.dir=" + dir);
    return all;
  };
  train_well(with_dir("one"));
  auto arguments = train_arguments(with_dir("two"));
  arguments.insert(arguments.end(), {"--nproc-per-node", "2"});
  const Result result = run(arguments);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  expect_same_steps("one", "two");
}

TEST_F(VolumesTest, ForecastsMemoryExactly) {
  const Result result = run({"--config", "train.yaml", "--device", "virtual:rtx4090", "training.max_steps=3",
                             "training.precision=bf16", "memory.mode=aggressive"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const auto& step : step_lines(std::string(kVirtualRun) + "metrics.jsonl")) {
    EXPECT_EQ(step["reserved_peak_bytes"], step["predicted_peak_bytes"]) << "step " << step["step"];
    EXPECT_EQ(step["oom_splits"], 0);
  }
}

TEST_F(VolumesTest, PlanReportsVolumes) {
  const Result gpu = run({"plan", "--model", "brain-llava-tiny", "--volumes", "2", "--gpu", "rtx4090"});
  EXPECT_THAT(gpu.out, AllOf(HasSubstr("(54 of volumes)"), HasSubstr("2 volumes of 48x48x48")));
  const Result host = train({"training.max_steps=1"});
  EXPECT_EQ(host.exit_code, 0) << host.err;
  EXPECT_THAT(host.err, Not(HasSubstr("planning failed")));
}

TEST_F(VolumesTest, AnAdapterIsMerged) {
  train_well({"lora.rank=4", "training.max_steps=2", "output.dir=lora"});
  const std::string adapter = "lora/checkpoints/step-2";
  const Result merged = run({"merge", "--adapter", adapter, "--out", "merged"});
  ASSERT_EQ(merged.exit_code, 0) << merged.err;
  const auto read_loss = [&](const std::string& checkpoint) {
    const Result result = run({"eval", "--config", "train.yaml", "--checkpoint", checkpoint, "--json", "--device",
                               "cpu", "data.eval=brains.json"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const auto json = nlohmann::json::parse(result.out);
    EXPECT_EQ(json["by_task"].size(), 3U) << json;
    return json["loss"].get<double>();
  };
  const double loss = read_loss(adapter);
  EXPECT_NEAR(read_loss("merged"), loss, 1e-5 * loss);
  EXPECT_NE(read_loss("model"), loss);
}

TEST_F(VolumesTest, ImageModelsReadSlices) {
  auto records = brains();
  write_brains(records);
  const Settings settings{"model.path=" + checkpoint().string(), "training.max_steps=2", "data.max_length=4096",
                          "data.volume.as=slices", "data.volume.slices=2"};
  train_well(settings);
  for (const auto& step : step_lines("run/metrics.jsonl")) {
    EXPECT_FALSE(step.contains("volumes"));
    EXPECT_EQ(step["images"].get<int64_t>() % 2, 0);
    EXPECT_GT(step["images"], 0);
  }
  const Result result =
      run({"--config", "train.yaml", "--device", "cpu", "model.path=" + checkpoint().string(), "output.dir=other"});
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.err, AllOf(HasSubstr("sub-0-T1"), HasSubstr("data.volume.as=slices")));
}

TEST_F(VolumesTest, SeriesAreAveragedOrSampled) {
  write_scan("bold.nii", {.size = {12, 12, 10, 6}});
  auto records = nlohmann::json::array();
  records.push_back(make_record("bold", "T1", "What is it?", "Functional MRI.", {"bold.nii"}));
  write_brains(records);
  const auto list_volumes = [&](const Settings& more) {
    Settings settings{"training.global_batch_size=2", "training.max_steps=1"};
    settings.insert(settings.end(), more.begin(), more.end());
    train_well(settings);
    return step_lines(more.back().substr(more.back().find('=') + 1) + "/metrics.jsonl")[0];
  };
  const auto mean = list_volumes({"data.volume.series=mean", "output.dir=mean"});
  const auto frames = list_volumes({"data.volume.series=frames", "data.volume.max_frames=3", "output.dir=frames"});
  EXPECT_EQ(mean["volumes"], 2);
  EXPECT_EQ(frames["volumes"], 2) << "of three frames each, at one mark";
  constexpr int64_t kTokens = 27;
  EXPECT_EQ(frames["tokens"].get<int64_t>() - mean["tokens"].get<int64_t>(), 2 * 2 * kTokens);
}

TEST_F(VolumesTest, PredictionsShowSlices) {
  train_well({"output.sample_predictions=6", "output.sample_predictions_share=1", "training.max_steps=1"});
  bool has_named = false;
  for (const auto& line : step_lines("run/predictions.jsonl")) {
    ASSERT_FALSE(line["images"].empty());
    ASSERT_EQ(line["images"].size(), line["captions"].size());
    has_named |= line["captions"][0].get<std::string>().starts_with("T1w, sub-");
    EXPECT_THAT(line["images"][0].get<std::string>(), testing::StartsWith("data:image/jpeg;base64,"));
  }
  EXPECT_TRUE(has_named);
  EXPECT_THAT(read_text(folder() / "run/report.html"), HasSubstr("T1w, sub-"));
  const auto events = entries(folder() / "run/tensorboard");
  ASSERT_EQ(events.size(), 1U);
  EXPECT_THAT(read_text(folder() / "run/tensorboard" / events[0]), HasSubstr("image 1 (T1w, sub-"));
}

TEST_F(VolumesTest, InspectReportsSharedSubjects) {
  auto held_out = brains();
  for (auto& record : held_out) {
    const std::string id = record["id"];
    record["id"] = "held-" + id;
    if (!id.starts_with("sub-1")) record["subject_id"] = "new-" + id;
  }
  write_text(folder() / "held_out.json", held_out.dump());
  const Result result = run(
      {"inspect", "--config", "train.yaml", "--decode", "--json", "--html", "look.html", "data.eval=held_out.json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto actual = nlohmann::json::parse(result.out);
  EXPECT_EQ(actual["tiles_are"], "grids");
  EXPECT_EQ(actual["histograms"]["volumes"]["sum"], 4 * kSubjects);
  EXPECT_EQ(actual["histograms"]["images"]["sum"], 0);
  EXPECT_EQ(actual["evaluation"]["trained_subjects"], nlohmann::json({"sub-1"}));
  EXPECT_EQ(actual["evaluation"]["with_trained_subjects"],
            nlohmann::json({"held-sub-1-T1", "held-sub-1-T2", "held-sub-1-T3"}));
  EXPECT_EQ(actual["shown"][0]["media"][0]["voxels"], nlohmann::json({48, 48, 48}));
  const std::string page = read_text(folder() / "look.html");
  EXPECT_THAT(page, AllOf(HasSubstr("48 × 48 × 48, "),
                          HasSubstr("<td>3</td><td class=\"text\">of a subject in the training data</td>"),
                          HasSubstr("volume of 48x48x48"), HasSubstr("data:image/png;base64,")));
  const Result text = run({"inspect", "--config", "train.yaml", "data.eval=held_out.json"});
  EXPECT_THAT(text.out,
              AllOf(ContainsRegex("3  of a subject in the training data +held-sub-1-T1"),
                    ContainsRegex("1  subjects in both +sub-1"), HasSubstr("Volumes per sample\n  1 to 2 per sample")));
}

TEST_F(VolumesTest, GeneratesForAScan) {
  const auto ask = [&](const std::string& checkpoint, const Settings& more) {
    Settings words{"generate", "--checkpoint", checkpoint, "--device", "cpu", "--max-new-tokens",
                   "4",        "--json",       "--prompt", "Where?"};
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  };
  const std::string scan = "scans/" + make_scan_name(0, "T1w");
  const Result run_named = ask("model", {"--volume", scan, "--modality", "T1w"});
  ASSERT_EQ(run_named.exit_code, 0) << run_named.err;
  EXPECT_GT(nlohmann::json::parse(run_named.out)["prompt_tokens"], 27);
  const Result two = ask("model", {"--image", scan, "--image", scan, "--modality", "T1w", "--modality", "T2w"});
  ASSERT_EQ(two.exit_code, 0) << two.err;
  const Result unordered = ask("model", {"--volume", scan, "--image", scan});
  EXPECT_EQ(unordered.exit_code, 2);
  EXPECT_THAT(unordered.err, AllOf(HasSubstr("--image: " + scan), HasSubstr("in the order of their placeholders")));
  const Result unknown = ask("model", {"--volume", scan, "--modality", "CT"});
  EXPECT_EQ(unknown.exit_code, 4);
  EXPECT_THAT(unknown.err, AllOf(HasSubstr("CT"), HasSubstr("T1w, T2w")));
  const Result of_none = ask("model", {"--modality", "T1w"});
  EXPECT_EQ(of_none.exit_code, 2);
  EXPECT_THAT(of_none.err, HasSubstr("--volume"));
  const Result images = ask(checkpoint().string(), {"--volume", scan});
  EXPECT_EQ(images.exit_code, 4);
  EXPECT_THAT(images.err,
              AllOf(HasSubstr("which this model family does not support"), HasSubstr("data.volume.as=slices")));
  const Result slices = ask(checkpoint().string(), {"--volume", scan, "data.volume.as=slices", "data.volume.slices=2"});
  EXPECT_EQ(slices.exit_code, 0) << slices.err;
}

TEST_F(VolumesTest, GenerateReadsScansLikeTheRun) {
  train_well({"training.max_steps=1", "data.volume.normalization=window", "data.volume.window=[0, 200]"});
  const auto answer = [&](const std::string& checkpoint, const Settings& more) {
    Settings words{"generate", "--checkpoint",
                   checkpoint, "--device",
                   "cpu",      "--max-new-tokens",
                   "8",        "--no-cache",
                   "--volume", "scans/" + make_scan_name(0, "T1w"),
                   "--prompt", "Where?"};
    words.insert(words.end(), more.begin(), more.end());
    const Result result = run(words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  };
  std::filesystem::create_directory(folder() / "bare");
  const auto step = folder() / "run/checkpoints/step-1";
  for (const auto& entry : std::filesystem::directory_iterator(step)) {
    if (entry.is_regular_file()) std::filesystem::copy_file(entry.path(), folder() / "bare" / entry.path().filename());
  }
  EXPECT_EQ(answer("run", {}), answer("bare", {})) << "the settings are next to the weights";
  std::filesystem::remove(folder() / "bare/volume_settings.json");
  EXPECT_EQ(answer("run", {}), answer("bare", {"data.volume.normalization=window", "data.volume.window=[0,200]"}));
  EXPECT_NE(answer("run", {}), answer("bare", {})) << "otherwise nothing is compared";
  const Result refused = run({"generate", "--checkpoint", "run", "--prompt", "x", "training.seed=1"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("training.seed"));
}

TEST_F(VolumesTest, MergedModelReadsScansLikeItsAdapter) {
  train_well({"training.max_steps=1", "lora.rank=2", "data.volume.series=mean", "data.volume.max_frames=3"});
  ASSERT_EQ(run({"merge", "--adapter", "run", "--out", "merged"}).exit_code, 0);
  for (const std::string checkpoint_folder : {"run/checkpoints/step-1", "merged"}) {
    const auto settings = nlohmann::json::parse(read_text(folder() / checkpoint_folder / "volume_settings.json"));
    EXPECT_EQ(settings, nlohmann::json({{"data.volume.series", "mean"}, {"data.volume.max_frames", "3"}}))
        << checkpoint_folder;
  }
  write_scan("bold.nii", {.size = {12, 12, 10, 6}});
  const Result result = run(
      {"generate", "--checkpoint", "merged", "--volume", "scans/bold.nii", "--prompt", "?", "--max-new-tokens", "2"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

TEST_F(VolumesTest, InspectReportsSamplesLargerThanAPack) {
  const Result result =
      run({"inspect", "--config", "train.yaml", "data.packing=true", "data.pack_max_tokens=8", "data.max_length=8000"});
  EXPECT_EQ(result.exit_code, 4) << result.err;
  EXPECT_THAT(result.out + result.err, AllOf(HasSubstr("pack_max_tokens"), Not(HasSubstr("internal error"))));
}

TEST_F(VolumesTest, SlicesCountAsImages) {
  const Result result = run({"--config", "train.yaml", "--device", "cpu", "model.path=" + checkpoint().string(),
                             "data.volume.as=slices", "data.volume.slices=3", "data.max_images_per_sample=2"});
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.err, HasSubstr("more than data.max_images_per_sample=2"));
}

}  // namespace

}  // namespace vlmtrain::e2e
