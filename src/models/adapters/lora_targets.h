#pragma once

#include <filesystem>
#include <string>

#include "vlmtrain/models/model.h"

namespace vlmtrain::models {

/// Returns the embedding that is the output projection too, owned by the model; null if the output
/// has its own values.
const nn::Parameter* find_tied_embedding(const VisionLanguageModel& model);

/// Returns the module of the output projection, usually `lm_head`, even if it is tied.
std::string find_output_module(const VisionLanguageModel& model);

/// Throws UserError, with suggestions, if an entry of the model's LoraSettings matches nothing:
/// kUsage for a typing error, kBadData for an adapter of another model.
void check_lora_targets(const VisionLanguageModel& model, const std::filesystem::path& folder);

/// Returns whether the embedding is trained and also is the output projection. peft then stores a
/// tensor for each.
bool saves_tied_output(const VisionLanguageModel& model);

/// Returns the name of the output projection's tensor in an adapter of a model that
/// saves_tied_output().
std::string make_tied_output_name(const VisionLanguageModel& model);

}  // namespace vlmtrain::models
