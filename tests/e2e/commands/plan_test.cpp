#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "e2e/commands/plan_command.h"
#include "vlmtrain/memory/driver.h"
#include "vlmtrain/memory/libtorch.h"
#include "vlmtrain/planner/dry_run.h"

namespace vlmtrain::e2e {

namespace {

using nlohmann::ordered_json;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

struct Example {
  std::string name;
  std::vector<std::string> arguments;
};

class ExamplesTest : public PlanCommandTest {
 protected:
  std::filesystem::path examples_ = std::filesystem::path(VLMTRAIN_SOURCE_DIR) / "configs/examples";
};

TEST_F(ExamplesTest, EachFitsItsGpu) {
  const std::vector<Example> examples{
      {"full_80gb", {"--model", "qwen2.5-vl-3b", "--gpu", "h100"}},
      {"lora_24gb", {"--model", "llava-1.5-7b", "--gpu-gb", "24"}},
      {"nf4_8gb", {"--model", "qwen2.5-vl-3b", "--gpu", "rtx4060"}},
      {"tasks_16gb", {"--model", "smolvlm-500m", "--gpu", "rtx4080"}},
      {"video_24gb",
       {"--model", "qwen2.5-vl-3b", "--gpu", "rtx4090", "--video-frames", "32", "--video-size", "448x224"}}};
  std::set<std::string> planned_files;
  for (const auto& example : examples) {
    SCOPED_TRACE(example.name);
    planned_files.insert(example.name + ".yaml");
    auto arguments = example.arguments;
    const bool has_video = std::ranges::find(arguments, "--video-frames") != arguments.end();
    if (!has_video) arguments.insert(arguments.end(), {"--images", "1"});
    arguments.insert(arguments.end(), {"--config", (examples_ / (example.name + ".yaml")).string()});
    EXPECT_EQ(plan_json(arguments)["fits"], true);
  }
  std::set<std::string> there;
  for (const auto& file : std::filesystem::directory_iterator(examples_)) there.insert(file.path().filename());
  EXPECT_EQ(there, planned_files) << "each example is planned";
}

enum class Kind { kBoolean, kInteger, kNumber, kText, kList };

bool is(const ordered_json& value, Kind kind) {
  switch (kind) {
    case Kind::kBoolean:
      return value.is_boolean();
    case Kind::kInteger:
      return value.is_number_integer() && value >= 0;
    case Kind::kNumber:
      return value.is_number() && value >= 0;
    case Kind::kText:
      return value.is_string();
    case Kind::kList:
      return value.is_array();
  }
  return false;
}

void expect_keys(const ordered_json& json, const std::map<std::string, Kind>& keys) {
  for (const auto& [key, kind] : keys) {
    ASSERT_TRUE(json.contains(key)) << key;
    EXPECT_TRUE(is(json[key], kind)) << key << ": " << json[key];
  }
}

TEST_F(PlanCommandTest, JsonHasEveryKeyOfTheContract) {
  const auto json = plan_json({"--gpu-gb", "24", "--images", "2", "--model", "smolvlm-256m"});
  expect_keys(json, {{"fits", Kind::kBoolean},
                     {"micro_batch_size", Kind::kInteger},
                     {"gradient_accumulation_steps", Kind::kInteger},
                     {"global_batch_size", Kind::kInteger},
                     {"world_size", Kind::kInteger},
                     {"vision_tiles_per_pass", Kind::kInteger},
                     {"tokens_per_sample", Kind::kInteger},
                     {"limit_bytes", Kind::kInteger},
                     {"alternatives", Kind::kList},
                     {"plan_seconds", Kind::kNumber}});
  expect_keys(json["recompute"], {{"language_blocks", Kind::kInteger}, {"vision_blocks", Kind::kInteger}});
  const auto& memory = json["memory"];
  expect_keys(memory, {{"weights_bytes", Kind::kInteger},
                       {"gradients_bytes", Kind::kInteger},
                       {"optimizer_bytes", Kind::kInteger},
                       {"activations_bytes", Kind::kInteger},
                       {"workspace_bytes", Kind::kInteger},
                       {"context_bytes", Kind::kInteger},
                       {"communication_bytes", Kind::kInteger},
                       {"allocated_peak_bytes", Kind::kInteger},
                       {"reserved_peak_bytes", Kind::kInteger},
                       {"total_bytes", Kind::kInteger}});
  ASSERT_FALSE(json["alternatives"].empty());
  for (const auto& option : json["alternatives"]) {
    expect_keys(option, {{"micro_batch_size", Kind::kInteger},
                         {"gradient_accumulation_steps", Kind::kInteger},
                         {"reserved_peak_bytes", Kind::kInteger},
                         {"step_seconds", Kind::kNumber},
                         {"tokens_per_second", Kind::kNumber},
                         {"fits", Kind::kBoolean}});
  }

  EXPECT_EQ(json["fits"], true);
  EXPECT_EQ(json["global_batch_size"], 16);
  EXPECT_EQ(json["micro_batch_size"].get<int>() * json["gradient_accumulation_steps"].get<int>(), 16);
  EXPECT_LE(memory["reserved_peak_bytes"], json["limit_bytes"]);
  EXPECT_EQ(memory["context_bytes"].get<int64_t>() + memory["reserved_peak_bytes"].get<int64_t>(),
            memory["total_bytes"]);
}

TEST_F(PlanCommandTest, PrintsThePlanIfItDoesNotFit) {
  const std::vector<std::string> arguments{"--gpu-gb", "1", "--limit-gb", "0.62",
                                           "--images", "2", "--model",    "qwen2.5-vl-tiny"};
  const auto json = plan_json(arguments, 3);
  EXPECT_EQ(json["fits"], false);
  EXPECT_GT(json["memory"]["reserved_peak_bytes"], json["limit_bytes"]);
  ASSERT_FALSE(json["suggestions"].empty());
  EXPECT_EQ(json["suggestions"][0]["makes_it_fit"], true);
  EXPECT_THAT(json["suggestions"][0]["text"].get<std::string>(), Not(IsEmpty()));
  const Result text = plan(arguments);
  EXPECT_EQ(text.exit_code, 3);
  EXPECT_THAT(text.out, StartsWith("does not fit"));
}

TEST_F(PlanCommandTest, TextBeginsWithTheAnswer) {
  const Result result = plan({"--gpu-gb", "24", "--model", "smolvlm-tiny"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, StartsWith("fits: "));
  EXPECT_THAT(split_lines(result.out).front(), AllOf(HasSubstr("micro-batch 16"), HasSubstr("global batch 16")));
  EXPECT_EQ(result.out.find('\033'), std::string::npos) << "no colors in a file";
}

TEST_F(PlanCommandTest, FlagsAreConfigurationKeysByOtherNames) {
  const std::vector<std::string> common_arguments{"--gpu", "rtx4090", "--images", "1"};
  const auto plan_with_arguments = [&](const std::vector<std::string>& more) {
    auto arguments = common_arguments;
    arguments.insert(arguments.end(), more.begin(), more.end());
    auto json = plan_json(arguments);
    json.erase("plan_seconds");
    for (const char* time : {"dry_run_seconds", "rehearsal_seconds"}) json.erase(time);
    return json;
  };
  const auto flags =
      plan_with_arguments({"--model", "smolvlm-tiny", "--global-batch", "12", "--micro-batch", "3", "--precision",
                           "fp32", "--recompute", "1", "--mode", "aggressive", "--limit-gb", "10"});
  const auto keys = plan_with_arguments({"model.path=smolvlm-tiny", "training.global_batch_size=12",
                                         "training.micro_batch_size=3", "training.precision=fp32", "memory.recompute=1",
                                         "memory.mode=aggressive", "memory.limit_gb=10"});
  EXPECT_EQ(flags, keys);
  EXPECT_EQ(flags["micro_batch_size"], 3);
  EXPECT_EQ(flags["gradient_accumulation_steps"], 4);
  EXPECT_EQ(flags["mode"], "aggressive");
  EXPECT_EQ(flags["gpu_bytes"], 10'000'000'000);
}

TEST_F(PlanCommandTest, MoreImagesAndTextNeedMoreMemory) {
  const auto bytes = [&](const std::vector<std::string>& sample) {
    std::vector<std::string> arguments{"--gpu", "h100", "--model", "smolvlm-256m", "--micro-batch", "1"};
    arguments.insert(arguments.end(), sample.begin(), sample.end());
    return plan_json(arguments)["memory"]["reserved_peak_bytes"].get<int64_t>();
  };
  const int64_t default_bytes = bytes({});
  EXPECT_GT(bytes({"--images", "4"}), default_bytes);
  EXPECT_LT(bytes({"--images", "0"}), default_bytes);
  EXPECT_GT(bytes({"--text-tokens", "4000"}), default_bytes);
  EXPECT_GT(bytes({"--answer-tokens", "250", "--text-tokens", "4000"}), default_bytes);
  EXPECT_LT(bytes({"--image-size", "1024x128"}), default_bytes) << "a strip has fewer tiles";
}

TEST_F(PlanCommandTest, PlansForVideoFrames) {
  const std::vector<std::string> common_arguments{"--gpu",           "rtx4090",      "--model",
                                                  "qwen2.5-vl-tiny", "--video-size", "112x112"};
  const auto plan_with_arguments = [&](std::vector<std::string> more) {
    more.insert(more.begin(), common_arguments.begin(), common_arguments.end());
    return plan_json(more);
  };
  const auto folder_of_frames = plan_with_arguments({"--video-frames", "16"});
  EXPECT_EQ(folder_of_frames["video_frames_per_sample"], 16);
  EXPECT_EQ(folder_of_frames["videos_per_sample"], 1);
  EXPECT_EQ(folder_of_frames["images_per_sample"], 0);
  const auto clip = plan_with_arguments({"--video-frames", "240", "--fps", "30", "--images", "1", "data.video_fps=1"});
  EXPECT_EQ(clip["video_frames_per_sample"], 8);
  EXPECT_EQ(clip["images_per_sample"], 1);

  const Result capped = plan({"--gpu", "rtx4090", "--model", "qwen2.5-vl-tiny", "--video-size", "112x112",
                              "--video-frames", "64", "data.video_max_frames=8", "--json"});
  EXPECT_EQ(parse_plan(capped)["video_frames_per_sample"], 8);
  EXPECT_THAT(capped.err, HasSubstr("8 of the 64 frames are used (data.video_max_frames=8"));
}

TEST_F(PlanCommandTest, PlansAMixForItsWorstSample) {
  const std::vector<std::string> common_arguments{"--gpu", "rtx4090", "--model", "smolvlm-tiny", "--global-batch", "8"};
  const auto plan_with_arguments = [&](std::vector<std::string> more) {
    more.insert(more.begin(), common_arguments.begin(), common_arguments.end());
    return plan_json(more);
  };
  const auto mix = plan_with_arguments({"--image-mix", "3:0.25,1:0.5,2:0.25"});
  const auto worst = plan_with_arguments({"--images", "3"});
  EXPECT_EQ(mix["images_per_sample"], 3);
  EXPECT_EQ(mix["memory"], worst["memory"]) << "a step may have only the worst samples";
  EXPECT_FALSE(worst.contains("average"));
  const auto& average = mix["average"];
  ASSERT_EQ(average["samples"].size(), 3U);
  std::map<int, int> samples;
  double tokens = 0;
  for (const auto& kind : average["samples"]) {
    samples[kind["images"].get<int>()] = kind["samples"];
    tokens += kind["samples"].get<double>() * kind["tokens"].get<double>();
  }
  EXPECT_EQ(samples, (std::map<int, int>{{1, 4}, {2, 2}, {3, 2}}));
  EXPECT_DOUBLE_EQ(average["tokens_per_sample"], tokens / 8);
  EXPECT_LT(average["step_seconds"], mix["step_seconds"]);
  EXPECT_NEAR(average["samples_per_second"].get<double>() * average["step_seconds"].get<double>(), 8, 1e-6);
  EXPECT_LE(average["reserved_peak_bytes"], mix["memory"]["reserved_peak_bytes"]);

  const Result text = plan({"--gpu", "rtx4090", "--model", "smolvlm-tiny", "--image-mix", "1:3,2:1"});
  EXPECT_THAT(on_one_line(text.out), HasSubstr("12 of 1 image, 4 of 2 images"));
}

TEST_F(PlanCommandTest, SavingsTableHasAPlanPerRow) {
  const std::vector<std::string> common_arguments{
      "--gpu-gb", "1", "--limit-gb", "0.62", "--model", "qwen2.5-vl-tiny", "--global-batch", "2"};
  auto arguments = common_arguments;
  arguments.emplace_back("--compare");
  const auto json = plan_json(arguments, 3);
  const auto& rungs = json["compare"];
  std::vector<std::string> names;
  for (const auto& rung : rungs) names.push_back(rung["name"]);
  EXPECT_EQ(names, (std::vector<std::string>{"none", "16 bits", "recomputation", "8-bit states", "LoRA", "NF4"}));
  ASSERT_EQ(rungs.size(), 6U);
  const auto bytes = [&](size_t rung) { return rungs[rung]["single"]["total_bytes"].get<int64_t>(); };
  EXPECT_LT(bytes(2), bytes(1));
  EXPECT_LT(bytes(3), bytes(2));
  EXPECT_LT(bytes(4), bytes(3));
  EXPECT_LT(bytes(5), bytes(4));
  EXPECT_TRUE(rungs[0]["planned"].is_null());
  EXPECT_FALSE(rungs[5]["planned"].is_null());
  for (const auto& rung : rungs) {
    SCOPED_TRACE(rung["name"]);
    EXPECT_TRUE(rung["absent"].is_null());
    EXPECT_GT(rung["single"]["step_seconds"], 0);
    auto pasted = common_arguments;
    for (const auto& argument : rung["arguments"]) pasted.push_back(argument);
    const bool fits = !rung["planned"].is_null();
    const auto plan = plan_json(pasted, fits ? 0 : 3);
    if (!fits) continue;
    EXPECT_EQ(plan["memory"]["total_bytes"], rung["planned"]["total_bytes"]);
    EXPECT_EQ(plan["step_seconds"], rung["planned"]["step_seconds"]);
  }
  const Result text = plan(arguments);
  EXPECT_THAT(text.out, AllOf(HasSubstr("16 bits"), HasSubstr("NF4"), HasSubstr("does not fit")));
}

TEST_F(PlanCommandTest, UsesMeasurementsOfPastRuns) {
  const std::vector<std::string> arguments{"--gpu", "rtx4090", "--model", "smolvlm-tiny"};
  const auto without = plan_json(arguments);
  EXPECT_TRUE(without["past_runs"].is_null());
  std::string host(256, 0);
  ASSERT_EQ(gethostname(host.data(), host.size()), 0);
  const nlohmann::json environment{{"device", "NVIDIA GeForce RTX 4090"},
                                   {"driver", memory::read_kernel_module_version()},
                                   {"libtorch", memory::get_libtorch_info().compiled_version},
                                   {"host", host.c_str()},
                                   {"runs", 3},
                                   {"last", "2026-11-23"},
                                   {"context_bytes", 400'000'000},
                                   {"step_time_ratio", 2.0}};
  write_text(folder() / "past.json",
             nlohmann::json{{"version", 1}, {"places", nlohmann::json::array({environment})}}.dump());
  setenv("VLMTRAIN_PAST_RUNS", (folder() / "past.json").c_str(), 1);
  const auto plan_with_arguments = plan_json(arguments);
  EXPECT_EQ(plan_with_arguments["past_runs"]["runs"], 3);
  EXPECT_EQ(plan_with_arguments["memory"]["context_bytes"], 400'000'000);
  EXPECT_EQ(plan_with_arguments["memory"]["context_measured"], true);
  EXPECT_EQ(plan_with_arguments["memory"]["reserved_peak_bytes"], without["memory"]["reserved_peak_bytes"]);
  EXPECT_DOUBLE_EQ(plan_with_arguments["step_seconds"], 2 * without["step_seconds"].get<double>());
  EXPECT_THAT(on_one_line(plan(arguments).out), HasSubstr("Measured: 3 runs on this machine, the last on 2026-11-23"));
  EXPECT_TRUE(plan_json({"--gpu-gb", "24", "--model", "smolvlm-tiny"})["past_runs"].is_null());
  EXPECT_TRUE(plan_json({"--gpu", "rtx3090", "--model", "smolvlm-tiny"})["past_runs"].is_null());

  write_text(folder() / "past.json", "{");
  const Result damaged = plan({"--gpu", "rtx4090", "--model", "smolvlm-tiny", "--json"});
  EXPECT_TRUE(parse_plan(damaged)["past_runs"].is_null());
  EXPECT_THAT(damaged.err, HasSubstr("measurements of earlier runs are not used"));
}

TEST_F(PlanCommandTest, FourBitWeightsFitDespiteTheEstimate) {
  // The savings of recomputing quantized blocks do not add up in the estimate; a dry run shows that
  // the plan fits unchanged.
  const auto plan = plan_json({"--gpu-gb", "8", "--images", "4", "--quantization", "nf4"});
  EXPECT_EQ(plan["fits"], true);
  EXPECT_EQ(plan["vision_tiles_per_pass"], 0);
  EXPECT_EQ(plan["loss_chunk_rows"], planner::StepConfig{}.loss_chunk_rows);
  EXPECT_LE(plan["memory"]["reserved_peak_bytes"], plan["limit_bytes"]);
}

TEST_F(PlanCommandTest, RanksShareTheGlobalBatch) {
  const auto json = plan_json({"--gpu", "a100-80", "--model", "smolvlm-tiny", "--world-size", "4"});
  EXPECT_EQ(json["world_size"], 4);
  EXPECT_EQ(json["micro_batch_size"].get<int>() * json["gradient_accumulation_steps"].get<int>(), 4);
  EXPECT_GT(json["memory"]["communication_bytes"], 0);
}

TEST_F(PlanCommandTest, PredictsCommunication) {
  const std::vector<std::string> tiny{"--gpu", "h100", "--model", "smolvlm-tiny", "--global-batch", "16"};
  const auto plan_with_arguments = [&](std::vector<std::string> more) {
    more.insert(more.begin(), tiny.begin(), tiny.end());
    return plan_json(more);
  };
  EXPECT_TRUE(plan_with_arguments({})["communication"].is_null());
  const auto same_node = plan_with_arguments({"--world-size", "4"})["communication"];
  const auto far = plan_with_arguments({"--world-size", "4", "--nodes", "2"})["communication"];
  const auto fast =
      plan_with_arguments({"--world-size", "4", "--nodes", "2", "--network-gbit", "400"})["communication"];
  EXPECT_EQ(same_node["bytes_per_step"], far["bytes_per_step"]);
  EXPECT_EQ(same_node["min_sent_bytes"], same_node["bytes_per_step"].get<int64_t>() * 2 * 3 / 4);
  EXPECT_THAT(same_node["links"].get<std::string>(), AllOf(HasSubstr("NVLink"), Not(HasSubstr("network"))));
  EXPECT_THAT(fast["links"].get<std::string>(), HasSubstr("400 Gbit/s"));
  EXPECT_LT(same_node["seconds"], fast["seconds"]);
  EXPECT_LT(fast["seconds"], far["seconds"]);
  const Result text = plan({"--gpu", "h100", "--model", "smolvlm-tiny", "--world-size", "2"});
  EXPECT_THAT(text.out, AllOf(HasSubstr("2 ranks over NVLink"), HasSubstr("a step reduces")));
}

/// Samples in their order: rank 0 has the first sample of each step of two, rank 1 the second.
TEST_F(PlanCommandTest, NamesTheLargestRank) {
  const auto json = plan_json({"--config", "train.yaml", "--gpu", "rtx4090", "--world-size", "2"});
  ASSERT_EQ(json["ranks"].size(), 2U);
  EXPECT_GE(json["ranks"][0]["reserved_peak_bytes"], json["ranks"][1]["reserved_peak_bytes"]);
  EXPECT_LE(json["ranks"][0]["reserved_peak_bytes"], json["memory"]["reserved_peak_bytes"]);
}

TEST_F(PlanCommandTest, NamesTheWorstSample) {
  auto all = records();
  std::string question = "Why?";
  for (int i = 0; i < 1000; ++i) question += " Really?";
  const nlohmann::json endless{
      {"id", "the-endless-one"},
      {"conversations", {{{"from", "human"}, {"value", question}}, {{"from", "gpt"}, {"value", "So be it."}}}}};
  all.insert(all.begin() + 4, endless);
  write_records(all);
  const auto json = plan_json({"--config", "train.yaml", "--gpu", "rtx4090"});
  EXPECT_EQ(json["worst_sample"], "the-endless-one");
  EXPECT_GT(json["tokens_per_sample"], 1000);
  EXPECT_EQ(json["global_batch_size"], 4);
  EXPECT_FALSE(std::filesystem::exists(folder() / "run")) << "a plan writes nothing";

  const auto hypothetical = plan_json({"--config", "train.yaml", "--gpu", "rtx4090", "--images", "1"});
  EXPECT_TRUE(hypothetical["worst_sample"].is_null()) << "the plan is for synthetic samples";
}

TEST_F(PlanCommandTest, HeadlineNamesTrainedParts) {
  const auto headline = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments{"--gpu-gb", "24", "--model", "smolvlm-tiny"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return on_one_line(plan(arguments).out);
  };
  EXPECT_THAT(headline({}), HasSubstr("full fine-tuning"));
  EXPECT_THAT(headline({"--finetune", "lora"}), HasSubstr("LoRA of rank 16"));
  EXPECT_THAT(headline({"lora.rank=4"}), HasSubstr("LoRA of rank 4"));
}

TEST_F(PlanCommandTest, VideoFlagsDescribeAVideo) {
  std::filesystem::create_directory(folder() / "images/film");
  const auto image = std::filesystem::directory_iterator(source() / "images")->path();
  for (int frame = 0; frame < 6; ++frame) {
    std::filesystem::copy(image, folder() / fmt::format("images/film/{}{}", frame, image.extension().string()));
  }
  write_records(nlohmann::json::parse(R"([{"id": "film", "video": "film", "conversations":
      [{"from": "human", "value": "<video>What?"}, {"from": "gpt", "value": "Nothing."}]}])"));
  const std::vector<std::string> command{
      "--gpu-gb", "8", "--model", "qwen2.5-vl-tiny", "data.train=train.json", "data.image_root=images"};
  const auto json = plan_json(command);
  EXPECT_EQ(json["images_per_sample"], 0);
  EXPECT_EQ(json["videos_per_sample"], 1);
  EXPECT_EQ(json["video_frames_per_sample"], 6);
  EXPECT_THAT(on_one_line(plan(command).out),
              AllOf(HasSubstr("1 video of 6 frames"), HasSubstr("of videos)"), Not(HasSubstr("1 image"))));
}

}  // namespace

}  // namespace vlmtrain::e2e
