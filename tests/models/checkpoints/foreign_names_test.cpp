#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/temporary_folder.h"
#include "models/checkpoint_copy.h"
#include "models/checkpoints/tensor_names.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::models {
namespace {

using io::get_error_message;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

/// Renames all tensors of the copy.
template <class RenameTensor>
void rename_tensors(const CheckpointCopy& copy, const RenameTensor& rename_tensor) {
  io::NamedTensors tensors;
  const io::CheckpointTensors stored_tensors(copy.path());
  for (const auto& name : stored_tensors.names())
    tensors.emplace_back(rename_tensor(name), stored_tensors.tensor(name).clone());
  io::write_safetensors(copy.path() / "model.safetensors", tensors);
}

std::string get_load_error(const CheckpointCopy& copy, const LoadSettings& settings = {}) {
  const auto model = build_model(copy.path(), at::kCPU, at::kFloat);
  return get_error_message([&] { load_weights(*model, copy.path(), settings); });
}

TEST(ForeignNames, WrapperPrefixIsNamed) {
  for (const char* name : {"text_only", "qwen2_5_vl_mixed", "llava_clip_llama", "gemma3_saved"}) {
    for (const std::string prefix : {"module.", "_orig_mod.", "base_model.model.", "model.language_model."}) {
      const CheckpointCopy copy(name);
      rename_tensors(copy, [&](const std::string& tensor) { return prefix + tensor; });
      const auto message = get_load_error(copy);
      EXPECT_THAT(message, AllOf(HasSubstr(copy.path().string()), HasSubstr("such as "), HasSubstr("the files have"),
                                 HasSubstr("\"" + prefix), Not(HasSubstr("allow_missing"))))
          << name;
      // allow_missing never permits random values for weights that are present under another name.
      EXPECT_EQ(get_load_error(copy, {.allow_missing = {"model", "lm_head", "language_model", "vision_tower",
                                                        "multi_modal_projector", "visual"},
                                      .allow_unexpected = {"model", "lm_head", "module", "_orig_mod", "base_model"}}),
                message);
    }
  }
}

TEST(ForeignNames, MissingPrefixIsNamed) {
  const CheckpointCopy copy("text_only");
  rename_tensors(copy, [](const std::string& tensor) {
    return tensor.starts_with("model.") ? tensor.substr(std::string("model.").size()) : tensor;
  });
  EXPECT_THAT(get_load_error(copy), HasSubstr("match with the prefix \"model.\""));
}

TEST(ForeignNames, OtherModelIsNoPrefixMapping) {
  const std::vector<std::string> model_names{"a.b.weight", "a.c.weight", "d.e.weight"};
  EXPECT_EQ(find_prefix_mapping(std::vector<std::string>{"x.y.z", "u"}, model_names).num_matches, 0);
  EXPECT_EQ(find_prefix_mapping(model_names, model_names).num_matches, 0);
  const auto mapping =
      find_prefix_mapping(std::vector<std::string>{"m.a.b.weight", "m.a.c.weight", "o.d.e.weight"}, model_names);
  EXPECT_EQ(mapping.file_prefix, "m.");
  EXPECT_EQ(mapping.model_prefix, "");
  EXPECT_EQ(mapping.num_matches, 2);
}

TEST(ForeignNames, MissingWeightsAreInitializedIfAllowed) {
  const CheckpointCopy copy("mixed_batch");
  std::filesystem::remove(copy.path() / "model.safetensors");
  io::write_checkpoint_tensors(copy.path(), {{"strange", at::ones({1})}});
  const auto model = build_model(copy.path(), at::kCPU, at::kFloat);
  EXPECT_NO_THROW(
      load_weights(*model, copy.path(), {.allow_missing = {"model", "lm_head"}, .allow_unexpected = {"strange"}}));
}

}  // namespace
}  // namespace vlmtrain::models
