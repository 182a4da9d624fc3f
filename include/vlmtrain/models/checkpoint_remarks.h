#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace vlmtrain::models {

/// Returns a sentence for each thing in the checkpoint `folder` that is read otherwise than its files say: an output
/// projection that config.json ties and the weights do not, a quantization_config without quantized weights, files of
/// weights and keys of config.json that are not read. Empty for ordinary checkpoints. Reads names and headers, and the
/// two tables of tokens where config.json ties them and the files hold both. Throws UserError as build_model.
std::vector<std::string> list_checkpoint_remarks(const std::filesystem::path& folder);

}  // namespace vlmtrain::models
