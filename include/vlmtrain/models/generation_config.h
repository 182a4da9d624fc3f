#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace vlmtrain::models {

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
