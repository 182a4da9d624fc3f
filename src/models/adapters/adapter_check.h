#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "models/adapters/adapter_format.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::models {

/// Throws UserError (kBadData) that lists all differences between an adapter's tensors and a model
/// built with its settings: missing and unexpected tensors, shape and dtype mismatches, and an
/// output projection that should equal the embedding but does not. The model may be on the meta
/// device.
void check_adapter_tensors(const VisionLanguageModel& model, const AdapterTensors& tensors);

/// Throws UserError (kBadData) if values of an adapter are infinite or NaN in the file, or overflow
/// in the model's dtype. Not used for a run's own checkpoint, since its optimizer state has the
/// fp32 values.
void check_adapter_values(const VisionLanguageModel& model, const AdapterTensors& tensors);

/// Returns the parameters that an adapter provides: low-rank ones and those of modules_to_save.
std::vector<nn::Parameter> get_adapter_parameters(const VisionLanguageModel& model);

/// Throws UserError (kBadData) if an adapter's folder has weights in other files, which would be
/// ignored: a projector trained by LLaVA's or ms-swift's scripts, a value head, a part of the
/// vision tower. Ignores files of trainers such as optimizer states.
void reject_unsupported_adapter_weights(const std::filesystem::path& folder);

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
