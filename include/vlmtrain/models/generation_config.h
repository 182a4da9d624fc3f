#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "vlmtrain/models/processor.h"

namespace vlmtrain::models {

/// The tokens that end an answer: the processor's end of turn, and the eos_token_id of `folder`/generation_config.json
/// (a number or a list), where there is one. `adapter`: empty, or the folder of an adapter, whose
/// generation_config.json wins. Where `folder` is an adapter itself, its own file counts, else its base's.
std::vector<int64_t> load_eos_token_ids(const std::filesystem::path& folder, const Processor& processor,
                                        const std::filesystem::path& adapter = {});

/// Returns the keys of `folder`/generation_config.json that change what transformers' generate answers and are not
/// applied here, in alphabetical order: neither eos_token_id nor known to be harmless, and with a value other than the
/// default. Empty without such a file; of an adapter without one, its base's. Throws UserError (kBadData) where the
/// file is not JSON.
std::vector<std::string> find_unapplied_generation_settings(const std::filesystem::path& folder);

}  // namespace vlmtrain::models
