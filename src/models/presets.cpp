#include "models/presets.h"

#include <fmt/ranges.h>

#include <algorithm>

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
    throw usage_error("--preset {}: comes without a tokenizer; give the model's tokenizer.json with --tokenizer",
                      preset);
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
