#include "models/presets.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/options.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/models/checkpoint.h"

namespace vlmtrain::models {

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const auto& [path, content] : resources()) {
    std::string name = path.substr(0, path.find('/'));
    if (names.empty() || names.back() != name) names.push_back(std::move(name));
  }
  return names;
}

std::string tokenizer_source(const std::string& preset) {
  static const std::map<std::string, std::string> sources{
      {"llava-1.5-13b", "llava-hf/llava-1.5-13b-hf"},          {"llava-1.5-7b", "llava-hf/llava-1.5-7b-hf"},
      {"llava-med-7b", "microsoft/llava-med-v1.5-mistral-7b"}, {"nanovlm-222m", "HuggingFaceTB/cosmo2-tokenizer"},
      {"nanovlm-460m", "HuggingFaceTB/SmolLM2-360M-Instruct"}, {"qwen2-vl-2b", "Qwen/Qwen2-VL-2B-Instruct"},
      {"qwen2.5-vl-3b", "Qwen/Qwen2.5-VL-3B-Instruct"},        {"qwen2.5-vl-7b", "Qwen/Qwen2.5-VL-7B-Instruct"},
      {"smolvlm-2.2b", "HuggingFaceTB/SmolVLM-Instruct"},      {"smolvlm-256m", "HuggingFaceTB/SmolVLM-256M-Instruct"},
      {"smolvlm-500m", "HuggingFaceTB/SmolVLM-500M-Instruct"}};
  const auto found = sources.find(preset);
  return found == sources.end() ? "" : found->second;
}

namespace {

/// `given_as` is what the message calls the name.
void check_known(const std::string& preset, std::string_view given_as) {
  const auto names = preset_names();
  if (std::find(names.begin(), names.end(), preset) != names.end()) return;
  const auto near = nearest(preset, names);
  throw usage_error("{} {}: unknown preset; {}the known ones are {}", given_as, preset,
                    near ? fmt::format("did you mean {}? ", *near) : "", fmt::join(names, ", "));
}

void write_files(const std::string& preset, const std::filesystem::path& folder) {
  for (const auto& [path, content] : resources()) {
    if (path.starts_with(preset + "/")) io::write_file(folder / path.substr(preset.size() + 1), content);
  }
}

}  // namespace

void write_preset(const std::string& preset, const std::filesystem::path& tokenizer, uint64_t seed,
                  const std::filesystem::path& out) {
  check_known(preset, "--preset");
  if (std::filesystem::exists(out) && !(std::filesystem::is_directory(out) && std::filesystem::is_empty(out))) {
    throw usage_error("--out {}: exists already; give a new folder or remove it", out.string());
  }
  io::AtomicDirectory folder(out);
  write_files(preset, folder.path());
  const bool has_own = std::filesystem::exists(folder.path() / "tokenizer.json");
  if (has_own && !tokenizer.empty()) {
    throw usage_error("--tokenizer: preset {} comes with its own, whose ids its config.json names; leave it out",
                      preset);
  }
  if (!has_own && tokenizer.empty()) {
    throw usage_error("--preset {}: comes without a tokenizer; give the tokenizer.json of {} with --tokenizer", preset,
                      tokenizer_source(preset));
  }
  if (!has_own) std::filesystem::copy_file(tokenizer, folder.path() / "tokenizer.json");
  const auto model = build_model(folder.path(), at::kCPU, at::kFloat);
  initialize_weights(*model, seed);
  save_checkpoint(*model, folder.path(), folder.path(), io::kDefaultShardBytes);
  folder.commit();
}

void write_preset_config(const std::string& preset, const std::filesystem::path& folder) {
  check_known(preset, "model");
  write_files(preset, folder);
}

}  // namespace vlmtrain::models
