#include <nlohmann/json.hpp>

#include <cmath>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "app/commands.h"
#include "app/mask_folder.h"
#include "app/mask_overlays.h"
#include "app/mask_table.h"
#include "app/new_tokens.h"
#include "app/openmp_waiting.h"
#include "app/output_file.h"
#include "app/run_device.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/number_behind.h"
#include "vlmtrain/base/number_words.h"
#include "vlmtrain/evaluation/evaluate.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/json_text.h"
#include "vlmtrain/models/adapter.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/train/chat_template_date.h"
#include "vlmtrain/train/config.h"
#include "vlmtrain/train/media_options_of_run.h"
#include "vlmtrain/train/planned_evaluation.h"
#include "vlmtrain/train/run_checkpoint.h"
#include "vlmtrain/train/setup.h"

namespace vlmtrain::app {

namespace {

void print_table(const evaluation::Evaluation& result) {
  fmt::print("{:<16} {:>8} {:>12}\n", "task", "samples", "exact match");
  const auto row = [](const std::string& name, const evaluation::TaskScore& score) {
    fmt::print("{:<16} {:>8} {:>11.1f}%\n", name, score.samples, 100 * score.exact_match());
  };
  for (const auto& [task, score] : result.by_task) row(task, score);
  row("all", result.total);
  if (result.closed.samples > 0) {
    fmt::print("closed {:>17} {:>11.1f}% right\n", result.closed.samples, 100 * result.closed.accuracy());
  }
  if (result.open.samples > 0) {
    fmt::print("open {:>19} {:>11.1f}% of the words recalled\n", result.open.samples, 100 * result.open.recall());
  }
  fmt::print("loss {:.4f} over {} label tokens\n", result.total.loss(), result.total.label_tokens);
  fmt::print("{}", mask_table(result.masks));
  if (result.left_out > 0) fmt::print("{} samples left out for lack of memory\n", result.left_out);
  if (result.skipped > 0) fmt::print("{} bad samples skipped\n", result.skipped);
}

Auto<int64_t> batch_size_of(const std::string& text) {
  if (text == "auto") return {};
  constexpr int64_t kMost = 1'000'000;
  const auto size = number_behind("", text);
  if (size && *size >= 1 && *size <= kMost) return size;
  throw usage_error("--batch-size {}: must be auto, or from 1 to {}", text, kMost);
}

/// --base, or where the folder that an adapter names as its base does not exist, model.path.
std::string base_to_use(const EvalArguments& arguments, const train::Config& config,
                        const std::filesystem::path& checkpoint) {
  if (!arguments.base.empty() || !models::is_adapter(checkpoint)) return arguments.base;
  const auto file = checkpoint / "adapter_config.json";
  const auto named = io::get_or<std::string>(io::read_json(file), "base_model_name_or_path", "", file.string());
  std::error_code error;
  const bool is_there = std::filesystem::exists(named, error);
  if (is_there || !std::filesystem::exists(std::filesystem::path(config.model.path) / "config.json", error)) return "";
  spdlog::warn(
      "{}: base_model_name_or_path {} does not exist; model.path {} is used as the base (--base names another)",
      file.string(), named, config.model.path);
  return config.model.path;
}

}  // namespace

ExitCode eval(const EvalArguments& arguments) {
  start_log(/*quiet=*/false);
  // "closed":true,"expected":"… or false: before any long text of a line.
  refuse_to_overwrite({"--answers", arguments.answers, "answers of eval", R"(e,"expected":")"});
  // What starts the program once more comes before the configuration: one from a pipe can be read once.
  const at::Device device = open_device(arguments.device);
  if (device.is_cpu()) restart_with_openmp_waiting();
  train::Config config;
  train::declare(config).read(arguments.config, arguments.overrides);
  if (config.data.eval.empty()) throw usage_error("data.eval: empty; name the file to evaluate on");
  config.evaluation = {.samples = {},
                       .answers = true,
                       .max_new_tokens = arguments.max_new_tokens,
                       .batch_size = batch_size_of(arguments.batch_size)};
  const auto checkpoint = train::checkpoint_in(arguments.checkpoint);
  train::settle_chat_template_date(config.data, checkpoint);
  for (const auto& setting : train::take_media_options_of_run(checkpoint, config.data)) {
    spdlog::info("{}, as the model was trained", setting);
  }
  const auto [base, adapter] = models::base_and_adapter(checkpoint, base_to_use(arguments, config, checkpoint));
  const auto processor = models::load_processor(base, train::processor_settings(config.data, adapter));
  std::optional<MaskOverlays> overlays;
  if (!arguments.mask_out.empty()) {
    check_draws_masks(*processor, arguments.checkpoint);
    overlays.emplace(arguments.mask_out);
  }
  const auto planned = train::plan_evaluation(config, checkpoint, *processor, device, base);
  const auto model = models::load_model(checkpoint, device, engine::dtype_of(config.training.precision), base);

  std::string lines;
  auto result = evaluation::evaluate(*model, *processor, *planned.records, planned.settings,
                                     [&](const evaluation::Answer& answer) {
                                       if (overlays) overlays->add(planned.records->at(answer.index), answer);
                                       const bool is_closed = answer.type == evaluation::AnswerType::kClosed;
                                       lines += io::json_text(nlohmann::ordered_json{{"id", answer.id},
                                                                                     {"task", answer.task},
                                                                                     {"closed", is_closed},
                                                                                     {"expected", answer.expected},
                                                                                     {"given", answer.given},
                                                                                     {"question", answer.question}}) +
                                                "\n";
                                     });
  result.skipped += planned.dropped;
  if (!planned.notices_are_logged) data::log_notices(result.notices, config.data.eval, planned.records->size());
  if (overlays) spdlog::info("{}: {} written", arguments.mask_out, counted(overlays->written(), "overlay"));
  if (!arguments.answers.empty()) io::write_file(arguments.answers, lines);
  if (arguments.json) {
    fmt::print("{}\n", result.to_json());
  } else {
    print_table(result);
  }
  if (!std::isfinite(result.total.loss())) {
    spdlog::warn(
        "the loss is no finite number: the weights are not, or what is read has values that overflow (of scans, "
        "data.volume.normalization decides)");
  }
  return ExitCode::kDone;
}

}  // namespace vlmtrain::app
