#pragma once

#include <filesystem>
#include <map>
#include <string>

namespace vlmtrain::models {

/// The contents of the tokenizer, processor, template, generation and settings files of an adapter on its base, by
/// name. What the adapter's folder has wins: a tokenizer as a whole, an image processor over either file in which the
/// base has one (preprocessor_config.json, processor_config.json), chat templates over all of the base's, other files
/// one by one.
std::map<std::string, std::string> merge_auxiliary_files(const std::filesystem::path& base,
                                                         const std::filesystem::path& adapter);

}  // namespace vlmtrain::models
