#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>

namespace vlmtrain::models {

/// The names of the files next to config.json and the weights that go with a model: tokenizer, processor, template,
/// generation and settings files.
std::span<const std::string_view> auxiliary_file_names();

/// Copies what a checkpoint holds beside config.json and the weights: tokenizer, processor and template files. One that
/// `source` lacks is left out.
void copy_auxiliary_files(const std::filesystem::path& source, const std::filesystem::path& out);

/// Lets the files by name have one chat template, `jinja`, in each place where transformers, vLLM or nanoVLM look for
/// it. Files whose default is that one already stay as they are, with their further templates; else it becomes
/// chat_template.jinja, all others are removed, and a template that stands in config.json is replaced there.
void set_chat_template(const std::string& jinja, std::map<std::string, std::string>& files);

/// Lets generation_config.json among the files by name end texts at the token `id` too: appends it to eos_token_id,
/// which stays as it is where it has the token. Without that file it is written, with the ids that transformers would
/// take of config.json, if these lack the token.
void add_eos_token(int64_t id, std::map<std::string, std::string>& files);

/// Writes one of these files into the existing folder `out`; `name` may have a folder, which is made.
void write_auxiliary_file(const std::filesystem::path& out, const std::string& name, const std::string& content);

/// The same files' contents, by name.
std::map<std::string, std::string> read_auxiliary_files(const std::filesystem::path& source);

/// Makes sure that a checkpoint can be written to `out`, and removes what killed writers left beside it. UserError
/// (kUsage) where `out` names nothing, or something that is not an empty folder.
void prepare_output_folder(const std::filesystem::path& out);

/// The contents of the tokenizer, processor, template, generation and settings files of an adapter on its base, by
/// name. What the adapter's folder has wins: a tokenizer as a whole, an image processor over either file in which the
/// base has one (preprocessor_config.json, processor_config.json), chat templates over all of the base's, other files
/// one by one.
std::map<std::string, std::string> merge_auxiliary_files(const std::filesystem::path& base,
                                                         const std::filesystem::path& adapter);

}  // namespace vlmtrain::models
