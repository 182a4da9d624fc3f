#include <ATen/core/Tensor.h>

#include <cmath>

#include "e2e/command.h"
#include "vlmtrain/io/safetensors.h"

namespace vlmtrain::e2e {

namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsSupersetOf;
using testing::Not;

class LoraTest : public CommandTest {
 protected:
  static constexpr int kSteps = 16;

  static std::vector<std::string> settings(const std::string& dir, const std::vector<std::string>& more = {}) {
    std::vector<std::string> all{
        "output.dir=" + dir,           "output.save_steps=4", "training.max_steps=" + std::to_string(kSteps),
        "training.learning_rate=0.02", "lora.rank=4",         "lora.dropout=0.1"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  static std::string newest(const std::string& dir) { return dir + "/checkpoints/step-" + std::to_string(kSteps); }

  nlohmann::json eval(const std::string& checkpoint) const {
    const Result result =
        run({"eval", "--config", "train.yaml", "--checkpoint", checkpoint, "--device", "cpu", "--json"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return nlohmann::json::parse(result.out);
  }

  io::SafetensorsFile adapter(const std::string& checkpoint) const {
    return io::SafetensorsFile(folder() / checkpoint / "adapter_model.safetensors");
  }

  /// Returns the message of a command that must fail.
  std::string refused(int exit_code, const std::vector<std::string>& arguments) const {
    const Result result = run(arguments);
    EXPECT_EQ(result.exit_code, exit_code) << result.err;
    return result.err;
  }
  std::string refused_training(int exit_code, const std::vector<std::string>& overrides) const {
    return refused(exit_code, train_arguments(overrides));
  }
};

TEST_F(LoraTest, TrainsAndSavesAdaptersOnly) {
  train_well(settings("run"));
  const auto steps = step_lines("run/metrics.jsonl");
  ASSERT_EQ(steps.size(), kSteps);
  EXPECT_LT(steps.back()["loss"].get<double>(), 0.8 * steps.front()["loss"].get<double>());
  const auto files = entries(folder() / newest("run"));
  const std::vector<std::string> expected{"adapter_config.json", "adapter_model.safetensors", "tokenizer.json",
                                          "trainer_state"};
  EXPECT_THAT(files, IsSupersetOf(expected));
  EXPECT_THAT(files, Not(testing::Contains("model.safetensors")));
  const auto saved = adapter(newest("run"));
  for (const auto& name : saved.names()) {
    EXPECT_THAT(name, AllOf(HasSubstr("base_model.model.model."), HasSubstr(".lora_")));
  }
  const auto config = json_file(newest("run") + "/adapter_config.json");
  EXPECT_EQ(config["base_model_name_or_path"], checkpoint().string());
  EXPECT_EQ(config["lora_dropout"], 0.1);
}

TEST_F(LoraTest, ResumesExactlyAfterAKill) {
  train_well(settings("whole"));
  const auto arguments = train_arguments(settings("pieces"));
  for (const int step : {4, 8}) {
    Process process(folder(), arguments);
    wait_until(process, [&] {
      return std::filesystem::exists(folder() / "pieces/checkpoints" / ("step-" + std::to_string(step)));
    });
    process.send(SIGKILL);
    EXPECT_EQ(process.wait().signal, SIGKILL);
  }
  ASSERT_EQ(run(arguments).exit_code, 0);
  for (const char* file : {"adapter_model.safetensors", "adapter_config.json", "trainer_state/optimizer.safetensors"}) {
    EXPECT_EQ(read_text(folder() / newest("whole") / file), read_text(folder() / newest("pieces") / file)) << file;
  }
  EXPECT_EQ(step_lines("whole/metrics.jsonl").size(), step_lines("pieces/metrics.jsonl").size());
}

TEST_F(LoraTest, MergedCheckpointEqualsTheAdapter) {
  for (const char* dora : {"false", "true"}) {
    const std::string dir = std::string("run_") + dora;
    train_well(settings(dir, {std::string("lora.use_dora=") + dora}));
    const Result merged = run({"merge", "--adapter", newest(dir), "--out", dir + "_merged", "--json"});
    ASSERT_EQ(merged.exit_code, 0) << merged.err;
    EXPECT_EQ(nlohmann::json::parse(merged.out)["checkpoint"], dir + "_merged");
    const auto before = eval(checkpoint().string());
    const auto of_adapter = eval(newest(dir));
    const auto of_merged = eval(dir + "_merged");
    EXPECT_LT(of_adapter["loss"].get<double>(), 0.8 * before["loss"].get<double>());
    EXPECT_NEAR(of_merged["loss"].get<double>(), of_adapter["loss"].get<double>(), 1e-6);
    EXPECT_EQ(of_merged["exact_match"], of_adapter["exact_match"]);
    EXPECT_THAT(entries(folder() / (dir + "_merged")), testing::ElementsAreArray(entries(checkpoint())));
  }
}

TEST_F(LoraTest, SavesANewProjectorWithTheAdapter) {
  const auto base = folder() / "without_projector";
  std::filesystem::copy(checkpoint(), base);
  io::NamedTensors remaining_tensors;
  {
    const io::SafetensorsFile weights(base / "model.safetensors");
    for (const auto& name : weights.names()) {
      if (name.find(".connector.") == std::string::npos)
        remaining_tensors.emplace_back(name, weights.tensor(name).clone());
    }
  }
  io::write_safetensors(base / "model.safetensors", remaining_tensors);

  const std::vector<std::string> lacking{"model.path=" + base.string(), "model.allow_missing=[connector]"};
  EXPECT_THAT(refused_training(4, settings("run", {"model.path=" + base.string()})),
              AllOf(HasSubstr("missing: model.connector."), HasSubstr("model.allow_missing")));
  EXPECT_THAT(refused_training(2, settings("run", lacking)), HasSubstr("lora.modules_to_save"));

  auto uninterrupted = settings("run", lacking);
  uninterrupted.emplace_back("lora.modules_to_save=[connector]");
  const Result first = train(uninterrupted);
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_THAT(first.err, AllOf(HasSubstr("lacks 1 of the weights"), HasSubstr("are initialized randomly")));
  const auto saved = adapter(newest("run"));
  EXPECT_TRUE(saved.contains("base_model.model.model.connector.modality_projection.proj.weight"));

  const Result merged = run({"merge", "--adapter", newest("run"), "--out", "merged"});
  ASSERT_EQ(merged.exit_code, 0) << merged.err;
  EXPECT_NEAR(eval("merged")["loss"].get<double>(), eval(newest("run"))["loss"].get<double>(), 1e-6);

  // The run resumes from its own checkpoint, which lacks nothing.
  uninterrupted.emplace_back("output.save_steps=8");
  const Result again = train(uninterrupted);
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.err, Not(HasSubstr("are initialized randomly")));
}

TEST_F(LoraTest, MemoryOptionsDoNotChangeTheResult) {
  train_well(settings("plain"));
  train_well(settings("recomputed", {"memory.recompute=all"}));
  EXPECT_EQ(read_text(folder() / newest("plain") / "adapter_model.safetensors"),
            read_text(folder() / newest("recomputed") / "adapter_model.safetensors"));
  train_well(settings("one", {"training.micro_batch_size=1"}));
  train_well(settings("four", {"training.micro_batch_size=4"}));
  const auto first_loss = [this](const char* dir) {
    return step_lines(std::string(dir) + "/metrics.jsonl").front()["loss"].get<double>();
  };
  EXPECT_NEAR(first_loss("one"), first_loss("four"), 1e-6);
  EXPECT_NEAR(eval(newest("one"))["loss"].get<double>(), eval(newest("four"))["loss"].get<double>(), 1e-3);
}

TEST_F(LoraTest, FrozenPartsGetNoAdapters) {
  train_well(settings("run", {"model.freeze_vision_tower=true"}));
  const auto names = adapter(newest("run")).names();
  EXPECT_FALSE(names.empty());
  for (const auto& name : names) EXPECT_THAT(name, Not(HasSubstr("vision_model")));
  EXPECT_THAT(refused_training(2, settings("none", {"model.freeze_vision_tower=true", "lora.target_modules=[fc1]"})),
              AllOf(HasSubstr("fc1"), HasSubstr("outside the frozen parts")));
}

TEST_F(LoraTest, ContinuesTrainingAnAdapter) {
  train_well(settings("first", {"lora.target_modules=[q_proj, fc1]"}));
  const std::vector<std::string> more{"model.adapter=" + newest("first"), "output.dir=second", "training.max_steps=2",
                                      "training.learning_rate=0"};
  train_well(more);
  EXPECT_EQ(read_text(folder() / newest("first") / "adapter_model.safetensors"),
            read_text(folder() / "second/checkpoints/step-2/adapter_model.safetensors"));
  EXPECT_THAT(refused_training(2, {"model.adapter=" + newest("first"), "lora.rank=8"}),
              AllOf(HasSubstr("model.adapter"), HasSubstr("except lora.dropout")));
}

TEST_F(LoraTest, GeneratesWithAnAdapter) {
  train_well(settings("run"));
  const Result result = run({"generate", "--checkpoint", newest("run"), "--prompt", "Is there a fracture?", "--device",
                             "cpu", "--max-new-tokens", "4", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(nlohmann::json::parse(result.out).contains("text"));
}

TEST_F(LoraTest, TrainsOnQuantizedWeights) {
  for (const std::string quantization : {"nf4", "int8"}) {
    const std::string key = "model.quantization=" + quantization;
    train_well(settings(quantization, {key}));
    const auto steps = step_lines(quantization + "/metrics.jsonl");
    EXPECT_LT(steps.back()["loss"].get<double>(), 0.8 * steps.front()["loss"].get<double>());

    // The adapter fits the base itself: nothing in it mentions the quantization.
    EXPECT_THAT(read_text(folder() / newest(quantization) / "adapter_config.json"), Not(HasSubstr("quanti")));
    const double in_training = steps.back()["loss"];
    EXPECT_LT(eval(newest(quantization))["loss"].get<double>(), 1.5 * in_training);
    const Result merged = run({"merge", "--adapter", newest(quantization), "--out", quantization + "_merged"});
    EXPECT_EQ(merged.exit_code, 0) << merged.err;
  }
  train_well(settings("recomputed", {"model.quantization=nf4", "memory.recompute=all"}));
  EXPECT_EQ(read_text(folder() / newest("nf4") / "adapter_model.safetensors"),
            read_text(folder() / newest("recomputed") / "adapter_model.safetensors"));
  EXPECT_NE(step_lines("nf4/metrics.jsonl").front()["loss"], step_lines("int8/metrics.jsonl").front()["loss"]);
}

TEST_F(LoraTest, QuantizedRunResumesExactly) {
  const std::vector<std::string> more{"model.quantization=nf4", "lora.use_dora=true"};
  train_well(settings("whole", more));
  const auto arguments = train_arguments(settings("pieces", more));
  Process process(folder(), arguments);
  wait_until(process, [&] { return std::filesystem::exists(folder() / "pieces/checkpoints/step-4"); });
  process.send(SIGKILL);
  process.wait();
  ASSERT_EQ(run(arguments).exit_code, 0);
  for (const char* file : {"adapter_model.safetensors", "trainer_state/optimizer.safetensors"}) {
    EXPECT_EQ(read_text(folder() / newest("whole") / file), read_text(folder() / newest("pieces") / file)) << file;
  }
  EXPECT_THAT(refused_training(2, settings("pieces", {"lora.use_dora=true"})),
              HasSubstr("model.quantization: was nf4, is none"));
}

TEST_F(LoraTest, RejectsWrongQuantization) {
  EXPECT_THAT(refused_training(2, {"model.quantization=nf4"}),
              AllOf(HasSubstr("model.quantization: nf4"), HasSubstr("set lora.rank")));
  EXPECT_THAT(refused_training(2, {"lora.rank=4", "model.quantization=int4"}),
              AllOf(HasSubstr("model.quantization"), HasSubstr("none, nf4, int8")));
  EXPECT_THAT(refused(2, {"plan", "--gpu-gb", "24", "--finetune", "full", "--quantization", "nf4"}),
              HasSubstr("model.quantization=nf4"));
}

TEST_F(LoraTest, RejectsWrongSettings) {
  EXPECT_THAT(refused_training(2, {"lora.rank=4", "lora.target_modules=[q_porj, nonsense]"}),
              AllOf(HasSubstr("q_porj (did you mean q_proj?)"), HasSubstr("nonsense"), HasSubstr("down_proj"),
                    HasSubstr("model.text_model.layers.")));
  EXPECT_THAT(refused_training(2, {"lora.rank=4", "lora.target_modules=[\"q_proj(\"]"}),
              HasSubstr("is an invalid regular expression"));
  EXPECT_THAT(refused_training(2, {"lora.rank=4", "lora.target_modules=[]"}),
              HasSubstr("lora.target_modules: is empty"));
  EXPECT_THAT(refused_training(2, {"lora.target_modules=[q_proj]"}), HasSubstr("lora.rank is 0"));
  EXPECT_THAT(refused_training(2, {"lora.rank=-1", "lora.alpha=0", "lora.dropout=1"}),
              AllOf(HasSubstr("lora.rank: must be from 0 to 65536"), HasSubstr("lora.alpha: must be greater than 0"),
                    HasSubstr("lora.dropout: must be from 0 to below 1")));
}

TEST_F(LoraTest, ResumedRunKeepsItsAdapters) {
  train_well({"lora.rank=4"});
  for (const auto& [change, message] :
       std::vector<std::pair<std::string, std::string>>{{"lora.rank=8", "lora.rank: was 4, is 8"},
                                                        {"lora.rank=0", "lora.rank: was 4, is 0"},
                                                        {"lora.target_modules=q_proj", "lora.target_modules: was"}}) {
    EXPECT_THAT(refused_training(2, {"lora.rank=4", change}), HasSubstr(message));
  }
}

TEST_F(LoraTest, RejectsIncompatibleAdapters) {
  train_well(settings("run"));
  const auto config_file = folder() / newest("run") / "adapter_config.json";
  const auto config = json_file(newest("run") + "/adapter_config.json");
  const auto edit_config = [&](const std::string& key, const nlohmann::json& value) {
    auto changed = config;
    changed[key] = value;
    write_text(config_file, changed.dump());
  };
  const std::vector<std::string> merge{"merge", "--adapter", newest("run"), "--out", "merged"};
  const std::vector<std::string> resume_settings{"model.adapter=" + newest("run"), "output.dir=second"};

  edit_config("base_model_name_or_path", "nobody/some-model");
  EXPECT_THAT(refused(4, merge), AllOf(HasSubstr("nobody/some-model"), HasSubstr("not a folder on this machine")));
  const Result eval_result = run({"eval", "--config", "train.yaml", "--checkpoint", newest("run"), "--device", "cpu"});
  EXPECT_EQ(eval_result.exit_code, 0);
  EXPECT_THAT(eval_result.err + eval_result.out,
              HasSubstr("base_model_name_or_path is not on this machine; model.path"));
  edit_config("peft_type", "IA3");
  EXPECT_THAT(refused(4, merge), HasSubstr("peft_type IA3 is not supported"));
  edit_config("modules_to_save", {"lm_head"});
  EXPECT_THAT(refused(4, merge), HasSubstr("missing: base_model.model.lm_head.weight"));
  edit_config("rank_pattern", {{"q_proj", 2}});
  EXPECT_THAT(refused(4, merge), HasSubstr("rank_pattern \"q_proj\" gives"));
  edit_config("r", 8);
  EXPECT_THAT(refused(4, merge), AllOf(HasSubstr("lora_A.weight has shape [4, "), HasSubstr("trained on this base")));
  EXPECT_THAT(refused_training(4, resume_settings),
              AllOf(HasSubstr("lora_A.weight has shape [4, "), HasSubstr("trained on this base")));

  // An adapter for another model, with other widths and one more block.
  const auto other_adapter = source().parent_path() / "lora/text_only/adapter";
  EXPECT_THAT(refused_training(4, {"model.adapter=" + other_adapter.string(), "output.dir=second"}),
              AllOf(HasSubstr("model.text_model.layers.2."), HasSubstr("has no such Linear")));

  write_text(config_file, config.dump());
  std::filesystem::create_directory(folder() / "merged");
  write_text(folder() / "merged/file", "");
  EXPECT_THAT(refused(2, merge), HasSubstr("already exists"));
  std::filesystem::remove(folder() / newest("run") / "adapter_model.safetensors");
  EXPECT_THAT(refused_training(4, resume_settings), HasSubstr("adapter_model.safetensors: does not exist"));
}

}  // namespace

}  // namespace vlmtrain::e2e
