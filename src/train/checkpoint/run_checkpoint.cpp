#include "vlmtrain/train/run_checkpoint.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "train/checkpoint/checkpoint_content.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/engine/gradients/consensus.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/safetensors.h"
#include "vlmtrain/models/adapter.h"
#include "vlmtrain/models/checkpoint.h"

namespace vlmtrain::train {

namespace {

/// Maximum size of a weight file: the default of save_pretrained() in transformers, 5 GB.
constexpr int64_t kMaxWeightFileBytes = 5'000'000'000;
/// Name of the symbolic link to the best checkpoint.
constexpr const char* kBestCheckpointLinkName = "best";

/// Returns the name of the optimizer's files for error messages.
std::string describe_optimizer_files(const std::filesystem::path& checkpoint) {
  return format_optimizer_file_pattern(get_trainer_state_folder(checkpoint));
}

/// Returns all tensors of the optimizer's state, mapped from their files.
std::map<std::string, at::Tensor> load_optimizer_tensors(const std::filesystem::path& checkpoint) {
  std::map<std::string, at::Tensor> state;
  for (const auto& file : open_optimizer_files(get_trainer_state_folder(checkpoint))) {
    for (const auto& name : file.names()) state.emplace(name, file.tensor(name));
  }
  return state;
}

/// Returns the checkpoints in ascending order of their steps.
std::vector<std::pair<int64_t, std::filesystem::path>> list_checkpoints(const std::filesystem::path& folder) {
  std::vector<std::pair<int64_t, std::filesystem::path>> checkpoints;
  if (!std::filesystem::exists(folder)) return checkpoints;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (const auto step = parse_checkpoint_step(entry.path()); step && entry.is_directory())
      checkpoints.emplace_back(*step, entry.path());
  }
  std::sort(checkpoints.begin(), checkpoints.end());
  return checkpoints;
}

/// Parses the JSON files of a checkpoint that has no checksums, except tokenizer.json, whose
/// vocabulary is large. Throws UserError (kBadData).
void check_json_files(const std::filesystem::path& checkpoint) {
  for (const auto& entry : std::filesystem::directory_iterator(checkpoint)) {
    const auto& file = entry.path();
    if (file.extension() == ".json" && file.filename() != "tokenizer.json") io::read_json(file);
  }
}

/// Opens every file that a resumed run reads. Checks file sizes, tensor headers and the contents of
/// small files; reads no tensor values. Throws UserError (kBadData).
void check_checkpoint_completeness(const std::filesystem::path& checkpoint) {
  const auto state = get_trainer_state_folder(checkpoint);
  const bool has_trainer_state = std::filesystem::exists(state / "state.json");
  // Before sizes are compared, so that a shard of another step is reported as such.
  if (has_trainer_state) open_optimizer_files(state);
  if (!verify_checksums(checkpoint, ChecksumVerificationScope::kSmallFiles)) check_json_files(checkpoint);
  if (!has_trainer_state) {
    throw data_error("{} does not exist", (state / "state.json").string());
  }
  io::read_ordered_json(state / "state.json");
  io::read_ordered_json(state / "ledger.json");
  if (models::is_adapter(checkpoint)) {
    models::read_adapter_settings(checkpoint);
  } else {
    const io::CheckpointTensors weights(checkpoint);
  }
}

std::filesystem::path make_checkpoint_path(const std::filesystem::path& folder, int64_t step) {
  return folder / fmt::format("{}{}", kCheckpointNamePrefix, step);
}

void write_all_but_optimizer(const CheckpointContent& content, const std::filesystem::path& folder) {
  content.model.write(folder, kMaxWeightFileBytes);
  io::write_file(get_trainer_state_folder(folder) / "ledger.json", content.ledger);
  io::write_file(get_trainer_state_folder(folder) / "state.json", content.state);
}

}  // namespace

std::optional<std::filesystem::path> find_newest_checkpoint(const std::filesystem::path& run_dir) {
  const auto checkpoints = list_checkpoints(run_dir / "checkpoints");
  return checkpoints.empty() ? std::nullopt : std::optional{checkpoints.back().second};
}

std::optional<std::filesystem::path> find_best_checkpoint(const std::filesystem::path& run_dir) {
  const auto newest = find_newest_checkpoint(run_dir);
  std::error_code error;
  // A checkpoint may have been copied without its trainer_state.
  if (!newest || !std::filesystem::exists(get_trainer_state_folder(*newest) / "state.json", error)) return std::nullopt;
  const auto best_step = load_run_state(*newest).evaluation.best_step;
  if (!best_step) return std::nullopt;
  auto folder = make_checkpoint_path(run_dir / "checkpoints", *best_step);
  return std::filesystem::is_directory(folder, error) ? std::optional{std::move(folder)} : std::nullopt;
}

CheckpointManager::CheckpointManager(const std::filesystem::path& run_dir, int64_t save_total_limit, bool keep_best)
    : folder_(run_dir / "checkpoints"), save_total_limit_(save_total_limit), keep_best_(keep_best) {
  io::clean_up_abandoned_temp_files(run_dir);
  io::clean_up_abandoned_temp_files(folder_);
}

std::optional<std::filesystem::path> CheckpointManager::find_newest() const {
  return find_newest_checkpoint(folder_.parent_path());
}

void CheckpointManager::check_newest_checkpoint(CheckpointVerificationScope scope) const {
  if (!std::filesystem::exists(folder_)) return;
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    if (parse_checkpoint_step(entry.path()) && !entry.is_directory()) {
      throw data_error("{}: has the name of a checkpoint but is not a folder; move it away", entry.path().string());
    }
  }
  const auto checkpoints = list_checkpoints(folder_);
  if (checkpoints.empty()) return;
  const auto& newest = checkpoints.back().second;
  try {
    check_checkpoint_completeness(newest);
    if (scope == CheckpointVerificationScope::kAllFiles) verify_checksums(newest, ChecksumVerificationScope::kAllFiles);
  } catch (const UserError& error) {
    const bool is_only_checkpoint = checkpoints.size() == 1;
    const bool has_copy_advice = std::string_view(error.what()).find("copy it again") != std::string_view::npos;
    throw data_error("{}: is not a complete checkpoint: {}; {}move it away to {}{}", newest.string(), error.what(),
                     has_copy_advice ? "or " : "",
                     is_only_checkpoint
                         ? std::string("start the run from the beginning")
                         : "resume from " + checkpoints[checkpoints.size() - 2].second.filename().string(),
                     has_copy_advice ? "" : ", or copy it again");
  }
}

std::filesystem::path CheckpointManager::write(const CheckpointContent& content) {
  std::filesystem::path checkpoint = make_checkpoint_path(folder_, content.step);
  check_run_folder_exists();
  io::AtomicDirectory folder(checkpoint);
  std::filesystem::create_directory(get_trainer_state_folder(folder.path()));
  {
    const io::ChecksumRecorder recorder;
    write_all_but_optimizer(content, folder.path());
    io::write_safetensors(get_trainer_state_folder(folder.path()) / make_optimizer_file_name(0, 1), content.optimizer);
    write_checksums(folder.path(), collect_checksums(folder.path(), recorder));
  }
  folder.commit();
  finish_checkpoint_commit(content.best_step);
  return checkpoint;
}

std::filesystem::path CheckpointManager::write_sharded(const CheckpointContent& content, const CheckpointShard& shard,
                                                       const engine::Consensus& consensus) {
  std::filesystem::path checkpoint = make_checkpoint_path(folder_, content.step);
  std::optional<io::AtomicDirectory> folder;
  if (shard.writes_shared_files) {
    check_run_folder_exists();
    folder.emplace(checkpoint);
    std::filesystem::create_directory(get_trainer_state_folder(folder->path()));
  }
  const std::filesystem::path shared_folder =
      consensus.all_gather_strings(folder ? folder->path().string() : "").front();
  const io::ChecksumRecorder recorder;
  if (folder) write_all_but_optimizer(content, shared_folder);
  shard.join_remaining_passes();
  if (!shard.is_replica) {
    io::write_safetensors(
        get_trainer_state_folder(shared_folder) / make_optimizer_file_name(shard.shard.rank, shard.shard.count),
        content.optimizer, make_shard_metadata(shard.shard.rank, content.step));
  }
  // After this collective all shards are complete, and rank 0 has their checksums.
  const auto shard_checksums =
      consensus.all_gather_strings(format_checksums(collect_checksums(shared_folder, recorder)));
  if (folder) {
    CheckpointChecksums checksums;
    for (const auto& text : shard_checksums) checksums.merge(parse_checksums(text, "checksums of a rank"));
    write_checksums(shared_folder, checksums);
    folder->commit();
    finish_checkpoint_commit(content.best_step);
  }
  consensus.all_gather_strings("");  // waits until the folder has its final name
  return checkpoint;
}

void CheckpointManager::finish_checkpoint_commit(std::optional<int64_t> best_step) {
  link_best_checkpoint(best_step);
  remove_surplus_checkpoints(best_step);
}

void CheckpointManager::check_run_folder_exists() const {
  const auto run_dir = folder_.parent_path();
  if (std::filesystem::exists(run_dir)) return;
  throw run_error(
      "cannot write {}: the run's folder {} was removed or renamed during the run; restore the folder to resume, or "
      "start again with the same command",
      folder_.string(), run_dir.string());
}

void CheckpointManager::link_best_checkpoint(std::optional<int64_t> best_step) {
  const auto best_link = folder_ / kBestCheckpointLinkName;
  std::error_code error;
  if (!std::filesystem::is_directory(folder_, error)) return;
  const auto target = best_step ? make_checkpoint_path(folder_, *best_step) : best_link;
  if (!keep_best_ || target == best_link || !std::filesystem::is_directory(target, error)) {
    if (std::filesystem::is_symlink(best_link, error)) std::filesystem::remove(best_link, error);
    return;
  }
  if (std::filesystem::read_symlink(best_link, error) == target.filename() || !supports_symlinks_) return;
  try {
    io::write_symlink(best_link, target.filename());
  } catch (const UserError& problem) {
    supports_symlinks_ = false;
    spdlog::warn("{}: cannot link to the best checkpoint: {}; the run continues, and state.json contains its step",
                 best_link.string(), problem.what());
  }
}

void CheckpointManager::remove_surplus_checkpoints(std::optional<int64_t> best_step) {
  std::erase_if(remaining_folders_, [](const auto& path) { return !io::remove_directory(path); });
  const auto checkpoints = list_checkpoints(folder_);
  const auto num_surplus_checkpoints = static_cast<int64_t>(checkpoints.size()) - save_total_limit_;
  for (int64_t i = 0; i < num_surplus_checkpoints; ++i) {
    const auto& [step, path] = checkpoints[static_cast<size_t>(i)];
    if (!keep_best_ || step != best_step) remove_checkpoint(path);
  }
}

void CheckpointManager::remove_checkpoint(const std::filesystem::path& checkpoint) {
  const auto leftover_folder = io::remove_directory(checkpoint);
  if (!leftover_folder) return;
  spdlog::warn("{}: cannot remove an old checkpoint: {}; the run continues, and tries again at the next checkpoint",
               leftover_folder->path.string(), leftover_folder->reason);
  // A folder with its own name is found again by list_checkpoints(); a renamed one is not.
  if (leftover_folder->path != checkpoint) remaining_folders_.push_back(leftover_folder->path);
}

namespace {

/// Returns `checkpoint`. Throws UserError (kBadData) if its weights differ from their checksums.
std::filesystem::path verify_weights(const std::filesystem::path& checkpoint) {
  verify_checksums(checkpoint, ChecksumVerificationScope::kModelWeights);
  return checkpoint;
}

}  // namespace

std::filesystem::path resolve_checkpoint(const std::filesystem::path& folder) try {
  const auto has_folder_entry = [&folder](const char* name) {
    std::error_code error;
    return std::filesystem::exists(folder / name, error);
  };
  if (has_folder_entry("config.json") || models::is_adapter(folder) ||
      !(has_folder_entry("checkpoints") || has_folder_entry("run.lock"))) {
    return verify_weights(folder);
  }
  const auto newest = find_newest_checkpoint(folder);
  if (!newest) {
    throw data_error("{}: is the folder of a run without a checkpoint; one is written every {} steps, and at the end",
                     folder.string(), keys::output::kSaveSteps);
  }
  const auto best_checkpoint = find_best_checkpoint(folder);
  spdlog::info("{}: is the folder of a run; using its {} checkpoint, {}", folder.string(),
               best_checkpoint ? "best" : "newest", best_checkpoint.value_or(*newest).string());
  return verify_weights(best_checkpoint.value_or(*newest));
} catch (const std::filesystem::filesystem_error& error) {
  throw data_error("{}: cannot be read: {}; give the folder of a checkpoint or of a run", folder.string(),
                   error.code().message());
}

void load_optimizer_state(const std::filesystem::path& checkpoint, engine::Optimizer& optimizer) {
  // Tensors are mapped one at a time. All at once they would take as much address space as the
  // optimizer in addition to it.
  std::map<std::string, engine::LazyStateTensor> state;
  for (const auto& path : find_optimizer_files(get_trainer_state_folder(checkpoint))) {
    const auto file = std::make_shared<const io::OnDemandSafetensorsFile>(path);
    for (const auto& name : file->names()) {
      const io::TensorInfo& info = file->info(name);
      state.emplace(name, engine::LazyStateTensor{.dtype = info.dtype, .shape = info.shape, .read = [file, name] {
                                                    return file->tensor(name);
                                                  }});
    }
  }
  optimizer.load_state(engine::SavedOptimizerState(state), describe_optimizer_files(checkpoint));
}

engine::StateMigrationResult migrate_optimizer_state(const std::filesystem::path& checkpoint,
                                                     const models::BaseWeights& checkpoint_weights,
                                                     const nn::ParameterStore& store, engine::Optimizer& optimizer) {
  auto tensors = load_optimizer_tensors(checkpoint);
  const engine::SavedOptimizerState state(tensors);
  for (const auto& parameter : store.all()) {
    const auto* const entry = checkpoint_weights.find_base_tensor(parameter);
    const std::string master = "master." + parameter.name;
    if (entry == nullptr || state.contains(master) || !engine::has_moments(state, parameter.name)) continue;
    tensors.emplace(master, entry->read().to(at::kFloat));
  }
  return optimizer.migrate_state(store, tensors, describe_optimizer_files(checkpoint));
}

nlohmann::ordered_json load_ledger(const std::filesystem::path& checkpoint) {
  return io::read_ordered_json(get_trainer_state_folder(checkpoint) / "ledger.json");
}

}  // namespace vlmtrain::train
