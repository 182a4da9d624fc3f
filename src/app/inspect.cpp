#include <optional>
#include <string>
#include <vector>

#include "app/commands.h"
#include "app/output_file.h"
#include "app/planned_config.h"
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

/// The card that memory is predicted for: one that is named.
std::optional<planner::TargetCard> card_to_predict_for(const InspectArguments& arguments) {
  if (arguments.card.gpu.empty() && !arguments.card.gpu_gigabytes) return std::nullopt;
  planner::TargetCard card = card_of(arguments.card);
  const auto past = train::past_runs(train::past_runs_file(), train::place_of_card(card.device_name));
  if (past) train::learn(card, *past);
  return card;
}

}  // namespace

ExitCode inspect(const InspectArguments& arguments) {
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

}  // namespace vlmtrain::app
