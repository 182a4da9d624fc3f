#include "vlmtrain/train/run_checkpoint.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "train/checkpoint_checksums.h"
#include "train/checkpoint_content.h"
#include "train/optimizer_files.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/number_behind.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/json_text.h"
#include "vlmtrain/io/remove_directory.h"
#include "vlmtrain/io/safetensors.h"
#include "vlmtrain/io/single_tensors.h"
#include "vlmtrain/models/adapter.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/train/run_changes.h"

namespace vlmtrain::train {

namespace {

constexpr int64_t kShardBytes = 5'000'000'000;
constexpr std::string_view kPrefix = "step-";
constexpr const char* kBest = "best";

std::filesystem::path state_folder(const std::filesystem::path& checkpoint) {
  return checkpoint / "trainer_state";
}

std::string optimizer_source(const std::filesystem::path& checkpoint) {
  return optimizer_files_name(state_folder(checkpoint));
}

std::map<std::string, at::Tensor> saved_state(const std::filesystem::path& checkpoint) {
  std::map<std::string, at::Tensor> state;
  for (const auto& file : open_optimizer_files(state_folder(checkpoint))) {
    for (const auto& name : file.names()) state.emplace(name, file.tensor(name));
  }
  return state;
}

/// The step of a checkpoint's folder name; nothing for other names.
std::optional<int64_t> step_of(const std::filesystem::path& folder) {
  return number_behind(kPrefix, folder.filename().string());
}

/// Ascending by step.
std::vector<std::pair<int64_t, std::filesystem::path>> all_checkpoints(const std::filesystem::path& folder) {
  std::vector<std::pair<int64_t, std::filesystem::path>> found;
  if (!std::filesystem::exists(folder)) return found;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (const auto step = step_of(entry.path()); step && entry.is_directory()) found.emplace_back(*step, entry.path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

/// Parses the JSON files of a checkpoint that has no checksums; not the tokenizer, whose vocabulary is long.
void check_json_files(const std::filesystem::path& checkpoint) {
  for (const auto& entry : std::filesystem::directory_iterator(checkpoint)) {
    const auto& file = entry.path();
    if (file.extension() == ".json" && file.filename() != "tokenizer.json") io::read_json(file);
  }
}

/// Opens every file that a run goes on from: sizes, headers and the contents of small files are checked, no tensor is
/// read.
void check_whole(const std::filesystem::path& checkpoint) {
  const auto state = state_folder(checkpoint);
  const bool has_state = std::filesystem::exists(state / "state.json");
  // A part of another step is named as such, not by its size.
  if (has_state) open_optimizer_files(state);
  if (!verify_checksums(checkpoint, VerifiedFiles::kSmall)) check_json_files(checkpoint);
  if (!has_state) {
    throw data_error("it has no {}, which every checkpoint of a run has", (state / "state.json").string());
  }
  io::read_ordered_json(state / "state.json");
  io::read_ordered_json(state / "ledger.json");
  if (models::is_adapter(checkpoint)) {
    models::read_adapter_settings(checkpoint);
  } else {
    const io::CheckpointTensors weights(checkpoint);
  }
}

void check_range(std::string_view key, int64_t value, int64_t least, int64_t most, const std::filesystem::path& path) {
  if (value >= least && value <= most) return;
  throw data_error(
      "{}: {} is {}, which is not from {} to {}: the file was changed or damaged; copy the checkpoint again, or move "
      "it "
      "away to go on from the one before it",
      path.string(), key, value, least, most);
}

/// A count of the fingerprint; nothing where it has none.
std::optional<int64_t> count_in(const nlohmann::ordered_json& fingerprint, const char* key) {
  return number_behind("", text_in(fingerprint, key));
}

/// The most steps that a run of the fingerprint takes from its last change on. The one it names goes through each
/// sample once an epoch; how often sources repeat their samples is in their text, which checksums hold and no bound
/// does.
int64_t most_steps(const nlohmann::ordered_json& fingerprint) {
  const bool may_repeat = text_in(fingerprint, "data.train").find("repeat") != std::string::npos;
  return may_repeat ? engine::kMostSteps : count_in(fingerprint, kStepsKey).value_or(engine::kMostSteps);
}

void check_ranges(const RunState& state, const std::filesystem::path& checkpoint, const std::filesystem::path& path) {
  // Far above what any run reaches, and far below where counting on overflows.
  constexpr int64_t kMostEpochs = int64_t{1} << 53;
  constexpr int64_t kMostSamples = int64_t{1} << 53;
  check_range("changed_at", state.changed_at, 0, engine::kMostSteps, path);
  // Epochs begin anew where the data set changes.
  const int64_t steps = std::min(state.changed_at + most_steps(state.fingerprint), engine::kMostSteps);
  if (state.total_steps) check_range("total_steps", *state.total_steps, 1, steps, path);
  const auto named = step_of(checkpoint);
  if (named && *named != state.step) {
    throw data_error(
        "{}: step is {}, but the folder's name says {}: the file was changed, or the folder renamed; copy the "
        "checkpoint again, or move it away to go on from the one before it",
        path.string(), state.step, *named);
  }
  check_range("step", state.step, state.changed_at, state.total_steps.value_or(steps), path);
  check_range("skipped_steps", state.skipped_steps, 0, state.step, path);
  check_range("schedule_start", state.schedule_start.step, 0, state.step, path);
  check_range("schedule_start_skipped", state.schedule_start.skipped_steps, 0,
              std::min(state.schedule_start.step, state.skipped_steps), path);
  for (const data::Place& place : state.cursor.lanes) {
    check_range("epoch", place.epoch, 0, kMostEpochs, path);
    check_range("position", place.position, 0, count_in(state.fingerprint, kSamplesKey).value_or(kMostSamples) - 1,
                path);
  }
  check_range("batches", state.cursor.batches, 0, engine::kMostSteps, path);
  for (const double due : state.cursor.due) {
    if (std::isfinite(due)) continue;
    throw data_error("{}: due is not finite: the file was changed; copy the checkpoint again", path.string());
  }
}

/// Of a checkpoint from before there were lanes too.
data::Cursor cursor_of(const nlohmann::ordered_json& json, int64_t step, const std::string& path) {
  const auto place_of = [&](const nlohmann::ordered_json& place) {
    return data::Place{.epoch = io::get<int64_t>(place, "epoch", path),
                       .position = io::get<int64_t>(place, "position", path)};
  };
  if (!json.contains("cursor")) return {.lanes = {place_of(json)}, .due = {0}, .batches = step};
  const auto& cursor = json["cursor"];
  data::Cursor read{.lanes = {},
                    .due = io::get<std::vector<double>>(cursor, "due", path),
                    .batches = io::get<int64_t>(cursor, "batches", path)};
  const auto lanes = cursor.find("lanes");
  if (lanes == cursor.end() || !lanes->is_array() || lanes->size() != read.due.size()) {
    throw data_error("{}: cursor has no list of lanes with as many entries as due; copy the checkpoint again", path);
  }
  read.lanes.reserve(lanes->size());
  for (const auto& place : *lanes) read.lanes.push_back(place_of(place));
  return read;
}

EvaluationState evaluation_of(const nlohmann::ordered_json& json, int64_t step, const std::filesystem::path& path) {
  EvaluationState evaluation;
  if (json.is_null()) return evaluation;
  const auto source = fmt::format("{}: evaluation", path.string());
  const auto refuse = [&](const std::string& what) {
    throw data_error(
        "{}: {}: the file was changed or damaged; copy the checkpoint again, or move it away to go on from "
        "the one before it",
        source, what);
  };
  if (!json.is_object()) refuse(fmt::format("is {}, no object", io::json_excerpt(json)));
  evaluation.basis = json.value("basis", nlohmann::ordered_json());
  evaluation.without_improvement = io::get<int64_t>(json, "without_improvement", source);
  evaluation.is_due = io::get<bool>(json, "is_due", source);
  check_range("evaluation.without_improvement", evaluation.without_improvement, 0, step, path);
  if (json.contains("best_step") != json.contains("best_value")) refuse("has one of best_step and best_value");
  if (!json.contains("best_step")) return evaluation;
  evaluation.best_step = io::get<int64_t>(json, "best_step", source);
  evaluation.best_value = io::get<double>(json, "best_value", source);
  check_range("evaluation.best_step", *evaluation.best_step, 1, step, path);
  if (!std::isfinite(*evaluation.best_value)) refuse("best_value is not finite");
  if (!json.contains("best_loss")) return evaluation;
  evaluation.best_loss = io::get<double>(json, "best_loss", source);
  if (!std::isfinite(*evaluation.best_loss)) refuse("best_loss is not finite");
  return evaluation;
}

std::filesystem::path checkpoint_of_step(const std::filesystem::path& folder, int64_t step) {
  return folder / fmt::format("{}{}", kPrefix, step);
}

void write_all_but_optimizer(const CheckpointContent& content, const std::filesystem::path& folder) {
  content.model.write(folder, kShardBytes);
  io::write_file(state_folder(folder) / "ledger.json", content.ledger);
  io::write_file(state_folder(folder) / "state.json", content.state);
}

}  // namespace

std::optional<std::filesystem::path> newest_checkpoint(const std::filesystem::path& run_dir) {
  const auto checkpoints = all_checkpoints(run_dir / "checkpoints");
  return checkpoints.empty() ? std::nullopt : std::optional{checkpoints.back().second};
}

std::optional<std::filesystem::path> best_checkpoint(const std::filesystem::path& run_dir) {
  const auto newest = newest_checkpoint(run_dir);
  std::error_code error;
  // A checkpoint that was published without its state is one all the same.
  if (!newest || !std::filesystem::exists(state_folder(*newest) / "state.json", error)) return std::nullopt;
  const auto best = load_run_state(*newest).evaluation.best_step;
  if (!best) return std::nullopt;
  auto folder = checkpoint_of_step(run_dir / "checkpoints", *best);
  return std::filesystem::is_directory(folder, error) ? std::optional{std::move(folder)} : std::nullopt;
}

RunCheckpoints::RunCheckpoints(const std::filesystem::path& run_dir, int64_t keep, bool keep_best)
    : folder_(run_dir / "checkpoints"), keep_(keep), keep_best_(keep_best) {
  io::clean_leftovers(run_dir);
  io::clean_leftovers(folder_);
}

std::optional<std::filesystem::path> RunCheckpoints::newest() const {
  return newest_checkpoint(folder_.parent_path());
}

void RunCheckpoints::check(CheckedContents contents) const {
  if (!std::filesystem::exists(folder_)) return;
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    if (step_of(entry.path()) && !entry.is_directory()) {
      throw data_error("{}: has the name of a checkpoint and is no folder; move it away", entry.path().string());
    }
  }
  const auto checkpoints = all_checkpoints(folder_);
  if (checkpoints.empty()) return;
  const auto& newest = checkpoints.back().second;
  try {
    check_whole(newest);
    if (contents == CheckedContents::kAll) verify_checksums(newest, VerifiedFiles::kAll);
  } catch (const UserError& error) {
    const bool is_only = checkpoints.size() == 1;
    throw data_error("{}: is not a whole checkpoint: {}. Move it away to {}, or copy it again", newest.string(),
                     error.what(),
                     is_only ? std::string("begin the run anew")
                             : "go on from " + checkpoints[checkpoints.size() - 2].second.filename().string());
  }
}

std::filesystem::path RunCheckpoints::write(const CheckpointContent& content) {
  std::filesystem::path checkpoint = checkpoint_of_step(folder_, content.step);
  check_folder();
  io::AtomicDirectory folder(checkpoint);
  std::filesystem::create_directory(state_folder(folder.path()));
  {
    const io::ChecksumRecorder recorder;
    write_all_but_optimizer(content, folder.path());
    io::write_safetensors(state_folder(folder.path()) / optimizer_file_name(0, 1), content.optimizer);
    write_checksums(folder.path(), checksums_within(folder.path(), recorder));
  }
  folder.commit();
  committed(content.best_step);
  return checkpoint;
}

std::filesystem::path RunCheckpoints::write_parts(const CheckpointContent& content, const OwnPart& part,
                                                  const engine::Consensus& consensus) {
  std::filesystem::path checkpoint = checkpoint_of_step(folder_, content.step);
  std::optional<io::AtomicDirectory> folder;
  if (part.is_first) {
    check_folder();
    folder.emplace(checkpoint);
    std::filesystem::create_directory(state_folder(folder->path()));
  }
  const std::filesystem::path shared = consensus.each(folder ? folder->path().string() : "").front();
  const io::ChecksumRecorder recorder;
  if (folder) write_all_but_optimizer(content, shared);
  part.follow();
  if (!part.is_copy) {
    io::write_safetensors(state_folder(shared) / optimizer_file_name(part.shard.rank, part.shard.count),
                          content.optimizer, metadata_of_part(part.shard.rank, content.step));
  }
  // All parts are whole, and rank 0 knows their checksums.
  const auto parts = consensus.each(to_json_text(checksums_within(shared, recorder)));
  if (folder) {
    CheckpointChecksums all;
    for (const auto& text : parts) all.merge(checksums_in(text, "checksums of a rank"));
    write_checksums(shared, all);
    folder->commit();
    committed(content.best_step);
  }
  consensus.each("");
  return checkpoint;
}

void RunCheckpoints::committed(std::optional<int64_t> best_step) {
  link_best(best_step);
  remove_old(best_step);
}

void RunCheckpoints::check_folder() const {
  const auto run_dir = folder_.parent_path();
  if (std::filesystem::exists(run_dir)) return;
  throw run_error(
      "cannot write {}: the run's folder {} was removed or renamed while the run went on; the same command begins "
      "anew, or goes on where the folder is put back",
      folder_.string(), run_dir.string());
}

void RunCheckpoints::link_best(std::optional<int64_t> best_step) {
  const auto link = folder_ / kBest;
  std::error_code error;
  if (!std::filesystem::is_directory(folder_, error)) return;
  const auto target = best_step ? checkpoint_of_step(folder_, *best_step) : link;
  if (!keep_best_ || target == link || !std::filesystem::is_directory(target, error)) {
    if (std::filesystem::is_symlink(link, error)) std::filesystem::remove(link, error);
    return;
  }
  if (std::filesystem::read_symlink(link, error) == target.filename() || !has_links_) return;
  try {
    io::write_link(link, target.filename());
  } catch (const UserError& problem) {
    has_links_ = false;
    spdlog::warn("{}: no link to the best checkpoint: {}; the run goes on, and state.json names its step",
                 link.string(), problem.what());
  }
}

void RunCheckpoints::remove_old(std::optional<int64_t> best_step) {
  std::erase_if(remains_, [](const auto& path) { return !io::remove_directory(path); });
  const auto checkpoints = all_checkpoints(folder_);
  const auto surplus = static_cast<int64_t>(checkpoints.size()) - keep_;
  for (int64_t i = 0; i < surplus; ++i) {
    const auto& [step, path] = checkpoints[static_cast<size_t>(i)];
    if (!keep_best_ || step != best_step) remove(path);
  }
}

void RunCheckpoints::remove(const std::filesystem::path& checkpoint) {
  const auto remains = io::remove_directory(checkpoint);
  if (!remains) return;
  spdlog::warn("{}: an old checkpoint cannot be removed: {}; the run goes on, and tries again with the next checkpoint",
               remains->path.string(), remains->reason);
  if (remains->path != checkpoint) remains_.push_back(remains->path);
}

namespace {

std::filesystem::path verified(const std::filesystem::path& checkpoint) {
  verify_checksums(checkpoint, VerifiedFiles::kModelWeights);
  return checkpoint;
}

}  // namespace

std::filesystem::path checkpoint_in(const std::filesystem::path& folder) try {
  const auto holds = [&folder](const char* name) {
    std::error_code error;
    return std::filesystem::exists(folder / name, error);
  };
  if (holds("config.json") || models::is_adapter(folder) || !(holds("checkpoints") || holds("run.lock"))) {
    return verified(folder);
  }
  const auto newest = newest_checkpoint(folder);
  if (!newest) {
    throw data_error(
        "{}: is the folder of a run that has no checkpoint yet; one is written every output.save_steps steps, and at "
        "the end",
        folder.string());
  }
  const auto best = best_checkpoint(folder);
  spdlog::info("{}: is the folder of a run; its {} checkpoint is taken, {}", folder.string(), best ? "best" : "newest",
               best.value_or(*newest).string());
  return verified(best.value_or(*newest));
} catch (const std::filesystem::filesystem_error& error) {
  throw data_error("{}: cannot be looked at: {}; give the folder of a checkpoint or of a run", folder.string(),
                   error.code().message());
}

RunState load_run_state(const std::filesystem::path& checkpoint) {
  const auto path = state_folder(checkpoint) / "state.json";
  const auto json = io::read_ordered_json(path);
  const auto number = [&](const char* key) { return io::get_or<int64_t>(json, key, 0, path.string()); };
  RunState state;
  state.step = io::get<int64_t>(json, "step", path.string());
  state.skipped_steps = number("skipped_steps");
  if (json.contains("total_steps")) state.total_steps = io::get<int64_t>(json, "total_steps", path.string());
  state.cursor = cursor_of(json, state.step, path.string());
  state.changed_at = number("changed_at");
  state.schedule_start = {.step = number("schedule_start"), .skipped_steps = number("schedule_start_skipped")};
  state.settled_parts = io::get_or<std::vector<std::string>>(json, "settled_parts", {}, path.string());
  state.task_balance = json.value("task_balance", nlohmann::ordered_json());
  state.evaluation = evaluation_of(json.value("evaluation", nlohmann::ordered_json()), state.step, path);
  state.host_memory = json.value("host_memory", nlohmann::ordered_json());
  state.device_memory = json.value("device_memory", nlohmann::ordered_json());
  state.fingerprint = json.value("fingerprint", nlohmann::ordered_json::object());
  if (!state.fingerprint.is_object()) {
    throw data_error("{}: fingerprint is {}, not a list of settings; copy the checkpoint again", path.string(),
                     io::json_excerpt(state.fingerprint));
  }
  check_ranges(state, checkpoint, path);
  return state;
}

void load_optimizer(const std::filesystem::path& checkpoint, engine::AdamW& optimizer) {
  // Each tensor is mapped when its turn comes: all at once are as much address space again as the optimizer takes.
  std::map<std::string, engine::UnreadTensor> state;
  for (const auto& path : optimizer_files(state_folder(checkpoint))) {
    const auto file = std::make_shared<const io::SingleTensors>(path);
    for (const auto& name : file->names()) {
      const io::TensorInfo& info = file->info(name);
      state.emplace(name, engine::UnreadTensor{.dtype = info.dtype, .shape = info.shape, .read = [file, name] {
                                                 return file->tensor(name);
                                               }});
    }
  }
  optimizer.load_state(engine::SavedPieces(state), optimizer_source(checkpoint));
}

engine::CarriedStates carry_optimizer(const std::filesystem::path& checkpoint, const models::BaseWeights& saved,
                                      const nn::ParameterStore& store, engine::AdamW& optimizer) {
  auto tensors = saved_state(checkpoint);
  const engine::SavedPieces state(tensors);
  for (const auto& parameter : store.all()) {
    const auto* const entry = saved.find(parameter);
    const std::string master = "master." + parameter.name;
    if (entry == nullptr || state.contains(master) || !state.contains("first_moment." + parameter.name)) continue;
    tensors.emplace(master, entry->read().to(at::kFloat));
  }
  return optimizer.carry_state(store, tensors, optimizer_source(checkpoint));
}

nlohmann::ordered_json load_ledger(const std::filesystem::path& checkpoint) {
  return io::read_ordered_json(state_folder(checkpoint) / "ledger.json");
}

}  // namespace vlmtrain::train
