#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>

namespace vlmtrain::models {

/// Returns the names of the files next to config.json and the weights that belong to a model:
/// tokenizer, processor, template, generation and settings files.
std::span<const std::string_view> get_auxiliary_file_names();

/// Copies the auxiliary files that exist in `source` to the existing folder `out`.
void copy_auxiliary_files(const std::filesystem::path& source, const std::filesystem::path& out);

/// Makes `jinja` the only default chat template among `files`, in every location where
/// transformers, vLLM and nanoVLM look for one. `files` are contents by name, here and below.
/// Changes nothing if it already is the only default. Otherwise writes it to chat_template.jinja,
/// removes the templates in other files, and replaces a template in config.json.
void set_chat_template(const std::string& jinja, std::map<std::string, std::string>& files);

/// Adds the token `id` to eos_token_id of generation_config.json in `files`. If the file does not
/// exist, creates it with the ids that transformers would read from config.json, unless these
/// include the token. Throws UserError (kBadData) if a file is not JSON.
void add_eos_token(int64_t id, std::map<std::string, std::string>& files);

/// Writes an auxiliary file into the existing folder `out`. If `name` contains a folder, creates
/// it.
void write_auxiliary_file(const std::filesystem::path& out, const std::string& name, const std::string& content);

/// Returns the contents of the auxiliary files in the folder `source`, by name.
std::map<std::string, std::string> read_auxiliary_files(const std::filesystem::path& source);

/// Checks that a checkpoint can be written to `out`, and removes temporary files of interrupted
/// writers. Throws UserError (kUsage) if `out` is empty or exists and is not an empty folder.
void prepare_output_folder(const std::filesystem::path& out);

/// Returns the contents of the auxiliary files of an adapter on its base, by name. Files of the
/// adapter take precedence: its tokenizer over all tokenizer files, its image processor over that
/// of the base in preprocessor_config.json or processor_config.json, its chat templates over all
/// chat templates of the base, and other files one by one.
std::map<std::string, std::string> merge_auxiliary_files(const std::filesystem::path& base,
                                                         const std::filesystem::path& adapter);

}  // namespace vlmtrain::models
