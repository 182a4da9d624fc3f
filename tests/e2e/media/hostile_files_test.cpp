#include <map>

#include "e2e/command.h"

namespace vlmtrain::e2e {

namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

/// Malicious files: each is rejected with a message, or does no harm.
class HostileFilesTest : public CommandTest {
 protected:
  void expect_refused(const std::vector<std::string>& arguments, int exit_code, const std::string& message) const {
    const Result result = run(arguments);
    EXPECT_EQ(result.exit_code, exit_code) << result.err.substr(0, 2000);
    EXPECT_EQ(result.signal, 0);
    EXPECT_THAT(result.err, HasSubstr(message));
    EXPECT_LT(result.err.size(), 2000U);
    EXPECT_THAT(result.err, Not(HasSubstr("internal error")));
  }

  std::filesystem::path copied_checkpoint() const {
    const auto copy = folder() / "copy";
    std::filesystem::remove_all(copy);
    std::filesystem::copy(checkpoint(), copy, std::filesystem::copy_options::recursive);
    return copy;
  }

  static void expect_controls_nothing(const std::string& text) {
    for (const unsigned char byte : text) {
      ASSERT_TRUE(byte >= 0x20 || byte == '\n') << "control character " << int{byte} << " in\n" << text;
    }
    EXPECT_NO_THROW(nlohmann::json(text).dump()) << "not UTF-8";
  }
};

const std::string kDeep = std::string(200'000, '[') + std::string(200'000, ']');

TEST_F(HostileFilesTest, RejectsARecursiveConfiguration) {
  write_text(folder() / "cyclic.yaml", "x: &x\n  <<: *x\n");
  expect_refused({"--config", "cyclic.yaml"}, 2, "cyclic.yaml:2: unknown key x.<<");
  write_text(folder() / "deep.yaml", "model: " + kDeep);
  expect_refused({"--config", "deep.yaml"}, 2, "too deep");
  expect_refused({"plan", "--config", "deep.yaml", "--gpu", "rtx4090"}, 2, "too deep");
}

TEST_F(HostileFilesTest, RejectsDeeplyNestedJson) {
  const std::string message = "more than 200 nested lists and objects";
  for (const char* name : {"config.json", "tokenizer.json", "preprocessor_config.json"}) {
    SCOPED_TRACE(name);
    write_text(copied_checkpoint() / name, "{\"model_type\": " + kDeep + "}");
    expect_refused(train_arguments({"model.path=copy"}), 4, message);
  }
  write_text(folder() / "train.json", kDeep);
  expect_refused(train_arguments({}), 4, message);
}

TEST_F(HostileFilesTest, RejectsImpossibleModelConfigs) {
  const std::vector<std::pair<const char*, nlohmann::json>> sizes{{"num_hidden_layers", 1'000'000},
                                                                  {"head_dim", int64_t{1} << 31},
                                                                  {"hidden_size", -64},
                                                                  {"intermediate_size", int64_t{1} << 62},
                                                                  {"vocab_size", 1e300}};
  for (const auto& [key, value] : sizes) {
    SCOPED_TRACE(key);
    const auto copy = copied_checkpoint();
    auto config = nlohmann::json::parse(read_text(copy / "config.json"));
    config["text_config"][key] = value;
    write_text(copy / "config.json", config.dump());
    expect_refused(train_arguments({"model.path=copy"}), 4, key);
    expect_refused({"plan", "--config", "train.yaml", "--gpu", "rtx4090", "model.path=copy"}, 4, key);
  }
}

TEST_F(HostileFilesTest, ResumesARunWithNonUtf8Names) {
  auto samples = records();
  const std::vector<std::string> ids{"a\nb", "\x1b[2J\x1b]0;title\x07",
                                     "\xC2\x9B"
                                     "31m",
                                     "tab\there",
                                     "\xE2\x80\xAE"
                                     "gnp"};
  for (size_t i = 0; i < ids.size(); ++i) samples[i]["id"] = ids[i];
  samples.push_back(samples[0]);
  samples.back()["id"] = "bad\x1b[31m\n";
  samples.back()["image"] = "no\x1b[2J\nsuch.png";
  samples.back()["task"] = "t\x1b[2J";
  const std::string folder_name = "d\xE9\x1b[2J";
  const std::string data = folder_name + "/caf\xE9.json";
  std::filesystem::create_directory(folder() / folder_name);
  write_text(folder() / data, samples.dump());
  const std::vector<std::string> overrides{"data.train=" + data, "output.dir=" + folder_name + "/run",
                                           "data.on_bad_sample=skip", "training.max_steps=4", "output.save_steps=2"};
  const Result first = train(overrides);
  ASSERT_EQ(first.exit_code, 0) << first.err;
  expect_controls_nothing(first.err);
  expect_controls_nothing(first.out);
  const std::string run_folder = folder_name + "/run/";
  for (const char* file : {"config.yaml", "metrics.jsonl", "events.jsonl", "samples.jsonl", "ledger.json",
                           "environment.json", "checkpoints/step-4/trainer_state/state.json"}) {
    SCOPED_TRACE(file);
    const std::string text = read_text(folder() / (run_folder + file));
    EXPECT_FALSE(text.empty());
    expect_controls_nothing(text);
  }
  EXPECT_NO_THROW(nlohmann::json(read_text(folder() / (run_folder + "report.html"))).dump()) << "not UTF-8";
  const auto ledger = json_file(run_folder + "ledger.json");
  EXPECT_EQ(ledger["samples"], kRecords + 1);
  ASSERT_EQ(ledger["problems"].size(), 1U);
  EXPECT_EQ(ledger["problems"][0]["id"], "bad\\x1b[31m\\n");

  auto longer = overrides;
  longer[3] = "training.max_steps=4";
  const Result again = train(longer);
  EXPECT_EQ(again.exit_code, 0) << again.err;
  expect_controls_nothing(again.err);
}

TEST_F(HostileFilesTest, RejectsNonUtf8Arguments) {
  for (const auto& command_line :
       std::vector<std::vector<std::string>>{{"tr\x1b[2Jain"},
                                             {"train", "--config", "no\x1b[2J\xE9.yaml"},
                                             {"--config", "train.yaml", "--no\x1b[2J"},
                                             {"--config", "train.yaml", "data.train=\x1b[2J\xE9"}}) {
    const Result result = run(command_line);
    EXPECT_TRUE(result.exit_code == 2 || result.exit_code == 4) << result.err;
    expect_controls_nothing(result.err);
  }
}

}  // namespace

}  // namespace vlmtrain::e2e
