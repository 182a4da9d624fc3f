#include "models/checkpoints/read_model_config.h"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <string_view>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::models {

namespace {

namespace fs = std::filesystem;

/// Returns the entry of `parent` whose name is `prefix` followed by the highest number.
std::optional<fs::path> find_highest_numbered_path(const fs::path& parent, std::string_view prefix) {
  std::optional<fs::path> result;
  int64_t highest_number = -1;
  std::error_code error;
  for (auto entry = fs::directory_iterator(parent, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    const auto number = parse_int_after_prefix(prefix, entry->path().filename().string());
    if (!number || *number <= highest_number) continue;
    highest_number = *number;
    result = entry->path();
  }
  return result;
}

std::optional<fs::path> find_single_path(const fs::path& folder) {
  std::error_code error;
  const fs::directory_iterator entries(folder, error);
  if (error || entries == fs::directory_iterator()) return std::nullopt;
  return entries->path();
}

std::string describe_file_problem(const fs::path& file) {
  if (file.extension() == ".gguf") {
    return "a GGUF file contains weights for inference; give the folder of the original checkpoint (config.json, "
           "*.safetensors)";
  }
  return fmt::format("is a file; give the folder that contains it, with config.json and *.safetensors: {}",
                     file.has_parent_path() ? file.parent_path().string() : ".");
}

/// Returns the problem with a path that a user may mistake for a checkpoint; nothing if the error
/// about the missing config.json suffices.
std::optional<std::string> describe_non_checkpoint(const fs::path& folder) {
  std::error_code error;
  const fs::file_status status = fs::status(folder, error);
  if (folder.extension() == ".gguf") return describe_file_problem(folder);
  if (status.type() == fs::file_type::not_found) {
    if (folder.string().starts_with("~")) return std::nullopt;  // the read error explains it
    if (!io::is_hub_model_id(folder.string())) return "the folder does not exist; check the path";
    return fmt::format(
        "the folder does not exist; download it from the Hugging Face Hub with `hf download {0} --local-dir {1}`, then "
        "give {1}",
        folder.string(), folder.filename().string());
  }
  if (status.type() == fs::file_type::regular) return describe_file_problem(folder);
  if (const auto newest = find_highest_numbered_path(folder / "checkpoints", "step-")) {
    return fmt::format("is the folder of a run; give its newest checkpoint: {}", newest->string());
  }
  if (const auto newest = find_highest_numbered_path(folder, "step-")) {
    return fmt::format("contains the checkpoints of a run; give one of them: {}", newest->string());
  }
  if (const auto newest = find_highest_numbered_path(folder, "checkpoint-")) {
    return fmt::format("contains checkpoints of transformers' Trainer; give one of them: {}", newest->string());
  }
  if (const auto snapshot = find_single_path(folder / "snapshots")) {
    return fmt::format("is a Hub cache folder; give the snapshot in it: {}", snapshot->string());
  }
  if (find_highest_numbered_path(folder, "global_step")) {
    return "contains DeepSpeed partitions; convert them to one checkpoint with zero_to_fp32.py first";
  }
  if (status.type() == fs::file_type::directory) {
    return "has no config.json; a checkpoint folder has one next to *.safetensors and tokenizer.json";
  }
  return std::nullopt;
}

}  // namespace

nlohmann::json read_model_config(const fs::path& folder) {
  std::error_code error;
  const fs::path config = folder / "config.json";
  if (!fs::exists(config, error)) {
    if (const auto description = describe_non_checkpoint(folder))
      throw data_error("{}: {}", folder.string(), *description);
  }
  return io::read_json(config);
}

}  // namespace vlmtrain::models
