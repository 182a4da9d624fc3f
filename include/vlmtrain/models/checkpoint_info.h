#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "vlmtrain/models/model_settings.h"

namespace vlmtrain::models {

/// Returns one sentence for each part of the checkpoint `folder` that is ignored or contradicts
/// another part: an output projection that config.json ties although its weights differ from the
/// embedding, a quantization_config without quantized weights, and weight files and keys of
/// config.json that are not read. Reads tensor names and headers only, except for embedding and
/// output if they are tied and both stored. Throws UserError as build_model().
std::vector<std::string> list_checkpoint_warnings(const std::filesystem::path& folder);

/// Returns whether the model of `folder`/config.json predicts masks. Throws UserError (kBadData).
bool predicts_masks(const std::filesystem::path& folder);

/// Returns whether the model of `folder`/config.json takes images, videos or volumes: whether it has
/// a vision tower. Throws UserError (kBadData).
bool takes_media(const std::filesystem::path& folder);

/// Returns whether the model of `folder`/config.json has per-layer embeddings. Throws the exceptions
/// of build_model().
bool has_per_layer_embeddings(const std::filesystem::path& folder);

/// Returns the modules that LoRA trains fully by default (nn::LoraSettings::modules_to_save): the
/// mask modules of the model in `folder` that are not in `frozen`. Empty if `folder` has no
/// config.json.
std::vector<std::string> get_default_modules_to_save(const std::filesystem::path& folder, const FrozenParts& frozen);

class Processor;  // processor.h

/// Returns the tokens that end an answer: the processor's end of turn and eos_token_id of
/// `folder`/generation_config.json. If `adapter` is not empty, its generation_config.json, if it
/// exists, is read instead. If `folder` is an adapter, its own file is read; if it has none, the
/// file of its base.
std::vector<int64_t> load_eos_token_ids(const std::filesystem::path& folder, const Processor& processor,
                                        const std::filesystem::path& adapter = {});

/// Returns the keys of `folder`/generation_config.json, in alphabetical order, that change the
/// answers of transformers' generate() and are not applied here. Ignores eos_token_id, harmless
/// keys and default values. For an adapter without the file, reads the file of its base. Throws
/// UserError (kBadData) if the file is not JSON.
std::vector<std::string> find_unapplied_generation_settings(const std::filesystem::path& folder);

}  // namespace vlmtrain::models
