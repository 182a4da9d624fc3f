#include "models/checkpoints/foreign_names.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/temporary_folder.h"
#include "models/checkpoint_copy.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/models/checkpoint.h"

namespace vlmtrain::models {
namespace {

using io::message_of;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

/// Renames all tensors of the copy.
template <class Rename>
void rename_tensors(const CheckpointCopy& copy, const Rename& rename) {
  io::NamedTensors tensors;
  const io::CheckpointTensors before(copy.path());
  for (const auto& name : before.names()) tensors.emplace_back(rename(name), before.tensor(name).clone());
  io::write_safetensors(copy.path() / "model.safetensors", tensors);
}

std::string loading_error(const CheckpointCopy& copy, const LoadSettings& settings = {}) {
  const auto model = build_model(copy.path(), at::kCPU, at::kFloat);
  return message_of([&] { load_weights(*model, copy.path(), settings); });
}

TEST(ForeignNames, APrefixOfAWrapperIsNamed) {
  for (const char* name : {"text_only", "qwen2_5_vl_mixed", "llava_clip_llama", "gemma3_saved"}) {
    for (const std::string prefix : {"module.", "_orig_mod.", "base_model.model.", "model.language_model."}) {
      const CheckpointCopy copy(name);
      rename_tensors(copy, [&](const std::string& tensor) { return prefix + tensor; });
      const auto message = loading_error(copy);
      EXPECT_THAT(message, AllOf(HasSubstr(copy.path().string()), HasSubstr("such as "), HasSubstr("the files have"),
                                 HasSubstr("\"" + prefix), Not(HasSubstr("allow_missing"))))
          << name;
      // Whatever is allowed: nothing starts at random because of its name.
      EXPECT_EQ(loading_error(copy, {.allow_missing = {"model", "lm_head", "language_model", "vision_tower",
                                                       "multi_modal_projector", "visual"},
                                     .allow_unexpected = {"model", "lm_head", "module", "_orig_mod", "base_model"}}),
                message);
    }
  }
}

TEST(ForeignNames, AMissingPrefixIsNamed) {
  const CheckpointCopy copy("text_only");
  rename_tensors(copy, [](const std::string& tensor) {
    return tensor.starts_with("model.") ? tensor.substr(std::string("model.").size()) : tensor;
  });
  EXPECT_THAT(loading_error(copy), HasSubstr("fit with the prefix \"model.\""));
}

TEST(ForeignNames, AnotherModelIsNotOneWithAPrefix) {
  const std::vector<std::string> own{"a.b.weight", "a.c.weight", "d.e.weight"};
  EXPECT_EQ(find_prefix_change(std::vector<std::string>{"x.y.z", "u"}, own).tensors, 0);
  EXPECT_EQ(find_prefix_change(own, own).tensors, 0);
  const auto change = find_prefix_change(std::vector<std::string>{"m.a.b.weight", "m.a.c.weight", "o.d.e.weight"}, own);
  EXPECT_EQ(change.stored, "m.");
  EXPECT_EQ(change.own, "");
  EXPECT_EQ(change.tensors, 2);
}

TEST(ForeignNames, WhatMayBeMissingStartsAtRandomWhereNothingElseFits) {
  const CheckpointCopy copy("mixed_batch");
  std::filesystem::remove(copy.path() / "model.safetensors");
  io::write_checkpoint_tensors(copy.path(), {{"strange", at::ones({1})}});
  const auto model = build_model(copy.path(), at::kCPU, at::kFloat);
  EXPECT_NO_THROW(
      load_weights(*model, copy.path(), {.allow_missing = {"model", "lm_head"}, .allow_unexpected = {"strange"}}));
}

}  // namespace
}  // namespace vlmtrain::models
