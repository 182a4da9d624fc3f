#include "vlmtrain/train/trainer.h"

#include <c10/util/Exception.h>

#include <memory>
#include <optional>

#include "train/loop/training_loop.h"
#include "train/run/rank_group.h"
#include "train/run/run_folder.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/hash.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/report/environment.h"
#include "vlmtrain/train/checks.h"

namespace vlmtrain::train {

std::string TrainingSummary::to_json() const {
  nlohmann::ordered_json json{
      {"stopped", was_stopped_by_signal}, {"steps", steps}, {"last_loss", nullptr}, {"checkpoint", nullptr}};
  if (last_loss) json["last_loss"] = *last_loss;
  if (newest_checkpoint) json["checkpoint"] = newest_checkpoint->string();
  json["reserved_peak_bytes"] = reserved_peak_bytes;
  json["planned_peak_bytes"] = nullptr;
  if (planned_peak_bytes) json["planned_peak_bytes"] = *planned_peak_bytes;
  json["skipped_steps"] = num_skipped_steps;
  json["callback_seconds"] = callback_seconds;
  json["save_seconds"] = save_seconds;
  json["early_stopped"] = was_stopped_early;
  json["best_metric"] = best_metric.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(best_metric);
  json["best_step"] = best_step ? nlohmann::ordered_json(*best_step) : nlohmann::ordered_json();
  json["best_value"] = best_metric_value ? nlohmann::ordered_json(*best_metric_value) : nlohmann::ordered_json();
  json["best_checkpoint"] = nullptr;
  if (best_checkpoint) json["best_checkpoint"] = best_checkpoint->string();
  json["last_evaluation"] = nullptr;
  if (last_evaluation) json["last_evaluation"] = nlohmann::ordered_json::parse(last_evaluation->to_json());
  return io::to_json_string(json);
}

namespace {

/// Trains as one rank. Rank 0 locks the run's folder and writes its files.
TrainingSummary train_as_rank(const Config& config, const std::string& resolved_yaml, at::Device device,
                              const RankGroup& ranks, bool quiet) {
  std::optional<RunLock> lock;
  ranks.main_process_first([&] {
    create_run_folder(get_run_folder(config));
    if (ranks.is_main_process()) lock.emplace(get_run_folder(config));
  });
  if (!ranks.is_main_process()) log_to_file(get_run_folder(config) / fmt::format("rank-{}.log", ranks.rank()));
  auto trainer = std::make_unique<TrainingLoop>(config, device, ranks, quiet);
  if (ranks.is_main_process()) {
    io::write_file(get_run_folder(config) / "config.yaml", resolved_yaml);
    io::write_file(get_run_folder(config) / "environment.json", report::Environment::collect(device).to_json());
  }
  try {
    return trainer->train();
  } catch (const c10::AcceleratorError&) {
    // Destructors that free memory of a failed device throw, which would terminate the process
    // without a message. The object is leaked instead.
    static_cast<void>(trainer.release());
    throw;
  }
}

}  // namespace

TrainingSummary train(const Config& config, const std::string& resolved_yaml, at::Device device, bool quiet,
                      const std::optional<distributed::LaunchInfo>& launch) {
  check_config(config);
  const RankGroup ranks(launch, std::chrono::seconds(config.distributed.rendezvous_timeout_seconds));
  TrainingSummary summary;
  ranks.run_and_report_failure([&] {
    check_world_size(config, ranks.world_size());
    if (const auto difference = ranks.find_difference(report::Environment::get_program_commit())) {
      throw usage_error(
          "vlmtrain: {} a different program than rank 0 (commit {}, not {}); install the same on all nodes",
          difference->ranks, difference->value, difference->value_0);
    }
    if (const auto difference = ranks.find_difference(ContentHash().add(resolved_yaml).to_hex())) {
      throw usage_error(
          "--config: {} a different configuration than rank 0; start all ranks with the same file and overrides",
          difference->ranks);
    }
    summary = train_as_rank(config, resolved_yaml, device, ranks, quiet);
  });
  return summary;
}

}  // namespace vlmtrain::train
