
#include <filesystem>

#include "e2e/commands/plan_command.h"

namespace vlmtrain::e2e {

namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

TEST_F(PlanCommandTest, RejectsSamplesThatTrainingRejects) {
  std::vector<std::string> long_one{"--gpu", "rtx4090",      "--model",   "qwen2.5-vl-tiny",    "--images",
                                    "2",     "--image-size", "2000x2000", "data.max_length=350"};
  const auto shrunk_plan = plan_json({"--gpu", "a100-80", "--model", "qwen2.5-vl-3b", "--images", "2", "--image-size",
                                      "2000x2000", "data.max_length=5000"});
  EXPECT_LE(shrunk_plan["tokens_per_sample"], 5000) << "as in training";
  EXPECT_GT(shrunk_plan["tokens_per_sample"], 4800) << "no smaller than necessary";
  long_one.emplace_back("data.on_too_long=fail");
  const auto run_with_suggestion = [&](std::vector<std::string> more) {
    more.insert(more.begin(), long_one.begin(), long_one.end());
    return plan_json(more);
  };
  expect_error(long_one, 2,
               {"is longer than data.max_length=350", "data.max_length=", "data.image_max_pixels=", "--images 1"});
  const Result refused = plan(long_one);
  // Every suggestion of the message solves the problem.
  const std::string line = refused.err.substr(refused.err.find("one of: ") + 8);
  std::istringstream suggestions(line.substr(0, line.find('\n')));
  int num_suggestions = 0;
  for (std::string suggestion; std::getline(suggestions, suggestion, ',');) {
    std::istringstream word_stream(suggestion);
    std::vector<std::string> arguments;
    for (std::string argument; word_stream >> argument;) arguments.push_back(argument);
    SCOPED_TRACE(suggestion);
    EXPECT_GT(run_with_suggestion(arguments)["tokens_per_sample"], 320) << "no smaller than necessary";
    ++num_suggestions;
  }
  EXPECT_GE(num_suggestions, 4);

  expect_error({"--gpu", "rtx4090", "--model", "smolvlm-tiny", "--images", "3", "data.max_images_per_sample=2"}, 2,
               {"3 images, more than data.max_images_per_sample=2", "--images 2"});
  expect_error({"--gpu", "rtx4090", "--model", "nanovlm-tiny", "--text-tokens", "600"}, 2,
               {"lm_max_position_embeddings"});
  const std::vector<std::string> mix{
      "--gpu", "rtx4090", "--model", "smolvlm-tiny", "--image-mix", "1:1,3:1", "data.max_images_per_sample=2"};
  expect_error(mix, 2, {"append to the command one of: data.on_bad_sample=skip"});
  auto skipping = mix;
  skipping.insert(skipping.end(), {"data.on_bad_sample=skip", "--json"});
  const Result skipped = plan(skipping);
  EXPECT_EQ(parse_plan(skipped)["images_per_sample"], 1);
  EXPECT_THAT(skipped.err, HasSubstr("are skipped"));
}

TEST_F(PlanCommandTest, WarnsAboutTooManyPositions) {
  const Result result = plan({"--gpu-gb", "24", "--model", "smolvlm-tiny", "--images", "0", "--text-tokens", "600"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.err, AllOf(HasSubstr("600 tokens"), HasSubstr("512"), HasSubstr("max_position_embeddings")));
}

TEST_F(PlanCommandTest, RejectsInvalidRanks) {
  const auto refusal = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"--gpu", "h100", "--model", "smolvlm-tiny"});
    const Result result = plan(more);
    EXPECT_EQ(result.exit_code, 2);
    return result.err;
  };
  EXPECT_THAT(refusal({"--world-size", "6", "--nodes", "4"}), HasSubstr("choose a multiple of --nodes"));
  EXPECT_THAT(refusal({"--nodes", "2"}), HasSubstr("--world-size 1: all 2 nodes"));
  EXPECT_THAT(refusal({"--world-size", "5"}), HasSubstr("cannot be divided equally among 5 ranks"));
  for (const char* number : {"0", "nan", "-5"}) {
    EXPECT_THAT(refusal({"--world-size", "2", "--network-gbit", number}), HasSubstr("--network-gbit"));
  }
}

TEST_F(PlanCommandTest, ReportsBadSamples) {
  auto all = records();
  all.push_back(
      {{"id", "gone"},
       {"image", "gone.png"},
       {"conversations", {{{"from", "human"}, {"value", "<image>\nWhat?"}}, {{"from", "gpt"}, {"value", "Gone."}}}}});
  write_records(all);
  const Result result = plan({"--config", "train.yaml", "--gpu", "rtx4090", "--json"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.err, AllOf(HasSubstr("1 of 12 samples cannot be used"), HasSubstr("gone.png")));
  EXPECT_EQ(parse_plan(result)["fits"], true);
}

TEST_F(PlanCommandTest, NoUsableSamples) {
  write_records(nlohmann::json::parse(R"([{"id": "gone", "image": "gone.png", "conversations":
      [{"from": "human", "value": "<image>What?"}, {"from": "gpt", "value": "Gone."}]}])"));
  expect_error({"--config", "train.yaml", "--gpu", "rtx4090"}, 4, {"train.json", "none of its 1 samples", "gone.png"});
}

TEST_F(PlanCommandTest, NoWeightsAreRead) {
  std::filesystem::copy(checkpoint(), folder() / "bare");
  std::filesystem::remove(folder() / "bare/model.safetensors");
  const auto bare = plan_json({"--gpu-gb", "8", "--model", "bare"});
  EXPECT_EQ(bare["fits"], true);
  EXPECT_EQ(bare["memory"], plan_json({"--gpu-gb", "8", "--model", checkpoint().string()})["memory"]);
}

TEST_F(PlanCommandTest, RejectsInvalidModelFolders) {
  std::filesystem::create_directory(folder() / "empty");
  expect_error({"--gpu-gb", "8", "--model", "empty"}, 4, {"empty: has no config.json"});
  std::filesystem::copy(checkpoint(), folder() / "other");
  write_text(folder() / "other/config.json", R"({"model_type": "paligemma"})");
  expect_error({"--gpu-gb", "8", "--model", "other"}, 4, {"paligemma", "idefics3"});
}

TEST_F(PlanCommandTest, RejectsInvalidGpus) {
  for (const char* size : {"0", "-3", "nan", "1e9"}) {
    expect_error({"--gpu-gb", size, "--model", "smolvlm-tiny"}, 2, {"gpu-gb", "from 1 to 1024"});
  }
  expect_error({"--gpu-gb", "abc", "--model", "smolvlm-tiny"}, 2, {"--gpu-gb", "abc"});
  expect_error({"--gpu", "foo", "--model", "smolvlm-tiny"}, 2, {"gpu foo: unknown", "rtx4090", "--gpu-gb"});
  expect_error({"--gpu", "h100", "--gpu-gb", "80"}, 2, {"--gpu and --gpu-gb", "one of them"});
  expect_error({"--gpu", "t4", "--model", "smolvlm-tiny"}, 2, {"Tesla T4", "training.precision=fp32"});
}

TEST_F(PlanCommandTest, RequiresAGpu) {
  const Result result = plan({"--model", "smolvlm-tiny"});
  if (result.exit_code == 0) GTEST_SKIP() << "the plan is for this machine's GPU";
  expect_error({"--model", "smolvlm-tiny"}, 2, {"this machine has no GPU", "--gpu-gb 24", "--gpu rtx4090"});
}

TEST_F(PlanCommandTest, RejectsInvalidSamples) {
  const auto refused = [&](const std::vector<std::string>& sample, const std::vector<std::string>& messages) {
    std::vector<std::string> arguments{"--gpu-gb", "24", "--model", "smolvlm-tiny"};
    arguments.insert(arguments.end(), sample.begin(), sample.end());
    expect_error(arguments, 2, messages);
  };
  refused({"--images", "-1"}, {"-1 images"});
  refused({"--images", "many"}, {"--images", "many"});
  refused({"--image-size", "10x"}, {"--image-size 10x", "WIDTHxHEIGHT"});
  refused({"--image-size", "0x10"}, {"--image-size 0x10"});
  refused({"--image-size", "10x10x10"}, {"--image-size 10x10x10"});
  refused({"--text-tokens", "0"}, {"0 text tokens"});
  refused({"--image-mix", "1:0.5,2"}, {"--image-mix 1:0.5,2", "1:0.5,2:0.25,3:0.25"});
  refused({"--image-mix", "1:0.5,1:0.5"}, {"lists samples of 1 images twice"});
  refused({"--image-mix", "1:nan"}, {"--image-mix 1:nan", "shares greater than 0"});
  refused({"--image-mix", "1:-1,2:1"}, {"shares greater than 0"});
  refused({"--image-mix", "1:1e308,2:1e308"}, {"the sum of the shares is not finite"});
  refused({"--image-mix", "-1:1"}, {"--image-mix -1:1"});
  refused({"--image-mix", "1:1", "--images", "2"}, {"--image-mix 1:1 and --images 2", "one of them"});
  refused({"--video-frames", "8"}, {"supports no videos", "qwen2_5_vl"});
  refused({"--fps", "8"}, {"--fps", "--video-frames 32"});
  refused({"--video-size", "8x8"}, {"--video-size", "--video-frames 32"});
  refused({"--video-frames", "8", "--fps", "0"}, {"--fps 0"});
  refused({"--video-frames", "8", "--video-size", "8x"}, {"--video-size 8x", "WIDTHxHEIGHT"});
  refused({"--text-tokens", "64", "--answer-tokens", "64"}, {"64 label tokens of 64 text tokens"});
}

TEST_F(PlanCommandTest, RejectsInvalidSettings) {
  const auto refused = [&](const std::vector<std::string>& settings, const std::vector<std::string>& messages) {
    std::vector<std::string> arguments{"--gpu-gb", "24", "--model", "smolvlm-tiny"};
    arguments.insert(arguments.end(), settings.begin(), settings.end());
    expect_error(arguments, 2, messages);
  };
  refused({"--global-batch", "0"}, {"training.global_batch_size: must be from 1 to 1000000, not 0"});
  refused({"--micro-batch", "5", "--global-batch", "16"},
          {"training.micro_batch_size: 5 does not divide", "1, 2, 4, 8, 16, or auto"});
  refused({"--world-size", "3", "--global-batch", "16"}, {"16 samples", "3 ranks"});
  refused({"--world-size", "0"}, {"--world-size"});
  refused({"--mode", "foo"}, {"memory.mode", "conservative, balanced, aggressive", "foo"});
  refused({"--recompute", "foo"}, {"memory.recompute", "auto, none, all", "foo"});
  refused({"--precision", "fp8"}, {"training.precision", "fp8"});
  refused({"--limit-gb", "0"}, {"memory.limit_gb", "greater than 0"});
  refused({"memory.recomputed=1"}, {"unknown key memory.recomputed", "memory.recompute?"});
  refused({"--colour"}, {"--colour"});
  expect_error({"--gpu-gb", "24", "--model", "smolvlm-257m"}, 2,
               {"smolvlm-257m", "did you mean smolvlm-256m?", "smolvlm-tiny"});
  expect_error({"--gpu-gb", "24", "--config", "nowhere.yaml"}, 2, {"nowhere.yaml"});
  expect_error({"--gpu-gb", "24", "--model", "smolvlm-256m", "--tokenizer", "nowhere.json"}, 2,
               {"--tokenizer nowhere.json", "give a tokenizer.json"});
}

TEST_F(PlanCommandTest, ErrorsOfEarlierNamesNameTheFlag) {
  const auto refused = [&](const std::vector<std::string>& settings, const std::vector<std::string>& messages) {
    std::vector<std::string> arguments{"--gpu-gb", "24", "--model", "smolvlm-tiny"};
    arguments.insert(arguments.end(), settings.begin(), settings.end());
    expect_error(arguments, 2, messages);
  };
  refused({"--mix", ""}, {"--image-mix", "is empty"});
  refused({"--mix"}, {"--image-mix"});
  refused({"--mix=1:1", "--image-mix", "1:1"}, {"--mix and --image-mix are the same flag"});
  refused({"--mixx", "1:1"}, {"did you mean --image-mix?"});
  refused({"--keep=2"}, {"output.save_total_limit=2"});
  refused({"--twin=2"}, {"memory.look_ahead=2"});
  EXPECT_EQ(plan_json({"--gpu-gb", "24", "--model", "smolvlm-tiny", "--mix", "1:1"})["fits"], true);
}

TEST_F(PlanCommandTest, ContradictionsAreRefused) {
  const auto refused = [&](const std::vector<std::string>& settings, const std::vector<std::string>& messages) {
    std::vector<std::string> arguments{"--gpu-gb", "24", "--model", "smolvlm-tiny"};
    arguments.insert(arguments.end(), settings.begin(), settings.end());
    expect_error(arguments, 2, messages);
  };
  refused({"lora.rank=16", "--finetune", "full"}, {"--finetune full contradicts lora.rank=16"});
  refused({"lora.alpha=32", "--finetune", "full"}, {"--finetune full contradicts lora.alpha=32"});
  refused({"model.adapter=mine", "--finetune", "full"}, {"--finetune full contradicts model.adapter=mine"});
  refused({"--quantization", "nf4", "--finetune", "full"},
          {"--finetune full contradicts model.quantization=nf4", "--finetune lora"});
  refused({"lora.rank=0", "--finetune", "lora"}, {"--finetune lora contradicts lora.rank=0", "lora.rank=16"});
}

/// Each suggestion is appended to the command as it is printed. Models and the remaining memory of
/// the GPU are tiny, since a dry run of a larger model takes a second.
TEST_F(PlanCommandTest, SuggestionsCanBePasted) {
  const std::vector<std::vector<std::string>> commands{
      {"--gpu-gb", "1", "--limit-gb", "0.6", "--model", "smolvlm-tiny", "--images", "0", "--text-tokens", "6000",
       "--global-batch", "2"},
      {"--gpu", "rtx4090", "--limit-gb", "0.63", "--model", "qwen2.5-vl-tiny", "--images", "8", "--image-size",
       "1500x1500", "--global-batch", "2", "data.max_length=32768"},
      {"--gpu", "rtx4090", "--limit-gb", "0.61", "--model", "qwen2.5-vl-tiny", "--video-frames", "16", "--video-size",
       "1024x1024", "--global-batch", "2"},
      {"--gpu", "rtx4090", "--limit-gb", "0.65", "--model", "smolvlm-tiny", "--images", "4", "--micro-batch", "16",
       "--recompute", "none"}};
  int64_t in_all = 0;
  for (const auto& command : commands) {
    SCOPED_TRACE(testing::PrintToString(command));
    const auto json = plan_json(command, 3);
    const std::string text = plan(command).out;
    int64_t pasted = 0;
    for (const auto& suggestion : json["suggestions"]) {
      if (suggestion["arguments"].empty()) continue;
      ++pasted;
      auto command_with_suggestion = command;
      std::string line = " ";
      for (const auto& argument : suggestion["arguments"]) {
        command_with_suggestion.push_back(argument);
        line += " " + argument.get<std::string>();
      }
      EXPECT_THAT(split_lines(text), testing::Contains(line));
      SCOPED_TRACE(line);
      const auto outcome = plan_json(command_with_suggestion, 0);
      EXPECT_EQ(outcome["fits"], true);
      EXPECT_LE(suggestion["total_bytes"].get<int64_t>(), outcome["gpu_bytes"].get<int64_t>());
    }
    EXPECT_GE(pasted, 2);
    in_all += pasted;
  }
  EXPECT_GE(in_all, 7);
}

TEST_F(PlanCommandTest, SuggestionsForADatasetAreKeys) {
  auto all = records();
  std::string question = "Why?";
  for (int i = 0; i < 3000; ++i) question += " Really?";
  all.insert(all.begin() + 4,
             nlohmann::json{{"id", "the-endless-one"},
                            {"conversations",
                             {{{"from", "human"}, {"value", question}}, {{"from", "gpt"}, {"value", "So be it."}}}}});
  write_records(all);
  const std::vector<std::string> command{
      "--config", "train.yaml", "--gpu", "rtx4090", "--limit-gb", "0.66", "data.max_length=100000"};
  const auto json = plan_json(command, 3);
  EXPECT_EQ(json["worst_sample"], "the-endless-one");
  std::string of_length;
  for (const auto& suggestion : json["suggestions"]) {
    auto command_with_suggestion = command;
    for (const auto& argument : suggestion["arguments"]) command_with_suggestion.push_back(argument);
    if (suggestion["arguments"].empty()) continue;
    SCOPED_TRACE(suggestion["text"].get<std::string>());
    EXPECT_EQ(plan_json(command_with_suggestion, 0)["fits"], true);
    const std::string first = suggestion["arguments"][0];
    if (first.starts_with("data.max_length=")) of_length = suggestion["text"];
  }
  EXPECT_THAT(of_length, AllOf(HasSubstr("data.on_bad_sample=skip"), HasSubstr("drops 1 of 12 samples")));
}

TEST_F(PlanCommandTest, PresetWithADatasetRequiresATokenizer) {
  const std::vector<std::string> command{"--gpu-gb", "24", "--model", "smolvlm-256m", "data.train=train.json"};
  expect_error(command, 2,
               {"preset smolvlm-256m has no tokenizer", "HuggingFaceTB/SmolVLM-256M-Instruct", "--tokenizer FILE",
                "--images 1"});
  auto wrong = command;
  wrong.insert(wrong.end(), {"--tokenizer", (checkpoint() / "tokenizer.json").string()});
  const Result result = plan(wrong);
  EXPECT_THAT(result.err, Not(HasSubstr(std::filesystem::temp_directory_path() / "vlmtrain-")));
  auto described = command;
  described.insert(described.end(), {"--images", "1"});
  EXPECT_EQ(plan(described).exit_code, 0);
  expect_error({"--gpu-gb", "24", "--model", "smolvlm-tiny", "--tokenizer", (checkpoint() / "tokenizer.json").string()},
               2, {"smolvlm-tiny includes a tokenizer"});
}

TEST_F(PlanCommandTest, ReportsMissingStubLibraries) {
  std::filesystem::create_directory(folder() / "elsewhere");
  copy_program(folder() / "elsewhere");
  const Result result =
      Process(folder(), {"plan", "--gpu-gb", "24", "--model", "smolvlm-tiny"}, 0, folder() / "elsewhere/vlmtrain")
          .wait();
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_THAT(result.out, IsEmpty());
  EXPECT_THAT(result.err, AllOf(HasSubstr("the stub CUDA libraries are missing"), HasSubstr("elsewhere/vgpu"),
                                HasSubstr("copy the folder vgpu next to it")));
  std::filesystem::copy(std::filesystem::path(VLMTRAIN_BINARY).parent_path() / "vgpu", folder() / "elsewhere/vgpu",
                        std::filesystem::copy_options::recursive);
  const Result command_with_suggestion =
      Process(folder(), {"plan", "--gpu-gb", "24", "--model", "smolvlm-tiny"}, 0, folder() / "elsewhere/vlmtrain")
          .wait();
  EXPECT_EQ(command_with_suggestion.exit_code, 0) << "the suggestion works: " << command_with_suggestion.err;
}

TEST_F(PlanCommandTest, ReportsTooLittleMemoryForTheTimeline) {
  expect_error({"--gpu-gb", "24", "--model", "smolvlm-tiny", "--timeline", "/proc/nowhere/memory.html"}, 5,
               {"/proc/nowhere/memory.html"});
}

TEST_F(PlanCommandTest, RejectsRowAlignmentsThatAreNoSmallPowersOfTwo) {
  const std::vector<std::string> arguments{"--gpu", "h100", "--model", "smolvlm-tiny"};
  for (const char* const value : {"0", "3", "-1", "16 ", "1e2", "8192", "4294967296"}) {
    setenv("VLMTRAIN_ROW_ALIGNMENT", value, 1);
    expect_error(arguments, 2, {"VLMTRAIN_ROW_ALIGNMENT: ", value, "power of two"});
  }
  setenv("VLMTRAIN_ROW_ALIGNMENT", "4096", 1);
  EXPECT_EQ(plan(arguments).exit_code, 0);
  unsetenv("VLMTRAIN_ROW_ALIGNMENT");
}

TEST_F(PlanCommandTest, DryRunCommandIsInternal) {
  const Result result = run({"dry-run"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("vlmtrain plan"));
}

TEST_F(PlanCommandTest, TimelineIsSelfContained) {
  const Result result = plan({"--gpu-gb", "24", "--model", "smolvlm-tiny", "--timeline", "memory.html", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  parse_plan(result);
  const std::string html = read_text(folder() / "memory.html");
  EXPECT_TRUE(html.find("<svg") != std::string::npos || html.find("<canvas") != std::string::npos);
  for (const char* load : {"src=\"http", "href=\"http", "src='http", "href='http", "url(http", "@import", "fetch("}) {
    EXPECT_THAT(html, Not(HasSubstr(load)));
  }
  const Result again = plan({"--gpu-gb", "24", "--model", "nowhere", "--timeline", "memory.html"});
  EXPECT_THAT(again.err, Not(HasSubstr("--timeline"))) << "an existing timeline is replaced";
}

}  // namespace

}  // namespace vlmtrain::e2e
