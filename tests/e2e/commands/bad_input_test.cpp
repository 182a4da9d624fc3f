#include "e2e/commands/bad_input.h"

namespace vlmtrain::e2e {

namespace {

constexpr const char* kTensor = "model.text_model.layers.0.mlp.down_proj.weight";

TEST_F(BadInputTest, SuggestsFlagsForThoseOfOtherPrograms) {
  const auto refused = [&](const std::vector<std::string>& arguments, const std::string& sentence) {
    expect_error(run(arguments), 2, {"vlmtrain: error: " + sentence});
  };
  write_text(folder() / "c.yaml", "training:\n  max_steps: 1\n");
  refused({"--config", "c.yaml", "--learning_rate", "1e-5"},
          "--learning_rate: keys of the configuration are written key=value: training.learning_rate=1e-5");
  refused({"train", "--config", "c.yaml", "--max-steps=7"},
          "--max-steps: keys of the configuration are written "
          "key=value: training.max_steps=7");
  refused({"--config", "c.yaml", "--fp16"},
          "--fp16: unknown option of vlmtrain train; configuration keys are written key=value: the equivalent "
          "in vlmtrain: training.precision: fp16");
  refused({"plan", "--gpu_gb", "24"}, "--gpu_gb: unknown option; did you mean --gpu-gb?");
  refused({"plan", "--image", "24"}, "--image: unknown option; did you mean --images?");
  refused({"generate", "--model", "x"}, "--model: unknown option; vlmtrain generate --help lists the options");
  refused({"generate", "--spacing", "1"}, "--spacing: unknown option; vlmtrain generate --help lists the options");
  refused({"c.yaml"}, "c.yaml: not a command; pass a configuration with --config: vlmtrain --config c.yaml");
  refused({"training.max_steps=2"},
          "training.max_steps=2: not a command; configuration keys follow the file: vlmtrain --config FILE "
          "training.max_steps=2");
  refused({"train", "c.yaml"},
          "c.yaml: unexpected argument; pass a configuration with --config: vlmtrain train --config c.yaml");
  refused({"evaluate"}, "evaluate: unknown command; did you mean eval?");
  refused({"plan", "--model", "smolvlm-256", "--gpu-gb", "24"},
          "model smolvlm-256: the folder does not exist, and it is an unknown preset; did you mean smolvlm-256m?");
  refused({"trian"}, "trian: unknown command; did you mean train?");
  refused({"train"}, "--config is required; vlmtrain train --help shows the usage");
  refused({}, "a command is missing; vlmtrain --help lists the commands");
}

TEST_F(BadInputTest, ReportsAllConfigurationErrorsTogether) {
  write_text(folder() / "wrong.yaml",
             "model:\n  pth: somewhere\ntraining:\n  max_steps: -3\n  precision: fp8\n  global_batch_size: many\n");
  expect_error(run({"--config", "wrong.yaml"}), 2,
               {"4 errors", "wrong.yaml:2: unknown key model.pth; did you mean model.path?",
                "wrong.yaml:4: training.max_steps: must be auto, or from 1 to 1000000000, not -3",
                "wrong.yaml:5: training.precision: must be one of bf16, fp16, fp32, not fp8",
                "wrong.yaml:6: training.global_batch_size: must be an integer, not many"});
}

TEST_F(BadInputTest, RejectsAnUnusedLossScale) {
  expect_error(run({"--config", "train.yaml", "training.precision=fp32", "training.loss_scale=1024"}), 2,
               {"training.loss_scale: has no effect with training.precision=fp32", "fp16"});
  EXPECT_FALSE(std::filesystem::exists(folder() / "run"));
}

TEST_F(BadInputTest, ReportsWrongOverrides) {
  expect_refused({"training.lerning_rate=1", "max_steps", "output.save_total_limit=0"}, 2,
                 {"did you mean training.learning_rate?", "max_steps: an override is written key=value",
                  "output.save_total_limit: must be at least 1, not 0"});
}

TEST_F(BadInputTest, ReportsAllMissingKeysTogether) {
  write_text(folder() / "empty.yaml", "");
  expect_error(run({"--config", "empty.yaml"}), 2, {"model.path", "data.train", "output.dir"});
}

TEST_F(BadInputTest, RejectsAnInvalidConfigurationFile) {
  expect_error(run({"--config", "nowhere.yaml"}), 2, {"nowhere.yaml", "give an existing file to --config"});
  expect_error(run({"--config", "images"}), 2, {"images", "give an existing file to --config"});
  write_text(folder() / "broken.yaml", "model:\n  path: [a\n");
  expect_error(run({"--config", "broken.yaml"}), 2, {"broken.yaml:", "is not YAML"});
}

TEST_F(BadInputTest, RejectsUnknownCommands) {
  EXPECT_EQ(run({}).exit_code, 2);
  expect_error(run({"trian", "--config", "train.yaml"}), 2, {"trian", "train"});
  expect_error(run({"train"}), 2, {"--config"});
  expect_error(run({"--config", "train.yaml", "--fast"}), 2, {"--fast"});
}

TEST_F(BadInputTest, DoesNotOverwriteInputs) {
  const auto copy = damaged_checkpoint();
  std::filesystem::create_symlink(copy / "config.json", folder() / "link.json");
  for (const auto& input : {copy / "config.json", copy / "model.safetensors", copy / "tokenizer.json",
                            folder() / "train.json", folder() / "train.yaml", folder() / "link.json"}) {
    const std::string original = read_text(input);
    expect_error(run({"eval", "--config", "train.yaml", "--checkpoint", "damaged", "--answers", input}), 2,
                 {"--answers", input.filename(), "not overwritten"});
    expect_error(run({"plan", "--gpu-gb", "24", "--config", "train.yaml", "--timeline", input}), 2,
                 {"--timeline", input.filename(), "not overwritten"});
    EXPECT_EQ(read_text(input), original);
  }
}

TEST_F(BadInputTest, GenerateNamesItsMemoryOptions) {
  std::string prompt;
  for (int i = 0; i < 20'000; ++i) prompt += "why ";
  const std::vector<std::string> generate{"generate", "--checkpoint", checkpoint(), "--device", "cpu"};
  const auto run_with_arguments = [&](const std::vector<std::string>& more) {
    std::vector<std::string> command_line = generate;
    command_line.insert(command_line.end(), more.begin(), more.end());
    return run(command_line);
  };
  const Result too_long = run_with_arguments({"--prompt", prompt});
  expect_error(too_long, 2,
               {"--prompt: has ", "tokens, images and videos included, more than data.max_length=8192", "shorten it"});
  expect_error(run_with_arguments({"--prompt", prompt, "data.max_length=60000"}), 2,
               {"more than data.max_length=60000"});
  expect_error(run_with_arguments({"--prompt", "What?", "--seed", "-1"}), 2, {"--seed"});
}

TEST_F(BadInputTest, InitChecksItsArguments) {
  const auto init = [&](const std::vector<std::string>& more) {
    std::vector<std::string> command_line{"init", "--preset", "smolvlm-256m"};
    command_line.insert(command_line.end(), more.begin(), more.end());
    return run(command_line);
  };
  expect_error(init({"--out", "new", "--tokenizer", "train.yaml"}), 4, {"train.yaml", "not valid JSON"});
  expect_error(init({"--out", "new", "--seed", "-1"}), 2, {"--seed"});
  expect_error(init({"--out", ""}), 2, {"--out"});
  expect_error(run({"merge", "--adapter", "x", "--out", ""}), 2, {"--out"});
  EXPECT_FALSE(std::filesystem::exists(folder() / "new"));
}

TEST_F(BadInputTest, RejectsAnUnevenMicroBatch) {
  expect_refused({"training.micro_batch_size=3"}, 2,
                 {"training.micro_batch_size", "3 does not divide training.global_batch_size 4", "choose a divisor"});
}

TEST_F(BadInputTest, NothingToTrain) {
  expect_refused({"model.freeze_vision_tower=true", "model.freeze_projector=true", "model.freeze_language_model=true"},
                 2, {"leave nothing to train"});
}

TEST_F(BadInputTest, Devices) {
  expect_error(run({"--config", "train.yaml", "--device", "nonsense"}), 2, {"nonsense", "auto, cpu, cuda"});
  expect_error(run({"--config", "train.yaml", "--device", "cuda:1x"}), 2, {"cuda:1x"});
  const Result cuda = run({"--config", "train.yaml", "--device", "cuda", "training.max_steps=1"});
  if (cuda.exit_code == 0) GTEST_SKIP() << "this machine has a GPU";
  expect_error(cuda, 5, {"device cuda", "--device cpu"});
}

TEST_F(BadInputTest, RejectsMissingFiles) {
  expect_refused({"model.path=nowhere"}, 4, {"nowhere: the folder does not exist"});
  expect_refused({"data.train=nowhere.json"}, 4, {"nowhere.json: cannot be read (No such file or directory)"});
  expect_error(run({"eval", "--config", "train.yaml", "--checkpoint", "nowhere"}), 4,
               {"nowhere: the folder does not exist"});
  expect_error(run({"eval", "--config", "train.yaml", "--checkpoint", "x", "data.eval="}), 2, {"data.eval"});
  expect_error(run({"generate", "--checkpoint", "x", "--prompt", "?", "--top-p", "0.9"}), 2, {"--temperature"});
  expect_error(run({"generate", "--checkpoint", "x", "--prompt", "?", "--temperature", "-1"}), 2, {"temperature -1"});
  expect_error(run({"generate", "--checkpoint", "x", "--prompt", "\xff"}), 2, {"--prompt", "UTF-8"});
  expect_error(run({"generate", "--checkpoint", checkpoint(), "--image", "nowhere.png", "--prompt", "?"}), 2,
               {"nowhere.png"});
  write_text(folder() / "empty.json", "[]");
  expect_refused({"data.train=empty.json"}, 4, {"empty.json", "no samples"});
}

TEST_F(BadInputTest, RejectsAnInvalidOutputFolder) {
  expect_error(train({"output.dir=train.yaml"}), 2, {"output.dir", "train.yaml", "choose"});
  expect_error(train({"output.dir=/proc/nowhere/run"}), 5, {"output.dir", "/proc/nowhere/run", "choose"});
}

TEST_F(BadInputTest, RejectsWrongTensorSizes) {
  change_header([](auto& header) { header[kTensor]["shape"][0] = 128; });
  expect_refused({"model.path=damaged"}, 4,
                 {"model.safetensors", kTensor, "takes 32768 bytes", "write the damaged file again"});
}

TEST_F(BadInputTest, RejectsOverflowingTensorSizes) {
  change_header([](auto& header) { header[kTensor]["shape"] = {int64_t{1} << 40, int64_t{1} << 40}; });
  expect_refused({"model.path=damaged"}, 4, {"model.safetensors", kTensor, "is invalid"});
}

TEST_F(BadInputTest, RejectsWrongOffsets) {
  change_header([](auto& header) {
    for (auto& offset : header[kTensor]["data_offsets"]) offset = offset.template get<int64_t>() + 4;
  });
  expect_refused({"model.path=damaged"}, 4, {"model.safetensors", kTensor, "write the damaged file again"});
}

TEST_F(BadInputTest, RejectsOffsetsOutsideTheFile) {
  change_header([](auto& header) {
    for (auto& offset : header[kTensor]["data_offsets"]) offset = offset.template get<int64_t>() + 1'000'000'000;
  });
  expect_refused({"model.path=damaged"}, 4, {"model.safetensors", kTensor, "but the file ends at byte"});
}

TEST_F(BadInputTest, RejectsTruncatedWeights) {
  const auto file = damaged_checkpoint() / "model.safetensors";
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 100);
  expect_refused({"model.path=damaged"}, 4, {"model.safetensors", "truncated"});
}

TEST_F(BadInputTest, RejectsOtherShapes) {
  change_json(damaged_checkpoint() / "config.json",
              [](auto& config) { config["text_config"]["intermediate_size"] = 96; });
  expect_refused({"model.path=damaged"}, 4, {"do not match config.json", kTensor, "has shape"});
}

TEST_F(BadInputTest, RejectsAnUnknownTokenizerComponent) {
  change_json(damaged_checkpoint() / "tokenizer.json", [](auto& tokenizer) {
    tokenizer["pre_tokenizer"] = {{"type", "Quantum"}};
  });
  expect_refused({"model.path=damaged"}, 4, {"tokenizer.json", "pre_tokenizer", "Quantum", "supported are"});
}

TEST_F(BadInputTest, RejectsAnUnknownFamily) {
  change_json(damaged_checkpoint() / "config.json", [](auto& config) { config["model_type"] = "paligemma"; });
  expect_refused({"model.path=damaged"}, 4, {"config.json", "paligemma", "idefics3"});
}

TEST_F(BadInputTest, RejectsInvalidJson) {
  write_text(damaged_checkpoint() / "config.json", "{\"model_type\": \"idefics3\",\n \"x\": }");
  expect_refused({"model.path=damaged"}, 4, {"config.json", "line 2"});
}

}  // namespace

}  // namespace vlmtrain::e2e
