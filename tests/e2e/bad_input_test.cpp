#include <cstring>
#include <map>

#include "e2e/command.h"

namespace vlmtrain::e2e {

namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

/// What a user can get wrong: the exit code says whose turn it is, the message what to do.
class BadInputTest : public CommandTest {
 protected:
  void expect_error(const Result& result, int exit_code, const std::vector<std::string>& messages) const {
    EXPECT_EQ(result.exit_code, exit_code) << result.err;
    EXPECT_THAT(result.out, IsEmpty());
    for (const auto& message : messages) EXPECT_THAT(result.err, HasSubstr(message));
    EXPECT_THAT(result.err, Not(HasSubstr("internal error")));
  }

  void expect_refused(const std::vector<std::string>& overrides, int exit_code,
                      const std::vector<std::string>& messages) const {
    expect_error(train(overrides), exit_code, messages);
    EXPECT_FALSE(std::filesystem::exists(folder() / "run/checkpoints")) << "training began";
  }

  /// A copy of the checkpoint, to be damaged.
  std::filesystem::path damaged_checkpoint() const {
    std::filesystem::copy(checkpoint(), folder() / "damaged", std::filesystem::copy_options::recursive);
    return folder() / "damaged";
  }

  void change_json(const std::filesystem::path& file, const std::function<void(nlohmann::json&)>& change) const {
    auto json = nlohmann::json::parse(read_text(file));
    change(json);
    write_text(file, json.dump());
  }

  /// Rewrites the header of the damaged checkpoint's weights, and leaves the data as it is.
  void change_header(const std::function<void(nlohmann::ordered_json&)>& change) const {
    const auto file = damaged_checkpoint() / "model.safetensors";
    const std::string content = read_text(file);
    uint64_t length = 0;
    std::memcpy(&length, content.data(), sizeof(length));
    auto header = nlohmann::ordered_json::parse(content.substr(sizeof(length), length));
    change(header);
    const std::string text = header.dump();
    const uint64_t new_length = text.size();
    write_text(file, std::string(reinterpret_cast<const char*>(&new_length), sizeof(new_length)) + text +
                         content.substr(sizeof(length) + length));
  }

  nlohmann::json only_bad(const std::string& id, const nlohmann::json& images, const std::string& question) const {
    auto all = records();
    all.push_back({{"id", id},
                   {"image", images},
                   {"conversations",
                    {{{"from", "human"}, {"value", question}}, {{"from", "gpt"}, {"value", "I cannot tell."}}}}});
    return all;
  }

  void truncate_image() const {
    const std::string original = read_text(folder() / "images/strip.jpg");
    write_text(folder() / "images/cut.jpg", original.substr(0, original.size() / 2));
  }
};

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
          "--fp16: unknown option of vlmtrain train; of keys, which are written "
          "key=value: what other trainers call so is here: training.precision: fp16");
  refused({"plan", "--gpu_gb", "24"}, "--gpu_gb: unknown option; did you mean --gpu-gb?");
  refused({"plan", "--image", "24"}, "--image: unknown option; did you mean --images?");
  refused({"generate", "--model", "x"}, "--model: unknown option; vlmtrain generate --help lists them");
  refused({"generate", "--spacing", "1"}, "--spacing: unknown option; vlmtrain generate --help lists them");
  refused({"c.yaml"}, "c.yaml: a configuration is given as vlmtrain --config c.yaml");
  refused({"training.max_steps=2"},
          "training.max_steps=2: keys of the configuration stand behind it: vlmtrain --config "
          "FILE training.max_steps=2");
  refused({"train", "c.yaml"}, "c.yaml: a configuration is given as vlmtrain train --config c.yaml");
  refused({"evaluate"}, "evaluate: unknown command; did you mean eval?");
  refused({"plan", "--model", "HuggingFaceTB/SmolVLM-256M-Instruct", "--gpu-gb", "24"},
          "model HuggingFaceTB/SmolVLM-256M-Instruct: unknown preset; did you mean smolvlm-256m?");
  refused({"trian"}, "trian: unknown command; did you mean train?");
  refused({"train"}, "--config is required; vlmtrain train --help shows how it is called");
  refused({}, "a command is missing; vlmtrain --help lists them");
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
  expect_refused({"training.lerning_rate=1", "max_steps", "output.keep=0"}, 2,
                 {"did you mean training.learning_rate?", "max_steps: an override is written key=value",
                  "output.keep: must be at least 1, not 0"});
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
               {"--prompt: has, with its images and videos,", "more than data.max_length=8192", "shorten it"});
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

TEST_F(BadInputTest, RejectsAnEvaluationWithoutUsableSamples) {
  auto all = only_bad("gone", "gone.png", "<image>\nWhat is it?");
  all.erase(all.begin(), all.end() - 1);
  write_records(all);
  expect_error(run({"eval", "--config", "train.yaml", "--checkpoint", checkpoint(), "--device", "cpu", "--answers",
                    "answers.jsonl", "data.on_bad_sample=skip"}),
               4, {"data.eval", "none of the 1 samples can be used", "gone.png"});
  EXPECT_FALSE(std::filesystem::exists(folder() / "answers.jsonl"));
}

/// Before the weights are read: there are none.
TEST_F(BadInputTest, EvaluationReportsAllBadSamples) {
  auto all = only_bad("gone", "gone.png", "<image>\nWhat is it?");
  all.push_back(all.back());
  all.back()["id"] = "gone-too";
  write_records(all);
  std::filesystem::remove(damaged_checkpoint() / "model.safetensors");
  const std::vector<std::string> command{"eval",     "--config", "train.yaml", "--checkpoint", "damaged",
                                         "--device", "cpu",      "--answers",  "answers.jsonl"};
  expect_error(run(command), 4,
               {"train.json: 2 of 13 samples cannot be used", "sample gone:", "sample gone-too:", "gone.png",
                "data.on_bad_sample=skip"});
  EXPECT_FALSE(std::filesystem::exists(folder() / "answers.jsonl"));
  auto skipping = command;
  skipping.emplace_back("data.on_bad_sample=skip");
  expect_error(run(skipping), 4, {"damaged", "safetensors"});
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
  if (cuda.exit_code == 0) GTEST_SKIP() << "there is a GPU";
  expect_error(cuda, 5, {"device cuda", "--device cpu"});
}

TEST_F(BadInputTest, RejectsMissingFiles) {
  expect_refused({"model.path=nowhere"}, 4, {"nowhere: there is no such folder"});
  expect_refused({"data.train=nowhere.json"}, 4, {"nowhere.json: No such file"});
  expect_error(run({"eval", "--config", "train.yaml", "--checkpoint", "nowhere"}), 4,
               {"nowhere: there is no such folder"});
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
  expect_refused({"model.path=damaged"}, 4, {"model.safetensors", kTensor, "takes 32768 bytes", "write it again"});
}

TEST_F(BadInputTest, RejectsOverflowingTensorSizes) {
  change_header([](auto& header) { header[kTensor]["shape"] = {int64_t{1} << 40, int64_t{1} << 40}; });
  expect_refused({"model.path=damaged"}, 4, {"model.safetensors", kTensor, "impossible"});
}

TEST_F(BadInputTest, RejectsWrongOffsets) {
  change_header([](auto& header) {
    for (auto& offset : header[kTensor]["data_offsets"]) offset = offset.template get<int64_t>() + 4;
  });
  expect_refused({"model.path=damaged"}, 4, {"model.safetensors", kTensor, "write it again"});
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

TEST_F(BadInputTest, BadSamplesAreSkippedAndCounted) {
  truncate_image();
  std::string lines;
  for (const auto& record : records()) lines += record.dump() + "\n";
  const auto add = [&](const std::string& id, const nlohmann::json& images, const std::string& question) {
    lines += only_bad(id, images, question).back().dump() + "\n";
  };
  add("cut-off", "cut.jpg", "<image>\nWhat is it?");
  add("gone", "gone.png", "<image>\nWhat is it?");
  add("too-few", "small.png", "<image>\n<image>\nWhat is it?");
  std::string long_question = "Why?";
  for (int i = 0; i < 400; ++i) long_question += " Really?";
  add("too-long", nlohmann::json::array(), long_question);
  lines += "{\"id\": \"broken\", \"conversations\": [\n";
  write_text(folder() / "train.jsonl", lines);

  const Result result = train({"data.train=train.jsonl", "data.on_bad_sample=skip", "data.max_length=1000",
                               "training.max_steps=8", "output.save_steps=3"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto ledger = json_file("run/ledger.json");
  EXPECT_EQ(ledger["samples"], kRecords + 5);
  EXPECT_EQ(ledger["used"], kRecords);
  EXPECT_EQ(ledger["dropped"], 5);
  EXPECT_EQ(ledger["failed"], 0);
  EXPECT_EQ(ledger["not_reached"], 0);

  std::map<std::string, std::string> reasons;
  for (const auto& problem : ledger["problems"]) {
    EXPECT_EQ(problem["status"], "dropped");
    reasons[problem["id"]] = problem["reason"];
    EXPECT_THAT(result.err, HasSubstr(problem["message"].get<std::string>())) << "the log says so too";
    EXPECT_THAT(problem["message"].get<std::string>(), HasSubstr(problem["id"].get<std::string>()));
  }
  EXPECT_EQ(reasons, (std::map<std::string, std::string>{{"cut-off", "unreadable image"},
                                                         {"gone", "unreadable image"},
                                                         {"too-few", "unusable record"},
                                                         {"too-long", "too long"},
                                                         {"train:15", "unusable record"}}));
  int64_t num_counted = 0;
  for (const auto& [reason, count] : ledger["reasons"].items()) num_counted += count.get<int64_t>();
  EXPECT_EQ(num_counted, 5);
  for (const auto& step : step_lines("run/metrics.jsonl")) EXPECT_EQ(step["samples"], 4) << "the global batch is exact";
}

class BadSampleTest : public BadInputTest {
 protected:
  /// The run stops at the bad sample: named in the message and in the ledger, and nothing is half-written.
  void expect_stop(const std::string& file, const std::vector<std::string>& messages) const {
    const Result result = train({"data.train=" + file, "data.max_length=1000", "training.max_steps=8"});
    expect_error(result, 4, messages);
    EXPECT_THAT(result.err, HasSubstr("data.on_bad_sample=skip"));
    EXPECT_THAT(result.err, HasSubstr("line "));
    const auto ledger = json_file("run/ledger.json");
    EXPECT_EQ(ledger["failed"], 1);
    EXPECT_EQ(ledger["dropped"], 0);
    EXPECT_EQ(ledger["used"].get<int>() + ledger["not_reached"].get<int>(), kRecords);
    EXPECT_EQ(ledger["problems"][0]["status"], "failed");
    for (const auto& name : entries(folder() / "run")) {
      EXPECT_THAT(
          (std::vector<std::string>{"checkpoints", "config.yaml", "data_check.jsonl", "environment.json",
                                    "epochs.jsonl", "events.jsonl", "ledger.json", "metrics.jsonl", "plan.json",
                                    "run.lock", "predictions.jsonl", "report.html", "samples.jsonl", "tensorboard"}),
          testing::Contains(name));
    }
  }
};

TEST_F(BadSampleTest, TruncatedImage) {
  truncate_image();
  write_records(only_bad("cut-off", "cut.jpg", "<image>\nWhat is it?"));
  expect_stop("train.json", {"train.json", "sample cut-off", "images/cut.jpg", "JPEG"});
}

TEST_F(BadSampleTest, MissingImage) {
  write_records(only_bad("gone", "gone.png", "<image>\nWhat is it?"));
  expect_stop("train.json", {"train.json", "sample gone", "images/gone.png", "data.image_root"});
}

TEST_F(BadSampleTest, InvalidImage) {
  write_text(folder() / "images/text.png", "not a picture");
  write_records(only_bad("text", "text.png", "<image>\nWhat is it?"));
  expect_stop("train.json", {"train.json", "sample text", "images/text.png"});
}

TEST_F(BadSampleTest, TheWrongNumberOfImages) {
  write_records(only_bad("too-few", "small.png", "<image>\n<image>\nWhat is it?"));
  expect_stop("train.json", {"train.json", "sample too-few", "2 <image> marks for 1 image"});
}

TEST_F(BadSampleTest, InvalidJsonLine) {
  std::string lines;
  for (const auto& record : records()) lines += record.dump() + "\n";
  write_text(folder() / "train.jsonl", lines + "{\"id\": \"broken\", \"conversations\": [\n");
  expect_stop("train.jsonl", {"train.jsonl", "line 12", "not valid JSON at column"});
}

TEST_F(BadSampleTest, TooLongSample) {
  std::string question = "Why?";
  for (int i = 0; i < 400; ++i) question += " Really?";
  write_records(only_bad("endless", nlohmann::json::array(), question));
  expect_stop("train.json", {"train.json", "sample endless", "data.max_length=1000"});
}

TEST_F(BadInputTest, NoUsableSamples) {
  nlohmann::json all = nlohmann::json::array();
  for (int i = 0; i < 6; ++i) all.push_back(only_bad("gone-" + std::to_string(i), "gone.png", "<image>\nWhat?").back());
  write_records(all);
  expect_error(train({"data.on_bad_sample=skip"}), 4, {"train.json", "none of the 6 samples can be used"});
  EXPECT_EQ(json_file("run/ledger.json")["dropped"], 6);
}

}  // namespace

}  // namespace vlmtrain::e2e
