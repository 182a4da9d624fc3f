#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>

namespace vlmtrain::models {

/// The names of the files beside config.json and the weights that go with a model: tokenizer, processor, template,
/// generation and settings files.
std::span<const std::string_view> companion_file_names();

/// Copies what a checkpoint holds beside config.json and the weights: tokenizer, processor and template files. One that
/// `source` lacks is left out.
void copy_companion_files(const std::filesystem::path& source, const std::filesystem::path& out);

/// What the files by name become where the model was trained with the chat template `jinja`: whoever loads them takes
/// that one. A template that stands in config.json is replaced there.
void put_chat_template(const std::string& jinja, std::map<std::string, std::string>& files);

/// The same files' contents, by name.
std::map<std::string, std::string> read_companion_files(const std::filesystem::path& source);

}  // namespace vlmtrain::models
