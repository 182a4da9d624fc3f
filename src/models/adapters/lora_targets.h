#pragma once

#include <filesystem>
#include <string>

namespace vlmtrain::nn {
struct Parameter;  // nn/weights/parameters.h
}  // namespace vlmtrain::nn

namespace vlmtrain::models {

class VisionLanguageModel;  // vlmtrain/models/model.h

/// Returns the embedding if it is also the output projection; null if the output projection has its
/// own values. The model owns the result.
const nn::Parameter* find_tied_embedding(const VisionLanguageModel& model);

/// Returns the path of the output projection's module, usually `lm_head`, even if it is tied to the
/// embedding.
std::string find_output_module(const VisionLanguageModel& model);

/// Throws UserError, with suggestions, if an entry of the model's LoraSettings matches no module:
/// kUsage if the user set it, kBadData if an adapter did. `folder` names the model's checkpoint in
/// errors.
void check_lora_targets(const VisionLanguageModel& model, const std::filesystem::path& folder);

/// Returns whether the embedding is trained and also is the output projection. peft then stores a
/// tensor for each.
bool saves_tied_output(const VisionLanguageModel& model);

/// Returns the name of the output projection's tensor in an adapter of a model that
/// saves_tied_output().
std::string make_tied_output_name(const VisionLanguageModel& model);

}  // namespace vlmtrain::models
