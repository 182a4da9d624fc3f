#include "models/checkpoints/config_checks.h"

#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include <optional>
#include <string>
#include <string_view>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::models {

namespace {

/// Returns the number of parameters stored in `folder`; nothing if the weights are unreadable.
/// Loading them reports the error.
std::optional<double> count_stored_parameters(const std::filesystem::path& folder) {
  try {
    const io::CheckpointTensors weights(folder);
    double num_parameters = 0;
    for (const auto& name : weights.names()) {
      const io::TensorInfo& tensor = weights.info(name);
      num_parameters += static_cast<double>(tensor.size_bytes) / static_cast<double>(c10::elementSize(tensor.dtype));
    }
    return num_parameters;
  } catch (const UserError&) {
    return std::nullopt;
  }
}

}  // namespace

void check_size(int64_t value, std::string_view key, int64_t max, const std::string& source) {
  if (value >= 1 && value <= max) return;
  throw config_error("{}: {} is {}; it must be from 1 to {}", source, key, value, max);
}

int64_t read_size(const nlohmann::json& config, std::string_view key, int64_t fallback, int64_t max,
                  const std::string& source) {
  const auto value = io::get_or<int64_t>(config, key, fallback, source);
  check_size(value, key, max, source);
  return value;
}

int64_t read_count(const nlohmann::json& config, std::string_view key, int64_t fallback, int64_t max,
                   const std::string& source) {
  const auto value = io::get_or<int64_t>(config, key, fallback, source);
  if (value >= 0 && value <= max) return value;
  throw config_error("{}: {} is {}; it must be from 0 to {}", source, key, value, max);
}

double read_number(const nlohmann::json& config, std::string_view key, double fallback, NumberRange range,
                   const std::string& source) {
  const auto value = io::get_or<double>(config, key, fallback, source);
  check_number(value, key, range, source);
  return value;
}

void check_number(double value, std::string_view key, NumberRange range, const std::string& source) {
  if (value > range.exclusive_min && value <= range.max) return;
  throw config_error("{}: {} is {}; it must be above {:g} and at most {:g}", source, key, value, range.exclusive_min,
                     range.max);
}

nlohmann::json get_section(const nlohmann::json& config, std::string_view key, const std::string& source) {
  const auto it = config.find(key);
  if (it == config.end() || it->is_null()) return {};
  if (it->is_object()) return *it;
  throw config_error("{}: {} is {}, not an object", source, key, io::make_json_excerpt(*it));
}

void check_parameter_count(double num_parameters, const std::filesystem::path& folder) {
  const auto config = (folder / "config.json").string();
  if (num_parameters > static_cast<double>(kMaxParameters)) {
    throw config_error("{}: describes a model of {:.3g} parameters, which is implausible", config, num_parameters);
  }
  // Tolerates weights that model.allow_missing and resize_embeddings add, and the large relative
  // error of the estimate for small models. Not tuned.
  constexpr double kMaxDescribedToStoredRatio = 10;
  constexpr double kMaxUncheckedParameters = 1e8;  // such a model fits into memory even if the config is wrong
  if (num_parameters <= kMaxUncheckedParameters) return;
  const auto num_stored_parameters = count_stored_parameters(folder);
  if (num_stored_parameters && num_parameters > kMaxDescribedToStoredRatio * *num_stored_parameters) {
    throw data_error(
        "{}: describes a model of {:.3g} parameters, but the weights next to it have {:.3g}; use the config.json that "
        "belongs to them",
        config, num_parameters, *num_stored_parameters);
  }
}

void reject_attention_dropout(const nlohmann::json& config, const std::string& source) {
  const auto it = config.find("attention_dropout");
  if (it == config.end() || it->is_null() || (it->is_number() && it->get<double>() == 0)) return;
  throw data_error("{}: attention_dropout is {}: attention dropout is not supported; set it to 0.0", source,
                   io::make_json_excerpt(*it));
}

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
    return "the folder does not exist; check the path";
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
