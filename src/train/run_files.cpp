#include "vlmtrain/train/run_files.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "train/run_setup.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/file_kind.h"
#include "vlmtrain/io/file.h"

namespace vlmtrain::train {

namespace {

namespace fs = std::filesystem;

constexpr std::array kRunFiles{"config.yaml",       "epochs.jsonl", "data_check.jsonl", "environment.json",
                               "events.jsonl",      "ledger.json",  "metrics.jsonl",    "plan.json",
                               "predictions.jsonl", "report.html",  "run.lock",         "samples.jsonl"};
constexpr std::array kRunFolders{"checkpoints", "tensorboard"};

using Inputs = std::vector<std::pair<std::string, fs::path>>;

Inputs collect_inputs(const Config& config) {
  Inputs inputs{{"model.path", config.model.path},
                {"model.adapter", config.model.adapter},
                {"data.eval", config.data.eval},
                {"data.image_root", config.data.image_root}};
  for (const auto& source : config.data.train.all()) {
    inputs.emplace_back("data.train", source.path);
    if (!source.image_root.empty()) inputs.emplace_back("data.train", source.image_root);
  }
  std::error_code ignored_error;
  std::erase_if(inputs,
                [&](const auto& input) { return input.second.empty() || !fs::exists(input.second, ignored_error); });
  return inputs;
}

bool is_same_path(const fs::path& a, const fs::path& b) {
  std::error_code ignored_error;
  return fs::equivalent(a, b, ignored_error);
}

bool is_within(const fs::path& path, const fs::path& folder) {
  std::error_code ignored_error;
  const fs::path inner = fs::weakly_canonical(path, ignored_error), outer = fs::weakly_canonical(folder, ignored_error);
  return std::ranges::mismatch(outer, inner).in1 == outer.end();
}

/// A run leaves its lock beside whatever else it writes.
void check_no_foreign_files(const fs::path& folder) {
  std::error_code ignored_error;
  if (fs::exists(fs::symlink_status(folder / "run.lock", ignored_error))) return;
  for (const char* const name : kRunFiles) {
    if (!fs::is_regular_file(folder / name, ignored_error)) continue;
    throw usage_error(
        "output.dir: {} holds {}, which no run has left there (it would have left run.lock beside it) and a run would "
        "write over; choose another folder, or move it away",
        folder.string(), name);
  }
}

/// Whether the file is as a run writes it.
bool is_resolved(const fs::path& config_file) {
  Config config;
  OptionTable options = declare(config);
  options.read(config_file.string(), {});
  return options.to_yaml() == io::read_file(config_file);
}

}  // namespace

void check_run_files(const Config& config, const fs::path& config_file) {
  if (config.output.dir.empty()) return;
  const fs::path folder = get_run_folder(config);
  Inputs inputs = collect_inputs(config);
  const bool is_own_config = is_same_path(config_file, folder / "config.yaml") && is_resolved(config_file);
  if (!is_own_config) inputs.emplace_back("--config", config_file);
  constexpr const char* kAdvice = "copy it elsewhere, or choose another output.dir";
  for (const auto& [option, path] : inputs) {
    for (const char* const name : kRunFiles) {
      if (!is_same_path(path, folder / name)) continue;
      throw usage_error("{}: {} is {}, a file that the run writes; {}", option, path.string(), (folder / name).string(),
                        kAdvice);
    }
    for (const char* const name : kRunFolders) {
      if (!is_within(path, folder / name)) continue;
      throw usage_error("{}: {} stands in {}, a folder that the run writes and clears; {}", option, path.string(),
                        (folder / name).string(), kAdvice);
    }
  }
  if (!is_own_config) check_no_foreign_files(folder);
  for (const char* const name : kRunFiles) {
    if (const auto kind = describe_non_regular_file(folder / name); !kind.empty()) {
      throw run_error("{} is {}, where a file of the run belongs; remove it", (folder / name).string(), kind);
    }
  }
}

}  // namespace vlmtrain::train
