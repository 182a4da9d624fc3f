#include "vlmtrain/train/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "vlmtrain/base/error.h"

namespace vlmtrain::train {

namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

const fs::path kSource = VLMTRAIN_SOURCE_DIR;

std::string read_text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(ConfigTest, TheDocumentationIsCurrent) {
  Config config;
  EXPECT_EQ(declare_options(config).to_markdown(), read_text(kSource / "docs/reference/config.md"))
      << "write it again: vlmtrain options --markdown > docs/reference/config.md";
}

TEST(ConfigTest, EveryShippedConfigurationIsValid) {
  for (const auto& entry : fs::directory_iterator(kSource / "configs")) {
    if (entry.path().extension() != ".yaml") continue;
    SCOPED_TRACE(entry.path().string());
    Config config;
    EXPECT_NO_THROW(declare_options(config).read(entry.path(), {}));
    EXPECT_NO_THROW(check_micro_batch_size(config));
  }
}

TEST(ConfigTest, ItsYamlReadsBackAsTheSame) {
  Config config;
  config.model.path = "a: b";
  OptionTable options = declare_options(config);
  options.read("", {"training.learning_rate=1e-5", "training.max_steps=7", "memory.recompute=2",
                    "training.precision=fp32", "data.on_bad_sample=skip", "data.image_max_pixels=4096"});
  const std::string yaml = options.to_yaml();
  const fs::path file = fs::temp_directory_path() / "vlmtrain_config_test.yaml";
  std::ofstream(file) << yaml;
  Config reread;
  OptionTable reread_options = declare_options(reread);
  reread_options.read(file, {});
  fs::remove(file);
  EXPECT_EQ(reread_options.to_yaml(), yaml);
  EXPECT_EQ(reread.model.path, "a: b");
  EXPECT_EQ(reread.training.max_steps, 7);
}

TEST(ConfigTest, MetricsAreAListOfKnownNames) {
  const auto read = [](const std::string& value) {
    Config config;
    declare_options(config).read("", {"eval.metrics=" + value});
    return config.evaluation.metrics.metrics;
  };
  using evaluation::Metric;
  EXPECT_EQ(read("[wer, anls]"), (std::vector{Metric::kWer, Metric::kAnls}));
  EXPECT_EQ(read("box_iou"), std::vector{Metric::kBoxIou});
  EXPECT_TRUE(read("[]").empty());
  EXPECT_TRUE(read("").empty());
  for (const char* value : {"[anls, bleu]", "bleu", "[anls, [wer]]", "{anls: 1}", "7"}) {
    SCOPED_TRACE(value);
    try {
      read(value);
      ADD_FAILURE();
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::kUsage);
      EXPECT_THAT(error.what(), HasSubstr("eval.metrics"));
      EXPECT_THAT(error.what(), HasSubstr("must be a list of anls, cer, wer, relaxed_accuracy"));
    }
  }
  EXPECT_THROW(read("[anls, anls]"), UserError);
}

TEST(ConfigTest, SuggestsKeysForOptionsOfOtherTrainers) {
  const std::pair<const char*, const char*> kExpected[] = {
      {"training.per_device_train_batch_size", "training.micro_batch_size"},
      {"gradient_accumulation_steps", "training.global_batch_size"},
      {"training.num_train_epochs", "training.epochs"},
      {"fp16", "training.precision: fp16"},
      {"training.bf16", "training.precision: bf16"},
      {"gradient_checkpointing", "memory.recompute"},
      {"optim", "training.optimizer"},
      {"lora.r", "lora.rank"},
      {"lora_r", "lora.rank"},
      {"data.max_frames", "data.video_max_frames"},
      {"cutoff_len", "data.max_length"},
      {"model_name_or_path", "model.path"},
      {"load_in_4bit", "model.quantization: nf4"},
      {"deepspeed", "--nproc-per-node"},
      {"learning_rate", "did you mean training.learning_rate?"},
      {"data.learning_rate", "did you mean training.learning_rate?"}};
  for (const auto& [option, key] : kExpected) {
    Config config;
    EXPECT_THAT(declare_options(config).make_key_suggestion(option), HasSubstr(key)) << option;
  }
}

TEST(ConfigTest, SuggestedKeysExist) {
  Config config;
  const OptionTable options = declare_options(config);
  for (const char* option : {"lr", "num_epochs", "adam_eps", "lora_dropout", "vit_lr", "fps", "save_total_limit"}) {
    const std::string suggestion = options.make_key_suggestion(option);
    const std::string key = suggestion.substr(suggestion.rfind(' ') + 1);
    EXPECT_NO_THROW(options.format_value(key)) << option << " → " << key;
  }
}

TEST(ConfigTest, TotalStepsFromMaxStepsOrEpochs) {
  engine::TrainingOptions options;
  options.global_batch_size = 4;
  options.epochs = 2;
  EXPECT_EQ(compute_total_steps(options, 10), 5);
  EXPECT_EQ(compute_total_steps(options, 11), 6) << "rounded up";
  options.epochs = 0.01;
  EXPECT_EQ(compute_total_steps(options, 10), 1);
  options.max_steps = 3;
  EXPECT_EQ(compute_total_steps(options, 10), 3);
}

TEST(ConfigTest, RejectsValuesOutOfRange) {
  const std::string long_entry(1001, '(');
  for (const auto& [value, bound] :
       {std::pair<std::string, std::string>{"training.global_batch_size=9223372036854775807", "from 1 to 1000000"},
        {"training.micro_batch_size=9223372036854775807", "from 1 to 1000000"},
        {"training.max_steps=9223372036854775807", "from 1 to 1000000000"},
        {"training.epochs=1e300", "from 1e-06 to 1000000"},
        {"training.epochs=1e-300", "from 1e-06 to 1000000"},
        {"lora.rank=2000000000", "from 0 to 65536"},
        {"lora.target_modules=['" + long_entry + "']", "at most 1000 characters"},
        {"lora.modules_to_save=['" + long_entry + "']", "at most 1000 characters"},
        {"data.num_workers=1000000", "from 1 to 1024"},
        {"memory.limit_gb=1e300", "at most 1000000"}}) {
    Config config;
    try {
      declare_options(config).read("", {value});
      ADD_FAILURE() << value << " was taken";
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::kUsage);
      EXPECT_NE(std::string(error.what()).find(bound), std::string::npos) << error.what();
    }
  }
}

TEST(ConfigTest, EpochsOfTooManyStepsAreRefused) {
  engine::TrainingOptions options;
  options.global_batch_size = 1;
  options.epochs = 1e6;
  EXPECT_EQ(compute_total_steps(options, 1000), 1'000'000'000);
  EXPECT_THROW(compute_total_steps(options, 1001), UserError);
}

TEST(ConfigTest, ChangedRunHasTheRemainingSteps) {
  engine::TrainingOptions options;
  options.global_batch_size = 4;
  options.epochs = 3;
  EXPECT_EQ(compute_total_steps_after_change(5, 2.0, options, 10), compute_total_steps(options, 10))
      << "20 of 30 samples in 5 steps";
  EXPECT_EQ(compute_total_steps_after_change(100, 2.0, options, 10), 103);
  EXPECT_EQ(compute_total_steps_after_change(100, 0, options, 10), 108) << "another data set";
  EXPECT_EQ(compute_total_steps_after_change(100, 3.0, options, 10), 100) << "nothing left";
  EXPECT_EQ(compute_total_steps_after_change(100, 3.4, options, 10), 100);
  options.max_steps = 7;
  EXPECT_EQ(compute_total_steps_after_change(5, 2.0, options, 10), 7) << "steps of the whole run";
}

TEST(ConfigTest, TheMicroBatchDividesTheGlobalBatch) {
  Config config;
  engine::TrainingOptions& options = config.training;
  for (const auto& [global_batch_size, micro_batch_size] :
       {std::pair<int64_t, int64_t>{16, 8}, {12, 6}, {7, 7}, {11, 1}, {1, 1}}) {
    options.global_batch_size = global_batch_size;
    EXPECT_EQ(compute_max_micro_batch_size(config), micro_batch_size) << global_batch_size;
  }
  config.data.packing = true;
  EXPECT_EQ(compute_max_micro_batch_size(config), 8) << "of one pack";
  config.data.packing = false;
  options.global_batch_size = 12;
  options.micro_batch_size = 12;
  EXPECT_EQ(compute_max_micro_batch_size(config), 12);
  EXPECT_NO_THROW(check_micro_batch_size(config));
  for (const int64_t invalid : {5, 24}) {
    options.micro_batch_size = invalid;
    config.data.packing = false;
    try {
      check_micro_batch_size(config);
      ADD_FAILURE() << invalid << " was taken";
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::kUsage);
      EXPECT_THAT(error.what(), HasSubstr("training.micro_batch_size"));
    }
    config.data.packing = true;
    EXPECT_NO_THROW(check_micro_batch_size(config)) << "it counts samples, the global batch packs";
  }
}

}  // namespace

}  // namespace vlmtrain::train
