#include "models/checkpoints/quantized_weights.h"

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/captured_log.h"
#include "io/temporary_folder.h"
#include "models/checkpoint_copy.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::models {
namespace {

using io::get_error_message;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

/// Adds a tensor to the checkpoint in the folder.
void add_tensor(const std::filesystem::path& folder, const std::string& name, const at::Tensor& tensor) {
  io::NamedTensors tensors;
  const io::CheckpointTensors stored_tensors(folder);
  for (const auto& other_name : stored_tensors.names()) {
    if (other_name != name) tensors.emplace_back(other_name, stored_tensors.tensor(other_name).clone());
  }
  tensors.emplace_back(name, tensor);
  io::write_safetensors(folder / "model.safetensors", tensors);
}

std::string get_error(const std::filesystem::path& folder) {
  return get_error_message([&] { build_model(folder, at::kMeta, at::kFloat); });
}

TEST(QuantizedWeights, AreDetectedByTensorNames) {
  const std::vector<std::pair<const char*, const char*>> methods{{"mlp.up_proj.weight_scale_inv", "FP8"},
                                                                 {"mlp.up_proj.qweight", "GPTQ or AWQ"},
                                                                 {"mlp.up_proj.weight_packed", "compressed-tensors"},
                                                                 {"mlp.up_proj.weight.absmax", "bitsandbytes"},
                                                                 {"mlp.up_proj.weight._data", "quanto"},
                                                                 {"mlp.experts.gate_up_proj_blocks", "MXFP4"}};
  for (const char* name : {"text_only", "qwen2_5_vl_windows", "gemma3_published"}) {
    for (const auto& [tensor, method] : methods) {
      const CheckpointCopy copy(name);
      add_tensor(copy.path(), std::string("model.layers.0.") + tensor, at::ones({1}));
      EXPECT_THAT(get_error(copy.path()),
                  AllOf(HasSubstr(copy.path().string()), HasSubstr(std::string("quantized with ") + method),
                        HasSubstr(tensor), HasSubstr("model.quantization=nf4"), Not(HasSubstr("model.allow"))));
    }
  }
}

TEST(QuantizedWeights, AreDetectedByConfig) {
  const CheckpointCopy copy("qwen3_vl_mixed");
  const std::string weight = "model.language_model.layers.0.mlp.up_proj.weight";
  const auto shape = io::CheckpointTensors(copy.path()).info(weight).shape;
  add_tensor(copy.path(), weight, at::ones(shape).to(at::kFloat8_e4m3fn));
  EXPECT_THAT(get_error(copy.path()), AllOf(HasSubstr("F8_E4M3"), HasSubstr(weight)));
  copy.edit("config.json", [](json& config) {
    config["text_config"]["quantization_config"] = {{"quant_method", "fp8"}};
  });
  EXPECT_THAT(
      get_error(copy.path()),
      AllOf(HasSubstr("quantized with fp8 (text_config.quantization_config in config.json"), HasSubstr(weight)));
  copy.edit("config.json", [](json& config) {
    config["text_config"].erase("quantization_config");
    config["quantization_config"] = {{"quant_method", "compressed-tensors"}, {"format", "pack-quantized"}};
  });
  EXPECT_THAT(get_error(copy.path()), HasSubstr("compressed-tensors (pack-quantized)"));
  copy.edit("config.json", [](json& config) { config.erase("quantization_config"); });
  io::write_file(copy.path() / "quantize_config.json", "{\"bits\": 4}");
  EXPECT_THAT(get_error(copy.path()), HasSubstr("quantized with GPTQ (quantize_config.json"));
}

TEST(QuantizedWeights, UnreadableTypesAreNamedByConfig) {
  const CheckpointCopy copy("text_only");
  auto content = io::read_file(copy.path() / "model.safetensors");
  content.replace(content.find("\"F32\""), 5, "\"F4\" ");
  io::write_file(copy.path() / "model.safetensors", content);
  copy.edit("config.json", [](json& config) { config["quantization_config"] = {{"quant_method", "fp_quant"}}; });
  EXPECT_THAT(get_error(copy.path()), HasSubstr("quantized with fp_quant (quantization_config in config.json)"));
}

TEST(QuantizedWeights, UnusedConfigIsNamedAndNotSaved) {
  for (const char* name : {"mixed_batch", "qwen2_vl_images", "llava_clip_llama"}) {
    const CheckpointCopy copy(name);
    copy.edit("config.json", [](json& config) {
      const json quantization_config{{"quant_method", "bitsandbytes"}, {"load_in_4bit", true}};
      config["quantization_config"] = quantization_config;
      if (config.contains("text_config")) config["text_config"]["quantization_config"] = quantization_config;
    });
    const auto model = build_model(copy.path(), at::kCPU, at::kFloat);
    const CapturedLog log;
    load_weights(*model, copy.path());
    EXPECT_THAT(log.text(), HasSubstr("quantization_config describes quantized weights")) << name;
    EXPECT_EQ(log.lines(), 1) << log.text();
    const parity::TemporaryFolder out;
    save_checkpoint(*model, copy.path(), out.path(), 10'000'000);
    EXPECT_EQ(find_quantization_config(io::read_json(out.path() / "config.json")), "") << name;
  }
}

}  // namespace
}  // namespace vlmtrain::models
