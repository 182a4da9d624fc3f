#include <c10/core/Device.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "app/commands/commands.h"
#include "app/masks/mask_files.h"
#include "app/process/device.h"
#include "app/process/output.h"
#include "app/settings/process_setup.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/evaluation/evaluate.h"
#include "vlmtrain/evaluation/evaluated_answer.h"
#include "vlmtrain/evaluation/metrics.h"
#include "vlmtrain/evaluation/scores.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/models/adapter.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/train/components.h"
#include "vlmtrain/train/config.h"
#include "vlmtrain/train/hub_references.h"
#include "vlmtrain/train/planning.h"
#include "vlmtrain/train/run_checkpoint.h"
#include "vlmtrain/train/saved_settings.h"

namespace vlmtrain::app {

namespace {

/// Maximum characters of the name of a task or structure in a table. Not tuned.
constexpr size_t kMaxNameCharacters = 40;

std::string format_mask_score_header(const char* name) {
  return fmt::format("{:<20} {:>7} {:>7} {:>7} {:>15}\n", name, "masks", "Dice", "IoU", "Hausdorff-95");
}

std::string format_mask_score_row(const std::string& name, const evaluation::MaskScoreSums& sums) {
  const auto distance = sums.hausdorff95();
  return fmt::format("{:<20} {:>7} {:>7.3f} {:>7.3f} {:>15}\n", make_excerpt(name, kMaxNameCharacters), sums.num_masks,
                     sums.dice(), sums.iou(), distance ? fmt::format("{:.2f} px", *distance) : "-");
}

std::string format_mask_score_rows(const std::map<std::string, evaluation::MaskScoreSums>& groups) {
  std::string text;
  for (const auto& [name, sums] : groups) text += format_mask_score_row(name, sums);
  return text;
}

/// Returns the table of mask scores by task, of all masks and by structure (such as an organ), or
/// "" if the data have no masks.
std::string format_mask_score_table(const evaluation::MaskScores& scores) {
  if (scores.total().num_masks == 0) return "";
  std::string text = format_mask_score_header(scores.by_task().empty() ? "masks" : "masks by task");
  text += format_mask_score_rows(scores.by_task()) + format_mask_score_row("all", scores.total());
  if (!scores.by_structure().empty())
    text += format_mask_score_header("masks by structure") + format_mask_score_rows(scores.by_structure());
  const auto& total = scores.total();
  if (total.num_empty_truths + total.num_empty_predictions > 0) {
    text += fmt::format(
        "{} of {} masks are empty in the data, and {} predicted masks are empty: Dice and IoU are 1 if both are empty, "
        "else 0\n",
        total.num_empty_truths, total.num_masks, total.num_empty_predictions);
  }
  return text;
}

/// Returns the table of the metrics of eval.metrics by task, or "" without metrics.
std::string format_metric_table(const evaluation::EvaluationResult& result) {
  if (result.total.metric_sums.empty()) return "";
  constexpr size_t kMinColumnWidth = 8;
  std::string text = fmt::format("{:<16}", "metrics");
  for (const auto& [metric, sum] : result.total.metric_sums)
    text += fmt::format(" {:>{}}", evaluation::to_string(metric), kMinColumnWidth);
  const auto add_row = [&](const std::string& name, const evaluation::MetricSums& sums) {
    text += fmt::format("\n{:<16}", make_excerpt(name, kMaxNameCharacters));
    for (const auto& [metric, sum] : sums) {
      const auto value = sum.value();
      text += fmt::format(" {:>{}}", value ? fmt::format("{:.4f}", *value) : "-",
                          std::max(kMinColumnWidth, evaluation::to_string(metric).size()));
    }
  };
  for (const auto& [task, score] : result.by_task) add_row(task, score.metric_sums);
  add_row("all", result.total.metric_sums);
  return text + "\n";
}

void print_evaluation(const evaluation::EvaluationResult& result) {
  fmt::print("{:<16} {:>8} {:>12}\n", "task", "samples", "exact match");
  const auto print_row = [](const std::string& name, const evaluation::TaskScore& score) {
    fmt::print("{:<16} {:>8} {:>11.1f}%\n", name, score.num_samples, 100 * score.exact_match());
  };
  for (const auto& [task, score] : result.by_task) print_row(task, score);
  print_row("all", result.total);
  if (result.closed_question_score.num_samples > 0) {
    fmt::print("closed {:>17} {:>11.1f}% correct\n", result.closed_question_score.num_samples,
               100 * result.closed_question_score.accuracy());
  }
  if (result.open_question_score.num_samples > 0) {
    fmt::print("open {:>19} {:>11.1f}% word recall\n", result.open_question_score.num_samples,
               100 * result.open_question_score.recall());
  }
  fmt::print("loss {:.4f} over {} label tokens\n", result.total.loss(), result.total.num_label_tokens);
  fmt::print("{}{}", format_metric_table(result), format_mask_score_table(result.masks));
  if (result.num_dropped_samples > 0)
    fmt::print("{} dropped for lack of memory\n", pluralize(result.num_dropped_samples, "sample"));
  if (result.num_skipped_samples > 0) fmt::print("{} skipped\n", pluralize(result.num_skipped_samples, "bad sample"));
}

/// Parses the value of --batch-size. Throws UserError (kUsage).
AutoOr<int64_t> parse_batch_size(const std::string& text) {
  if (text == "auto") return {};
  constexpr int64_t kMaxBatchSize = 1'000'000;  // far above any batch that fits; not tuned
  const auto size = parse_int_after_prefix("", text);
  if (size && *size >= 1 && *size <= kMaxBatchSize) return size;
  throw usage_error("--batch-size {}: must be auto, or from 1 to {}", text, kMaxBatchSize);
}

/// Returns --base if given. Otherwise returns model.path if `checkpoint` is an adapter whose
/// adapter_config.json names a base that is not on this machine. Otherwise returns "", so that the
/// adapter's base is used.
std::string find_base_checkpoint(const EvalArguments& arguments, const train::Config& config,
                                 const std::filesystem::path& checkpoint) {
  if (!arguments.base.empty()) return train::fetch_model_folder(arguments.base);
  if (!models::is_adapter(checkpoint)) return "";
  std::error_code error;
  const bool has_model_path =
      std::filesystem::exists(std::filesystem::path(config.model.folder()) / "config.json", error);
  if (!has_model_path || models::has_local_base(checkpoint)) return "";
  spdlog::warn("{}: base_model_name_or_path is not on this machine; {} {} is used as the base (--base sets another)",
               (checkpoint / "adapter_config.json").string(), keys::model::kPath, config.model.path);
  return config.model.folder();
}

}  // namespace

ExitCode eval(const EvalArguments& arguments) {
  init_logging(/*quiet=*/false);
  // The signature is a part of `"closed":true,"expected":"…` (or false) in the first line, which
  // starts with these fields. Only short fields, "id" and "task", precede it.
  check_can_overwrite({"--answers", arguments.answers, "answers of eval", R"(e,"expected":")"});
  // Opening the device may execute the program again. The configuration is read after that, since
  // it may be a pipe, which can be read only once.
  const at::Device device = open_device(arguments.device);
  if (device.is_cpu()) restart_with_openmp_wait_policy();
  train::Config config;
  train::declare_options(config).read(arguments.config, arguments.overrides);
  if (config.data.eval.empty()) throw usage_error("{}: empty; set it to the file to evaluate on", keys::data::kEval);
  config.evaluation = {.samples = {},
                       .generate_answers = true,
                       .max_new_tokens = arguments.max_new_tokens,
                       .batch_size = parse_batch_size(arguments.batch_size),
                       .metrics = config.evaluation.metrics};
  const auto checkpoint = train::resolve_checkpoint(train::fetch_model_folder(arguments.checkpoint));
  train::fetch_hub_data(config);
  train::resolve_chat_template_date(config.data, checkpoint);
  for (const auto& setting : train::apply_saved_media_settings(checkpoint, config.data)) {
    spdlog::info("{}, as in the training of the checkpoint", setting);
  }
  const auto [base, adapter] =
      models::resolve_base_and_adapter(checkpoint, find_base_checkpoint(arguments, config, checkpoint));
  // The evaluated model, whatever the configuration names.
  config.model.path = base.string();
  config.model.path_in_cache.clear();
  const auto processor = models::load_processor(base, train::make_processor_settings(config.data, adapter));
  std::optional<MaskOverlayWriter> overlay_writer;
  if (!arguments.mask_output_dir.empty()) {
    check_predicts_masks(*processor, arguments.checkpoint);
    overlay_writer.emplace(arguments.mask_output_dir);
  }
  const auto plan = train::plan_evaluation(config, checkpoint, *processor, device, base);
  const auto model = models::load_model(checkpoint, device, engine::to_dtype(config.training.precision), base);

  std::string answers_jsonl;
  auto result = evaluation::evaluate(
      *model, *processor, *plan.records, plan.settings, [&](const evaluation::EvaluatedAnswer& answer) {
        if (overlay_writer) overlay_writer->add(plan.records->at(answer.index), answer);
        const bool is_closed_question = answer.answer_type == evaluation::AnswerType::kClosed;
        nlohmann::ordered_json json{{"id", answer.id},
                                    {"task", answer.task},
                                    {"closed", is_closed_question},
                                    {"expected", answer.expected},
                                    {"prediction", answer.prediction},
                                    {"question", answer.question}};
        if (!answer.metric_sums.empty())
          json["metrics"] = report::metrics_to_json(evaluation::get_metric_values(answer.metric_sums));
        io::add_field_aliases(json, {{"prediction", "answer"}, {"prediction", "given"}});
        answers_jsonl += io::to_json_string(json) + "\n";
      });
  result.num_skipped_samples += plan.num_bad_samples;
  if (!plan.has_logged_notices) data::log_notices(result.notices, config.data.eval, plan.records->size());
  if (overlay_writer)
    spdlog::info("{}: {} written", arguments.mask_output_dir,
                 pluralize(overlay_writer->num_written_images(), "overlay"));
  if (!arguments.answers.empty()) io::write_file(arguments.answers, answers_jsonl);
  if (arguments.json) {
    fmt::print("{}\n", result.to_json());
  } else {
    print_evaluation(result);
  }
  if (!std::isfinite(result.total.loss())) {
    spdlog::warn(
        "{}: the loss is not finite, because weights are not finite or inputs overflow; use an earlier checkpoint or "
        "{}=fp32; for volumes, check {}",
        arguments.checkpoint, keys::training::kPrecision, keys::data::kVolumeNormalization);
  }
  return ExitCode::kSuccess;
}

}  // namespace vlmtrain::app
