#pragma once

#include <filesystem>
#include <string>

#include "vlmtrain/models/model.h"

namespace vlmtrain::models {

/// The embedding that a model's output projection reads too; null where the output has values of its own. It is the
/// model's.
const nn::Parameter* find_tied_embedding(const VisionLanguageModel& model);

/// The module of the output projection, `lm_head` as a rule, also where it is tied and so no parameter.
std::string find_output_module(const VisionLanguageModel& model);

/// Throws UserError where an entry of the model's LoraSettings matches nothing: a slip of the pen (kUsage), or an
/// adapter for another model (kBadData). It lists near names.
void check_lora_targets(const VisionLanguageModel& model, const std::filesystem::path& folder);

/// Returns whether the embedding is trained and also is the output projection. peft then stores a tensor for each.
bool saves_tied_output(const VisionLanguageModel& model);

/// Returns the name of the output projection's tensor in an adapter of a model that saves_tied_output().
std::string make_tied_output_name(const VisionLanguageModel& model);

}  // namespace vlmtrain::models
