#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/command.h"
#include "app/output_file.h"
#include "app/plan_arguments.h"
#include "app/preset_folder.h"
#include "app/terminal_style.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/json_text.h"
#include "vlmtrain/report/inspection_page.h"
#include "vlmtrain/report/inspection_text.h"
#include "vlmtrain/train/chat_template_date.h"
#include "vlmtrain/train/inspection.h"
#include "vlmtrain/train/past_runs.h"

namespace vlmtrain::app {

namespace {

constexpr int64_t kMostShown = 100;

struct Arguments {
  std::string config;
  std::vector<std::string> overrides;
  PlanArguments card;  ///< of it only --gpu and --gpu-gb
  std::string tokenizer;
  bool decode = false;
  int64_t samples = 3;
  std::vector<std::string> records;
  std::string html;
  bool json = false;
};

/// The card that memory is predicted for: one that is named.
std::optional<planner::TargetCard> card_to_predict_for(const Arguments& arguments) {
  if (arguments.card.gpu.empty() && !arguments.card.gpu_gigabytes) return std::nullopt;
  planner::TargetCard card = card_of(arguments.card);
  const auto past = train::past_runs(train::past_runs_file(), train::place_of_card(card.device_name));
  if (past) train::learn(card, *past);
  return card;
}

ExitCode inspect(const Arguments& arguments) {
  start_log(/*quiet=*/false);
  refuse_to_overwrite({"--html", arguments.html, "a page of inspect", report::kInspectionTitle});
  train::Config config;
  train::declare(config).read(arguments.config, arguments.overrides);
  if (config.model.path.empty()) throw usage_error("model.path: empty; name the checkpoint, or a preset");
  if (config.data.train.empty()) throw usage_error("data.train: empty; name the data to look at");
  train::settle_chat_template_date_of_run(config.data, config.output.dir);
  train::InspectionRequest request{.model = config.model.path,
                                   .decode = arguments.decode,
                                   .samples = arguments.samples,
                                   .records = arguments.records,
                                   .card = card_to_predict_for(arguments)};
  std::optional<report::Inspection> found;
  with_model_folder(config, arguments.tokenizer, [&](const train::Config& own, const PresetFolder* preset) {
    if (preset != nullptr) preset->require_tokenizer();
    found = train::inspect_data(own, request);
    if (preset != nullptr) found->chat_template = preset->in_words(found->chat_template);
  });
  if (!arguments.html.empty()) io::write_file(arguments.html, report::inspection_html(*found));
  if (arguments.json) {
    fmt::print("{}\n", io::json_text(found->to_json()));
  } else {
    fmt::print("{}", report::inspection_text(*found, style_of_stdout()));
  }
  return found->ends_with;
}

}  // namespace

Action declare_inspect(CLI::App& command) {
  const auto arguments = std::make_shared<Arguments>();
  command.add_option("--config", arguments->config, "YAML file; data.train names the data")->required();
  command.add_option("overrides", arguments->overrides, "key=value, such as data.max_length=4096");
  command
      .add_option("--html", arguments->html, "write all of it to this HTML file, with pictures as the model gets them")
      ->check(not_empty());
  command.add_flag("--json", arguments->json, "print it as one JSON object on stdout");
  command.add_flag("--decode", arguments->decode, "decode every picture and video, not only their headers");
  command
      .add_option("--samples", arguments->samples, "samples to show as they are trained on, the first that are drawn")
      ->check(CLI::Range(int64_t{0}, kMostShown))
      ->capture_default_str();
  command.add_option("--record", arguments->records, "and this one, by its id or its place from 1; may be repeated")
      ->expected(1)
      ->take_all();
  command
      .add_option("--gpu", arguments->card.gpu, "predict the memory of the largest samples on this card, as plan does")
      ->take_last();
  command.add_option("--gpu-gb", arguments->card.gpu_gigabytes, "or on one of this size")->take_last();
  command.add_option("--tokenizer", arguments->tokenizer, "tokenizer.json of a preset's model");
  return [arguments] { return inspect(*arguments); };
}

}  // namespace vlmtrain::app
